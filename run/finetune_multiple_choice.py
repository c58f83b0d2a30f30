"""Runs `bert_tf.commands.finetune_multiple_choice`."""

from bert_tf.commands import finetune_multiple_choice
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(finetune_multiple_choice.main)
