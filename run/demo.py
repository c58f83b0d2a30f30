"""Runs `bert_tf.commands.demo`."""

from bert_tf.commands import demo
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(demo.main)
