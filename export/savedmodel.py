"""Runs `bert_tf.commands.export_savedmodel`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("export_savedmodel")
