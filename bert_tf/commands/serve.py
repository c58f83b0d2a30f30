r"""Serves models over the REST and gRPC interfaces of TensorFlow Serving.

  python run/serve.py --model_base_path=export/mrpc
  curl -d '{"instances": ["raw text"]}' \
      http://localhost:8501/v1/models/mrpc:predict

New versions are loaded while requests are answered. http://localhost:8501/ is
a page to try a model by hand, /metrics is for Prometheus.
"""

from bert_tf.flags.serve import ServeConfig


def main(config: ServeConfig) -> None:
    # So --help answers fast.
    from bert_tf.serving import server

    server.run(config)
