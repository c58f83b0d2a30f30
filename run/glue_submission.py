"""Runs `bert_tf.commands.glue_submission`."""

from bert_tf.commands import door

if __name__ == "__main__":
    door.run("glue_submission")
