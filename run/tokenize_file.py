"""Runs `bert_tf.commands.tokenize_file`."""

from bert_tf.commands import tokenize_file
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(tokenize_file.main)
