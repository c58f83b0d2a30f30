r"""Runs a part of a tf.data service, which reads records for run/pretrain.py.

One dispatcher, and a data worker on each of the machines that read; all of them
must find the records under the paths that run/pretrain.py is given.

  python run/data_service.py --port=5000 --worker_addresses=a:5001,b:5001
  python run/data_service.py --port=5001 --dispatcher=host:5000 \
      --worker_address=a:5001
"""

from bert_tf import cli
from bert_tf.run_config import DataServiceConfig


def main(config: DataServiceConfig) -> None:
    from bert_tf.data import data_service  # So that --help answers at once.

    data_service.serve(config)


if __name__ == "__main__":
    cli.run(main, DataServiceConfig)
