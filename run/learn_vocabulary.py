"""Runs `bert_tf.commands.learn_vocabulary`."""

from bert_tf.commands import learn_vocabulary
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(learn_vocabulary.main)
