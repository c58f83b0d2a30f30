"""Runs `bert_tf.commands.experiments`."""

from bert_tf.commands import experiments
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(experiments.main)
