"""Runs `bert_tf.commands.export_tflite`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("export_tflite")
