"""The calls that verify an export, and the answers that it must give.

The head and the model are built from the model directory, and the head is
called eagerly. So an export must have the settings, labels, weights and
vocabulary of the model, and its graph must compute what the operators compute
one by one: without the fused model, without leaving out padding, in calls of
other sizes. The tests of each head compare it with the predictions of its task.

Shapes:
  B: number of rows.
  R: rows of the model.
  T: row length.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import serving_module
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.texts import Row
from bert_tf.tasks.predict import MODEL_INPUTS

Arrays = Mapping[str, np.ndarray]
Answerer = Callable[[Mapping[str, tf.Tensor], Rows], dict[str, tf.Tensor]]

# The most texts of a request, of mixed lengths.
_ROWS_PER_CALL = 8
_TEXTS_PER_CALL = 64
# Bounds the memory, as long texts have any number of windows.
_WINDOWS = 32
# Logits may differ by this many times the tolerance.
TIMES_FOR_LOGITS = 10
# Pairs of opposite disturbances. A decision between equal numbers changes in
# one of each pair, and one between numbers a tenth of the disturbance apart
# in all but one of ten.
_DISTURBANCES = 4


@dataclasses.dataclass(frozen=True)
class Expected:
    """The outputs that an export must return for some rows.

    Attributes:
      values: By output: numbers, or bytes in arrays of objects, each [B, ...].
      doubtful: By output: <bool>[B], the rows that may differ, as a decision
        depends on less than the tolerance.
    """

    values: Arrays
    doubtful: Arrays = dataclasses.field(default_factory=dict)

    def only(self, names: Iterable[str]) -> "Expected":
        """Returns some of the outputs."""
        return Expected({x: self.values[x] for x in names}, self.doubtful)

    def numbers(self) -> "Expected":
        """Returns the outputs that are no strings."""
        return self.only(n for n, x in self.values.items() if x.dtype != object)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature, and its answer if that is known.

    Attributes:
      signature: The name of the signature.
      inputs: Numbers, or bytes in arrays of objects, by name.
      description: The request in words, such as "batch 0 of 3".
      expected: The outputs that it must return, or None.
      repeats: The number of further calls to time.
    """

    signature: str
    inputs: Arrays
    description: str = ""
    expected: Expected | None = None
    repeats: int = 0


class Reference:
    """Computes what an export must return.

    Args:
      head: The head.
      stored: The stored model, which is computed in float32.
      tolerance: The largest allowed difference of numbers.
      ids_only: Whether the signatures take token ids instead of strings.
    """

    def __init__(
        self,
        head: ServingHead,
        stored: StoredModel,
        tolerance: float,
        ids_only: bool = False,
    ) -> None:
        if ids_only and "pair" in head.flags:
            # Every classifier takes the ids of pairs, which have two segments.
            head = dataclasses.replace(head, pair=True)
        self.head = head
        self.ids_only = ids_only
        self._layer = getattr(head, "layer", -1)
        self._function: Callable | None = None
        self._disturbance = TIMES_FOR_LOGITS * tolerance
        self._model = checkpoint_loading.build_model(
            stored,
            head.model_kind,
            return_all_layers=True,
            return_attention_probs=True,
        )

    def batches(self) -> list[list[Row]]:
        """Returns the rows of each call: texts of each length, and mixed."""
        head = self.head
        special_tokens = 1 + len(head.inputs)
        lengths = {
            bucket - special_tokens + more
            for bucket in head.buckets
            for more in (0, 1)
        }
        by_length = test_texts.of_length(
            head.tokenizer, sorted(x for x in lengths if x > 0)
        )
        rows = test_texts.make_rows(
            head.inputs,
            [*by_length, *test_texts.TEXTS, *test_texts.SENTENCES],
            head.tokenizer,
            head.max_seq_length,
            "masked_lm_logits" in head.outputs,
        )
        count = -(-len(rows) // _ROWS_PER_CALL)
        return [[row] for row in rows[: len(by_length)]] + [
            rows[number::count] for number in range(count)
        ]

    def plan(self, signatures: Container[str]) -> Iterator[Call]:
        """Yields the calls for all signatures of an export."""
        batches = self.batches()
        if self.ids_only:
            yield from self._plan_ids(batches, serving_module.SERVING)
            return
        yield from self._plan_strings(batches, signatures)
        yield from self._plan_ids(batches, serving_module.FROM_IDS)
        yield from self._plan_tokens()
        if serving_module.ATTENTION in signatures:
            yield Call(
                serving_module.ATTENTION,
                test_texts.to_inputs(batches[0]),
                f"{len(batches[0])} rows",
                self.expect_attention(batches[0]),
            )

    def _plan_strings(
        self, batches: Sequence[Sequence[Row]], signatures: Container[str]
    ) -> Iterator[Call]:
        """Yields calls with strings, directly and as Examples."""
        serving, method = serving_module.SERVING, self.head.method
        from_examples = serving_module.FROM_EXAMPLES
        for number, rows in enumerate(batches):
            found = self.expect(rows)
            expected = self.for_predict(found)
            name = f"batch {number} of {len(rows)}"
            yield Call(serving, test_texts.to_inputs(rows), name, expected)
            # Single rows run the same code.
            if len(rows) == 1 and number > 0:
                continue
            examples = test_texts.to_examples(rows)
            yield Call(from_examples, {"examples": examples}, name, expected)
            if method in signatures:
                others = found.only(found.values.keys() - expected.values)
                yield Call(method, {"inputs": examples}, name, others)
        # Bytes that are not UTF-8 are ignored.
        raw, decoded = (
            [_replace_texts(batches[0][0], text) for text in texts]
            for texts in (
                test_texts.INVALID,
                [x.decode("utf-8", "ignore") for x in test_texts.INVALID],
            )
        )
        yield Call(
            serving,
            test_texts.to_inputs(raw),
            "bytes that are not UTF-8",
            self.for_predict(self.expect(decoded)),
        )
        # An empty batch.
        empty = {x: v[:0] for x, v in test_texts.to_inputs(rows).items()}
        nothing = Expected({x: v[:0] for x, v in expected.values.items()})
        for signature, inputs in (
            (serving, empty),
            (from_examples, {"examples": np.empty(0, object)}),
        ):
            yield Call(signature, inputs, "an empty batch", nothing)

    def _plan_ids(
        self, batches: Sequence[Sequence[Row]], signature: str
    ) -> Iterator[Call]:
        """Yields calls with ids, of minimal length and then padded."""
        for number, rows in enumerate(batches):
            name = f"batch {number} of {len(rows)}"
            calls = {name: self.pack(rows)}
            if number == len(batches) - 1:
                longest = self.head.max_seq_length
                calls[f"{name}, padded"] = pad(calls[name], longest)
            for name, packed in calls.items():
                yield Call(signature, packed, name, self.expect_ids(packed))

    def _plan_tokens(self) -> Iterator[Call]:
        """Yields calls of `tokenize` that cover the whole vocabulary."""
        column = [
            *test_texts.TEXTS,
            *test_texts.QUESTIONS,
            *test_texts.CONTEXTS,
            *test_texts.of_vocabulary(self.head.tokenizer, _TEXTS_PER_CALL),
        ]
        for first in range(0, len(column), _TEXTS_PER_CALL):
            part = column[first : first + _TEXTS_PER_CALL]
            values = serving_module.tokenize(self.head, tf.constant(part))
            yield Call(
                serving_module.TOKENIZE,
                {"text": test_texts.to_array(part)},
                f"texts {first} to {first + len(part) - 1}",
                Expected({name: x.numpy() for name, x in values.items()}),
            )

    def expect(self, rows: Sequence[Row]) -> Expected:
        """Returns the outputs for strings, those of all methods together."""
        packed = self.head.pack(to_tensors(rows))
        return self.decide(self.head.answer, packed)

    def expect_ids(self, packed: Arrays) -> Expected:
        """Returns the outputs for ids, <int32>[R, T] each.

        An export that takes only ids returns only numbers.
        """
        inputs = {name: tf.constant(x) for name, x in packed.items()}
        rows = self.head.ids_rows(inputs)
        found = self.for_predict(self.decide(self.head.answer_ids, rows))
        return found.numbers() if self.ids_only else found

    def for_predict(self, found: Expected) -> Expected:
        """Returns outputs without those of classify or regress alone."""
        others = serving_module.OUTPUTS_OF_METHOD.get(self.head.method, ())
        return found.only(x for x in found.values if x not in others)

    def expect_attention(self, rows: Sequence[Row]) -> Expected:
        """Returns `tokens` [B, T] and `attention` [B, layers, heads, T, T]."""
        packed = self.head.attention_rows(to_tensors(rows))
        tokens = self.head.tokenizer.tokens(packed["input_ids"])
        tokens = tf.where(packed["input_mask"] > 0, tokens, "").numpy()
        layers = self._model(packed, training=False)["attention_probs"]
        # The export lacks the layers above that of embeddings.
        last = self._layer % len(layers)
        attention = np.stack([x.numpy() for x in layers[: last + 1]], 1)
        return Expected({"tokens": tokens, "attention": attention})

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the ids of strings without the padding that all rows have."""
        packed = self.head.pack(to_tensors(rows)).inputs
        longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
        return {x: packed[x][..., :longest].numpy() for x in MODEL_INPUTS}

    def decide(self, answer: Answerer, rows: Rows) -> Expected:
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
            return Expected(values)
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
        return Expected(values, dict.fromkeys(scalars, of_row) | doubtful)

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


def _replace_texts(row: Row, text: str | bytes) -> Row:
    return {
        name: [text] * len(value) if isinstance(value, list) else text
        for name, value in row.items()
    }


def pad(packed: Arrays, length: int) -> dict[str, np.ndarray]:
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
