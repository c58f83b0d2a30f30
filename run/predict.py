"""Runs `bert_tf.commands.predict`."""

from bert_tf.commands import predict
from bert_tf.flags import cli

if __name__ == "__main__":
    cli.run(predict.main)
