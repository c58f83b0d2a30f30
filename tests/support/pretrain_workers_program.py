"""Pretrains as run/pretrain.py does, and saves this worker's weights."""

import numpy as np

from bert_tf.commands import pretrain
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.flags import cli
from bert_tf.pretraining import run as pretraining


def main(config: PretrainConfig) -> None:
    train = pretraining._PretrainingTrainer.train_and_evaluate

    def train_and_save(trainer):
        train(trainer)
        np.savez(
            f"{config.output_dir}.worker{config.task_index}.npz",
            **{n: v.numpy() for n, v in trainer.variables.items()},
        )

    pretraining._PretrainingTrainer.train_and_evaluate = train_and_save
    pretrain.main(config)


if __name__ == "__main__":
    cli.run(main)
