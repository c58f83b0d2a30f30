"""Runs `bert_tf.commands.convert_checkpoint`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("convert_checkpoint")
