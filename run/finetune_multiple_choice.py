"""Runs `bert_tf.commands.finetune_multiple_choice`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("finetune_multiple_choice")
