"""Runs `bert_tf.commands.experiments`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("experiments")
