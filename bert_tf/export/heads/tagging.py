"""Tags of words: raw text in, words and their tags and places out.

Shapes:
  B: number of texts.
  W: words of the longest text.
  R: rows of the model, which are windows; at least B.
  T: length of the rows.
  L: number of labels.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export.heads import word_windows
from bert_tf.export.heads.head import Head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.tagging.examples import OUTSIDE
from bert_tf.text import dense_packing
from bert_tf.text import word_splitting
from bert_tf.text.tokenizer import BertTokenizer

_NONE = -1


class Tagging(Head):
    """Words of `text`, and a tag for each.

    Long texts are read in windows; each text by itself.

    Args:
      tokenizer: As for `Head`, like the next two.
      max_seq_length: The most pieces of a window.
      buckets: Lengths that windows may have.
      labels: The tags in the order of their ids.
      stride: How many pieces further each window begins, at most; None for
        one window only, so that words behind it are tagged "O".

    Raises:
      UserError: If windows would leave pieces out.
    """

    inputs = ("text",)
    outputs = ("logits",)
    flags = ("doc_stride",)
    max_rows_at_once = 32

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_seq_length: int,
        buckets: Sequence[int],
        labels: Sequence[str],
        stride: int | None,
    ) -> None:
        super().__init__(tokenizer, max_seq_length, buckets)
        room = max_seq_length - 2
        if stride is not None and not 1 <= stride <= room:
            raise UserError(
                "--doc_stride must lie between 1 and --max_seq_length - 2, or "
                f"pieces between windows are lost. Received: {stride} with "
                f"--max_seq_length={max_seq_length}."
            )
        self._labels = tuple(labels)
        self.doc_stride = stride

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored tagger."""
        task = dataclasses.replace(
            tasks.from_stored(source.stored),
            max_seq_length=source.max_seq_length,
        )
        stride = source.config.doc_stride
        return cls(
            source.stored.build_tokenizer(),
            source.max_seq_length,
            source.buckets,
            task.labels,
            task.stride if stride is None else stride,
        )

    def settings(self) -> dict[str, Any]:
        """Returns the stride as a task has it: 0 is for one window."""
        return {"doc_stride": self.doc_stride or 0}

    def model_values(self) -> dict[str, Any]:
        """Returns what leaves out the pooler."""
        return {"has_pooler": False}

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Splits texts into words, and tokenizes each word by itself.

        Args:
          strings: `text` <string>[B].

        Returns:
          Rows with a state of `words` <string>[B, W], padded with "", and
          `starts`, `ends`, `rows` and `positions`, each <int32>[B, W], padded
          with -1: where words are in the text, and where in the model's input
          their first pieces are; a row of -1 is for words without a piece.
        """
        words, pieces = self._tokenize(strings["text"])
        windows = word_windows.cut(
            pieces,
            words.texts.value_rowids(),
            words.texts.nrows(),
            self.max_seq_length - 2,
            self.doc_stride,
        )
        # Behind [CLS].
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
        return Rows(self._pack(windows.pieces), state)

    def attention_rows(
        self, strings: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns the beginning of each text, as `Head` has it."""
        words, pieces = self._tokenize(strings["text"])
        of_texts = words.texts.with_flat_values(pieces)
        return self._pack(of_texts.merge_dims(1, 2))

    def _tokenize(
        self, text: tf.Tensor
    ) -> tuple[word_splitting.Words, tf.RaggedTensor]:
        """Returns words, and the pieces <int32>[words of all texts, None]."""
        words = word_splitting.split_words(text)
        return words, self.tokenizer.tokenize(words.texts.flat_values)

    def _pack(self, pieces: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        return dense_packing.pack(
            pieces, None, self.buckets, self.tokenizer.vocabulary
        )

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the words of each text, their tags, and where they are.

        Args:
          outputs: `logits` <float>[R, T, L].
          rows: What `pack` returned.

        Returns:
          `words` and `tags` <string>[B, W], padded with ""; `starts` and
          `ends` <int32>[B, W], characters of the text as Python counts them,
          ends exclusive, padded with -1.
        """
        state = rows.state
        best = tf.argmax(outputs["logits"], axis=-1, output_type=tf.int32)
        place = tf.stack([state["rows"], state["positions"]], axis=-1)
        ids = tf.gather_nd(best, tf.maximum(place, 0))
        tags = tf.gather(tf.constant(self._labels), ids)
        tags = tf.where(state["rows"] == _NONE, OUTSIDE, tags)
        return {
            "words": state["words"],
            "tags": tf.where(state["starts"] == _NONE, "", tags),
            "starts": state["starts"],
            "ends": state["ends"],
        }

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns the probabilities of the tags of each position.

        Args:
          outputs: `logits` <float>[R, T, L].
          rows: Not needed.

        Returns:
          `probabilities` <float32>[R, T, L].
        """
        del rows
        logits = tf.cast(outputs["logits"], tf.float32)
        return {"probabilities": tf.nn.softmax(logits, axis=-1)}
