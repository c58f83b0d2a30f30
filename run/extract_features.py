"""Runs `bert_tf.commands.extract_features`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("extract_features")
