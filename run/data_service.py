"""Runs `bert_tf.commands.data_service`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("data_service")
