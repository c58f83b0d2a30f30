"""Checks that an export, or a server of it, answers as its model does.

  python export/verify.py --export_dir=served/mrpc --model_dir=output/mrpc/model

--url checks a live server the same way: http://HOST:PORT/v1/models/NAME, or
HOST:PORT for gRPC; also Classify and Regress, metadata and status. Prints the
differences and exits with status 1 if there are any.
"""

from bert_tf.flags.export import VerifyConfig


def main(config: VerifyConfig) -> None:
    from bert_tf.export.verify import run as verification

    verification.run(config)
