"""Which expectation belongs to which head."""

import os
from collections.abc import Mapping

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export.artifact import Artifact
from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import classification as label_expectations
from bert_tf.export.verify import spans as span_expectations
from bert_tf.export.verify import vectors as vector_expectations
from bert_tf.export.verify.expectation import Expectation
from bert_tf.inference import load

_EXPECTATIONS: Mapping[str, type[Expectation]] = {
    "classification": label_expectations.Classification,
    "question_answering": span_expectations.QuestionAnswering,
    "multiple_choice": label_expectations.MultipleChoice,
    "tagging": span_expectations.Tagging,
    "fill_mask": vector_expectations.FillMask,
    "next_sentence": label_expectations.NextSentence,
    "embeddings": vector_expectations.Embeddings,
}
# Heads whose model is not the one that was stored.
_MODEL_KINDS = {"embeddings": "encoder"}
# The strings that heads take, in the order of the model's segments.
_INPUTS = (
    ("text",),
    ("text", "text_pair"),
    ("question", "context"),
    ("text", "choices"),
)
# Of exports that take ids, where nothing says it.
_INPUTS_OF_IDS = {
    "classification": ("text", "text_pair"),
    "question_answering": ("question", "context"),
    "multiple_choice": ("text", "choices"),
    "next_sentence": ("text", "text_pair"),
}


def build(
    stored: StoredModel,
    artifact: Artifact,
    version_directory: str,
    signature: Signature,
    tolerance: float,
) -> Expectation:
    """Returns what an export of a model must say.

    Args:
      stored: The model.
      artifact: What the export is.
      version_directory: Where it is, for the error.
      signature: Its serving_default.
      tolerance: How far numbers may be apart.

    Raises:
      UserError: If there is no such head.
    """
    expectation = _EXPECTATIONS.get(artifact.head)
    if expectation is None:
        path = os.path.join(version_directory, artifacts.CARD_FILE)
        raise UserError(
            f"{path} must name one of the heads {', '.join(_EXPECTATIONS)}. "
            f"Received: {artifact.head!r}."
        )
    model = load.build_model(
        stored,
        _MODEL_KINDS.get(artifact.head),
        return_all_layers=True,
        return_attention_probs=True,
    )
    inputs = _inputs(artifact, signature)
    return expectation(stored, model, artifact, inputs, tolerance)


def _inputs(artifact: Artifact, signature: Signature) -> tuple[str, ...]:
    """Returns the names of the strings that a head takes.

    Raises:
      UserError: If there is no head that takes such.
    """
    if artifact.ids_only:
        return _INPUTS_OF_IDS.get(artifact.head, ("text",))
    for names in _INPUTS:
        if set(names) == set(signature.inputs):
            return names
    raise UserError(
        "serving_default takes "
        f"{' or '.join(', '.join(names) for names in _INPUTS)}. Received: "
        f"{', '.join(signature.inputs)}."
    )
