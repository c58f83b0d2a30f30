"""Checks which settings may change when a pretraining run resumes.

A run resumes from its last checkpoint:

- A change of vocabulary, model, seed, optimizer or task, or of the records
  behind the same --input_file, is probably a mistake, so it raises an error.
  --allow_changed_data allows such a change.
- Other records under another --input_file, or with another sequence length,
  start a new phase of the run (base_phase2.flags), which is logged.
- Every other option may change; a change that affects weights is logged.
"""

import dataclasses
import os
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from absl import logging

from bert_tf.config import BertConfig
from bert_tf.config import fields_affecting
from bert_tf.data.records.manifest import Manifest
from bert_tf.distribute.devices import Devices
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.training.checkpoints import Checkpoint

_VOCABULARY = "vocabulary_hash"
_FIXED = {"seed", "optimizer", "use_next_sentence"}
# These settings do not affect an evaluation, so `check_model` ignores them.
_TRAINING_ONLY = {
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "initializer_range",
}
_MAX_NAMED = 20  # Files in a message.
_PHASE_FLAGS = {"input_file", "max_seq_length", "max_predictions_per_seq"}
# Messages name settings with these prefixes, as in --seed.
_PREFIXES = {"flags": "--", "bert_config": "bert_config."}


def describe(
    config: Flags,
    bert_config: BertConfig,
    record_files: Iterable[str],
    manifest: Manifest | None,
    vocabulary_hash: str | None,
) -> dict[str, Any]:
    """Returns the identity of a run as JSON values, for its checkpoints."""
    return {
        "flags": dataclasses.asdict(config),
        _VOCABULARY: vocabulary_hash,
        "bert_config": bert_config.to_dict(),
        # File names have no folder, so a run can resume after records move.
        "record_files": _hash_files(record_files),
        "data_fingerprint": manifest.fingerprint if manifest else None,
    }


def describe_devices(devices: Devices, compiled: str = "") -> dict[str, Any]:
    """Describes the devices of a run as JSON values, for its checkpoints.

    `compiled` is `TrainingStep.compiled`, which is empty before the first step.
    """
    described = {
        "the strategy": type(devices.strategy).__name__,
        "the number of workers": devices.coordinator.num_workers,
        "the number of replicas": devices.strategy.num_replicas_in_sync,
        "the precision": devices.precision.name,
        "the dtype of the all-reduce": devices.all_reduce_dtype,
        "determinism": devices.deterministic,
    }
    return described | ({"what XLA compiled": compiled} if compiled else {})


def log_devices(
    before: Mapping[str, Any], now: Mapping[str, Any], step: int
) -> None:
    """Logs the settings of devices that differ from the checkpoint's."""
    known = {name: before.get(name, value) for name, value in now.items()}
    if changes := run_folder.changes(known, now):
        logging.info("Changed at step %d: %s.", step, "; ".join(changes))


def log_start(config: Flags, checkpoint: Checkpoint | None) -> None:
    """Logs whether a run starts from scratch or from a checkpoint."""
    start, folder = config.init_checkpoint, config.output_dir
    if checkpoint is not None:
        where = f"Resumed at step {checkpoint.step}: {checkpoint.prefix}"
        if start:
            where += f"; --init_checkpoint={start} is not read again"
    elif start:
        where = f"Initialized from the checkpoint {start}; {folder} has none"
    else:
        where = f"Training from scratch: {folder} contains no checkpoint"
    logging.info("%s.", where)


def describe_for_workers(
    config: Flags,
    identity: Mapping[str, Any],
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """Returns the JSON values that all workers of a run must agree on."""
    last = "none" if checkpoint is None else checkpoint.describe()
    return {
        **config.common_flags(),
        **{
            f"the record file {name}": value
            for name, value in identity["record_files"].items()
        },
        "the vocabulary": identity["vocabulary_hash"],
        "the model": identity["bert_config"],
        "the last checkpoint in the shared --output_dir": last,
    }


def check_continuation(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    step: int,
    config: Flags,
) -> bool:
    """Compares a run with its checkpoint; returns True for a new phase.

    If another program wrote the checkpoint, `before` is empty. Logs all changes
    that are allowed; raises `UserError` that names all other changes, if any.
    """
    if not before:
        return False
    hashes = [each.get(_VOCABULARY) for each in (before, now)]
    if None in hashes:  # A vocabulary is unknown: do not compare.
        hashes = [None, None]
    changed = run_folder.changes(
        *({_VOCABULARY: x} for x in hashes),
        {_VOCABULARY: now["flags"]["vocab_file"]},
    )
    changed += _changes(before, now, "flags", _FIXED)
    every_name = {**before["bert_config"], **now["bert_config"]}
    changed += _changes(before, now, "bert_config", every_name)
    phase = _changes(before, now, "flags", _PHASE_FLAGS)
    data_changes = _data_changes(before, now)
    if data_changes and not phase:
        changed.append(
            "the records behind --input_file have changed: "
            f"{', '.join(data_changes)}"
        )
    where = f"{now['flags']['output_dir']} (step {step})"
    options.refuse(
        changed, f"Cannot resume the run in {where}", config.allow_changed_data
    )
    # If a new --input_file matches the same records, no new phase begins.
    is_new_phase = bool(data_changes and phase)
    if is_new_phase:
        logging.warning(
            "New phase from step %d on: %s. Step, optimizer slots and "
            "learning rate schedule continue.",
            step,
            "; ".join(phase),
        )
    others = fields_affecting(type(config), "weights") - _PHASE_FLAGS - _FIXED
    if logged := _changes(before, now, "flags", others):
        logging.warning("Changed at step %d: %s.", step, "; ".join(logged))
    return is_new_phase


def check_model(
    before: Mapping[str, Any], now: Mapping[str, Any], allow_changes: bool
) -> None:
    """Compares the model of a checkpoint with the model to evaluate.

    A model with another activation or reading direction may have the expected
    shapes, so only this check finds the difference. `UserError` names the
    settings that differ and affect scores.
    """
    names = before.get("bert_config", {}).keys() - _TRAINING_ONLY
    changes = _changes(before, now, "bert_config", names)
    options.refuse(changes, "The checkpoint is of another model", allow_changes)


def _changes(before, now, part: str, names: Collection[str]) -> list[str]:
    """Describes how some values of a part of the identity differ."""
    return run_folder.changes(
        *(
            {
                _PREFIXES[part] + x: y
                for x, y in each.get(part, {}).items()
                if x in names
            }
            for each in (before, now)
        )
    )


def _data_changes(before, now) -> list[str]:
    """Lists how the record files differ from before."""
    old, new = before.get("record_files", {}), now["record_files"]
    changes = run_folder.changes(old, new)
    # The order of files also decides which examples a step has, so compare it.
    if not changes and [*old] != [*new]:
        changes.append("they come in another order")
    fingerprints = before.get("data_fingerprint"), now["data_fingerprint"]
    if not changes and None not in fingerprints and len({*fingerprints}) > 1:
        changes.append("their manifest describes other data")
    if len(changes) > _MAX_NAMED:
        others = len(changes) - _MAX_NAMED
        changes[_MAX_NAMED:] = [f"and {others} further files"]
    return changes


def _hash_files(paths: Iterable[str]) -> dict[str, str]:
    """Returns the fingerprint of each file by name; numbers equal names."""
    found: dict[str, str] = {}
    for path in paths:
        name, number = os.path.basename(path), 1
        while name in found:
            number += 1
            name = f"{os.path.basename(path)} ({number})"
        found[name] = files.fingerprint(path)
    return found
