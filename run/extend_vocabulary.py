"""Runs `bert_tf.commands.extend_vocabulary`."""

from bert_tf.commands import extend_vocabulary
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(extend_vocabulary.main)
