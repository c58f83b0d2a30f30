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
from bert_tf.errors import UserError
from bert_tf.export.tflite import accuracy
from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import datasets
from bert_tf.export.tflite import functions
from bert_tf.export.tflite import metadata
from bert_tf.export.tflite import quantize
from bert_tf.export.tflite import usage
from bert_tf.export.tflite import verify as verification
from bert_tf.export.tflite.accuracy import Gate
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.functions import IdsFunction
from bert_tf.export.tflite.functions import TextFunction
from bert_tf.export.tflite.verify import Verification
from bert_tf.flags.export import ALL
from bert_tf.flags.export import QUANTIZATIONS
from bert_tf.flags.export import TfliteConfig
from bert_tf.io import files
from bert_tf.io import locks

_REPORT_SUFFIX = ".json"


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
    with locks.one_writer_beside(config.output_file, "--output_file"):
        _run(config, origin)


def _run(config: TfliteConfig, origin: str | None) -> None:
    """Exports to a locked --output_file, and prints how to use it."""
    if tf.io.gfile.exists(config.output_file):
        logging.warning(
            "%s exists and is replaced once the new file is verified.",
            config.output_file,
        )
    build = builds.prepare(config, origin)
    gate = Gate(build)
    if config.quantization == ALL:
        text = _run_all(build, gate)
    else:
        text = _run_one(build, gate)
    warning = usage.warning(build, gate.examples)
    sys.stdout.write("\n\n".join([text, *filter(None, [warning])]) + "\n")
    sys.stdout.flush()


def _run_one(build: Build, gate: Gate) -> str:
    """Writes one file; returns its usage instructions."""
    config = build.config
    built = make(build)
    (measured,) = gate.measure({build.quantization: built.content}).values()
    accuracy.require(measured, config.max_drop)
    publish(built, config.output_file, measured)
    return usage.text(build, config.output_file, built.content, measured)


def _run_all(build: Build, gate: Gate) -> str:
    """Writes a file for each quantization; returns a table of them.

    Raises:
      UserError: If all files lose more than --max_drop.
    """
    config = build.config
    built = {
        quantization: make(
            dataclasses.replace(build, quantization=quantization)
        )
        for quantization in _all_of(config)
    }
    reports = gate.measure({x: one.content for x, one in built.items()})
    refused = [
        name
        for name, report in reports.items()
        if not accuracy.is_good_enough(report, config.max_drop)
    ]
    for name, one in built.items():
        if name not in refused:
            path = accuracy.path_of(config.output_file, name)
            publish(one, path, reports[name])
    table = accuracy.write_comparison(
        config.output_file, [*reports.values()], refused
    )
    if len(refused) == len(built):
        raise UserError(
            f"At least one file must be within --max_drop={config.max_drop:g} "
            f"points of the model. Received:\n{table}"
        )
    return table


def _all_of(config: TfliteConfig) -> list[str]:
    """Returns the quantizations that the other flags allow."""
    if config.input == "ids" and config.representative_file is not None:
        return [*QUANTIZATIONS]
    logging.warning(
        "--quantization=all skips full_int8, which needs --input=ids and "
        "--representative_file."
    )
    return [name for name in QUANTIZATIONS if name != "full_int8"]


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
            rows = datasets.read_calibration_set(build)
            stack.enter_context(quantize.scaled_columns(build.model, rows))
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


def publish(built: Built, path: str, measured: accuracy.Report) -> None:
    """Writes a file, and its report next to it, atomically."""
    report = built.report() | {"measured": dataclasses.asdict(measured)}
    with contextlib.ExitStack() as stack:
        # The file is renamed last. The checksum in the report detects a pair
        # that does not match.
        names = [
            stack.enter_context(files.atomic_file(path + suffix))
            for suffix in ("", _REPORT_SUFFIX)
        ]
        with tf.io.gfile.GFile(names[0], "wb") as file:
            file.write(built.content)
        files.write_json(names[1], report)
    logging.info("Wrote %s.", path)
