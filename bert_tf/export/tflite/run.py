"""Exports a model directory as a .tflite file, and verifies its outputs.

Shapes:
  B: number of texts.
  R: rows of a call.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import model_directory
from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import evaluate as evaluation
from bert_tf.export.tflite import metadata
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.evaluate import Scores
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.run import Comparison
from bert_tf.flags.export import TfliteConfig
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import terminal
from bert_tf.serving.servable import Arrays

_REPORT_SUFFIX = ".json"
# MediaPipe and the Task Library support only these heads.
_HEADS_OF_CLIENTS = ("classification", "question_answering", "embeddings")
# Int8 rounding may swap the order of numbers that differ by less than this.
_CLOSE_IN_INT8 = 0.05
# Limit the rows of a call: large models take about a second for a few rows.
_MAX_ROWS = 8

_Call = tuple[Arrays, Expected]


@dataclasses.dataclass(frozen=True)
class Built:
    """A file that was verified and is not written yet.

    Attributes:
      verification: The JSON values that `verify` returns.
    """

    build: Build
    content: bytes
    verification: Mapping[str, Any]

    def report(self) -> dict[str, Any]:
        """Returns the report on the file, JSON values by name."""
        build = self.build
        task = getattr(build.head, "task", None)
        return {
            "command": build.command,
            "model": {
                "path": build.stored.source,
                "config": build.stored.config.to_dict(),
            },
            "head": build.name,
            "settings": build.head.settings(),
            "labels": list(build.head.labels),
            "confidence": getattr(task, "confidence", dict)(),
            "quantization": build.config.quantization,
            "input": build.config.input,
            "compatibility": build.config.compatibility,
            "batch_size": build.config.batch_size,
            "max_seq_length": build.config.max_seq_length,
            "bytes": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "operators": dict(conversion.operators(self.content)),
            "verification": self.verification,
            "versions": model_directory.versions(),
        }


def run(config: TfliteConfig, origin: str | None = None) -> None:
    """Runs export/tflite.py; `savedmodel.run` describes `origin`.

    Raises:
      UserError: If a flag, the model or an output of the file is wrong.
    """
    keras_backend.require_tensorflow()
    files.require_writable(config.output_file, "--output_file")
    with locks.one_writer(
        config.output_file, "--output_file", is_replaced=True
    ):
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
      UserError: If the converter rejects the model, or the file's outputs
        differ from the model's outputs.
    """
    if build.takes_text:
        build = builds.adapt(build)
    function, specs = builds.make_function(build)
    rows = None
    with contextlib.ExitStack() as stack:
        if build.config.quantization == "full_int8":
            rows = evaluation.read_calibration_set(build)
            stack.enter_context(conversion.scaled_columns(build.model, rows))
        content = conversion.convert(
            function,
            specs,
            build.config.quantization,
            rows,
            text_operators=build.takes_text,
            per_tensor=build.config.compatibility == "2.14",
        )
    if not build.takes_text:  # Clients that read metadata send only ids.
        content = metadata.describe(content, build)
    found = verify(content, build)
    agreement = "".join(
        f", {name} {value:.4g}" for name, value in found["agreement"].items()
    )
    logging.info(
        "%s: %d calls, %s values, largest difference %.2g%s.",
        build.config.quantization,
        found["num_calls"],
        f"{found['num_values']:,}",
        found["largest_difference"],
        agreement,
    )
    return Built(build, content, found)


def publish(built: Built, path: str, scores: Scores | None) -> None:
    """Writes a file, and its report next to it, atomically."""
    measured = None if scores is None else dataclasses.asdict(scores)
    with contextlib.ExitStack() as stack:
        # The report is replaced first. If the process is killed before the
        # file is replaced, the report's new checksum reveals the old file.
        names = [
            stack.enter_context(files.atomic_file(path + suffix))
            for suffix in ("", _REPORT_SUFFIX)
        ]
        with tf.io.gfile.GFile(names[0], "wb") as file:
            file.write(built.content)
        files.write_json(names[1], built.report() | {"measured": measured})
    logging.info("Wrote %s.", path)


def find_warning(build: Build) -> str | None:
    """Returns a warning if MediaPipe and the Task Library tokenize differently.

    These clients always lower-case ASCII letters and never strip accents (see
    `bert_tf.text.normalizer`). Returns None if they tokenize all texts as the
    model does, or if they do not support the head or the inputs of the file.
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


def verify(content: bytes, build: Build) -> dict[str, Any]:
    """Compares the outputs of a file with the outputs of its model.

    Returns:
      `num_calls`, `num_values`, `largest_difference` (relative to the output's
      largest absolute value, at least 1), `tolerance` (None in int8) and
      `agreement`. `agreement` has, by output, the share of decisions on which
      file and model agree, and the lowest cosine between their embeddings.

    Raises:
      UserError: If the outputs differ.
    """
    takes_text = build.takes_text
    model = LiteModel(content, os.cpu_count() or 1, takes_text)
    tolerance = verification.TOLERANCES.get(build.config.quantization)
    reference = Reference(
        build.head,
        build.trained,
        tolerance or _CLOSE_IN_INT8,
        ids_only=not takes_text,
    )
    plan = _calls_of_text if takes_text else _calls_of_ids
    calls = list(plan(reference, build))
    scales = verification.measure_scales(expected for _, expected in calls)
    found = Comparison(tolerance, scales, _decisions(build))
    cosines = []
    for number, (inputs, expected) in enumerate(calls):
        try:
            outputs = model.run(inputs)
        except (RuntimeError, ValueError) as error:
            shapes = {name: x.shape for name, x in inputs.items()}
            raise UserError(
                f"The .tflite file must run. With {shapes} LiteRT reports: "
                f"{error}"
            ) from error
        found.add(f"call {number}", expected, outputs)
        if "embedding" in outputs:
            pair = expected.values["embedding"], outputs["embedding"]
            cosines.append(_least_cosine(*pair))
    if found.faults:
        raise UserError(
            "The .tflite file must return the outputs of the model"
            f"{'' if tolerance is None else f', to within {tolerance:g}'}. "
            f"Received: {found.faults[0]}; try another --quantization."
        )
    agreement = {
        f"agreement of {name}": float(equal / max(count, 1))
        for name, (equal, count) in found.equal.items()
    }
    if cosines:
        agreement["least cosine"] = min(cosines)
    return {
        "num_calls": found.num_calls,
        "num_values": found.num_compared,
        "largest_difference": found.largest,
        "tolerance": tolerance,
        "agreement": agreement,
    }


def _decisions(build: Build) -> dict[str, verification.Decide]:
    """Returns the functions that read decisions, by the name of the output."""
    best = functools.partial(np.argmax, axis=-1)
    if build.name == "fill_mask":
        # Candidates are sorted by probability, so the first is the best.
        return {"token_ids": lambda values: values[..., 0]}
    task = getattr(build.head, "task", None)
    labels = best
    if getattr(task, "problem_type", None) == "multi_label":
        labels = functools.partial(np.less_equal, task.assigned_from)
    return {"probabilities": labels, "start_logits": best, "end_logits": best}


def _least_cosine(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the lowest cosine of matching rows of two arrays [B, size]."""
    norms = np.linalg.norm(expected, axis=-1) * np.linalg.norm(actual, axis=-1)
    return float(((expected * actual).sum(-1) / norms).min())


def _calls_of_ids(reference: Reference, build: Build) -> Iterator[_Call]:
    """Yields calls with one row, with several rows, and with padding."""
    length = build.config.max_seq_length
    batches = [reference.batches()[0][:1], reference.batches()[-1]]
    packed = []
    # Silence the warnings about test sentences that are too long on purpose.
    with terminal.below(logging.ERROR):
        for rows in map(reference.pack, batches):
            chosen = evaluation.spread(len(rows["input_ids"]), _MAX_ROWS)
            packed.append({name: x[chosen] for name, x in rows.items()})
    if length is None:
        longest = reference.head.max_seq_length
        packed.append(reference_lib.pad(packed[-1], longest))
    else:
        packed = [reference_lib.pad(rows, length) for rows in packed]
    for rows in packed:
        for inputs in split(rows, build.config.batch_size):
            expected = reference.expect_ids(inputs)
            names = set(expected.values) - set(builds.OMITTED_FOR_IDS)
            yield inputs, expected.only(names)


def _calls_of_text(reference: Reference, build: Build) -> Iterator[_Call]:
    batches = reference.batches()
    head = reference.head
    for rows in (batches[0][:1], batches[-1]):
        for inputs in split(
            reference_lib.to_inputs(rows), build.config.batch_size
        ):
            strings = {x: tf.constant(t, tf.string) for x, t in inputs.items()}
            packed = builds.pack(build, strings)
            if build.name in builds.HEADS_WITH_OFFSETS:
                expected = reference.decide(head.answer_ids, packed)
                places = {name: x.numpy() for name, x in packed.state.items()}
                yield inputs, Expected({**expected.values, **places})
            else:
                expected = reference.decide(head.answer, packed)
                yield inputs, reference.for_predict(expected)


def split(rows: Arrays, batch_size: int | None) -> Iterator[Arrays]:
    """Splits rows [R, ...] into calls with the batch size of a file."""
    count = len(next(iter(rows.values())))
    for numbers in evaluation.parts(np.arange(count), batch_size or count):
        yield {name: x[numbers] for name, x in rows.items()}
