"""Runs `bert_tf.commands.serve`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("serve")
