"""What turns strings into a model's input, and its output into answers.

All of it is in graph, from operators that TensorFlow Serving has linked since
2.12. Between `pack` and `answer` stands the model, so that another engine may
stand in its place: what goes from one to the other is dense and has names.

Shapes:
  B: batch size, of what the user sends.
  R: rows of the model: B, or more where long texts have several windows.
  T: length of the rows, one of the buckets.
"""

import abc
import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import ClassVar
from typing import Literal

import tensorflow as tf

from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer


@dataclasses.dataclass(frozen=True)
class Rows:
    """What `pack` makes of strings.

    Attributes:
      inputs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T];
        [B, choices, T] of multiple choice.
      state: What `answer` must know beside; dense tensors by name.
    """

    inputs: dict[str, tf.Tensor]
    state: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)


class Head(abc.ABC):
    """How one kind of model is served.

    Args:
      tokenizer: The one that the model was trained with.
      max_seq_length: The most pieces of a row.
      buckets: Lengths that rows may have, rising; the last is
        `max_seq_length`.
    """

    # The names of the strings that `pack` takes.
    inputs: ClassVar[tuple[str, ...]]
    # TensorFlow Serving's other interfaces, where they fit: `answer` then
    # returns `classes` and `scores` ("classify") or `outputs` ("regress") too.
    method: Literal["classify", "regress"] | None = None

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_seq_length: int,
        buckets: Sequence[int],
    ) -> None:
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.buckets = tuple(buckets)

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns what `pack` takes: by default vectors of strings, [B]."""
        return {
            name: tf.TensorSpec([None], tf.string, name=name)
            for name in self.inputs
        }

    @abc.abstractmethod
    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Tokenizes and packs strings, padded to one of the buckets.

        Args:
          strings: A tensor of `input_specs` for each of `inputs`.
        """

    @abc.abstractmethod
    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what users get; the first axis of each tensor is B.

        Args:
          outputs: What the model returns for `rows.inputs`.
          rows: What `pack` returned.
        """

    @abc.abstractmethod
    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns what users get who send ids: nothing that needs strings.

        Args:
          outputs: What the model returns for them.
        """

    def trim(self, packed: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Cuts rows to the smallest bucket that holds them all.

        Args:
          packed: What `packing.pack` returns, <int32>[R, max_seq_length].

        Returns:
          The same, <int32>[R, T].
        """
        longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
        # An empty batch has the smallest of int32 here, and so the first.
        index = tf.searchsorted(self.buckets, longest[tf.newaxis])[0]
        length = tf.gather(self.buckets, index)
        return {name: x[..., :length] for name, x in packed.items()}

    def pack_texts(
        self, text: tf.Tensor, text_pair: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns the model's input for texts, or for pairs of texts.

        Args:
          text: <string>[R].
          text_pair: <string>[R], or None.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T].
        """
        second = (
            None if text_pair is None else self.tokenizer.tokenize(text_pair)
        )
        return self.trim(
            packing.pack(
                self.tokenizer.tokenize(text),
                second,
                self.max_seq_length,
                self.tokenizer.vocabulary,
            )
        )
