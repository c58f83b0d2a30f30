"""Runs `bert_tf.commands.models`."""

from bert_tf.commands import models
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(models.main)
