"""Runs `bert_tf.commands.tokenize_file`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("tokenize_file")
