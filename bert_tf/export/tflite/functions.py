"""The functions of .tflite files: from strings, or from token ids, to answers.

TensorFlow Lite has no operators that cut words out of a text. So heads that
point into texts return the offsets of each token, and clients cut out the
words.

Shapes:
  B: number of texts or pairs of texts.
  R: rows.
  T: tokens per row.
  C: choices per row, only for multiple choice.
"""

import copy
import dataclasses
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.tflite.build import Build
from bert_tf.text import packing
from bert_tf.text.tokenizer import LiteTokenizer

# Outputs of the SavedModel that the file omits. The Task Library rejects a
# classifier with more than one output, and MediaPipe would treat each as
# class scores.
OMITTED_FOR_IDS = ("logits",)

# Heads that point into texts.
HEADS_WITH_OFFSETS = ("tagging", "question_answering")

_NONE = -1


class IdsFunction:
    """Computes the numeric answer to token ids, as an ids-only SavedModel.

    Attributes:
      specs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T]
        or [R, C, T]; None for free dimensions.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self.specs = {
            name: tf.TensorSpec(
                [build.batch_size, *spec.shape[1:-1], build.seq_length],
                spec.dtype,
                spec.name,
            )
            for name, spec in build.head.ids_specs().items()
        }

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns numeric tensors by name."""
        answer = serving_module.answer_ids_in_numbers(
            self._build.head, self._build.model, inputs
        )
        return {x: t for x, t in answer.items() if x not in OMITTED_FOR_IDS}


class TextFunction:
    """Computes the answer to strings with operators of TensorFlow Lite.

    `HEADS_WITH_OFFSETS` answer with numbers for each token and its offsets
    `starts` and `ends` <int32>[B, T] in bytes, or -1.

    Args:
      build: The result of `adapt`.

    Attributes:
      specs: The strings: <string>[B] each, or [B, C] for multiple choice.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self.specs = {
            name: tf.TensorSpec(
                [build.batch_size, *spec.shape[1:]], spec.dtype, name
            )
            for name, spec in build.head.input_specs().items()
        }

    def __call__(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the answer, tensors by name."""
        head = self._build.head
        rows = pack(self._build, strings)
        outputs = serving_module.compute(self._build.model, rows.inputs)
        if self._build.name in HEADS_WITH_OFFSETS:
            return head.answer_ids(outputs, rows) | rows.state
        return serving_module.for_predict(head, head.answer(outputs, rows))


def adapt(build: Build) -> Build:
    """Adapts a build with strings to the operators of TensorFlow Lite.

    All rows have one length, and each text has one row.

    Raises:
      UserError: If TensorFlow Lite cannot run the head or the tokenizer.
    """
    if build.name not in _PACKERS:
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
    return dataclasses.replace(build, head=head)


def pack(build: Build, strings: Mapping[str, tf.Tensor]) -> Rows:
    """Packs strings; `Rows.state` of `HEADS_WITH_OFFSETS` has the offsets."""
    return _PACKERS[build.name](build.head, _same_rows(strings))


def _same_rows(strings: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Fails at run time if inputs have different numbers of rows.

    Otherwise a single row would be broadcast to the rows of another input.
    """
    count = tf.shape(next(iter(strings.values())))[:1]
    return {
        name: tf.reshape(x, tf.concat([count, tf.shape(x)[1:]], 0))
        for name, x in strings.items()
    }


def _pack_texts(head: ServingHead, strings: Mapping[str, tf.Tensor]) -> Rows:
    """Packs texts, truncating long ones."""
    tokens = head.tokenizer.tokenize_with_offsets(strings["text"])
    segments, num_tokens = packing.find_segments([tokens[0]])
    layout = packing.lay_out(segments, num_tokens, head.buckets)
    return _rows_with_offsets(head, layout, *(x.flat_values for x in tokens))


def _pack_questions(
    head: ServingHead, strings: Mapping[str, tf.Tensor]
) -> Rows:
    """Packs questions with the beginnings of their contexts."""
    questions = head.tokenizer.tokenize(strings["question"])
    tokens = head.tokenizer.tokenize_with_offsets(strings["context"])
    ids, starts, ends = (x.flat_values for x in tokens)
    longest = head.task.max_query_length

    def truncate(lengths, room):
        kept = tf.minimum(lengths[0], longest)
        return [kept, tf.minimum(lengths[1], room - kept)]

    segments, num_tokens = packing.find_segments([questions, tokens[0]])
    layout = packing.lay_out(segments, num_tokens, head.buckets, truncate)
    nowhere = tf.fill([tf.size(questions.flat_values)], _NONE)
    return _rows_with_offsets(
        head,
        layout,
        tf.concat([questions.flat_values, ids], 0),
        tf.concat([nowhere, starts], 0),
        tf.concat([nowhere, ends], 0),
    )


_PACKERS = {
    **dict.fromkeys(
        ("classification", "next_sentence", "embeddings"),
        lambda head, strings: head.pack(strings),
    ),
    "multiple_choice": lambda head, strings: head.pack(strings, by_tokens=True),
    "tagging": _pack_texts,
    "question_answering": _pack_questions,
}


def _rows_with_offsets(
    head: ServingHead,
    layout: packing.Layout,
    ids: tf.Tensor,
    starts: tf.Tensor,
    ends: tf.Tensor,
) -> Rows:
    return Rows(
        layout.inputs(ids, head.tokenizer.vocabulary),
        {
            name: layout.place(values, _NONE, _NONE, _NONE)
            for name, values in (("starts", starts), ("ends", ends))
        },
    )
