"""Runs `bert_tf.commands.tokenize_file`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("tokenize_file")
