"""Runs `bert_tf.commands.extract_text`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("extract_text")
