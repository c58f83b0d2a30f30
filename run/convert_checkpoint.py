"""Runs `bert_tf.commands.convert_checkpoint`."""

from bert_tf.commands import convert_checkpoint
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(convert_checkpoint.main)
