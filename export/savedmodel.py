"""Runs `bert_tf.commands.export_savedmodel`."""

from bert_tf.commands import export_savedmodel
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(export_savedmodel.main)
