"""The model cards of an export: one for programs, one for people."""

import os
import platform
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints import model_card
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import artifact as artifacts
from bert_tf.export import graph_file
from bert_tf.export import operators
from bert_tf.export import usage
from bert_tf.export.artifact import Artifact
from bert_tf.export.verify.run import Report
from bert_tf.io import files

MARKDOWN_FILE = os.path.join(artifacts.EXTRAS, "MODEL_CARD.md")
# How often each length is timed; half of them are faster than what is written.
NUM_TIMINGS = 20

_HEADING = re.compile(r"## +(.+)")
_CELLS = re.compile(r"\| (.*?) \| (.*) \|")
# What the card of an export says of its own.
_LEFT_OUT = ("Versions",)


def write(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    labels: Sequence[str],
    report: Report,
    example: Mapping[str, Any],
) -> None:
    """Writes model_card.json and MODEL_CARD.md; all else is there already.

    Args:
      directory: The version directory.
      artifact: What it is.
      stored: The model that was exported.
      labels: Names of what the head chooses from.
      report: What its verification found.
      example: One row for serving_default, JSON values by name.
    """
    names = _file_names(directory)
    found = operators.read(directory)
    card = {
        "export": artifact.to_json(),
        "model": {
            "path": stored.path,
            "config": stored.config.to_dict(),
            "task": dict(stored.task),
            "card": read_sections(_readme(stored)),
        },
        "labels": list(labels),
        "signatures": _signatures(directory),
        "operators": dict(found),
        "tensorflow_serving": f"{operators.oldest_serving(found)} and later",
        "latency": {
            "machine": _machine(),
            "p50_ms": [
                {"length": length, "rows": 1, "milliseconds": value}
                for length, value in zip(
                    artifact.buckets, report.latencies, strict=True
                )
            ],
        },
        "verification": [
            {
                "check": check.name,
                "detail": check.detail,
                "largest_difference": check.largest,
            }
            for check in report.checks
        ],
        "bytes": {name: _size(directory, name) for name in names},
        "sha256": {
            name: files.sha256(os.path.join(directory, name)) for name in names
        },
        "versions": model_card.versions(),
    }
    files.write_text(
        os.path.join(directory, MARKDOWN_FILE),
        _markdown(card, artifact, example),
    )
    files.write_json(os.path.join(directory, artifacts.CARD_FILE), card)


def _markdown(
    card: Mapping[str, Any], artifact: Artifact, example: Mapping[str, Any]
) -> str:
    """Returns the card for people."""
    shape = f"{artifact.head}, {artifact.precision}"
    reads = "ids" if artifact.ids_only else "strings"
    return model_card.build(
        f"{artifact.model_name}, version {artifact.version}",
        f"A BERT ({shape}) as a SavedModel that reads {reads}, exported from "
        f"{card['model']['path']} with export/savedmodel.py of bert_tf. "
        f"TensorFlow Serving {card['tensorflow_serving']} run it.",
        {
            "Export": {
                name: _to_text(value) for name, value in card["export"].items()
            },
            "Labels": dict(enumerate(card["labels"])),
            "Signatures": {
                name: f"{_to_text(both['inputs'])} -> "
                f"{_to_text(both['outputs'])}"
                for name, both in card["signatures"].items()
            },
            "Shape of the model": card["model"]["config"],
            **{
                f"The model's own card: {heading}": rows
                for heading, rows in card["model"]["card"].items()
            },
            f"Latency in ms (p50, one row, {card['latency']['machine']})": {
                f"{row['length']} pieces": row["milliseconds"]
                for row in card["latency"]["p50_ms"]
            },
            "Verification": {
                check["check"]: check["detail"]
                for check in card["verification"]
            },
            "Operators": card["operators"],
            "Bytes": card["bytes"],
            "SHA-256": card["sha256"],
        },
        usage.curl_line(artifact, example),
    )


def read_sections(readme: str) -> dict[str, dict[str, str]]:
    """Returns the tables of a model card that this project has written.

    Args:
      readme: Markdown; tables of other forms are left out.

    Returns:
      Heading to rows of name and value.
    """
    sections: dict[str, dict[str, str]] = {}
    heading = ""
    for line in readme.splitlines():
        if match := _HEADING.fullmatch(line):
            heading = match[1]
        elif heading and (match := _CELLS.fullmatch(line)):
            rows = sections.setdefault(heading, {})
            rows[match[1]] = match[2].replace("\\|", "|")
    return {
        name: rows for name, rows in sections.items() if name not in _LEFT_OUT
    }


def _readme(stored: StoredModel) -> str:
    """Returns the model's own card; "" if it has none."""
    for folder in (
        stored.path,
        os.path.join(stored.path, model_directory.MODEL_FOLDER),
    ):
        path = os.path.join(folder, model_directory.README_FILE)
        if tf.io.gfile.exists(path):
            return files.read_bytes(path).decode("utf-8", "replace")
    return ""


def _signatures(directory: str) -> dict[str, Any]:
    return {
        name: {
            "inputs": _specs(signature.inputs),
            "outputs": _specs(signature.outputs),
        }
        for name, signature in sorted(
            graph_file.read_signatures(directory).items()
        )
    }


def _specs(specs: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
    return {
        name: f"<{spec.dtype.name}>{spec.shape.as_list()}"
        for name, spec in sorted(specs.items())
    }


def _file_names(directory: str) -> list[str]:
    """Returns all files but the cards, as paths in the directory."""
    found = []
    for folder, _, names in tf.io.gfile.walk(directory):
        inside = os.path.relpath(folder, directory)
        found += [os.path.normpath(os.path.join(inside, n)) for n in names]
    cards = (artifacts.CARD_FILE, MARKDOWN_FILE)
    return sorted(name for name in found if name not in cards)


def _size(directory: str, name: str) -> int:
    return tf.io.gfile.stat(os.path.join(directory, name)).length


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _to_text(value: Any) -> str:
    """Returns a value of a cell without the signs of JSON."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {what}" for name, what in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
