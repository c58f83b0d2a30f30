"""The registry of serving heads, and the models that they serve."""

import dataclasses
from collections.abc import Mapping

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
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
from bert_tf.flags.export import BUCKETS
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks import registry as tasks

# The first head of a model is the default.
ENTRIES: Mapping[str, type[ServingHead]] = {
    "classification": Classification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
    "tagging": Tagging,
    "fill_mask": FillMask,
    "next_sentence": NextSentence,
    "embeddings": Embeddings,
}


def choose(name: str, stored: StoredModel) -> str:
    """Resolves --head to the name of a head.

    Args:
      name: One of `ENTRIES`, or "auto" for the first head of the model.
      stored: The model.

    Raises:
      UserError: If the model does not have the head.
    """
    kind = stored.task["kind"]
    of_model = [key for key, head in ENTRIES.items() if kind in head.kinds]
    variant = stored.task.get("variant")
    is_served = kind == "classification" and variant in tasks.TASKS
    if variant is not None and not is_served:
        # A custom task, which derives its own predictions from the outputs.
        of_model = [key for key in of_model if ENTRIES[key].model_kind]
        if name == "auto":
            raise UserError(
                f"The model in {stored.path} is for the task {variant!r}, "
                f"which exports do not support; --head={' or '.join(of_model)} "
                "exports its encoder."
            )
    if name == "auto":
        return of_model[0]
    if name not in of_model:
        raise UserError(
            f"The model in {stored.path} is of kind={kind!r} and can be "
            f"exported with --head={' or '.join(of_model)}. Received: "
            f"--head={name}."
        )
    return name


def build(
    config: SavedModelConfig, stored: StoredModel
) -> tuple[str, ServingHead]:
    """Returns the name of a model's head, a key of `ENTRIES`, and the head.

    Raises:
      UserError: If the flags do not fit the model.
    """
    name = choose(config.head, stored)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        of_flag = [x for x, y in ENTRIES.items() if field.name in y.flags]
        if of_flag and name not in of_flag and value != field.default:
            raise UserError(
                f"--{field.name} is for --head={' or '.join(of_flag)}. "
                f"Received: {value!r} with the head {name}; drop it."
            )
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
    source = Source(stored, config, length, buckets)
    return name, ENTRIES[name].build(source)


def _trained_length(stored: StoredModel) -> int:
    """Returns the maximum row length that a model was trained with.

    Where the model does not store it, returns the default of its task, or
    without a task the number of positions.
    """
    longest = stored.config.max_position_embeddings
    if stored.task["kind"] in tasks.TASKS:
        return tasks.from_stored(stored).max_seq_length
    return min(stored.task.get("max_seq_length", longest), longest)


def restore(artifact: Artifact, stored: StoredModel) -> ServingHead:
    """Builds the head of an export again.

    Args:
      artifact: The description of the export.
      stored: Its model.
    """
    flags = ENTRIES[artifact.head].flags
    settings = {x: v for x, v in artifact.settings.items() if x in flags}
    if "doc_stride" in settings:
        # Taggers store 0 for a single window.
        settings["doc_stride"] = settings["doc_stride"] or None
    config = SavedModelConfig(
        model_dir=stored.path,
        output_dir="",
        model_name=artifact.model_name,
        **settings,
    )
    source = Source(stored, config, artifact.max_seq_length, artifact.buckets)
    return ENTRIES[artifact.head].build(source)
