"""Runs `bert_tf.commands.extend_vocabulary`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("extend_vocabulary")
