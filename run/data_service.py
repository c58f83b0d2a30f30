"""Runs `bert_tf.commands.data_service`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("data_service")
