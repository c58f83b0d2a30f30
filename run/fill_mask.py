"""Runs `bert_tf.commands.fill_mask`."""

from bert_tf.commands import fill_mask
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(fill_mask.main)
