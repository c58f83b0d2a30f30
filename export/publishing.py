"""The course of an export: from a model directory to a version of it."""

import keras
from absl import logging

from bert_tf import keras_backend
from bert_tf import precision as precisions
from bert_tf import pretrained
from bert_tf.errors import UserError
from bert_tf.export_config import BUCKETS
from bert_tf.export_config import SavedModelConfig
from bert_tf.interop import initialization
from bert_tf.stored_model import StoredModel
from export import version_directory
from export.heads import head as heads
from export.heads import registry
from export.serving_module import ServingModule

_SCRIPT = "export/savedmodel.py"
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def run(config: SavedModelConfig) -> None:
    """Does what export/savedmodel.py is asked for.

    Raises:
      UserError: For whatever the user can mend.
    """
    keras_backend.require_tensorflow()
    version_directory.check(config.output_dir)
    stored = initialization.read(config.model_dir, flag="--model_dir")
    name = registry.choose(config.head, stored)
    entry = registry.ENTRIES[name]
    source = _source(config, stored)
    head = entry.head.build(source)
    precision = _precision(config.precision)
    model = build_model(stored, entry.model_kind, precision)
    version = version_directory.choose(config.version, [config.output_dir])
    with version_directory.write(config.output_dir, version) as temporary:
        ServingModule(head, model).save(temporary)
    logging.info("Wrote %s/%d.", config.output_dir, version)


def build_model(
    stored: StoredModel, kind: str | None, precision: str
) -> keras.Model:
    """Returns the model that computes for a head."""
    return pretrained.build_model(
        stored,
        kind,
        dtype=_POLICIES[precision],
        return_all_layers=True,
        return_attention_probs=True,
    )


def _precision(asked: str) -> str:
    """Returns "float32" or "bfloat16"; "auto" asks this machine's CPU."""
    # Asked for by name it is for another machine, maybe.
    return precisions.resolve(asked, "CPU").name if asked == "auto" else asked


def _source(config: SavedModelConfig, stored: StoredModel) -> heads.Source:
    longest = stored.config.max_position_embeddings
    length = config.max_seq_length
    if length is None:
        length = min(stored.task.get("max_seq_length", 128), longest)
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
            f"--buckets must not exceed the most pieces of a row, {length}. "
            f"Received: {config.buckets!r}; raise --max_seq_length, or drop "
            "the longer ones."
        )
    if not buckets or buckets[-1] < length:
        buckets = (*buckets, length)
    return heads.Source(stored, config, length, buckets)
