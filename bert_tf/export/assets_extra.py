"""Writes the files in assets.extra and prints usage instructions.

The exporter calls `complete` with the temporary directory, renames it to the
version directory, then calls `publish`.
"""

import json
import os
import sys

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import graph_file
from bert_tf.export import model_card
from bert_tf.export import warmup
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import next_sentence
from bert_tf.export.verify import calls as verify_calls
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.clients import Call
from bert_tf.io import files
from bert_tf.tasks import registry as tasks

# TensorFlow Serving reads it with --enable_per_model_batching_parameters.
_BATCHING_OF_MODEL = "batching_params.pbtxt"
_BATCHING = """\
# How requests of different clients are merged into one call of the model:
# requests that wait while all threads (one per core) are busy form a batch. No
# request waits for a batch to fill up, and a request that finds the queue full
# is refused at once.
# Do not set pad_variable_length_inputs, which pads masks with ones; strings
# need no padding.
max_batch_size { value: 64 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 10 }
"""
# Rows per warm-up request; with batching, calls often have several.
_WARMUP_BATCHES = (1, 4)


def complete(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    exact_litert: bytes | None = None,
) -> verification.Report:
    """Adds the files beside the graph and verifies the whole export.

    Args:
      directory: A version directory with graph and variables, under its
        temporary name. Adds assets.extra/ (warm-up requests, vocabulary,
        labels, model cards) and batching_params.pbtxt to it.
      artifact: Its description.
      stored: The model that was exported.
      exact_litert: For an export with litert/, the .tflite file of the model
        in float32.

    Raises:
      UserError: If the outputs of the export differ from the model's.
    """
    names = find_labels(artifact.head, stored)
    files.write_text(
        os.path.join(directory, artifacts.VOCAB_FILE),
        stored.vocabulary.to_text(),
    )
    if names:
        files.write_text(
            os.path.join(directory, artifacts.LABELS_FILE),
            "".join(f"{name}\n" for name in names),
        )
    files.write_text(os.path.join(directory, _BATCHING_OF_MODEL), _BATCHING)
    warmup.write(
        os.path.join(directory, artifacts.WARMUP_FILE),
        artifact.model_name,
        _warmup_calls(directory, artifact, stored),
    )
    report = verification.examine(
        directory,
        artifact,
        stored,
        num_timings=model_card.NUM_TIMINGS,
        exact_litert=exact_litert,
    )
    logging.info("%s", report.text().rstrip())
    report.require_correct()
    model_card.write(
        directory,
        artifact,
        stored,
        names,
        report,
        _example(directory, artifact, stored),
    )
    return report


def publish(
    version_directory: str, artifact: Artifact, stored: StoredModel
) -> None:
    """Writes the server configuration and prints how to use the new version.

    The version directory has its final name.
    """
    output_dir = os.path.dirname(version_directory.rstrip("/"))
    for name, text in (
        (model_card.CONFIG_FILE, _config(artifact)),
        (model_card.BATCHING_FILE, _BATCHING),
    ):
        path = os.path.join(output_dir, name)
        if not tf.io.gfile.exists(path):
            files.write_text(path, text)
        elif _settings(files.read_bytes(path)) != _settings(text.encode()):
            logging.warning(
                "%s was edited and is kept; delete it and export again to "
                "restore the default.",
                path,
            )
    example = _example(version_directory, artifact, stored)
    sys.stdout.write(
        model_card.usage_text(output_dir, artifact, example) + "\n"
    )
    sys.stdout.flush()


def _settings(text: bytes) -> list[bytes]:
    """Returns the lines of a configuration that are no comments."""
    return [line for line in text.splitlines() if not line.startswith(b"#")]


def _warmup_calls(
    directory: str, artifact: Artifact, stored: StoredModel
) -> list[Call]:
    """Returns calls for each bucket, with one row and with several."""
    signature = graph_file.read_signatures(directory)[verify_calls.SERVING]
    return [
        Call(
            verify_calls.SERVING,
            warmup.bucket_inputs(bucket, count, artifact, signature, stored),
        )
        for bucket in artifact.buckets
        for count in _WARMUP_BATCHES
    ]


def _example(directory: str, artifact: Artifact, stored: StoredModel) -> dict:
    signature = graph_file.read_signatures(directory)[verify_calls.SERVING]
    return warmup.example(artifact, signature, stored)


def _config(artifact: Artifact) -> str:
    """Returns a ModelServerConfig: the newest version of the model."""
    # JSON quotes strings as the text format of protocol buffers does.
    name = json.dumps(artifact.model_name)
    base_path = json.dumps(f"/models/{artifact.model_name}")
    return f"""\
# For TensorFlow Serving's --model_config_file. The path is in the container.
model_config_list {{
  config {{
    name: {name}
    base_path: {base_path}
    model_platform: "tensorflow"
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def find_labels(head: str, stored: StoredModel) -> tuple[str, ...]:
    """Returns the label names in the order of the logits; () without labels.

    Raises:
      UserError: If a label contains a line break.
    """
    labels = ()
    if head == "next_sentence":
        labels = next_sentence.LABELS
    elif head in ("classification", "tagging"):
        labels = tuple(tasks.from_stored(stored).labels or ())
    for label in labels:
        if "\n" in label or "\r" in label:
            raise UserError(
                "Labels must not contain line breaks, as labels.txt has one "
                f"label per line. Received: {label!r}; rename it in task.json."
            )
    return labels
