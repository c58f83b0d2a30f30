"""What a .tflite file computes that takes strings.

Shapes:
  B: number of texts, or of pairs of texts.
"""

import copy
import dataclasses

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import computing
from bert_tf.export import serving_module
from bert_tf.export.tflite import text_forms
from bert_tf.export.tflite.build import Build
from bert_tf.text.lite_tokenizer import LiteTokenizer

_FORMS = {
    "classification": text_forms.Texts,
    "next_sentence": text_forms.Texts,
    "embeddings": text_forms.Texts,
    "multiple_choice": text_forms.MultipleChoice,
    "tagging": text_forms.Tagging,
    "question_answering": text_forms.QuestionAnswering,
}


class TextFunction:
    """What a head says of strings, in operators that TensorFlow Lite has.

    Args:
      build: What `adapt` returned.

    Attributes:
      specs: The strings: <string>[B] each, [B, choices] of multiple choice.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._form = _FORMS[build.name](build.head)
        self.specs = {
            name: tf.TensorSpec(
                [build.batch_size, *spec.shape[1:]], spec.dtype, name
            )
            for name, spec in build.head.input_specs().items()
        }

    def __call__(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the answer, tensors by name."""
        build = self._build
        rows = self._form.pack(_same_rows(strings))
        outputs = computing.compute(build.model, rows.inputs)
        answer = self._form.answer(outputs, rows)
        return serving_module.for_predict(build.head, answer)


def adapt(build: Build) -> Build:
    """Returns a build whose texts are read as TensorFlow Lite can.

    All rows have one length, and each text has one row.

    Args:
      build: A file to be that takes strings.

    Raises:
      UserError: If the head or the tokenizer has no such form.
    """
    if build.name not in _FORMS:
        raise UserError(
            "A .tflite file that takes text has no operator that finds [MASK] "
            "in it, so it cannot fill masks; build with --input=ids."
        )
    if build.quantization == "full_int8":
        raise UserError(
            "--quantization=full_int8 sets scales by rows of ids, so it needs "
            "--input=ids. Received: text; dynamic is as small."
        )
    head = copy.copy(build.head)
    head.tokenizer = LiteTokenizer(head.tokenizer)
    head.buckets = (head.max_seq_length,)
    if head.settings().get("doc_stride"):
        logging.warning(
            "The file reads the first %d pieces of a text, where the model "
            "reads windows of one that is longer.",
            head.max_seq_length,
        )
    if hasattr(head, "doc_stride"):
        head.doc_stride = None
    fields = dataclasses.fields(build.stored)
    stored = _LiteStoredModel(
        **{field.name: getattr(build.stored, field.name) for field in fields}
    )
    return dataclasses.replace(build, stored=stored, head=head)


@dataclasses.dataclass(frozen=True)
class _LiteStoredModel(StoredModel):
    """A model whose texts are read as TensorFlow Lite can."""

    def build_tokenizer(
        self, preserve_special_tokens: bool | None = None
    ) -> LiteTokenizer:
        return LiteTokenizer(super().build_tokenizer(preserve_special_tokens))


def _same_rows(strings: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Fails where inputs differ in their number of rows.

    One row would otherwise be taken for each of the other input's.
    """
    count = tf.shape(next(iter(strings.values())))[:1]
    return {
        name: tf.reshape(x, tf.concat([count, tf.shape(x)[1:]], 0))
        for name, x in strings.items()
    }
