r"""Reads records for run/pretrain.py, on another machine: a tf.data service.

Started on each of the machines that read, all of which must find the records
under the paths that run/pretrain.py is given. That is then told of them all,
with --tf_data_service=grpc://a:5000,grpc://b:5000.

  python run/data_service.py --port=5000
"""

from bert_tf.flags.data import DataServiceConfig


def main(config: DataServiceConfig) -> None:
    from bert_tf.data import data_service  # So that --help answers at once.

    data_service.serve(config)
