"""Runs `bert_tf.commands.fill_mask`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("fill_mask")
