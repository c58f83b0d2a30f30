"""Fine-tunes, predicts and distills; run by one or several processes."""

import os
import random
from unittest import mock

from bert_tf.commands import distill
from bert_tf.commands import finetune_classifier
from bert_tf.commands import finetune_tagger
from bert_tf.commands.distill import DistillConfig
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.commands.predict import PredictConfig
from bert_tf.distribute import devices as device_setup
from bert_tf.flags import cli
from bert_tf.inference import predict
from tests.support import tiny_finetuning
from tests.support import tiny_model

_TAGS = {"cat": "B-PET", "dog": "B-PET", "mat": "B-THING"}
_DEVICE_FLAGS = ("distribution_strategy", "worker_hosts", "task_index")


def flags(folder, output_dir):
    """Returns flags of a classifier, and creates missing files."""
    for name, count, seed in (("train", 14, 0), ("testa", 9, 1)):
        _write_tags(os.path.join(folder, f"eng.{name}"), count, seed)
    model = os.path.join(folder, "encoder")
    if not os.path.exists(model):
        tiny_model.write_initialized(model, factor=5)
    return tiny_finetuning.flags(
        folder,
        pretrained_model_dir=model,
        output_dir=output_dir,
        # 5 examples cannot be split evenly between two workers.
        train_batch_size="5",
        eval_batch_size=3,
        learning_rate="0.003",
        num_train_epochs="2",
        # A step's checkpoint is written before that step is evaluated.
        save_checkpoints_steps=5,
        keep_best=True,
        evaluate_every_steps=5,
    )


def _write_tags(path, count, seed):
    rng = random.Random(seed)
    words = ("the", "sat", "on", *_TAGS)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            for word in rng.choices(words, k=rng.randint(1, 7)):
                file.write(f"{word} {_TAGS.get(word, 'O')}\n")
            file.write("\n")


def main(config: ClassifierConfig) -> None:
    """Trains a classifier, predicts, distills, and selects among taggers."""
    # A process can connect to its workers only once, so share the devices.
    devices = device_setup.prepare(config)
    with mock.patch.object(device_setup, "prepare", return_value=devices):
        finetune_classifier.main(config)
        device_flags = {name: getattr(config, name) for name in _DEVICE_FLAGS}
        predict.run(
            PredictConfig(
                model_dir=os.path.join(config.output_dir, "model"),
                input_file=config.test_file,
                output_file=os.path.join(config.output_dir, "answers.jsonl"),
                batch_size=5,
                **device_flags,
            )
        )
        distill.main(
            DistillConfig(
                teacher_dir=os.path.join(config.output_dir, "model"),
                train_file=config.train_file,
                dev_file=config.dev_file,
                output_dir=os.path.join(config.output_dir, "student"),
                do_train=True,
                do_eval=True,
                num_hidden_layers=1,
                hidden_size=8,
                num_attention_heads=2,
                hidden_weight=1.0,
                train_batch_size="7",
                learning_rate="0.01",
                num_train_epochs="0.5",
                iterations_per_loop=1,
                **device_flags,
            )
        )
        finetune_tagger.main(
            TaggerConfig(
                data_dir=os.path.dirname(config.train_file),
                pretrained_model_dir=config.pretrained_model_dir,
                output_dir=os.path.join(config.output_dir, "tagger"),
                do_train=True,
                do_eval=True,
                max_seq_length=12,
                train_batch_size="3",
                # The first rate overflows, so it must not be chosen.
                learning_rate="1e38,0.02,1e-9",
                num_train_epochs="1",
                iterations_per_loop=1,
                **device_flags,
            )
        )


if __name__ == "__main__":
    cli.run(main)
