r"""Serves models over the REST and gRPC interfaces of TensorFlow Serving.

  python run/serve.py --model_base_path=export/mrpc
  curl -d '{"instances": ["raw text"]}' \
      http://localhost:8501/v1/models/mrpc:predict

New versions are loaded while requests are answered. http://localhost:8501/ is
a page to try a model by hand, /metrics is for Prometheus.
"""

from bert_tf import cli
from bert_tf.run_config.serve import ServeConfig


def main(config: ServeConfig) -> None:
    from bert_tf.serving.model_server import server  # So --help answers fast.

    server.run(config)


if __name__ == "__main__":
    cli.run(main, ServeConfig)
