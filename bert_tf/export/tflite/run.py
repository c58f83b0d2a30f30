"""Exports a model directory as a .tflite file, and verifies its outputs.

Shapes:
  B: number of texts.
  R: rows of a call.
  T: tokens per row.
  C: classes or positions to choose from.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import evaluate as evaluation
from bert_tf.export.tflite import functions
from bert_tf.export.tflite import metadata
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.evaluate import Scores
from bert_tf.export.tflite.functions import IdsFunction
from bert_tf.export.tflite.functions import TextFunction
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.texts import Row
from bert_tf.flags.export import TfliteConfig
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import terminal

_REPORT_SUFFIX = ".json"
# The heads that MediaPipe and the Task Library support.
_HEADS_OF_CLIENTS = ("classification", "question_answering", "embeddings")
# Numbers that are closer than this may change their order in int8.
_CLOSE_IN_INT8 = 0.05
# Rows per call, as large models take about a second for a few.
_MAX_ROWS = 8
# The probability from which a label of several is assigned.
_THRESHOLD = 0.5

_Arrays = Mapping[str, np.ndarray]
_Call = tuple[_Arrays, ReferenceOutputs]


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of comparing a file with its model.

    Attributes:
      largest_difference: The largest difference of numbers; relative for
        numbers above 1, and except in float32 relative to the largest number.
      tolerance: The largest allowed difference; None in int8.
      agreement: The result of `measure_agreement`.
    """

    num_calls: int
    num_values: int
    largest_difference: float
    tolerance: float | None
    agreement: Mapping[str, float]

    def text(self) -> str:
        """Returns the result as a line of text."""
        agreement = "".join(
            f", {name} {value:.4g}" for name, value in self.agreement.items()
        )
        return (
            f"{self.num_calls} calls, {self.num_values:,} values, largest "
            f"difference {self.largest_difference:.2g}{agreement}"
        )


@dataclasses.dataclass(frozen=True)
class Built:
    """A file that was verified and is not written yet."""

    build: Build
    content: bytes
    verification: Verification

    def report(self) -> dict[str, Any]:
        """Returns the report on the file, JSON values by name."""
        build = self.build
        return {
            "command": build.command,
            "model": {
                "path": build.stored.source,
                "config": build.stored.config.to_dict(),
            },
            "head": build.name,
            "settings": build.head.settings(),
            "labels": list(build.labels),
            "quantization": build.quantization,
            "input": build.config.input,
            "compatibility": build.config.compatibility,
            "batch_size": build.batch_size,
            "max_seq_length": build.seq_length,
            "bytes": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "operators": dict(conversion.operators(self.content)),
            "verification": dataclasses.asdict(self.verification),
            "versions": {
                "python": platform.python_version(),
                "tensorflow": tf.__version__,
            },
        }


def run(config: TfliteConfig, origin: str | None = None) -> None:
    """Runs export/tflite.py.

    Args: As for `savedmodel.run`.

    Raises:
      UserError: If flags or model are invalid, or verification fails.
    """
    keras_backend.require_tensorflow()
    files.require_writable(config.output_file, "--output_file")
    with locks.one_writer(
        config.output_file, "--output_file", is_replaced=True
    ):
        _run(config, origin)


def _run(config: TfliteConfig, origin: str | None) -> None:
    """Exports to a locked --output_file, and prints how to use it."""
    if tf.io.gfile.exists(config.output_file):
        logging.warning(
            "%s exists and is replaced once the new file is verified.",
            config.output_file,
        )
    build = builds.prepare(config, origin)
    rows = evaluation.read_eval_set(build)
    built = make(build)
    size = len(built.content)
    text, scores = f"{size / 1e6:.1f} MB\n", None
    if rows is not None:
        scores = evaluation.evaluate(built.content, build, rows)
        scores.require(config)
        text = scores.table(config, size)
    publish(built, config.output_file, scores)
    paragraphs = [
        f"{config.output_file} ({config.quantization})\n{text}",
        "docs/on_device.md has programs that run it.\n",
    ]
    if warning := find_warning(build):
        paragraphs.append(f"{warning}\n")
    sys.stdout.write("\n".join(paragraphs))
    sys.stdout.flush()


def make(build: Build) -> Built:
    """Converts a model and verifies the file.

    Raises:
      UserError: If the converter rejects the model, or the outputs of the file
        differ from the model's.
    """
    takes_text = build.config.input == "text"
    if takes_text:
        build = functions.adapt(build)
    function = TextFunction(build) if takes_text else IdsFunction(build)
    rows = None
    with contextlib.ExitStack() as stack:
        if build.quantization == "full_int8":
            rows = evaluation.read_calibration_set(build)
            stack.enter_context(conversion.scaled_columns(build.model, rows))
        content = conversion.convert(
            function,
            function.specs,
            build.quantization,
            rows,
            text_operators=takes_text,
            per_tensor=build.config.compatibility == "2.14",
        )
    if not takes_text:  # The readers of metadata support only ids.
        content = metadata.describe(content, build)
    found = verify(content, build)
    logging.info("%s: %s.", build.quantization, found.text())
    return Built(build, content, found)


def publish(built: Built, path: str, scores: Scores | None) -> None:
    """Writes a file, and its report next to it, atomically."""
    measured = None if scores is None else dataclasses.asdict(scores)
    with contextlib.ExitStack() as stack:
        # The file is renamed last. The checksum in the report detects a pair
        # that does not match.
        names = [
            stack.enter_context(files.atomic_file(path + suffix))
            for suffix in ("", _REPORT_SUFFIX)
        ]
        with tf.io.gfile.GFile(names[0], "wb") as file:
            file.write(built.content)
        files.write_json(names[1], built.report() | {"measured": measured})
    logging.info("Wrote %s.", path)


def find_warning(build: Build) -> str | None:
    """Returns a warning if MediaPipe and the Task Library read other tokens.

    They always lower-case ASCII and strip no accents, see
    `bert_tf.text.normalizer`. None if they tokenize all texts as the model, or
    do not support such files.
    """
    tokenizer = build.head.tokenizer
    if (
        build.config.input != "ids"
        or build.name not in _HEADS_OF_CLIENTS
        or getattr(build.head, "pair", False)
        or tokenizer.normalization == ASCII_LOWER
    ):
        return None
    if tokenizer.vocabulary.added_tokens:
        return (
            "MediaPipe and the Task Library never find the added tokens of "
            "this model in texts; give them only to programs that do."
        )
    rule = "only ASCII and strip no accents"
    texts = "letters that are not ASCII"
    if not tokenizer.lower_case:
        rule, texts = "all ASCII, but this model is cased", "capitals"
    return (
        f"MediaPipe and the Task Library lower-case {rule}: they tokenize "
        f"texts with {texts} differently from the training data. Fine-tune "
        f"with --normalization={ASCII_LOWER} to tokenize as they do; see "
        "docs/on_device.md."
    )


def verify(content: bytes, build: Build) -> Verification:
    """Compares the outputs of a file with the reference outputs of its model.

    Raises:
      UserError: If the outputs differ.
    """
    takes_text = build.config.input == "text"
    model = LiteModel(content, os.cpu_count() or 1, takes_text)
    tolerance = comparison.LITE_TOLERANCES.get(build.quantization)
    reference = Reference(
        build.name,
        build.head,
        build.stored,
        tolerance or _CLOSE_IN_INT8,
        ids_only=not takes_text,
    )
    calls = list(
        _calls_of_text(reference, build)
        if takes_text
        else _calls_of_ids(reference, build)
    )
    answers = [_answer(model, inputs) for inputs, _ in calls]
    expected = [one for _, one in calls]
    differences = [
        _compare(one, answer, tolerance)
        for one, answer in zip(expected, answers, strict=True)
    ]
    task = getattr(build.head, "task", None)
    faults = [fault for one in differences for fault in one.faults]
    if faults:
        raise UserError(
            "The .tflite file must return the outputs of the model"
            f"{'' if tolerance is None else f', to within {tolerance:g}'}. "
            f"Received: {faults[0]}; try another --quantization."
        )
    return Verification(
        num_calls=len(calls),
        num_values=sum(one.num_compared for one in differences),
        largest_difference=max(one.largest for one in differences),
        tolerance=tolerance,
        agreement=measure_agreement(
            [one.values for one in expected],
            answers,
            getattr(task, "problem_type", None) == "multi_label",
        ),
    )


def measure_agreement(
    expected: Sequence[_Arrays],
    actual: Sequence[_Arrays],
    is_multi_label: bool = False,
) -> dict[str, float]:
    """Measures the agreement of decisions of a file with those of its model.

    Args:
      expected: The outputs of the model, by call and name.
      actual: The outputs of the file.
      is_multi_label: Whether `probabilities` are of independent labels.

    Returns:
      For each output with decisions, the share of equal decisions between 0
      and 1; for `embedding`, the lowest cosine.
    """
    best = functools.partial(np.argmax, axis=-1)
    decide: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "probabilities": _assigned_labels if is_multi_label else best,
        "start_logits": best,
        "end_logits": best,
    }
    if "token_ids" in expected[0]:
        # They are sorted by probability, so the first is the best.
        decide = {"token_ids": lambda values: values[..., 0]}
    found = {}
    for name in expected[0]:
        pairs = [
            (outputs[name], answer[name])
            for outputs, answer in zip(expected, actual, strict=True)
        ]
        if name in decide:
            same = np.concatenate(
                [np.ravel(decide[name](a) == decide[name](b)) for a, b in pairs]
            )
            found[f"agreement of {name}"] = (
                float(same.mean()) if same.size else 1.0
            )
        elif name == "embedding":
            found["least cosine"] = min(_cosine(*pair) for pair in pairs)
    return found


def _assigned_labels(probabilities: np.ndarray) -> np.ndarray:
    return probabilities >= _THRESHOLD


def _cosine(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the lowest cosine of two arrays of vectors, [B, C] each."""
    norms = np.linalg.norm(expected, axis=-1) * np.linalg.norm(actual, axis=-1)
    return float(((expected * actual).sum(-1) / norms).min())


def _calls_of_ids(reference: Reference, build: Build) -> Iterator[_Call]:
    """Yields calls with one row, with several, and with padding."""
    length = build.seq_length
    batches = [reference.batches()[0][:1], reference.batches()[-1]]
    packed = []
    # Silences warnings that test sentences are too long.
    with terminal.below(logging.ERROR):
        for rows in map(reference.pack, batches):
            # At most `_MAX_ROWS` rows, sampled evenly.
            places = np.linspace(0, len(rows["input_ids"]) - 1, _MAX_ROWS)
            chosen = np.unique(places.astype(int))
            packed.append({name: x[chosen] for name, x in rows.items()})
    if length is None:
        longest = reference.head.max_seq_length
        packed.append(reference_lib.pad(packed[-1], longest))
    else:
        packed = [reference_lib.pad(rows, length) for rows in packed]
    for rows in packed:
        for inputs in split(rows, build.batch_size):
            found = reference.expect_ids(inputs).numbers()
            names = set(found.values) - set(functions.OMITTED_FOR_IDS)
            yield inputs, found.only(names)


def _calls_of_text(reference: Reference, build: Build) -> Iterator[_Call]:
    batches = reference.batches()
    for rows in (batches[0][:1], batches[-1]):
        size = build.batch_size or len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            part = [*part, *[rows[0]] * (size - len(part))]
            yield test_texts.to_inputs(part), _expect(reference, build, part)


def _expect(
    reference: Reference, build: Build, rows: Sequence[Row]
) -> ReferenceOutputs:
    """Returns the outputs of `functions.TextFunction`, computed eagerly."""
    head = reference.head
    packed = functions.pack(build, reference_lib.to_tensors(rows))
    if build.name in functions.HEADS_WITH_OFFSETS:
        found = reference.decide(head.answer_ids, packed)
        places = {name: x.numpy() for name, x in packed.state.items()}
        return ReferenceOutputs({**found.values, **places})
    return reference.for_predict(reference.decide(head.answer, packed))


def split(rows: _Arrays, batch_size: int | None) -> Iterator[_Arrays]:
    """Splits rows [R, ...] into calls with the batch size of a file.

    The last call is padded with its first row.
    """
    count = len(next(iter(rows.values())))
    size = batch_size or count
    for first in range(0, count, size):
        numbers = np.arange(first, first + size)
        numbers[numbers >= count] = first
        yield {name: x[numbers] for name, x in rows.items()}


def _answer(model: LiteModel, inputs: _Arrays) -> _Arrays:
    try:
        return model.run(inputs)
    except (RuntimeError, ValueError) as error:
        shapes = {name: x.shape for name, x in inputs.items()}
        raise UserError(
            f"The .tflite file must run. With {shapes} LiteRT reports: {error}"
        ) from error


def _compare(
    expected: ReferenceOutputs, answer: _Arrays, tolerance: float | None
) -> comparison.Difference:
    if tolerance is not None:
        return comparison.compare(expected, answer, tolerance, {})
    # Decisions that depend on the largest number may differ.
    floats = {x: v for x, v in expected.values.items() if v.dtype.kind == "f"}
    return comparison.compare(
        dataclasses.replace(expected, values=floats),
        {x: v for x, v in answer.items() if v.dtype.kind == "f"},
        np.inf,
        {},
    )
