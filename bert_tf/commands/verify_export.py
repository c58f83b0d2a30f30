r"""Checks that an export, or a server that has it, says what its model says.

  python export/verify.py --export_dir=served/mrpc --model_dir=output/mrpc/model

With --url a live server is asked the same: http://HOST:PORT/v1/models/NAME, or
HOST:PORT of gRPC, and by Classify and Regress, for metadata and status, too.
What is wrong is named, and the exit status is then 1.
"""

from bert_tf.flags.export import VerifyConfig


def main(config: VerifyConfig) -> None:
    # So --help answers at once.
    from bert_tf.export.verify import run as verification

    verification.run(config)
