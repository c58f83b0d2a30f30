"""Runs `bert_tf.commands.demo`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("demo")
