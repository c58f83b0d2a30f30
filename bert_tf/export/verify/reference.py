"""Reference outputs for verifying an export: its head, called eagerly.

The head and the model are built from the model directory. So an export must
have the settings, labels, weights and vocabulary of the model, and its graph
must compute what the operators compute one by one: without the fused model,
without leaving out padding, in calls of other sizes. The tests of each head
compare it with the predictions of its task.

Shapes:
  B: number of rows.
  R: rows of the model.
  T: row length.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import serving_module
from bert_tf.export.heads import registry as heads
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.texts import Row
from bert_tf.inference import load
from bert_tf.tasks.predict import MODEL_INPUTS

# The most texts of a request, of mixed lengths.
_ROWS_PER_CALL = 8
# Bounds the memory, as long texts have any number of windows.
_WINDOWS = 32
# Logits may differ by this many times the tolerance.
TIMES_FOR_LOGITS = 10
# Pairs of opposite disturbances. A decision between equal numbers changes in
# one of each pair, and one between numbers a tenth of the disturbance apart
# in all but one of ten.
_DISTURBANCES = 4

_Answer = Callable[[Mapping[str, tf.Tensor], Rows], dict[str, tf.Tensor]]
_Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ReferenceOutputs:
    """The outputs that an export must return for some rows.

    Attributes:
      values: By output: numbers, or bytes in arrays of objects, each [B, ...].
      doubtful: By output: <bool>[B], the rows that may differ, as a decision
        depends on less than the tolerance.
    """

    values: _Arrays
    doubtful: _Arrays = dataclasses.field(default_factory=dict)

    def only(self, names: Iterable[str]) -> "ReferenceOutputs":
        """Returns some of the outputs."""
        return ReferenceOutputs(
            {name: self.values[name] for name in names}, self.doubtful
        )

    def numbers(self) -> "ReferenceOutputs":
        """Returns the outputs that are no strings."""
        return self.only(n for n, x in self.values.items() if x.dtype != object)


class Reference:
    """Computes the reference outputs of an export.

    Args:
      name: The name of the head, a key of `heads.registry.ENTRIES`.
      head: The head.
      stored: The stored model, which is computed in float32.
      tolerance: The largest allowed difference of numbers.
      ids_only: Whether the signatures take token ids instead of strings.
    """

    def __init__(
        self,
        name: str,
        head: ServingHead,
        stored: StoredModel,
        tolerance: float,
        ids_only: bool = False,
    ) -> None:
        if ids_only and name == "classification":
            # Every classifier takes the ids of pairs, which have two segments.
            head = dataclasses.replace(head, pair=True)
        self.head = head
        self.ids_only = ids_only
        self.tokenizer = head.tokenizer
        self._is_masked = name == "fill_mask"
        self._layer = getattr(head, "layer", -1)
        self._function: Callable | None = None
        self._disturbance = TIMES_FOR_LOGITS * tolerance
        self._model = load.build_model(
            stored,
            heads.ENTRIES[name].model_kind,
            return_all_layers=True,
            return_attention_probs=True,
        )

    def batches(self) -> list[list[Row]]:
        """Returns the rows of each call: texts of each length, and mixed."""
        special_tokens = 1 + len(self.head.inputs)
        lengths = {
            bucket - special_tokens + more
            for bucket in self.head.buckets
            for more in (0, 1)
        }
        by_length = test_texts.of_length(
            self.tokenizer, sorted(x for x in lengths if x > 0)
        )
        rows = test_texts.make_rows(
            self.head.inputs,
            [*by_length, *test_texts.TEXTS, *test_texts.SENTENCES],
            self.tokenizer,
            self.head.max_seq_length,
            self._is_masked,
        )
        count = -(-len(rows) // _ROWS_PER_CALL)
        return [[row] for row in rows[: len(by_length)]] + [
            rows[number::count] for number in range(count)
        ]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns the outputs for strings, those of all methods together."""
        packed = self.head.pack(to_tensors(rows))
        return self.decide(self.head.answer, packed)

    def expect_ids(self, packed: _Arrays) -> ReferenceOutputs:
        """Returns the reference outputs for ids, <int32>[R, T] each."""
        inputs = {name: tf.constant(x) for name, x in packed.items()}
        found = self.decide(self.head.answer_ids, self.head.ids_rows(inputs))
        return self.for_predict(found)

    def for_predict(self, found: ReferenceOutputs) -> ReferenceOutputs:
        """Returns outputs without those of classify or regress alone."""
        return found.only(serving_module.for_predict(self.head, found.values))

    def expect_tokens(self, column: Sequence[str]) -> ReferenceOutputs:
        """Returns the tokens of texts; see `serving_module.tokenize`."""
        values = serving_module.tokenize(self.head, tf.constant(column))
        return ReferenceOutputs({name: x.numpy() for name, x in values.items()})

    def expect_attention(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns `tokens` [B, T] and `attention` [B, layers, heads, T, T]."""
        packed = self.head.attention_rows(to_tensors(rows))
        tokens = self.tokenizer.tokens(packed["input_ids"])
        tokens = tf.where(packed["input_mask"] > 0, tokens, "").numpy()
        layers = self._model(packed, training=False)["attention_probs"]
        # The export lacks the layers above that of embeddings.
        last = self._layer % len(layers)
        attention = np.stack([x.numpy() for x in layers[: last + 1]], 1)
        return ReferenceOutputs({"tokens": tokens, "attention": attention})

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the ids of strings without the padding that all rows have."""
        packed = self.head.pack(to_tensors(rows)).inputs
        longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
        return {x: packed[x][..., :longest].numpy() for x in MODEL_INPUTS}

    def decide(self, answer: _Answer, rows: Rows) -> ReferenceOutputs:
        """Returns the answer to rows, and which of its decisions are doubtful.

        A decision, which is a string or an index, is doubtful if it changes
        with small changes of the model's outputs; with it all numbers that
        come one per row, such as the score of the chosen answer.

        Args:
          answer: A method of the head.
          rows: What it gets, besides the model's outputs.
        """
        outputs = self._compute(rows.inputs)
        values = {x: t.numpy() for x, t in answer(outputs, rows).items()}
        decided = [x for x, value in values.items() if value.dtype.kind != "f"]
        count = len(next(iter(values.values())))
        if not decided or not count:
            return ReferenceOutputs(values)
        doubtful = {name: np.zeros(count, bool) for name in decided}
        rng = np.random.default_rng(0)
        for _ in range(_DISTURBANCES):
            noise = {
                name: rng.uniform(-1, 1, x.shape) * self._disturbance
                for name, x in outputs.items()
            }
            for sign in (1, -1):
                disturbed = {
                    name: x + tf.cast(sign * noise[name], x.dtype)
                    for name, x in outputs.items()
                }
                others = answer(disturbed, rows)
                for name in decided:
                    differs = others[name].numpy() != values[name]
                    doubtful[name] |= differs.reshape(count, -1).any(-1)
        of_row = np.any([*doubtful.values()], axis=0)
        scalars = [x for x, value in values.items() if value.ndim == 1]
        return ReferenceOutputs(
            values, dict.fromkeys(scalars, of_row) | doubtful
        )

    def _compute(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs that the head reads."""
        if self._function is None:
            specs = {
                name: tf.TensorSpec([None] * x.shape.rank, x.dtype)
                for name, x in inputs.items()
            }
            self._function = tf.function(
                self._call, input_signature=[specs], autograph=False
            )
        # Zero rows make one part, too, as concatenation needs at least one.
        parts = [
            self._function({x: t[i : i + _WINDOWS] for x, t in inputs.items()})
            for i in range(0, max(len(inputs["input_ids"]), 1), _WINDOWS)
        ]
        return {x: tf.concat([one[x] for one in parts], 0) for x in parts[0]}

    def _call(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = self._model(dict(inputs), training=False)
        outputs["sequence_output"] = outputs["encoder_outputs"][self._layer]
        return {name: outputs[name] for name in self.head.outputs}


def pad(packed: _Arrays, length: int) -> dict[str, np.ndarray]:
    """Pads the model's inputs to a length."""
    missing = length - packed["input_ids"].shape[-1]
    return {
        name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        for name, x in packed.items()
    }


def to_tensors(rows: Sequence[Row]) -> dict[str, tf.Tensor]:
    """Returns a tensor for each input string of a head."""
    inputs = test_texts.to_inputs(rows)
    return {name: tf.constant(x, tf.string) for name, x in inputs.items()}
