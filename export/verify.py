"""Runs `bert_tf.commands.verify_export`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("verify_export")
