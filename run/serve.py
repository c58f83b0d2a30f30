"""Runs `bert_tf.commands.serve`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("serve")
