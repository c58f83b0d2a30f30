"""The base class of serving heads: strings to model inputs, outputs to answers.

A serving head runs in the graph, and uses only operators of TensorFlow Serving
2.12. The model runs between `pack` and `answer`. The model's inputs and outputs
are dense and named, so that another engine can run the model.

Shapes:
  B: batch size of the request.
  R: rows that the model gets; more than B if long texts have several windows.
  T: row length, one of the buckets.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import Self

import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks import registry
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer

_MODEL_INPUTS = (INPUT_IDS.name, INPUT_MASK.name, SEGMENT_IDS.name)


@dataclasses.dataclass(frozen=True)
class Source:
    """The model and the settings that a serving head is built from.

    Attributes:
      stored: The model.
      config: The flags.
      max_seq_length, buckets: See `ServingHead`.
    """

    stored: StoredModel
    config: SavedModelConfig
    max_seq_length: int
    buckets: tuple[int, ...]

    def parts(
        self, **settings: Any
    ) -> tuple[BertTokenizer, int, tuple[int, ...]]:
        """Returns the tokenizer, `max_seq_length` and `buckets` for a head.

        `settings` of the tokenizer override the stored ones.
        """
        tokenizer = self.stored.build_tokenizer(**settings)
        return tokenizer, self.max_seq_length, self.buckets


@dataclasses.dataclass(frozen=True)
class Rows:
    """Packed rows: the model's inputs, and the state that `answer` needs.

    Attributes:
      inputs: `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T],
        or [B, choices, T] for multiple choice. The head `FillMask` adds
        `masked_lm_positions` <int32>[B, P].
      state: Other dense tensors that `answer` needs, by name.
    """

    inputs: dict[str, tf.Tensor]
    state: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class ServingHead:
    """The serving front end of one kind of model.

    Args:
      tokenizer: The tokenizer of the model.
      max_seq_length: The maximum number of tokens in a row.
      buckets: The allowed row lengths in ascending order; the last one is
        `max_seq_length`.
    """

    # The kind of model to build; None for the stored kind.
    model_kind: ClassVar[str | None] = None
    # The names of the input strings.
    inputs: ClassVar[tuple[str, ...]]
    # The names of the model's outputs that `answer` reads.
    outputs: ClassVar[tuple[str, ...]]
    # Whether `answer` also reads the model's outputs for padding.
    reads_padding: ClassVar[bool] = False
    # Whether `answer_ids` also returns the model's outputs for padding.
    returns_padding: ClassVar[bool] = False
    # The method that servers offer besides "predict". With "classify", `answer`
    # also returns `classes` and `scores`; with "regress", `outputs`.
    method: ClassVar[Literal["classify", "regress"] | None] = None
    # This head's own flags, which are fields of `SavedModelConfig`. By default,
    # `settings` reads them from the head's attributes with the same names.
    flags: ClassVar[tuple[str, ...]] = ()
    # Whether exports have the signature `attention`, with one row per text.
    has_attention: ClassVar[bool] = True
    # Arguments of `modeling.inference.prepare` that drop the parts of the model
    # that this head does not need.
    model_values: ClassVar[Mapping[str, Any]] = {}
    # The maximum number of rows per call of the model, as a text may have many
    # rows. None if each text has one row.
    max_rows_at_once: ClassVar[int | None] = None
    # The maximum number of rows per call for requests with token ids. Exports
    # with --ids_only have no maximum.
    max_ids_rows_at_once: ClassVar[int | None] = None

    tokenizer: BertTokenizer
    max_seq_length: int
    buckets: tuple[int, ...]

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored model, by default with its task."""
        return cls(*source.parts(), registry.from_stored(source.stored))

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the head: the values of `flags` by name."""
        return {name: getattr(self, name) for name in self.flags}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels in the order of the logits, if there are any.

        Raises:
          UserError: If a label contains a line break.
        """
        task = getattr(self, "task", None)
        labels = tuple(getattr(task, "labels", None) or ())
        for label in labels:
            if "\n" in label or "\r" in label:
                raise UserError(
                    "Labels must not contain line breaks, as labels.txt has "
                    f"one label per line. Received: {label!r}; rename it in "
                    "task.json."
                )
        return labels

    @property
    def form(self) -> dict[str, Any]:
        """The arguments of `modeling.inference.prepare` for this head."""
        return {"return_all_layers": False, **self.model_values}

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of the input strings, by default <string>[B]."""
        return {
            name: tf.TensorSpec([None], tf.string, name=name)
            for name in self.inputs
        }

    def ids_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of the token ids, by default <int32>[R, T] each."""
        return {
            name: tf.TensorSpec([None, None], tf.int32, name=name)
            for name in _MODEL_INPUTS
        }

    def attention_rows(self, strings: TensorMap) -> dict[str, tf.Tensor]:
        """Returns the rows for the signature `attention`, one per text.

        By default texts or pairs are truncated. The rows are `input_ids`,
        `input_mask` and `segment_ids`, each <int32>[B, T].
        """
        tokens = [self.tokenizer.tokenize(strings[x]) for x in self.inputs]
        return packing.pack_to_bucket(
            tokens, self.buckets, self.tokenizer.vocabulary
        )

    def tokenize_with_offsets(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns token ids, and the byte offsets of their starts and ends.

        For texts <string>[B], each is a ragged <int32>[B, None].
        """
        return self.tokenizer.tokenize_with_offsets(text)

    def pack(self, strings: TensorMap) -> Rows:
        """Tokenizes and packs strings, padded to one of the buckets.

        `strings` has a tensor for each name in the attribute `inputs`. By
        default each text or pair is truncated to one row.
        """
        return Rows(self.attention_rows(strings))

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Returns the answer to a request; the first axis of each tensor is B.

        `rows` is the result of `pack` or `ids_rows`. By default, adds the
        outputs for `method` to the result of `task.decode`.
        """
        answer = self.task.decode(outputs, *rows.state.values())
        if self.method == "regress":
            return answer | {"outputs": answer["score"]}
        if self.method is None:
            return answer
        probs = answer["probabilities"]
        shape = tf.shape(probs)
        # Choices have no labels, so name the classes "0", "1", and so on.
        names = self.labels or tf.strings.as_string(tf.range(shape[1]))
        classes = tf.broadcast_to(names, shape)
        return answer | {"classes": classes, "scores": probs}

    def rows_at_once(self, inputs: TensorMap) -> int | tf.Tensor | None:
        """Returns the maximum rows per call, <int32>[], or None for all."""
        del inputs  # Only `FillMask` needs more memory for some inputs.
        return self.max_rows_at_once

    def condense(self, outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the tensors that `answer` needs, from outputs for some rows.

        `answer` reads the result in place of the model's outputs. By default,
        the result has the outputs that the attribute `outputs` names.
        """
        return {name: outputs[name] for name in self.outputs}

    def ids_rows(self, inputs: TensorMap) -> Rows:
        """Returns the rows for token ids, the tensors of `ids_specs`."""
        return Rows(dict(inputs))

    def answer_ids(
        self, outputs: TensorMap, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Answers a request with token ids; by default, calls `answer`."""
        return self.answer(outputs, rows)
