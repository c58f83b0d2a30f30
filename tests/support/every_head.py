"""Tiny models of every head, and their exports, made as users make them."""

import dataclasses
import os
from unittest import mock

from bert_tf.export import savedmodel
from bert_tf.export.verify import run as verification
from bert_tf.flags.export import SavedModelConfig
from bert_tf.modeling.task_models import BertForTagging
from tests.support import made_once
from tests.support import tiny_exports
from tests.support import tiny_model

MAX_SEQ_LENGTH = tiny_exports.MAX_SEQ_LENGTH
_SQUAD = tiny_exports.squad()
_TAGGING = tiny_exports.tagging(
    labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "X")
)
# The task or kind of the model, and the flags of its export.
_HEADS = {
    "classification": (tiny_exports.classification(), {}),
    "pair": (tiny_exports.classification(pair=True), {}),
    "multi_label": (tiny_exports.classification("multi_label"), {}),
    "regression": (tiny_exports.classification("regression", pair=True), {}),
    "question_answering": (_SQUAD, {}),
    "multiple_choice": (tiny_exports.multiple_choice(), {}),
    "tagging": (_TAGGING, {}),
    "fill_mask": ("pretraining", {"top_k": 3}),
    "next_sentence": ("pretraining", {"head": "next_sentence"}),
    "embeddings": ("encoder", {}),
}
NAMES = tuple(_HEADS)


@dataclasses.dataclass(frozen=True)
class Published:
    """A model and its exports.

    Attributes:
      model_dir: The model.
      output_dir: The folder of the export that takes strings, version 1.
      ids_dir: The folder of the export that takes ids, if it was made.
    """

    model_dir: str
    output_dir: str
    ids_dir: str


def publish(with_ids: bool = True) -> dict[str, Published]:
    """Exports a model of each head, once for all tests.

    The exporter does not verify the exports, because the tests do.

    Args:
      with_ids: Whether to make the exports that take ids, too, which doubles
        the time.
    """
    folder = made_once.folder(
        "every_head_with_ids" if with_ids else "every_head",
        lambda path: _publish_all(path, with_ids),
    )
    return {
        name: Published(_model_dir(folder, name), *_output_dirs(folder, name))
        for name in NAMES
    }


def write_model(folder, name, config=tiny_model.ONE_LAYER):
    """Writes a model with the head; returns its path and export flags."""
    task, values = _HEADS[name]
    model_dir = _model_dir(folder, name)
    if name == "tagging":
        tiny_model.write_task(
            model_dir, task, tagging_weights(task, config), config
        )
    else:
        tiny_exports.write(os.path.dirname(model_dir), task, config)
    return model_dir, values


def _model_dir(folder, name):
    return os.path.join(folder, "models", name, "model")


def _output_dirs(folder, name):
    path = os.path.join(folder, name)
    return path, f"{path}_ids"


def _publish_all(folder, with_ids):
    with mock.patch.object(verification, "examine", _unseen):
        for name in NAMES:
            # The page shows attention by layer, so the model has several.
            model_dir, values = write_model(folder, name, tiny_model.CONFIG)
            savedmodel.run(
                SavedModelConfig(
                    model_dir=model_dir,
                    output_dir=_output_dirs(folder, name)[0],
                    buckets=tiny_exports.BUCKETS,
                    ids_only=with_ids,
                    **values,
                )
            )


def tagging_weights(task, config):
    """Returns weights that give words different tags."""
    model = BertForTagging(config, **task.model_arguments())
    weights = tiny_model.random_weights(model)
    for name in weights:
        if name.endswith(("/beta", "bias", "type_embeddings")):
            weights[name] *= 0.1
        elif name.endswith("/gamma"):
            weights[name] = 1 + 0.1 * weights[name]
    return weights


def _unseen(directory, artifact, head, model, source, **_):
    """Replaces the verification, and verifies nothing."""
    check = verification.Check("answers", "left to the tests")
    latencies = (0.0,) * len(artifact.buckets)
    return verification.Report(directory, source, (check,), latencies)
