"""Runs `bert_tf.commands.finetune_squad`."""

from bert_tf.commands import finetune_squad
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(finetune_squad.main)
