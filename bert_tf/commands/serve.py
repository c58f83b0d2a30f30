r"""Serves models over the REST and gRPC interfaces of TensorFlow Serving.

  python run/serve.py --model_base_path=export/mrpc
  curl -d '{"instances": ["raw text"]}' \
      http://localhost:8501/v1/models/mrpc:predict

--model_base_path may be a model, too, such as output/mrpc/model, which is first
exported to a cache. New versions are loaded without interrupting requests.
http://localhost:8501/ is a page to try a model, and Prometheus reads /metrics.
With --search_file=a.txt and a model for embeddings, /search finds by meaning.
"""

from bert_tf import errors
from bert_tf.flags.serve import ServeConfig


def main(config: ServeConfig) -> None:
    errors.require("serve")
    from bert_tf.export import served_model
    from bert_tf.serving import preflight

    preflight.check(config)
    config = served_model.prepare(config)
    preflight.pack_weights(config)
    from bert_tf.serving import server

    server.run(config)
