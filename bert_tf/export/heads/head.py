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
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import Self

import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.flags.export import SavedModelConfig
from bert_tf.text import dense_packing
from bert_tf.text.tokenizer import BertTokenizer

_MODEL_INPUTS = (INPUT_IDS.name, INPUT_MASK.name, SEGMENT_IDS.name)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a head is built from.

    Attributes:
      stored: The model.
      config: What the user asks for.
      max_seq_length: The most pieces of a row.
      buckets: Lengths that rows may have, rising; the last is
        `max_seq_length`.
    """

    stored: StoredModel
    config: SavedModelConfig
    max_seq_length: int
    buckets: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What `pack` makes of strings.

    Attributes:
      inputs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T];
        [B, choices, T] of multiple choice; `masked_lm_positions` <int32>[B, P]
        beside them where pieces are predicted.
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
    # The names of the model's outputs that `answer` reads.
    outputs: ClassVar[tuple[str, ...]]
    # Whether it reads those of padding, too.
    reads_padding: bool = False
    # TensorFlow Serving's other interfaces, where they fit: `answer` then
    # returns `classes` and `scores` ("classify") or `outputs` ("regress") too.
    method: Literal["classify", "regress"] | None = None
    # The fields of `SavedModelConfig` that this head reads, of those that not
    # all heads do; each is an attribute, too.
    flags: ClassVar[tuple[str, ...]] = ()
    # Whether there is one row of each text whose attention can be looked at.
    has_attention: ClassVar[bool] = True
    # The most rows for the model to compute at once, where one text can have
    # any number of them; None where rows are as many as texts.
    max_rows_at_once: ClassVar[int | None] = None

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_seq_length: int,
        buckets: Sequence[int],
    ) -> None:
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.buckets = tuple(buckets)

    @classmethod
    @abc.abstractmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored model.

        Raises:
          UserError: If the model or the flags do not fit the head.
        """

    def settings(self) -> dict[str, Any]:
        """Returns what the head was built with: `flags` and their values."""
        return {name: getattr(self, name) for name in self.flags}

    def model_values(self) -> dict[str, Any]:
        """Returns arguments of the model that leave out what nothing reads.

        They are those of `bert_tf.modeling.inference.prepare`.
        """
        return {}

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns what `pack` takes: by default vectors of strings, [B]."""
        return {
            name: tf.TensorSpec([None], tf.string, name=name)
            for name in self.inputs
        }

    def ids_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns what the model takes: by default <int32>[R, T] each."""
        return {
            name: tf.TensorSpec([None, None], tf.int32, name=name)
            for name in _MODEL_INPUTS
        }

    def attention_rows(
        self, strings: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns the rows whose attention can be looked at, one of each text.

        By default one text or a pair, truncated.

        Args:
          strings: As for `pack`.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, T].
        """
        return self.pack_texts(*(strings[name] for name in self.inputs))

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the pieces that the model is given of texts, and places.

        Args:
          text: <string>[B].

        Returns:
          Ids, and where in the text they start and end, in bytes; ragged
          <int32>[B, None] each.
        """
        return self.tokenizer.tokenize_with_offsets(text)

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

    def pick(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns what `answer` reads of a model's outputs, tensors by name.

        Args:
          outputs: What the model returns for rows.
        """
        return {name: outputs[name] for name in self.outputs}

    def rows_at_once(
        self, inputs: Mapping[str, tf.Tensor]
    ) -> int | tf.Tensor | None:
        """Returns the most rows to compute at once, <int32>[]; None for all.

        Args:
          inputs: What the model takes.
        """
        del inputs  # Of most heads a row needs as much as any other.
        return self.max_rows_at_once

    def condense(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns what is kept of rows that are computed apart from others.

        `answer` reads it in place of the model's outputs.

        Args:
          outputs: What the model returns for the rows.
        """
        return self.pick(outputs)

    def ids_rows(self, inputs: Mapping[str, tf.Tensor]) -> Rows:
        """Returns the model's input for ids that users send: by default these.

        Args:
          inputs: A tensor of `ids_specs` for each of their names.
        """
        return Rows(dict(inputs))

    @abc.abstractmethod
    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what users get who send ids: nothing that needs strings.

        Args:
          outputs: What the model returns for `rows.inputs`.
          rows: What `ids_rows` returned.
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
        length = dense_packing.choose_length(longest, self.buckets)
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
        return dense_packing.pack(
            self.tokenizer.tokenize(text),
            None if text_pair is None else self.tokenizer.tokenize(text_pair),
            self.buckets,
            self.tokenizer.vocabulary,
        )
