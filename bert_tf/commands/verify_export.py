"""Checks that an export answers as its model does.

  python export/verify.py --export_dir=served/mrpc --model_dir=output/mrpc/model

Prints the differences and exits with status 1 if there are any.
"""

from bert_tf.flags.export import VerifyConfig


def main(config: VerifyConfig) -> None:
    from bert_tf.export.verify import run as verification

    verification.run(config)
