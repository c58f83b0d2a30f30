"""Runs `bert_tf.commands.glue_submission`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("glue_submission")
