"""Runs `bert_tf.commands.glue_submission`."""

from bert_tf.commands import glue_submission
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(glue_submission.main)
