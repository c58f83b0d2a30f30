"""Checks which settings may change when a pretraining run resumes.

A run resumes from its last checkpoint. Then

- a change of vocabulary, model, seed, optimizer or task, or of the records
  behind the same --input_file, is refused, as it is probably a mistake;
  --allow_changed_data allows it;
- other records under another --input_file, or with another sequence length,
  start a new phase of the run (base_phase2.flags), which is logged;
- every other option may change, and the change is logged.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.config import fields_affecting
from bert_tf.data.records.manifest import Manifest
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.training.checkpoints import Checkpoint

_FIXED = (
    "vocabulary_hash",
    "bert_config",
    "seed",
    "optimizer",
    "use_next_sentence",
)
# Keys of bert_config that do not affect an evaluation.
_TRAINING_ONLY = (
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "initializer_range",
)
# The ways out of a refused change.
HOW_TO_GO_ON = (
    "Rerun it with the settings it was started with, choose another "
    "--output_dir, start over with --overwrite_output_dir, or add "
    "--allow_changed_data to resume nevertheless."
)
_HASH = re.compile(r"[0-9a-f]{32,}")
# Bytes at either end of a record file that are hashed.
_END_BYTES = 1 << 16
# Maximum number of files that a message names.
_MAX_NAMED = 20
_PHASE_FLAGS = ("input_file", "max_seq_length", "max_predictions_per_seq")


def describe(
    config: PretrainConfig,
    bert_config: BertConfig,
    record_files: Iterable[str],
    manifest: Manifest | None,
    vocabulary_hash: str | None,
) -> dict[str, Any]:
    """Returns the identity of a run as JSON values, for its checkpoints."""
    return {
        "flags": dataclasses.asdict(config),
        "vocabulary_hash": vocabulary_hash,
        "bert_config": bert_config.to_dict(),
        "seed": config.seed,
        "optimizer": config.optimizer,
        "use_next_sentence": config.use_next_sentence,
        # By name, so that records may move to another folder.
        "record_files": {
            name: _describe_file(path)
            for name, path in _name_files(record_files).items()
        },
        "data_fingerprint": manifest.fingerprint if manifest else None,
    }


def describe_devices(devices: Devices, compiled: str = "") -> dict[str, Any]:
    """Describes the devices of a run for its checkpoints; JSON values.

    `compiled` is `TrainingStep.compiled`, once a step was run.
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
    """Logs the devices that differ from those of the checkpoint."""
    changes = [
        change(name, before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    if changes:
        logging.info("Changed at step %d: %s.", step, "; ".join(changes))


def log_start(config: PretrainConfig, checkpoint: Checkpoint | None) -> None:
    """Logs whether a run starts from scratch or from a checkpoint."""
    if checkpoint is not None:
        logging.info(
            "Resumed at step %d: %s.", checkpoint.step, checkpoint.prefix
        )
        if config.init_checkpoint:
            logging.info(
                "--init_checkpoint=%s was used at the start of this run and is "
                "not read again.",
                config.init_checkpoint,
            )
    elif config.init_checkpoint:
        logging.info(
            "Initialized from the checkpoint %s; %s contains none.",
            config.init_checkpoint,
            config.output_dir,
        )
    else:
        logging.info(
            "Training from scratch: %s contains no checkpoint.",
            config.output_dir,
        )


def describe_for_workers(
    config: PretrainConfig,
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
    allow_changes: bool,
) -> bool:
    """Compares a run with its checkpoint and logs the changes.

    `before` is empty if another program wrote the checkpoint.

    Returns:
      True if a new phase of the run begins.

    Raises:
      UserError: If settings changed that must not; it names all of them.
    """
    if not before:
        return False
    changed = _fixed_changes(before, now)
    phase = [
        change(flag, before["flags"].get(flag), now["flags"][flag])
        for flag in _PHASE_FLAGS
        if before["flags"].get(flag) != now["flags"][flag]
    ]
    data_changes = _data_changes(before, now)
    if data_changes and not phase:
        changed.append(
            "the records behind --input_file have changed: "
            f"{', '.join(data_changes)}"
        )
    if changed and not allow_changes:
        raise UserError(
            f"The run in --output_dir={now['flags']['output_dir']} at step "
            f"{step} cannot resume with these changes: {'; '.join(changed)}. "
            f"{HOW_TO_GO_ON}"
        )
    for each in changed:
        logging.warning("Changed at step %d, as allowed: %s.", step, each)
    # Another pattern for the same records is no new phase.
    is_new_phase = bool(data_changes and phase)
    if is_new_phase:
        logging.warning(
            "New phase from step %d on: %s. Step, optimizer slots and "
            "learning rate schedule continue.",
            step,
            "; ".join(phase),
        )
    _log_options(before["flags"], now["flags"], step)
    return is_new_phase


def check_model(
    before: Mapping[str, Any], now: Mapping[str, Any], allow_changes: bool
) -> None:
    """Compares the model of a checkpoint with the model to evaluate.

    Shapes alone would not reveal another activation or direction.

    Raises:
      UserError: If settings differ that affect the scores; it names them.
    """
    old, new = before.get("bert_config", {}), now["bert_config"]
    changes = [
        change(f"bert_config.{key}", value, new.get(key))
        for key, value in old.items()
        if value != new.get(key) and key not in _TRAINING_ONLY
    ]
    if changes and not allow_changes:
        raise UserError(
            "The checkpoint in --output_dir is of another model: "
            f"{'; '.join(changes)}. Use the settings that it was trained with, "
            "or --allow_changed_data."
        )
    for each in changes:
        logging.warning("Evaluated with a change, as allowed: %s.", each)


def _fixed_changes(before, now) -> list[str]:
    changes = []
    for name in _FIXED:
        old, new = before.get(name), now[name]
        if old == new or (name == "vocabulary_hash" and None in (old, new)):
            continue
        if name == "bert_config":
            changes += [
                change(f"bert_config.{key}", old.get(key), new.get(key))
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
        else:
            source = now["flags"].get("vocab_file")
            changes.append(change(name, old, new, source))
    return changes


def _data_changes(before, now) -> list[str]:
    """Lists how the record files differ from before."""
    old, new = before.get("record_files", {}), now["record_files"]
    changes = [f"{name} is gone" for name in old if name not in new]
    for name, entry in new.items():
        if name not in old:
            changes.append(f"{name} is new")
            continue
        num_bytes = old[name]["bytes"]
        if num_bytes != entry["bytes"]:
            changes.append(
                f"{name} had {num_bytes} bytes and has {entry['bytes']} now"
            )
        elif old[name] != entry:
            changes.append(f"{name} has other contents")
    fingerprints = before.get("data_fingerprint"), now["data_fingerprint"]
    # JSON keeps the order, on which the examples of a step depend, too.
    if not changes and [*old] != [*new]:
        changes.append("they come in another order")
    if not changes and None not in fingerprints and len({*fingerprints}) > 1:
        changes.append("their manifest describes other data")
    if len(changes) > _MAX_NAMED:
        others = len(changes) - _MAX_NAMED
        changes[_MAX_NAMED:] = [f"and {others} further files"]
    return changes


def _name_files(paths: Iterable[str]) -> dict[str, str]:
    """Returns name to path, in order; numbers equal names."""
    named: dict[str, str] = {}
    for path in paths:
        name, number = os.path.basename(path), 1
        while name in named:
            number += 1
            name = f"{os.path.basename(path)} ({number})"
        named[name] = path
    return named


def _describe_file(path: str) -> dict[str, Any]:
    """Returns the size of a file and a hash of its first and last bytes."""
    num_bytes = int(tf.io.gfile.stat(path).length)
    with tf.io.gfile.GFile(path, "rb") as file:
        ends = file.read(_END_BYTES)
        file.seek(max(0, num_bytes - _END_BYTES))
        ends += file.read(_END_BYTES)
    digest = hashlib.sha256(ends).hexdigest()
    return {"bytes": num_bytes, "sha256_of_both_ends": digest}


def _log_options(before, now, step: int) -> None:
    """Logs the other options with an effect that have changed."""
    without_effect = fields_affecting(PretrainConfig, "place", "nothing")
    not_logged = {*without_effect, *_PHASE_FLAGS, *_FIXED}
    changes = [
        change(f"--{name}", before.get(name), value)
        for name, value in now.items()
        if name not in not_logged and before.get(name) != value
    ]
    if changes:
        logging.warning("Changed at step %d: %s.", step, "; ".join(changes))


def change(name: str, old: Any, new: Any, source: str | None = None) -> str:
    """Describes the change of a setting.

    Hashes are not shown, but the file or model whose hash it is.

    Args:
      name: The name of the setting.
      old: The earlier value; None if there was none.
      new: The value now.
      source: The path whose hash is the value, if it is one.
    """
    is_hash = [isinstance(x, str) and _HASH.fullmatch(x) for x in (old, new)]
    if not any(is_hash):
        return f"{name} was {old!r} and is {new!r} now"
    here = f": {source}" if source else ""
    if old is None:
        return f"{name} was not used and is now{here}"
    if new is None:
        return f"{name} was used and is not now"
    return f"{name} was changed or replaced{here}"
