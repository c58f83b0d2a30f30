"""Runs `bert_tf.commands.create_pretraining_data`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("create_pretraining_data")
