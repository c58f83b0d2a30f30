"""Scales: sizes, steps, rows and seeds, from `recipes/experiments/scales/`."""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.io import paths
from bert_tf.io import text_files

_FOLDER = os.path.join(paths.RECIPES, "experiments", "scales")
# The kind of fine-tuning whose flags a kind of task has.
_FLAGS_OF = {"regression": "classification", "squad2": "squad"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Everything that depends on how much one can afford.

    Attributes:
      name: Its name in --scale.
      scaled_down: One sentence: what is smaller than in the paper.
      scaled_down_pretraining: The same of models that are pretrained here.
      num_seeds: Fine-tuning runs for each cell.
      corpus_megabytes: The most text to pretrain on; None uses all.
      held_out_megabytes: The most text for perplexities.
      vocabulary: Flags of run/learn_vocabulary.py.
      model: Keys of bert_config.json.
      base: The size that all tables but table6 use.
      sizes: The sizes of table6: name to keys that differ from `model`, or to
        a folder of `recipes/configs/`.
      phases: "records" and "pretraining", the flags of each phase.
      curve_steps: The steps of the checkpoints in figure5.
      finetuning: Kind of task to flags; "feature_based" adds to "tagging",
        "squad2" may replace "squad".
      rows: Kind of task to the most rows to train on and to score.
      stability: The numbers of "rows" and "epochs", "reinit_layers",
        "num_seeds" if it has more, and "learning_rate" if it has another.
      tasks: Experiment to its tasks: names, or alternatives joined by |, of
        which *KIND is the first task of a kind.
      ensemble_size: Systems in an ensemble.
      stored_model: Flags to fine-tune --pretrained_model_dir, where they
        differ.
      table_rows: Experiment to its rows, where it has not all.
    """

    name: str
    scaled_down: str
    scaled_down_pretraining: str
    num_seeds: int
    corpus_megabytes: float | None
    held_out_megabytes: float
    vocabulary: Mapping[str, Any]
    model: Mapping[str, Any]
    base: str
    sizes: Mapping[str, Mapping[str, Any] | str]
    phases: Sequence[Mapping[str, Mapping[str, Any]]]
    curve_steps: Sequence[int]
    finetuning: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Sequence[int | None]]
    stability: Mapping[str, Any]
    tasks: Mapping[str, Sequence[str]]
    ensemble_size: int
    stored_model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    table_rows: Mapping[str, Sequence[str]] = dataclasses.field(
        default_factory=dict
    )

    def flags(self, kind: str) -> Mapping[str, Any]:
        """Returns the flags to fine-tune for a kind of task."""
        own = self.finetuning.get(kind)
        return self.finetuning[_FLAGS_OF[kind]] if own is None else own

    def max_rows(self, kind: str) -> tuple[int | None, int | None]:
        """Returns the most rows to train on and to score; None means all."""
        train, dev = self.rows.get(_FLAGS_OF.get(kind, kind), (None, None))
        return train, dev

    def config(self, size: str) -> dict[str, Any]:
        """Returns the bert_config.json of a size."""
        own = self.sizes[size]
        if isinstance(own, str):
            own = text_files.read_json(
                os.path.join(paths.RECIPES, "configs", own, "bert_config.json")
            )
        vocab_size = self.vocabulary["vocab_size"]
        return {**self.model, **own, "vocab_size": vocab_size}


def read(name: str) -> Scale:
    """Returns the scale of a name in `flags.experiments.SCALES`."""
    path = os.path.join(_FOLDER, f"{name}.json")
    return Scale(name=name, **text_files.read_json(path))
