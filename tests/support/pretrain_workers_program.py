"""Pretrains as run/pretrain.py does, and keeps this worker's own weights."""

import numpy as np

from bert_tf.flags import cli
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.pretraining import run as pretraining


def main(config: PretrainConfig) -> None:
    train = pretraining._Pretraining.run

    def train_and_keep(run):
        train(run)
        np.savez(
            f"{config.output_dir}.worker{config.task_index}.npz",
            **{n: v.numpy() for n, v in run._parts.variables.items()},
        )

    pretraining._Pretraining.run = train_and_keep
    pretraining.train_and_evaluate(config)


if __name__ == "__main__":
    cli.run(main)
