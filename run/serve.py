"""Runs `bert_tf.commands.serve`."""

from bert_tf.commands import serve
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(serve.main)
