"""Runs `bert_tf.commands.predict`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("predict")
