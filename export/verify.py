"""Runs `bert_tf.commands.verify_export`."""

from bert_tf.commands import verify_export
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(verify_export.main)
