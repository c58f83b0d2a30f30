"""Runs `bert_tf.commands.distill`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("distill")
