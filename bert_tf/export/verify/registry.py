"""The registry of reference outputs, by serving head."""

import os
from collections.abc import Mapping

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export.artifact import Artifact
from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import classification as label_references
from bert_tf.export.verify import spans as span_references
from bert_tf.export.verify import vectors as vector_references
from bert_tf.export.verify.reference import Reference
from bert_tf.inference import load

_REFERENCES: Mapping[str, type[Reference]] = {
    "classification": label_references.Classification,
    "question_answering": span_references.QuestionAnswering,
    "multiple_choice": label_references.MultipleChoice,
    "tagging": span_references.Tagging,
    "fill_mask": vector_references.FillMask,
    "next_sentence": label_references.NextSentence,
    "embeddings": vector_references.Embeddings,
}
# Kinds of models of heads that do not run the stored kind.
_MODEL_KINDS = {"embeddings": "encoder"}
# The strings that heads take, in the order of the model's segments.
_INPUTS = (
    ("text",),
    ("text", "text_pair"),
    ("question", "context"),
    ("text", "choices"),
)
# For exports with ids only, whose signature does not show the strings.
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
) -> Reference:
    """Builds the object that computes the reference outputs of an export.

    Args:
      stored: The model.
      artifact: The description of the export.
      version_directory: The version directory, for the error message.
      signature: Its serving_default.
      tolerance: The largest allowed difference of numbers.

    Raises:
      UserError: If the head is unknown.
    """
    reference = _REFERENCES.get(artifact.head)
    if reference is None:
        path = os.path.join(version_directory, artifacts.CARD_FILE)
        raise UserError(
            f"{path} must name one of the heads {', '.join(_REFERENCES)}. "
            f"Received: {artifact.head!r}."
        )
    model = load.build_model(
        stored,
        _MODEL_KINDS.get(artifact.head),
        return_all_layers=True,
        return_attention_probs=True,
    )
    inputs = _inputs(artifact, signature)
    return reference(stored, model, artifact, inputs, tolerance)


def _inputs(artifact: Artifact, signature: Signature) -> tuple[str, ...]:
    """Returns the names of the input strings of an export.

    Raises:
      UserError: If no head has these inputs.
    """
    if artifact.ids_only:
        return _INPUTS_OF_IDS.get(artifact.head, ("text",))
    for names in _INPUTS:
        if set(names) == set(signature.inputs):
            return names
    raise UserError(
        "serving_default must take "
        f"{' or '.join(', '.join(names) for names in _INPUTS)}. Received: "
        f"{', '.join(signature.inputs)}."
    )
