"""Runs `bert_tf.commands.create_pretraining_data`."""

from bert_tf.commands import create_pretraining_data
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(create_pretraining_data.main)
