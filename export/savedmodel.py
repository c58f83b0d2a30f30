"""Runs `bert_tf.commands.export_savedmodel`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("export_savedmodel")
