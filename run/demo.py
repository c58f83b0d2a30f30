"""Runs `bert_tf.commands.demo`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("demo")
