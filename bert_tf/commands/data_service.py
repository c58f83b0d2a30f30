"""Reads records for run/pretrain.py on another machine: a tf.data service.

Start it on each machine that reads; all of them must find the records under
the paths in run/pretrain.py's flags. Then pass the list of machines to
run/pretrain.py, as --tf_data_service=grpc://a:5000,grpc://b:5000.

  python run/data_service.py --port=5000
"""

from bert_tf.flags.data import DataServiceConfig


def main(config: DataServiceConfig) -> None:
    from bert_tf.data import data_service

    data_service.serve(config)
