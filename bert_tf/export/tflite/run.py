"""Exports a model directory as a .tflite file."""

import contextlib
import dataclasses
import hashlib
import platform
import sys
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import evaluate as evaluation
from bert_tf.export.tflite import functions
from bert_tf.export.tflite import metadata
from bert_tf.export.tflite import verify as verification
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.evaluate import Scores
from bert_tf.export.tflite.functions import IdsFunction
from bert_tf.export.tflite.functions import TextFunction
from bert_tf.export.tflite.verify import Verification
from bert_tf.flags.export import TfliteConfig
from bert_tf.io import files
from bert_tf.io import locks

_REPORT_SUFFIX = ".json"
# The heads that MediaPipe and the Task Library support.
_HEADS_OF_CLIENTS = ("classification", "question_answering", "embeddings")


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
    found = verification.verify(content, build)
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
