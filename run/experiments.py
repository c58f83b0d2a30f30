"""Runs `bert_tf.commands.experiments`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("experiments")
