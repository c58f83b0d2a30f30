"""Runs `bert_tf.commands.data_service`."""

from bert_tf.commands import data_service
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(data_service.main)
