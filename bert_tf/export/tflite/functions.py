"""The functions of .tflite files: from strings, or from token ids, to answers.

Shapes:
  B: number of texts or pairs of texts.
  R: rows.
  T: tokens per row.
  C: choices per row, only for multiple choice.
"""

import copy
import dataclasses

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.tflite import text_forms
from bert_tf.export.tflite.build import Build
from bert_tf.text.tokenizer import LiteTokenizer

_FORMS = {
    "classification": text_forms.Texts,
    "next_sentence": text_forms.Texts,
    "embeddings": text_forms.Texts,
    "multiple_choice": text_forms.MultipleChoice,
    "tagging": text_forms.Tagging,
    "question_answering": text_forms.QuestionAnswering,
}

# Outputs of the SavedModel that the file omits. The Task Library rejects a
# classifier with more than one output, and MediaPipe would treat each as
# class scores.
OMITTED_FOR_IDS = ("logits",)


class TextFunction:
    """Computes the answer to strings with operators of TensorFlow Lite.

    Args:
      build: The result of `adapt`.

    Attributes:
      specs: The strings: <string>[B] each, or [B, C] for multiple choice.
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
        outputs = serving_module.compute(build.model, rows.inputs)
        answer = self._form.answer(outputs, rows)
        return serving_module.for_predict(build.head, answer)


def adapt(build: Build) -> Build:
    """Adapts a build with strings to the operators of TensorFlow Lite.

    All rows have one length, and each text has one row.

    Args:
      build: The build of a file that takes strings.

    Raises:
      UserError: If TensorFlow Lite cannot run the head or the tokenizer.
    """
    if build.name not in _FORMS:
        raise UserError(
            "TensorFlow Lite has no operator to find [MASK] in text, so "
            "--input=text cannot fill masks; use --input=ids."
        )
    if build.quantization == "full_int8":
        raise UserError(
            "--quantization=full_int8 is calibrated on ids, so it needs "
            "--input=ids. Received: --input=text; --quantization=dynamic is "
            "as small."
        )
    head = copy.copy(build.head)
    head.tokenizer = LiteTokenizer(head.tokenizer)
    head.buckets = (head.max_seq_length,)
    if head.settings().get("doc_stride"):
        logging.warning(
            "The file truncates texts to %d tokens, where the model cuts long "
            "texts into windows.",
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
    """A stored model whose tokenizer uses operators of TensorFlow Lite."""

    def build_tokenizer(
        self, preserve_special_tokens: bool | None = None
    ) -> LiteTokenizer:
        return LiteTokenizer(super().build_tokenizer(preserve_special_tokens))


def _same_rows(strings: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Fails at run time if inputs have different numbers of rows.

    Otherwise a single row would be broadcast to the rows of another input.
    """
    count = tf.shape(next(iter(strings.values())))[:1]
    return {
        name: tf.reshape(x, tf.concat([count, tf.shape(x)[1:]], 0))
        for name, x in strings.items()
    }


class IdsFunction:
    """Computes the numeric answer to token ids, as an ids-only SavedModel.

    Args:
      build: The build of the file.

    Attributes:
      specs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T]
        or [R, C, T]; None for free dimensions.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self.specs = {
            name: _fix(spec, build.batch_size, build.seq_length)
            for name, spec in build.head.ids_specs().items()
        }

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns numeric tensors by name."""
        answer = serving_module.answer_ids_in_numbers(
            self._build.head, self._build.model, inputs
        )
        return {
            x: tensor
            for x, tensor in answer.items()
            if x not in OMITTED_FOR_IDS
        }


def _fix(
    spec: tf.TensorSpec, batch_size: int | None, seq_length: int | None
) -> tf.TensorSpec:
    shape = [batch_size, *spec.shape[1:-1], seq_length]
    return tf.TensorSpec(shape, spec.dtype, spec.name)
