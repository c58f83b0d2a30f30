"""Runs `bert_tf.commands.create_pretraining_data`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("create_pretraining_data")
