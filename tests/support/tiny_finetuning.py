"""Tiny texts, pretrained model and flags for fine-tuning tests."""

import csv
import os
import random

from bert_tf.commands.finetune_classifier import ClassifierConfig
from tests.support import scripts
from tests.support import tiny_model

# Words of both labels, and the words of each label.
_WORDS = ("the", "on", "sitting")
_WORDS_OF_LABEL = {"feline": ("cat", "mat"), "other": ("dog", "東")}

command_line = scripts.command_line


def write_rows(path, count, seed=0):
    """Writes texts of unequal lengths, whose words determine the label."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        for number in range(count):
            label = rng.choice(list(_WORDS_OF_LABEL))
            own = rng.choices(_WORDS_OF_LABEL[label], k=rng.randint(1, 4))
            words = own + rng.choices(_WORDS, k=rng.randint(0, 4))
            rng.shuffle(words)
            writer.writerow([number, " ".join(words), label])
    return path


def write_model(folder, config=tiny_model.ONE_LAYER):
    """Writes the pretrained model that `flags` names, if it is missing."""
    path = os.path.join(folder, "pretrained")
    if not os.path.exists(path):
        tiny_model.write(path, kind="encoder", config=config)
    return path


def flags(folder, **values):
    """Returns flags of a classifier, and creates missing files."""
    model = write_model(folder)
    files = {}
    for number, (split, count) in enumerate(
        (("train", 50), ("dev", 31), ("test", 9))
    ):
        path = os.path.join(folder, f"{split}.csv")
        if not os.path.exists(path):
            write_rows(path, count, number)
        files[f"{split}_file"] = path
    return (
        files
        | {
            "task_name": "custom",
            "pretrained_model_dir": model,
            "output_dir": os.path.join(folder, "output"),
            "do_train": True,
            "do_eval": True,
            "max_seq_length": 12,
            "train_batch_size": "4",
            "learning_rate": "0.003",
            "num_train_epochs": "2",
            "iterations_per_loop": 1,
        }
        | values
    )


def config(folder, **values):
    """Returns the configuration with the flags of `flags`."""
    return ClassifierConfig(**flags(folder, **values))
