"""Exports a model directory as a SavedModel with serving signatures."""

import contextlib
import dataclasses
import os
from typing import Any

import keras
from absl import logging

from bert_tf import errors
from bert_tf import keras_backend
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import cpu
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import assets_extra
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import registry
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.heads.head import Source
from bert_tf.export.litert_module import LitertModule
from bert_tf.export.serving_module import ServingModule
from bert_tf.flags import cli
from bert_tf.flags.export import BUCKETS
from bert_tf.flags.export import SavedModelConfig
from bert_tf.inference import load
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import terminal
from bert_tf.modeling import inference
from bert_tf.tasks import registry as tasks

_SCRIPT = "export/savedmodel.py"
_IDS_SUFFIX = "_ids"


@dataclasses.dataclass(frozen=True)
class Export:
    """A model that is ready to be saved.

    Attributes:
      name: The name of the head, a key of `registry.ENTRIES`.
      model: The model, in its inference form.
      precision: "float32" or "bfloat16".
    """

    config: SavedModelConfig
    stored: StoredModel
    name: str
    head: ServingHead
    model: keras.Model
    precision: str

    def artifact(self, version: int, ids_only: bool) -> Artifact:
        """Returns the description of the resulting export."""
        name = self.config.served_name
        return Artifact(
            model_name=f"{name}{_IDS_SUFFIX}" if ids_only else name,
            version=version,
            head=self.name,
            precision=self.precision,
            ids_only=ids_only,
            max_seq_length=self.head.max_seq_length,
            buckets=self.head.buckets,
            settings=self.head.settings(),
            command=command_line(_SCRIPT, self.config, self.stored),
            litert=None if ids_only else self.config.quantization_of_litert,
        )


def command_line(script: str, config: Any, stored: StoredModel) -> str:
    """Returns the command that repeats an export."""
    if stored.origin is not None:
        config = dataclasses.replace(config, model_dir="MODEL_DIR")
    return cli.command_line(script, config)


def run(config: SavedModelConfig, origin: str | None = None) -> None:
    """Runs export/savedmodel.py: writes a version, and prints how to use it.

    Args:
      config: The flags.
      origin: What reports name as the source if --model_dir is temporary.

    Raises:
      UserError: If flags or model are invalid, or verification fails.
    """
    export, versions = write(config, origin)
    for path, artifact in versions.items():
        logging.info("Wrote %s.", path)
        assets_extra.publish(path, artifact, export.stored)


def write(
    config: SavedModelConfig, origin: str | None = None
) -> tuple[Export, dict[str, Artifact]]:
    """Writes a verified version; returns the model, and the version's folders.

    Args: As for `run`.

    Raises:
      UserError: If flags or model are invalid, or verification fails.
    """
    keras_backend.require_tensorflow()
    if config.quantization_of_litert:
        errors.require("tflite")
    targets = {config.output_dir: False}
    if config.ids_only:
        targets[config.output_dir.rstrip("/") + _IDS_SUFFIX] = True
    for output_dir in targets:
        files.require_writable_folder(output_dir, "--output_dir")
    with contextlib.ExitStack() as stack:
        for output_dir in targets:
            stack.enter_context(locks.one_writer(output_dir, "--output_dir"))
        version = artifacts.choose_version(config.version, list(targets))
        export = prepare(config, origin)
        made = {
            output_dir: export.artifact(version, ids_only)
            for output_dir, ids_only in targets.items()
        }
        # No version directory appears before all of them are complete.
        for output_dir, artifact in made.items():
            temporary = stack.enter_context(
                artifacts.write_version(output_dir, version)
            )
            exact_litert = None
            # TensorFlow logs each step of saving.
            with terminal.below(logging.WARNING):
                ServingModule(
                    export.head, export.model, artifact.ids_only
                ).save(temporary)
                if artifact.litert is not None:
                    exact_litert = _save_litert(
                        temporary, export, artifact.litert
                    )
            assets_extra.complete(
                temporary, artifact, export.stored, exact_litert
            )
    return export, {
        os.path.join(output_dir, str(version)): artifact
        for output_dir, artifact in made.items()
    }


def prepare(config: SavedModelConfig, origin: str | None = None) -> Export:
    """Loads the model and resolves the head, the precision and the buckets.

    Args: As for `run`.

    Raises:
      UserError: If the flags do not fit the model.
    """
    stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    stored = dataclasses.replace(stored, origin=origin)
    name = registry.choose(config.head, stored)
    _check_flags(config, name)
    head = registry.ENTRIES[name].head.build(_source(config, stored))
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if cpu.bfloat16_flags() else "float32"
    model = _build_model(stored, name, head, precision)
    return Export(config, stored, name, head, model, precision)


def _build_model(
    stored: StoredModel, name: str, head: ServingHead, precision: str
) -> keras.Model:
    """Builds the part of a model that a head reads, in its inference form."""
    model = load.build_model(
        stored,
        registry.ENTRIES[name].model_kind,
        return_attention_probs=True,
    )
    return inference.prepare(model, precision, **head.model_values())


def _save_litert(directory: str, export: Export, quantization: str) -> bytes:
    """Writes litert/ and returns the .tflite file of the model in float32."""
    model = export.model
    if export.precision != "float32":
        model = _build_model(export.stored, export.name, export.head, "float32")
    return LitertModule(export.head, model).save(directory, quantization)


def _check_flags(config: SavedModelConfig, name: str) -> None:
    """Raises `UserError` for flags that have no effect on the head."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        allowed = [
            key
            for key, entry in registry.ENTRIES.items()
            if field.name in entry.head.flags
        ]
        if allowed and name not in allowed and value != field.default:
            raise UserError(
                f"--{field.name} is for --head={' or '.join(allowed)}. "
                f"Received: {value!r} with the head {name}; drop it."
            )


def _source(config: SavedModelConfig, stored: StoredModel) -> Source:
    longest = stored.config.max_position_embeddings
    length = config.max_seq_length or _trained_length(stored)
    if length > longest:
        raise UserError(
            "--max_seq_length must not exceed `max_position_embeddings` of "
            f"the model, {longest}. Received: {length}."
        )
    buckets = config.bucket_lengths()
    if buckets is None:
        buckets = tuple(bucket for bucket in BUCKETS if bucket < length)
    if buckets and buckets[-1] > length:
        raise UserError(
            f"--buckets must not exceed the maximum row length, {length}. "
            f"Received: {config.buckets!r}; raise --max_seq_length, or drop "
            "longer buckets."
        )
    if not buckets or buckets[-1] < length:
        buckets = (*buckets, length)
    return Source(stored, config, length, buckets)


def _trained_length(stored: StoredModel) -> int:
    """Returns the maximum row length that a model was trained with.

    Where the model does not store it, returns the default of its task, or
    without a task the number of positions.
    """
    longest = stored.config.max_position_embeddings
    if stored.task["kind"] in tasks.TASKS:
        return tasks.from_stored(stored).max_seq_length
    return min(stored.task.get("max_seq_length", longest), longest)
