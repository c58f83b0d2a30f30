"""Runs `bert_tf.commands.extend_vocabulary`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("extend_vocabulary")
