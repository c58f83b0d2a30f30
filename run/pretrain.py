"""Runs `bert_tf.commands.pretrain`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("pretrain")
