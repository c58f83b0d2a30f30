"""Runs `bert_tf.commands.pretrain`."""

from bert_tf.commands import pretrain
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(pretrain.main)
