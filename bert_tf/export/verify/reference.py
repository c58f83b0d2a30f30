"""The calls that warm up and verify an export, and the answers it must give.

Texts that reveal errors are listed here. Texts with a given number of tokens
are generated from the vocabulary of the model.

The answers are computed from the model directory, without the export's graph,
which fuses the model and skips padding. A difference reveals wrong settings,
labels, weights or vocabularies, or errors in the export's graph. Tests compare
the answers of each head with the predictions of its task.

Shapes:
  B: number of rows of a request.
  R: rows of the model's input, such as one for each window of a long text.
  T: row length.
"""

import dataclasses
import random
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import ServingHead
from bert_tf.io import files
from bert_tf.serving.servable import Arrays
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.task import TensorMap
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import MASK

# A row of a request maps input names to strings, or to lists such as choices.
Row = Mapping[str, Any]
Answerer = Callable[[TensorMap, Rows], dict[str, tf.Tensor]]

_ROWS_PER_CALL = 8
_TEXTS_PER_CALL = 64
# Compute only this many windows at once, or a long text could fill the memory.
_WINDOWS = 32
# Logits may differ by 10 times the tolerance: padding changes their rounding.
TIMES_FOR_LOGITS = 10
# `Reference.decide` adds and subtracts random noise this many times. Decisions
# that change are doubtful. For example, noise between -1 and 1 changes 90% of
# the decisions between two numbers that differ by 0.1, each time.
_DISTURBANCES = 4

# With these arguments, a model returns all outputs that `Reference` reads.
OUTPUTS = {"return_all_layers": True, "return_attention_probs": True}

_NUM_CHOICES = 2
_QUESTION_WORDS = 3
# The names of a head's inputs select its example row.
_EXAMPLES: Mapping[tuple[str, ...], Row] = {
    ("text",): {"text": "A fine film from Paris."},
    ("text", "text_pair"): {
        "text": "The cat sat on the mat.",
        "text_pair": "Then it slept.",
    },
    ("question", "context"): {
        "question": "Where did the cat sit?",
        "context": "The cat sat on the mat, and the dog by the door.",
    },
    ("text", "choices"): {
        "text": "The cat sat on the",
        "choices": ["mat.", "number seven."],
    },
}
_MASKED_EXAMPLE = {"text": f"The cat sat on the {MASK}."}

TEXTS = (
    "",
    " \t\n",
    "A fine film.",
    "the cat sat on the mat.",
    "Don't stop-believing, it's 3.14 o'clock (or so); \"really\"?!",
    "UPPER lower MiXeD İstanbul ΣΊΣΥΦΟΣ Straße ǅ ﬁne",
    "café cafe\u0301 naïve Ångström Å ü u\u0308 ñ o\u0302\u0323",
    "Привет, мир! Γειά σου Κόσμε. Ærøskøbing łódź",
    "東京は日本の首都です。 中国 𠮷野家 한국어 문장 각",
    "مرحبا بالعالم \u200fשלום עולם\u200e नमस्ते दुनिया สวัสดีชาวโลก",
    "👩\u200d👩\u200d👧 🇫🇷 😀😀 ❤️ ☕ ™ © ½ ² № ℝ ﷺ",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break line\u2028end \ufeffmark",
    "NUL\x00in\x01side \x7f\x85 tab\tnew\nline\r\nend \ufffd replaced",
    "[CLS] typed [SEP] tokens [MASK] [PAD] [UNK] [unused1] ##s ##",
    "<html>&amp; https://example.org/a?b=c#d user@example.org $5 50% ~`^|\\",
    "a" * 200 + " " + "a" * 201 + " " + "ab" * 5000,
    "supercalifragilisticexpialidocious antidisestablishmentarianism " * 3,
    "." * 300,
    "long ago, in a far land, the dog sat down and 東 said: hm! " * 400,
)
# Exports must ignore invalid UTF-8: a stray byte, a truncated character, an
# overlong character and a surrogate. The [MASK]s are for fill-mask heads.
INVALID = (
    b"a \xff b [MASK]",
    b"c \xe6\x9d [MASK]",
    b"\xc0\xaf d \xed\xa0\x80 [MASK]",
)
QUESTIONS = (
    "Where does the dog sit?",
    "What is 東京 the capital of ?",
    "Who wrote it, and when and where and why and for whom? " * 20,
    "¿Qué?",
)
CONTEXTS = (
    "The dog sat on the mat, and the cat sat by the door.",
    "東京は日本の首都です。 Tokyo (東京) is the capital of  Japan.",
    "In 1998, Zoë O\u2019Brien-Łukasz paid €1,250.50 to the cafe\u0301: twice.",
    "One two three. " * 150 + "The dog sat on the mat in the end.",
    "word",
)
SENTENCES = (
    "Angela Merkel visited Paris, France on 3 July 2019.",
    "U.N. official Ekeus heads for Baghdad.",
)


@dataclasses.dataclass(frozen=True)
class Expected:
    """The outputs that an export must return for some rows.

    Attributes:
      values: Output name to an array [B, ...] of numbers or bytes objects.
      doubtful: Output name to <bool>[B], True for rows in which a difference
        within the tolerance can change a decision, so any value is allowed.
    """

    values: Arrays
    doubtful: Arrays = dataclasses.field(default_factory=dict)

    def only(self, names: Iterable[str]) -> "Expected":
        """Returns some of the outputs."""
        return Expected({x: self.values[x] for x in names}, self.doubtful)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature, and its expected outputs if they are known.

    Attributes:
      inputs: Input name to an array of numbers or bytes objects.
      description: The request in words, such as "batch 0 of 3".
      repeats: How often to repeat the call to measure its latency.
    """

    signature: str
    inputs: Arrays
    description: str = ""
    expected: Expected | None = None
    repeats: int = 0


class Reference:
    """Computes what an export must return.

    Args:
      model: The training form of the model in float32, built with `OUTPUTS`.
      tolerance: The largest allowed difference of numbers.
      ids_only: Whether the signatures take token ids instead of strings.
    """

    def __init__(
        self,
        head: ServingHead,
        model: keras.Model,
        tolerance: float,
        ids_only: bool = False,
    ) -> None:
        if ids_only and "pair" in head.flags:
            # Classifiers that take ids accept two segments, so test pairs.
            head = dataclasses.replace(head, pair=True)
        self.head = head
        self.ids_only = ids_only
        self._layer = getattr(head, "layer", -1)
        self._function: Callable | None = None
        self._disturbance = TIMES_FOR_LOGITS * tolerance
        self._model = model

    def batches(self) -> list[list[Row]]:
        """Returns the rows of each call: single rows first, then mixed rows."""
        head = self.head
        special_tokens = 1 + len(head.inputs)
        lengths = {
            bucket - special_tokens + more
            for bucket in head.buckets
            for more in (0, 1)
        }
        by_length = of_length(
            head.tokenizer, sorted(x for x in lengths if x > 0)
        )
        rows = make_rows(head, [*by_length, *TEXTS, *SENTENCES])
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
                to_inputs(batches[0]),
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
            yield Call(serving, to_inputs(rows), name, expected)
            # Single rows all run the same code: send only one as an Example.
            if len(rows) == 1 and number > 0:
                continue
            examples = to_examples(rows)
            yield Call(from_examples, {"examples": examples}, name, expected)
            if method in signatures:
                others = found.only(found.values.keys() - expected.values)
                yield Call(method, {"inputs": examples}, name, others)
        # Exports must drop bytes that are not UTF-8, as `decode` does here.
        raw, decoded = (
            [
                {
                    name: [text] * len(x) if isinstance(x, list) else text
                    for name, x in batches[0][0].items()
                }
                for text in texts
            ]
            for texts in (
                INVALID,
                [x.decode("utf-8", "ignore") for x in INVALID],
            )
        )
        yield Call(
            serving,
            to_inputs(raw),
            "bytes that are not UTF-8",
            self.for_predict(self.expect(decoded)),
        )
        # An empty batch must return empty outputs.
        empty = {x: v[:0] for x, v in to_inputs(rows).items()}
        nothing = Expected({x: v[:0] for x, v in expected.values.items()})
        for signature, inputs in (
            (serving, empty),
            (from_examples, {"examples": np.empty(0, object)}),
        ):
            yield Call(signature, inputs, "an empty batch", nothing)

    def _plan_ids(
        self, batches: Sequence[Sequence[Row]], signature: str
    ) -> Iterator[Call]:
        """Yields a call per batch of ids, and one with padding for the last."""
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
            *TEXTS,
            *QUESTIONS,
            *CONTEXTS,
            *of_vocabulary(self.head.tokenizer, _TEXTS_PER_CALL),
        ]
        for first in range(0, len(column), _TEXTS_PER_CALL):
            part = column[first : first + _TEXTS_PER_CALL]
            values = serving_module.tokenize(self.head, tf.constant(part))
            yield Call(
                serving_module.TOKENIZE,
                {"text": to_array(part)},
                f"texts {first} to {first + len(part) - 1}",
                Expected({name: x.numpy() for name, x in values.items()}),
            )

    def expect(self, rows: Sequence[Row]) -> Expected:
        """Returns all outputs for strings, also for classify and regress."""
        packed = self.head.pack(to_tensors(rows))
        return self.decide(self.head.answer, packed)

    def expect_ids(self, packed: Arrays) -> Expected:
        """Returns the outputs for ids, <int32>[R, T] each.

        An export that takes only ids returns only numbers.
        """
        inputs = {name: tf.constant(x) for name, x in packed.items()}
        rows = self.head.ids_rows(inputs)
        found = self.for_predict(self.decide(self.head.answer_ids, rows))
        if not self.ids_only:
            return found
        return found.only(
            x for x, v in found.values.items() if v.dtype != object
        )

    def for_predict(self, found: Expected) -> Expected:
        """Removes the outputs that only classify or regress returns."""
        return found.only(serving_module.for_predict(self.head, found.values))

    def expect_attention(self, rows: Sequence[Row]) -> Expected:
        """Returns `tokens` [B, T] and `attention` [B, layers, heads, T, T]."""
        packed = self.head.attention_rows(to_tensors(rows))
        tokens = self.head.tokenizer.tokens(packed["input_ids"])
        tokens = tf.where(packed["input_mask"] > 0, tokens, "").numpy()
        layers = self._model(packed, training=False)["attention_probs"]
        # An export of embeddings ends at `head.layer`: drop later layers.
        last = self._layer % len(layers)
        attention = np.stack([x.numpy() for x in layers[: last + 1]], 1)
        return Expected({"tokens": tokens, "attention": attention})

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the ids of strings, padded only to the longest row."""
        packed = self.head.pack(to_tensors(rows)).inputs
        longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
        return {x: packed[x][..., :longest].numpy() for x in MODEL_INPUTS}

    def decide(self, answer: Answerer, rows: Rows) -> Expected:
        """Returns the answers to rows, and marks doubtful decisions.

        A decision is a string or an index. A decision is doubtful if small
        changes of the model's outputs change it. In a row with a doubtful
        decision, scalars such as the answer's score are doubtful, too.

        `answer` is the method of the head that computes the answers.
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

    def _compute(self, inputs: TensorMap) -> dict[str, tf.Tensor]:
        """Returns the outputs that the head reads."""
        if self._function is None:
            specs = {
                name: tf.TensorSpec([None] * x.shape.rank, x.dtype)
                for name, x in inputs.items()
            }
            self._function = tf.function(
                self._call, input_signature=[specs], autograph=False
            )
        # Make one part even without rows: `tf.concat` needs at least one part.
        parts = [
            self._function({x: t[i : i + _WINDOWS] for x, t in inputs.items()})
            for i in range(0, max(len(inputs["input_ids"]), 1), _WINDOWS)
        ]
        return {x: tf.concat([one[x] for one in parts], 0) for x in parts[0]}

    def _call(self, inputs: TensorMap) -> dict[str, tf.Tensor]:
        outputs = self._model(dict(inputs), training=False)
        outputs["sequence_output"] = outputs["encoder_outputs"][self._layer]
        return {name: outputs[name] for name in self.head.outputs}


def pad(packed: Arrays, length: int) -> dict[str, np.ndarray]:
    """Pads the model's inputs to a length."""
    missing = length - packed["input_ids"].shape[-1]
    return {
        name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        for name, x in packed.items()
    }


def to_tensors(rows: Sequence[Row]) -> dict[str, tf.Tensor]:
    """Returns a tensor for each input string of a head."""
    inputs = to_inputs(rows)
    return {name: tf.constant(x, tf.string) for name, x in inputs.items()}


def write_requests(path: str, model_name: str, calls: Sequence[Call]) -> None:
    """Writes warm-up requests as a TFRecord file of PredictionLogs."""
    with (
        files.atomic_file(path) as temporary,
        tf.io.TFRecordWriter(temporary) as writer,
    ):
        for call in calls:
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = model_name
            request.model_spec.signature_name = call.signature
            for name, values in call.inputs.items():
                dtype = tf.string if values.dtype == object else None
                request.inputs[name].CopyFrom(
                    tf.make_tensor_proto(values, dtype, values.shape)
                )
            writer.write(log.SerializeToString())


def read_requests(path: str, num_timings: int = 0) -> list[Call]:
    """Reads warm-up requests; calls with one row are timed `num_timings` times.

    Raises:
      UserError: If the file is missing or damaged.
    """
    files.require_file(path, "--export_dir")
    calls = []
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            request = log.predict_log.request
            inputs = {
                name: tf.make_ndarray(proto)
                for name, proto in request.inputs.items()
            }
            is_row = all(len(x) == 1 for x in inputs.values())
            calls.append(
                Call(
                    request.model_spec.signature_name,
                    inputs,
                    f"request {len(calls)}",
                    repeats=num_timings if is_row else 0,
                )
            )
    except tf.errors.DataLossError as error:
        raise UserError(f"{path} is damaged: {error.message}.") from error
    return calls


def warmup_requests(
    head: ServingHead, ids_only: bool = False, counts: Sequence[int] = (1,)
) -> list[Call]:
    """Returns warm-up requests for each bucket, with rows that fill it.

    Each bucket has a request for each number of rows in `counts`.
    """
    calls = []
    for bucket in head.buckets:
        for count in counts:
            rows = [_row(head, bucket, seed) for seed in range(count)]
            inputs = to_inputs(rows)
            if ids_only:
                packed = head.pack(to_tensors(rows)).inputs
                inputs = {x: packed[x].numpy() for x in head.ids_specs()}
            calls.append(Call(serving_module.SERVING, inputs))
    return calls


def _row(head: ServingHead, bucket: int, seed: int) -> Row:
    """Returns a row of words that fills the bucket, special tokens included."""
    first, *others = head.inputs
    room = bucket - 2 - len(others)
    size = bucket // 2 - 1 if others else room
    if "question" in head.inputs:
        size = min(_QUESTION_WORDS, bucket // 3)
    is_masked = "masked_lm_logits" in head.outputs
    sizes = [max(size - is_masked, 1), max(room - size, 1)]
    text, other = of_length(head.tokenizer, sizes, seed)
    if is_masked:
        text = f"{MASK} {text}"
    row: dict[str, Any] = {first: text}
    for name in others:
        row[name] = [other] * _NUM_CHOICES if name == "choices" else other
    return row


def example(head: ServingHead, ids_only: bool = False) -> dict[str, Any]:
    """Returns one row for serving_default, as JSON values."""
    if ids_only:
        inputs = warmup_requests(head, ids_only)[0].inputs
        return {name: values[0].tolist() for name, values in inputs.items()}
    if "masked_lm_logits" in head.outputs:
        return dict(_MASKED_EXAMPLE)
    return dict(_EXAMPLES[head.inputs])


def make_rows(head: ServingHead, column: Sequence[str]) -> list[Row]:
    """Returns a row for each text; other texts fill the row's other inputs.

    For heads that fill masks, one to three [MASK]s are put into each text. For
    question answering, `CONTEXTS` are added to the texts.
    """
    if "masked_lm_logits" in head.outputs:
        column = [_mask(text, number) for number, text in enumerate(column)]
    if len(head.inputs) == 1:
        return [{head.inputs[0]: text} for text in column]
    first, second = head.inputs
    if second == "context":
        column = [*column, *CONTEXTS]
        questions = (QUESTIONS * len(column))[: len(column)]
        pairs = zip(questions, column, strict=True)
    elif second == "choices":
        typed = [text for text in column if text.strip()]
        pairs = (
            (text, [typed[(i + 5 * n) % len(typed)] for n in range(2 + i % 3)])
            for i, text in enumerate(column)
        )
    else:
        # Vary which text of a pair is longer; some texts are empty.
        lengths = [1 + 7 * n % head.max_seq_length for n in range(len(column))]
        others = of_length(head.tokenizer, lengths, 1)
        others[1::2] = (TEXTS * len(others))[1 : len(others) : 2]
        pairs = zip(column, others, strict=True)
    return [{first: text, second: other} for text, other in pairs]


def _mask(text: str, number: int) -> str:
    half = len(text) // 2
    return (
        f"{text} {MASK}",
        f"{MASK}{text}{MASK}",
        f"{text[:half]} {MASK}, {MASK} {text[half:]} {MASK}",
    )[number % 3]


def of_length(
    tokenizer: BertTokenizer, lengths: Sequence[int], seed: int = 0
) -> list[str]:
    """Returns texts of random words with given numbers of tokens.

    The words are entries of the vocabulary that tokenize to a single token.
    """
    tokens = [
        token
        for token in tokenizer.vocabulary.tokens
        if token.isalpha() and not token.startswith("[")
    ] or ["."]
    counts = tokenizer.tokenize(tokens).row_lengths().numpy()
    words = [x for x, n in zip(tokens, counts, strict=True) if n == 1] or ["."]
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def of_vocabulary(tokenizer: BertTokenizer, words_per_text: int) -> list[str]:
    """Returns texts that together contain all entries of the vocabulary."""
    mark = vocabulary_lib.CONTINUATION
    words = []
    for token in tokenizer.vocabulary.tokens:
        # ##ing occurs only within words, so test it in the word "aing".
        word = token if token == mark else token.removeprefix(mark)
        words.append(f"a{word}" if word != token else word)
    return [
        " ".join(words[first : first + words_per_text])
        for first in range(0, len(words), words_per_text)
    ]


def to_inputs(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the tensors of rows, <string>[B] or [B, choices]."""
    return {name: to_array([row[name] for row in rows]) for name in rows[0]}


def to_array(values: Sequence[Any]) -> np.ndarray:
    """Returns texts as bytes [B], or lists of texts as [B, longest]."""
    is_flat = not isinstance(values[0], list)
    rows = [[x] for x in values] if is_flat else values
    found = np.full((len(rows), max(map(len, rows))), b"", object)
    for row, texts in zip(found, rows, strict=True):
        row[: len(texts)] = [*map(_to_bytes, texts)]
    return found[:, 0] if is_flat else found


def to_examples(rows: Sequence[Row]) -> np.ndarray:
    """Returns serialized tf.train.Examples of rows, <string>[B]."""
    serialized = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        example = tf.train.Example()
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            feature = example.features.feature[name]
            feature.bytes_list.value.extend(map(_to_bytes, values))
        serialized[number] = example.SerializeToString()
    return serialized


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text
