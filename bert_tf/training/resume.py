"""What must stay the same when a run goes on, and what may change by name.

A run goes on where its last checkpoint is. Then

- another vocabulary, model, seed, optimizer or task, or other records behind
  the same --input_file, are refused: they are more likely a mistake than meant;
  --allow_changed_data lifts that;
- other records named by another --input_file, or of another length, are a new
  phase of the run (base_phase2.flags), which the log names;
- every other option may change, and the log names it.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.config import BertConfig
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
# Of bert_config, what no evaluation depends on.
_ONLY_OF_TRAINING = (
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "initializer_range",
)
# Bytes at either end of a record file that tell it from others of its size.
_END_BYTES = 1 << 16
# Most files that a message names.
_MOST_NAMED = 20
_PHASE_FLAGS = ("input_file", "max_seq_length", "max_predictions_per_seq")
# Options on which no weight depends.
_WITHOUT_EFFECT = frozenset(
    {
        "allow_changed_data",
        "bert_config_file",
        "distribution_strategy",
        "do_eval",
        "do_train",
        "eval_batch_size",
        "eval_input_file",
        "gcp_project",
        "init_checkpoint",
        "init_optimizer_state",
        "iterations_per_loop",
        "keep_checkpoint_max",
        "master",
        "max_corrupt_records",
        "max_eval_steps",
        "num_gpus",
        "num_tpu_cores",
        "output_dir",
        "remat",
        "save_checkpoints_steps",
        "stop_at_step",
        "task_index",
        "tf_data_service",
        "tpu",
        "tpu_name",
        "tpu_zone",
        "use_tpu",
        "vocab_file",
        "worker_hosts",
        "xla",
    }
)


def describe(
    config: PretrainConfig,
    bert_config: BertConfig,
    record_files: Iterable[str],
    manifest: Manifest | None,
    vocabulary_hash: str | None,
) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the run it belongs to; JSON values.

    Args:
      config: The flags.
      bert_config: The model, after the flags that override its file.
      record_files: The records to train on.
      manifest: What is known of them.
      vocabulary_hash: Hash of the vocabulary, or None if nobody knows it.
    """
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
    """Returns what a checkpoint keeps of where it was made; JSON values.

    Args:
      devices: The devices that compute.
      compiled: What XLA has compiled (`TrainingLoop.compiled`), if there was a
        step already.
    """
    described = {
        "the strategy": type(devices.strategy).__name__,
        "the number of workers": devices.coordinator.num_workers,
        "the number of replicas": devices.strategy.num_replicas_in_sync,
        "the precision": devices.precision.name,
    }
    return described | ({"what XLA compiled": compiled} if compiled else {})


def log_devices(
    before: Mapping[str, Any], now: Mapping[str, Any], step: int
) -> None:
    """Says where a run goes on, if that is not where it was.

    Args:
      before: What `describe_devices` returned for the checkpoint; empty if
        nobody knows.
      now: What it returns for this process.
      step: The checkpoint's step.
    """
    changes = [
        _change(name, before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    if changes:
        logging.info("Changed at step %d: %s.", step, "; ".join(changes))


def log_start(config: PretrainConfig, checkpoint: Checkpoint | None) -> None:
    """Says where a run starts: anew, or at its last checkpoint."""
    if checkpoint is not None:
        logging.info(
            "Resumed at step %d: %s.", checkpoint.step, checkpoint.prefix
        )
        if config.init_checkpoint:
            logging.info(
                "--init_checkpoint=%s was for the start of this run and is "
                "not read again.",
                config.init_checkpoint,
            )
    elif config.init_checkpoint:
        logging.info(
            "Initialised from the checkpoint %s; %s holds none.",
            config.init_checkpoint,
            config.output_dir,
        )
    else:
        logging.info(
            "A fresh start: %s holds no checkpoint.", config.output_dir
        )


def describe_for_workers(
    config: PretrainConfig,
    identity: Mapping[str, Any],
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """Returns what all workers of a run must have alike; JSON values.

    Args:
      config: The flags.
      identity: What `describe` returned.
      checkpoint: The last one, if there is one.
    """
    last = "none" if checkpoint is None else checkpoint.describe()
    return (
        config.common_flags()
        | {
            f"the record file {name}": value
            for name, value in identity["record_files"].items()
        }
        | {
            "the vocabulary": identity["vocabulary_hash"],
            "the model": identity["bert_config"],
            "the last checkpoint in --output_dir, which all share,": last,
        }
    )


def check_continuation(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    step: int,
    allow_changes: bool,
) -> None:
    """Compares a run with its checkpoint and says what has changed.

    Args:
      before: What `describe` returned for the checkpoint; empty if another
        program wrote it.
      now: What it returns for this process.
      step: The checkpoint's step.
      allow_changes: Whether --allow_changed_data is set.

    Raises:
      UserError: Naming everything that must not change but did.
    """
    if not before:
        return
    changed = _fixed_changes(before, now)
    phase = [
        _change(flag, before["flags"].get(flag), now["flags"][flag])
        for flag in _PHASE_FLAGS
        if before["flags"].get(flag) != now["flags"][flag]
    ]
    data_changes = _data_changes(before, now)
    if data_changes and not phase:
        changed.append(
            "the records behind --input_file are others than before: "
            f"{', '.join(data_changes)}"
        )
    if changed and not allow_changes:
        raise UserError(
            f"The run in --output_dir at step {step} cannot go on like this: "
            f"{'; '.join(changed)}. Use what it was begun with, another "
            "--output_dir, or --allow_changed_data."
        )
    for change in changed:
        logging.warning("Changed at step %d, as allowed: %s.", step, change)
    # Other spellings of the same records are no new phase.
    if data_changes and phase:
        logging.warning(
            "New phase from step %d on: %s. Step, optimizer slots and "
            "learning rate schedule go on.",
            step,
            "; ".join(phase),
        )
    _log_options(before["flags"], now["flags"], step)


def check_model(
    before: Mapping[str, Any], now: Mapping[str, Any], allow_changes: bool
) -> None:
    """Compares the model of a checkpoint with that of an evaluation.

    Its shapes alone would not tell of an activation or direction.

    Args:
      before: What `describe` returned for the checkpoint; empty if another
        program wrote it.
      now: What it returns for this process.
      allow_changes: Whether --allow_changed_data is set.

    Raises:
      UserError: Naming what scores depend on and is not the same.
    """
    old, new = before.get("bert_config", {}), now["bert_config"]
    changes = [
        _change(f"bert_config.{key}", value, new.get(key))
        for key, value in old.items()
        if value != new.get(key) and key not in _ONLY_OF_TRAINING
    ]
    if changes and not allow_changes:
        raise UserError(
            "The checkpoint in --output_dir is of another model: "
            f"{'; '.join(changes)}. Use what it was trained with, or "
            "--allow_changed_data."
        )
    for change in changes:
        logging.warning("Evaluated otherwise, as allowed: %s.", change)


def _fixed_changes(before, now) -> list[str]:
    changes = []
    for name in _FIXED:
        old, new = before.get(name), now[name]
        if old == new or (name == "vocabulary_hash" and None in (old, new)):
            continue
        if name == "bert_config":
            changes += [
                _change(f"bert_config.{key}", old.get(key), new.get(key))
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
        else:
            changes.append(_change(name, old, new))
    return changes


def _data_changes(before, now) -> list[str]:
    """Returns how the record files are others than before, one by one."""
    old, new = before.get("record_files", {}), now["record_files"]
    changes = [f"{name} is gone" for name in old if name not in new]
    for name, entry in new.items():
        if name not in old:
            changes.append(f"{name} is new")
            continue
        # Older checkpoints know the size alone.
        known = old[name] if isinstance(old[name], dict) else {}
        num_bytes = known.get("bytes", old[name])
        if num_bytes != entry["bytes"]:
            changes.append(
                f"{name} had {num_bytes} bytes and has {entry['bytes']} now"
            )
        elif known and known != entry:
            changes.append(f"{name} has other contents")
    fingerprints = before.get("data_fingerprint"), now["data_fingerprint"]
    # As JSON keeps it; what a step reads depends on the order, too.
    if not changes and [*old] != [*new]:
        changes.append("they come in another order")
    if not changes and None not in fingerprints and len({*fingerprints}) > 1:
        changes.append("their manifest tells of other data")
    if len(changes) > _MOST_NAMED:
        left = len(changes) - _MOST_NAMED
        changes[_MOST_NAMED:] = [f"and {left} further files"]
    return changes


def _name_files(paths: Iterable[str]) -> dict[str, str]:
    """Returns name to path, in order; where names are alike, numbered."""
    named: dict[str, str] = {}
    for path in paths:
        name, number = os.path.basename(path), 1
        while name in named:
            number += 1
            name = f"{os.path.basename(path)} ({number})"
        named[name] = path
    return named


def _describe_file(path: str) -> dict[str, Any]:
    """Returns the size of a file, and a hash of its beginning and end."""
    num_bytes = int(tf.io.gfile.stat(path).length)
    with tf.io.gfile.GFile(path, "rb") as file:
        ends = file.read(_END_BYTES)
        file.seek(max(0, num_bytes - _END_BYTES))
        ends += file.read(_END_BYTES)
    digest = hashlib.sha256(ends).hexdigest()
    return {"bytes": num_bytes, "sha256_of_both_ends": digest}


def _log_options(before, now, step: int) -> None:
    """Says which other options of influence have changed."""
    silent = {*_WITHOUT_EFFECT, *_PHASE_FLAGS, *_FIXED}
    changes = [
        _change(f"--{name}", before.get(name), value)
        for name, value in now.items()
        if name not in silent and before.get(name) != value
    ]
    if changes:
        logging.warning("Changed at step %d: %s.", step, "; ".join(changes))


def _change(name: str, old: Any, new: Any) -> str:
    return f"{name} was {old!r} and is {new!r} now"
