"""Runs `bert_tf.commands.convert_checkpoint`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("convert_checkpoint")
