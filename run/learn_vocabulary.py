"""Runs `bert_tf.commands.learn_vocabulary`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("learn_vocabulary")
