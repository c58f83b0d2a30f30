"""The course of an export: from a model directory to a .tflite file."""

import contextlib
import dataclasses
import hashlib
import platform
import sys
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf import keras_backend
from bert_tf.errors import UserError
from bert_tf.run_config.export import ALL
from bert_tf.run_config.export import QUANTIZATIONS
from bert_tf.run_config.export import TfliteConfig
from export.on_device import accuracy
from export.on_device import build as builds
from export.on_device import client_texts
from export.on_device import column_scales
from export.on_device import conversion
from export.on_device import ladder
from export.on_device import metadata
from export.on_device import samples
from export.on_device import text_function
from export.on_device import tflite_file
from export.on_device import usage
from export.on_device import verification
from export.on_device.accuracy import Gate
from export.on_device.build import Build
from export.on_device.ids_function import IdsFunction
from export.on_device.text_function import TextFunction
from export.on_device.verification import Verification

REPORT_SUFFIX = ".json"


@dataclasses.dataclass(frozen=True)
class Built:
    """A file that was verified and is not written yet.

    Attributes:
      build: What it is.
      content: The file.
      verification: How near it is to the model.
    """

    build: Build
    content: bytes
    verification: Verification

    def report(self) -> dict[str, Any]:
        """Returns what is known of the file, JSON values by name."""
        build = self.build
        return {
            "command": build.command,
            "model": {
                "path": build.stored.path,
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
            "operators": dict(tflite_file.operators(self.content)),
            "verification": dataclasses.asdict(self.verification),
            "versions": {
                "python": platform.python_version(),
                "tensorflow": tf.__version__,
            },
        }


def run(config: TfliteConfig) -> None:
    """Does what export/tflite.py is asked for.

    Raises:
      UserError: For whatever the user can mend.
    """
    keras_backend.require_tensorflow()
    files.require_writable(config.output_file, "--output_file")
    build = builds.prepare(config)
    gate = Gate(build)
    if config.quantization == ALL:
        said = _run_all(build, gate)
    else:
        said = _run_one(build, gate)
    note = client_texts.note(build, gate.examples)
    sys.stdout.write("\n\n".join([said, *filter(None, [note])]) + "\n")
    sys.stdout.flush()


def _run_one(build: Build, gate: Gate) -> str:
    """Makes the file that is asked for; returns what its user is told."""
    config = build.config
    built = make(build)
    measured = gate.measure({build.quantization: built.content})
    measured = measured[build.quantization]
    accuracy.require(measured, config.max_drop)
    publish(built, config.output_file, measured)
    return usage.text(build, config.output_file, built.content, measured)


def _run_all(build: Build, gate: Gate) -> str:
    """Makes a file of each kind; returns a table of them.

    Raises:
      UserError: If all lose more than --max_drop.
    """
    config = build.config
    built = {}
    for quantization in _all_of(config):
        built[quantization] = make(
            dataclasses.replace(build, quantization=quantization)
        )
    reports = gate.measure({x: one.content for x, one in built.items()})
    refused = [
        name
        for name, report in reports.items()
        if not accuracy.is_good_enough(report, config.max_drop)
    ]
    for name, one in built.items():
        if name not in refused:
            path = ladder.path_of(config.output_file, name)
            publish(one, path, reports[name])
    table = ladder.write(config.output_file, [*reports.values()], refused)
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
        "--quantization=all leaves out full_int8, which needs --input=ids and "
        "--representative_file."
    )
    return [name for name in QUANTIZATIONS if name != "full_int8"]


def make(build: Build) -> Built:
    """Converts a model and verifies what comes of it.

    Raises:
      UserError: If the converter refuses the model, or the file says
        something else.
    """
    takes_text = build.config.input == "text"
    if takes_text:
        build = text_function.adapt(build)
    function = TextFunction(build) if takes_text else IdsFunction(build)
    rows = None
    with contextlib.ExitStack() as stack:
        if build.quantization == "full_int8":
            rows = samples.read(build)
            stack.enter_context(column_scales.applied(build.model, rows))
        content = conversion.convert(
            function,
            function.specs,
            build.quantization,
            rows,
            text_operators=takes_text,
            per_tensor=build.config.compatibility == "2.14",
        )
    if not takes_text:  # Their readers know rows of ids alone.
        content = metadata.describe(content, build)
    found = verification.verify(content, build)
    logging.info("%s: %s.", build.quantization, found.text())
    return Built(build, content, found)


def publish(built: Built, path: str, measured: accuracy.Report) -> None:
    """Writes a file and its report, each whole.

    Args:
      built: The file.
      path: Where it is to be; the report lies beside it.
      measured: What it is worth.
    """
    report = built.report() | {"measured": measured.to_json()}
    with contextlib.ExitStack() as stack:
        # The report has the checksum, so that who sees one without the other
        # knows; the file comes last.
        names = [
            stack.enter_context(files.atomic_file(path + suffix))
            for suffix in ("", REPORT_SUFFIX)
        ]
        with tf.io.gfile.GFile(names[0], "wb") as file:
            file.write(built.content)
        files.write_json(names[1], report)
    logging.info("Wrote %s.", path)
