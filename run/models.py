"""Runs `bert_tf.commands.models`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("models")
