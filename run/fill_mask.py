"""Runs `bert_tf.commands.fill_mask`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("fill_mask")
