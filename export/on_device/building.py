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
from bert_tf.export_config import TfliteConfig
from export.on_device import build as builds
from export.on_device import conversion
from export.on_device import tflite_file
from export.on_device import usage
from export.on_device import verification
from export.on_device.build import Build
from export.on_device.ids_function import IdsFunction
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
    _require_no_directory(config.output_file)
    built = make(builds.prepare(config))
    report = built.report()
    publish(built, config.output_file, report)
    sys.stdout.write(usage.text(built.build, config.output_file, report) + "\n")
    sys.stdout.flush()


def make(build: Build) -> Built:
    """Converts a model and verifies what comes of it.

    Raises:
      UserError: If the converter refuses the model, or the file says
        something else.
    """
    function = IdsFunction(build)
    content = conversion.convert(
        function,
        function.specs,
        build.quantization,
        per_tensor=build.config.compatibility == "2.14",
    )
    found = verification.verify(content, build)
    logging.info("%s: %s.", build.quantization, found.text())
    return Built(build, content, found)


def publish(built: Built, path: str, report: dict[str, Any]) -> None:
    """Writes a file and its report, each whole.

    Args:
      built: The file.
      path: Where it is to be; the report lies beside it.
      report: What `Built.report` returned, and what is known beside.
    """
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


def _require_no_directory(path: str) -> None:
    if tf.io.gfile.isdir(path):
        raise UserError(
            f"--output_file must name a file. Received: {path!r}, which is a "
            "directory."
        )
