"""Pretrains as run/pretrain.py does, and keeps this worker's own weights."""

import numpy as np

from bert_tf import cli
from bert_tf.run_config.pretrain import PretrainConfig
from bert_tf.training import pretrain


def main(config):
    train = pretrain._Pretraining.run

    def train_and_keep(run):
        train(run)
        np.savez(
            f"{config.output_dir}.worker{config.task_index}.npz",
            **{n: v.numpy() for n, v in run._parts.variables.items()},
        )

    pretrain._Pretraining.run = train_and_keep
    pretrain.train_and_evaluate(config)


if __name__ == "__main__":
    cli.run(main, PretrainConfig)
