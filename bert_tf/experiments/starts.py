"""Ways to pretrain, and models that fine-tuning starts from."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_tf.experiments import jobs
from bert_tf.io import files
from bert_tf.io import text_files


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to pretrain.

    Attributes:
      name: Its name in ids.
      size: A key of `Scale.sizes`; None is the scale's base.
      next_sentence: Whether to predict next sentences.
      left_to_right: Whether to predict left to right.
      rates: Shares of [MASK], unchanged and random tokens; None: the usual.
    """

    name: str
    size: str | None = None
    next_sentence: bool = True
    left_to_right: bool = False
    rates: tuple[float, float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Start:
    """A model that fine-tuning starts from.

    Attributes:
      name: Its name in ids.
      flags: The flags that name it.
      needs: The ids of the jobs that make it.
      config: Its bert_config.json, for estimates.
      has_pooler: Whether its pooler was trained.
      is_stored: Whether it is a model from elsewhere.
    """

    name: str
    flags: Mapping[str, Any]
    needs: tuple[str, ...]
    config: Mapping[str, Any]
    has_pooler: bool = True
    is_stored: bool = False


def contents_hash(path: str) -> str:
    """Returns a short hash of a folder's files, or of a model's name."""
    if not os.path.exists(path):
        return jobs.digest(path)
    if os.path.isfile(path):
        return jobs.digest(files.sha256(path))
    found = {}
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            # A model has no pipes, and no use for a broken link.
            if os.path.isfile(full):
                found[os.path.relpath(full, path)] = files.sha256(full)
    return jobs.digest(found)


def stored_config(path: str) -> dict[str, Any] | None:
    """Returns the configuration in a model's folder, for estimates."""
    for name in ("bert_config.json", "config.json"):
        full = os.path.join(path, name)
        if os.path.isfile(full):
            values = text_files.read_json(full)
            if {"hidden_size", "intermediate_size"} <= set(values):
                return values
    return None


def masking_flags(variant: Variant, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of a variant's records."""
    found: dict[str, Any] = {}
    if not variant.next_sentence:
        found["next_sentence_pairs"] = False
    if variant.left_to_right:
        found["left_to_right"] = True
        found["max_predictions_per_seq"] = num_predictions(variant, flags)
    if variant.rates is not None:
        names = ("mask_rate", "same_rate", "random_rate")
        found |= dict(zip(names, variant.rates, strict=True))
    return found


def num_predictions(variant: Variant, flags: Mapping[str, Any]) -> int:
    """Returns the predictions of a sequence: all tokens, left to right."""
    if variant.left_to_right:
        return flags["max_seq_length"]
    return flags["max_predictions_per_seq"]


def data_name(variant: Variant) -> str:
    """Returns a name for records, which do not depend on the size."""
    parts = ["ltr" if variant.left_to_right else "masked"]
    if variant.rates is not None:
        parts += [f"{100 * rate:.0f}" for rate in variant.rates]
    return "_".join(parts + ([] if variant.next_sentence else ["no_nsp"]))
