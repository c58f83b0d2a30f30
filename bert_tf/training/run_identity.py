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
import os
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.data.manifest import Manifest
from bert_tf.errors import UserError
from bert_tf.run_config import PretrainConfig

_FIXED = (
    "vocabulary_hash",
    "bert_config",
    "seed",
    "optimizer",
    "use_next_sentence",
)
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
        "tf_data_service_workers",
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
        # Names and sizes, so that records may move to another folder.
        "record_files": {
            os.path.basename(path): int(tf.io.gfile.stat(path).length)
            for path in record_files
        },
        "data_fingerprint": manifest.fingerprint if manifest else None,
    }


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
    data_changed = _data_changed(before, now)
    if data_changed and not phase:
        changed.append("the records behind --input_file are others than before")
    if changed and not allow_changes:
        raise UserError(
            f"The run in --output_dir at step {step} cannot go on like this: "
            f"{'; '.join(changed)}. Use what it was begun with, another "
            "--output_dir, or --allow_changed_data."
        )
    for change in changed:
        logging.warning("Changed at step %d, as allowed: %s.", step, change)
    # Other spellings of the same records are no new phase.
    if data_changed and phase:
        logging.warning(
            "New phase from step %d on: %s. Step, optimizer slots and "
            "learning rate schedule go on.",
            step,
            "; ".join(phase),
        )
    _log_options(before["flags"], now["flags"], step)


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


def _data_changed(before, now) -> bool:
    names = ("record_files", "data_fingerprint")
    return any(before.get(name) != now[name] for name in names)


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
