"""Exports a model directory as a SavedModel with serving signatures.

`write` verifies a new export, and `verify` verifies a published export.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from bert_tf import errors
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import heads
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads.classification import Classification
from bert_tf.export.heads.classification import MultipleChoice
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.heads.head import Source
from bert_tf.export.heads.pretrained import Embeddings
from bert_tf.export.heads.pretrained import FillMask
from bert_tf.export.heads.pretrained import NextSentence
from bert_tf.export.heads.question_answering import QuestionAnswering
from bert_tf.export.heads.tagging import Tagging
from bert_tf.export.serving_module import LitertModule
from bert_tf.export.serving_module import ServingModule
from bert_tf.export.verify import reference
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.run import Report
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.export import BUCKETS
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import terminal
from bert_tf.modeling import inference
from bert_tf.serving import model_config
from bert_tf.tasks import registry

_SCRIPT = "export/savedmodel.py"
_IDS_SUFFIX = "_ids"
# Number of timed calls per row length; the model card has their median.
_NUM_TIMINGS = 20
# Warm up with 1 row and with 4 rows, as servers may batch several requests.
_WARMUP_BATCHES = (1, 4)

HEADS: Mapping[str, type[ServingHead]] = {
    "classification": Classification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
    "tagging": Tagging,
    "fill_mask": FillMask,
    "next_sentence": NextSentence,
    "embeddings": Embeddings,
}


@dataclasses.dataclass(frozen=True)
class Export:
    """A model that is ready to be saved.

    Attributes:
      name: The name of the head, a key of `HEADS`.
      trained: The training form of the model, as far as the head needs it.
        Verification compares the export's outputs with this model's outputs.
      model: The model to export, which is `trained` in its inference form.
      precision: "float32" or "bfloat16".
    """

    stored: StoredModel
    name: str
    head: ServingHead
    trained: keras.Model
    model: keras.Model
    precision: str


def command_line(script: str, config: Any, origin: str | None) -> str:
    """Returns the command that repeats an export; see `run` for `origin`."""
    if origin is not None:
        config = dataclasses.replace(config, model_dir="MODEL_DIR")
    return cli.command_line(script, config)


def run(config: SavedModelConfig, origin: str | None = None) -> None:
    """Runs export/savedmodel.py: writes a version, and prints how to use it.

    `origin` is the model's name in reports if --model_dir is temporary.
    """
    for path, (artifact, example) in write(config, origin).items():
        logging.info("Wrote %s.", path)
        artifacts.publish(path, artifact, example)


def write(
    config: SavedModelConfig, origin: str | None = None
) -> dict[str, tuple[Artifact, dict[str, Any]]]:
    """Writes a verified version; --ids_only adds one in a second folder.

    Returns:
      A dict from the path of each version to its description and example row.
    """
    if config.quantization_of_litert:
        errors.require("tflite")
    command = command_line(_SCRIPT, config, origin)
    targets = {config.output_dir: False}
    if config.ids_only:
        targets[config.output_dir.rstrip("/") + _IDS_SUFFIX] = True
    for output_dir in targets:
        files.require_writable_folder(output_dir, "--output_dir")
    with contextlib.ExitStack() as stack:
        for output_dir in targets:
            stack.enter_context(locks.one_writer(output_dir, "--output_dir"))
        version = model_config.choose_version(config.version, list(targets))
        export = prepare(config, origin)
        made = {}
        # `stack` renames the temporary directories only when all are complete.
        for output_dir, ids_only in targets.items():
            suffix = _IDS_SUFFIX if ids_only else ""
            artifact = Artifact(
                model_name=config.served_name + suffix,
                version=version,
                head=export.name,
                precision=export.precision,
                ids_only=ids_only,
                max_seq_length=export.head.max_seq_length,
                buckets=export.head.buckets,
                settings=export.head.settings(),
                command=command,
                litert=None if ids_only else config.quantization_of_litert,
            )
            final = os.path.join(output_dir, str(version))
            # Servers load no directory whose name is not a number.
            temporary = stack.enter_context(
                files.atomic_directory(final, replace=False)
            )
            exact_litert = None
            with terminal.below(logging.WARNING):
                ServingModule(export.head, export.model, ids_only).save(
                    temporary
                )
                if artifact.litert is not None:
                    model = export.model
                    if export.precision != "float32":
                        model = inference.prepare(
                            export.trained, "float32", **export.head.form
                        )
                    exact_litert = LitertModule(export.head, model).save(
                        temporary, artifact.litert
                    )
            example = complete(temporary, artifact, export, exact_litert)
            made[final] = artifact, example
    return made


def prepare(config: SavedModelConfig, origin: str | None = None) -> Export:
    """Loads the model and resolves the head, the precision and the buckets."""
    stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    stored = stored.with_folded_temperature()
    stored = dataclasses.replace(stored, origin=origin)
    name, head = build_head(config, stored)
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if packed_weights.bfloat16_flags() else "float32"
    trained = checkpoint_loading.build_model(
        stored, head.model_kind, **reference.OUTPUTS
    )
    model = inference.prepare(trained, precision, **head.form)
    return Export(stored, name, head, trained, model, precision)


def build_head(
    config: SavedModelConfig, stored: StoredModel
) -> tuple[str, ServingHead]:
    """Returns the name of a model's head, a key of `HEADS`, and the head."""
    name = heads.choose_head(
        config.head, stored.task, stored.path, registry.TASKS
    )
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        of_flag = [x for x, y in HEADS.items() if field.name in y.flags]
        if of_flag and name not in of_flag and value != field.default:
            raise UserError(
                f"--{field.name} is for --head={' or '.join(of_flag)}. "
                f"Received: {value!r} with the head {name}; drop it."
            )
    longest = stored.config.max_position_embeddings
    options.require_length(config, longest, stored.path)
    length = config.max_seq_length or _trained_length(stored)
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
    source = Source(stored, config, length, buckets)
    return name, HEADS[name].build(source)


def _trained_length(stored: StoredModel) -> int:
    """Returns the maximum row length that a model was trained with.

    If the model does not store the length, returns the default of its task, or
    the number of positions if it has no task.
    """
    longest = stored.config.max_position_embeddings
    if stored.task["kind"] in registry.TASKS:
        return registry.from_stored(stored).max_seq_length
    return min(stored.task.get("max_seq_length", longest), longest)


def complete(
    directory: str,
    artifact: Artifact,
    export: Export,
    exact_litert: bytes | None = None,
) -> dict[str, Any]:
    """Adds the remaining files of an export and verifies the whole export.

    Adds assets.extra/ (warm-up requests, vocabulary, labels, model cards) and
    batching_params.pbtxt to the graph and variables in the directory, which has
    a temporary name. With litert/, `exact_litert` is the model as a float32
    .tflite file. Returns one row for serving_default, JSON values by name.

    Raises:
      UserError: If the outputs of the export differ from the model's.
    """
    head, stored = export.head, export.stored
    artifacts.write_texts(directory, stored.vocabulary, head.labels)
    reference.write_requests(
        os.path.join(directory, artifacts.WARMUP_FILE),
        artifact.model_name,
        reference.warmup_requests(head, artifact.ids_only, _WARMUP_BATCHES),
    )
    example = reference.example(head, artifact.ids_only)
    report = verification.examine(
        directory,
        artifact,
        head,
        export.trained,
        stored.path,
        num_timings=_NUM_TIMINGS,
        exact_litert=exact_litert,
    )
    logging.info("%s", report.text().rstrip())
    report.require_correct()
    artifacts.write_cards(
        directory,
        artifact,
        stored,
        head.labels,
        report.to_json(artifact.buckets),
        example,
    )
    return example


def verify(export_dir: str, model_dir: str) -> Report:
    """Compares a version, or the newest in a directory, with its model."""
    directory = model_config.find_version(export_dir)
    artifact = artifacts.read(directory)
    stored = checkpoint_loading.read(model_dir, flag="--model_dir")
    report = compare(directory, artifact, stored.with_folded_temperature())
    checks = (*report.checks, verification.check_files(directory))
    return dataclasses.replace(report, checks=checks)


def compare(directory: str, artifact: Artifact, stored: StoredModel) -> Report:
    """Compares a version directory with a model, using its card's settings."""
    head = restore_head(artifact, stored)
    model = checkpoint_loading.build_model(
        stored, head.model_kind, **reference.OUTPUTS
    )
    return verification.examine(directory, artifact, head, model, stored.path)


def restore_head(artifact: Artifact, stored: StoredModel) -> ServingHead:
    """Rebuilds the head of an export from its model."""
    flags = HEADS[artifact.head].flags
    settings = {x: v for x, v in artifact.settings.items() if x in flags}
    if "pooling" in settings:
        # Older cards lack `normalize`; their exports do not normalize vectors.
        settings.setdefault("normalize", False)
    if "doc_stride" in settings:
        # For a single window, cards have `doc_stride` 0; the flag needs None.
        settings["doc_stride"] = settings["doc_stride"] or None
    config = SavedModelConfig(
        model_dir=stored.path,
        output_dir="",
        model_name=artifact.model_name,
        **settings,
    )
    source = Source(stored, config, artifact.max_seq_length, artifact.buckets)
    return HEADS[artifact.head].build(source)
