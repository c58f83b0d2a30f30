"""Runs `bert_tf.commands.finetune_embeddings`."""

from bert_tf import commands

if __name__ == "__main__":
    commands.run("finetune_embeddings")
