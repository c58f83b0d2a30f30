"""Runs `bert_tf.commands.extract_features`."""

from bert_tf.commands import extract_features
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(extract_features.main)
