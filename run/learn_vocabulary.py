"""Runs `bert_tf.commands.learn_vocabulary`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("learn_vocabulary")
