"""Runs `bert_tf.commands.verify_export`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("verify_export")
