"""The serving head of token classification: raw text in, tagged words out.

Shapes:
  B: number of texts.
  W: number of words of the longest text.
  R: rows that the model gets, one for each window; at least B.
  T: row length.
  L: number of labels.
"""

import dataclasses
from typing import Any
from typing import Self

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing
from bert_tf.text import word_windows
from bert_tf.text import words as words_lib

_NONE = -1


@dataclasses.dataclass(eq=False)
class Tagging(ServingHead):
    """Splits `text` into words and tags each word.

    Long texts are cut into windows.

    Args, in addition to the arguments of `ServingHead`:
      task: The task, which decodes the outputs.
      doc_stride: The maximum distance in tokens between the starts of adjacent
        windows. With None, a text has one window; words after it get tag "O".

    Raises:
      UserError: If `doc_stride` would skip tokens between windows.
    """

    inputs = ("text",)
    outputs = ("logits",)
    model_values = {"has_pooler": False}
    returns_padding = True
    flags = ("doc_stride",)
    max_rows_at_once = 32

    task: TaggingTask
    doc_stride: int | None

    def __post_init__(self) -> None:
        stride, length = self.doc_stride, self.max_seq_length
        if stride is not None and not 1 <= stride <= length - 2:
            raise UserError(
                "--doc_stride must lie between 1 and --max_seq_length - 2, or "
                f"tokens between windows are lost. Received: {stride} with "
                f"--max_seq_length={length}."
            )

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored tagger."""
        task = dataclasses.replace(
            registry.from_stored(source.stored),
            max_seq_length=source.max_seq_length,
        )
        stride = source.config.doc_stride
        return cls(
            *source.parts(),
            task,
            task.stride if stride is None else stride,
        )

    def settings(self) -> dict[str, Any]:
        """Returns the stride as tasks store it: 0 for a single window."""
        return {"doc_stride": self.doc_stride or 0}

    def pack(self, strings: TensorMap) -> Rows:
        """Splits texts into words, and tokenizes each word by itself.

        Returns:
          Rows with a state of tensors [B, W]. `words` <string> is padded with
          "", the other tensors with -1. `starts` and `ends` <int32> are each
          word's offsets in the text. `rows` and `positions` <int32> locate the
          first token of each word; both are -1 for a word without tokens.
        """
        words, tokens = self._tokenize(strings["text"])
        windows = word_windows.cut(
            tokens,
            words.texts.value_rowids(),
            words.texts.nrows(),
            self.max_seq_length - 2,
            self.doc_stride,
        )
        # Add 1 to each token's position, as [CLS] has position 0.
        positions = tf.where(windows.rows < 0, _NONE, windows.places + 1)
        state = {"words": words.texts.to_tensor("")}
        for name, values in (
            ("starts", words.starts.flat_values),
            ("ends", words.ends.flat_values),
            ("rows", windows.rows),
            ("positions", positions),
        ):
            ragged = words.texts.with_flat_values(values)
            state[name] = ragged.to_tensor(_NONE)
        return Rows(self._pack(windows.tokens), state)

    def attention_rows(self, strings: TensorMap) -> dict[str, tf.Tensor]:
        """Returns one row for each text, with the text's beginning."""
        words, tokens = self._tokenize(strings["text"])
        of_texts = words.texts.with_flat_values(tokens)
        return self._pack(of_texts.merge_dims(1, 2))

    def _tokenize(
        self, text: tf.Tensor
    ) -> tuple[words_lib.Words, tf.RaggedTensor]:
        """Returns words, and their tokens <int32>[words of all texts, None]."""
        words = words_lib.split_words_in_graph(text)
        return words, self.tokenizer.tokenize(words.texts.flat_values)

    def _pack(self, tokens: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        return packing.pack_to_bucket(
            [tokens], self.buckets, self.tokenizer.vocabulary
        )

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Returns the words of each text with their tags and offsets.

        Returns:
          `words` and `tags` <string>[B, W], padded with "". `starts` and
          `ends` <int32>[B, W], in characters, so that `text[start:end]` is a
          word in Python; padded with -1.
        """
        state = rows.state
        tags = self.task.decode(outputs, state["rows"], state["positions"])
        return {
            "words": state["words"],
            "tags": tf.where(state["starts"] == _NONE, "", tags),
            "starts": state["starts"],
            "ends": state["ends"],
        }

    def answer_ids(
        self, outputs: TensorMap, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `probabilities` of tags, <float32>[R, T, L]."""
        del rows
        logits = tf.cast(outputs["logits"], tf.float32)
        return {"probabilities": tf.nn.softmax(logits, axis=-1)}
