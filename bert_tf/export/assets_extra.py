"""What lies beside the graph of an export, and what its user is told.

The exporter calls, in this order: `complete` with the directory that is not
published yet, renames it to the version, then calls `publish`.
"""

import json
import os
import sys

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import artifact as artifacts
from bert_tf.export import graph_file
from bert_tf.export import labels
from bert_tf.export import model_card
from bert_tf.export import sample_requests
from bert_tf.export import usage
from bert_tf.export import warmup
from bert_tf.export.artifact import Artifact
from bert_tf.export.verify import calls as replay_plan
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.clients import Call
from bert_tf.io import files

# What TensorFlow Serving reads with --enable_per_model_batching_parameters.
_BATCHING_OF_MODEL = "batching_params.pbtxt"
_BATCHING = """\
# How requests of different clients are merged into one call of the model: what
# waits while all threads (one a core) are busy goes together. Nobody waits for
# company, and what finds the queue full is refused at once.
# Leave out pad_variable_length_inputs, which pads masks with ones; strings need
# no padding.
max_batch_size { value: 64 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 10 }
"""
# Rows of a warm-up request; with batching there are often several.
_WARMUP_BATCHES = (1, 4)


def complete(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    exact_litert: bytes | None = None,
) -> verification.Report:
    """Adds what lies beside the graph, and verifies the whole.

    Args:
      directory: A version directory with graph and variables, under whatever
        temporary name. It gets assets.extra/ (warm-up requests, vocabulary,
        labels, model cards) and batching_params.pbtxt.
      artifact: What it is.
      stored: The model that was exported.
      exact_litert: Of an export with litert/, the model's file in float32.

    Raises:
      UserError: If the export does not say what the model says.
    """
    names = labels.find(artifact.head, stored)
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
    report.require_right()
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
    """Writes what lies beside the versions, and prints how to use the new one.

    Args:
      version_directory: The version, under its name.
      artifact: What it is.
      stored: The model that was exported.
    """
    output_dir = os.path.dirname(version_directory.rstrip("/"))
    for name, text in (
        (usage.CONFIG_FILE, _config(artifact)),
        (usage.BATCHING_FILE, _BATCHING),
    ):
        path = os.path.join(output_dir, name)
        if not tf.io.gfile.exists(path):
            files.write_text(path, text)
        elif files.read_bytes(path) != text.encode():
            logging.warning(
                "%s stays as it is, which is not what an export writes; delete "
                "it to have it written anew.",
                path,
            )
    example = _example(version_directory, artifact, stored)
    sys.stdout.write(usage.text(output_dir, artifact, example) + "\n")
    sys.stdout.flush()


def _warmup_calls(
    directory: str, artifact: Artifact, stored: StoredModel
) -> list[Call]:
    """Returns a call for each bucket, with one row and with several."""
    signature = _serving_signature(directory)
    return [
        Call(
            replay_plan.SERVING,
            sample_requests.of_bucket(
                bucket, count, artifact, signature, stored
            ),
        )
        for bucket in artifact.buckets
        for count in _WARMUP_BATCHES
    ]


def _example(directory: str, artifact: Artifact, stored: StoredModel) -> dict:
    signature = _serving_signature(directory)
    return sample_requests.example(artifact, signature, stored)


def _serving_signature(directory: str) -> graph_file.Signature:
    return graph_file.read_signatures(directory)[replay_plan.SERVING]


def _config(artifact: Artifact) -> str:
    """Returns a ModelServerConfig: the newest version of the model."""
    # In JSON a string is quoted as in the text form of protocol buffers.
    name = json.dumps(artifact.model_name)
    base_path = json.dumps(f"/models/{artifact.model_name}")
    return f"""\
# TensorFlow Serving: --model_config_file. The path is that in the container.
model_config_list {{
  config {{
    name: {name}
    base_path: {base_path}
    model_platform: "tensorflow"
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""
