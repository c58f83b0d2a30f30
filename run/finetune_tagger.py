"""Runs `bert_tf.commands.finetune_tagger`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("finetune_tagger")
