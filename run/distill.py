"""Runs `bert_tf.commands.distill`."""

from bert_tf.commands import distill
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(distill.main)
