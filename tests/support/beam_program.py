"""Creates records with Apache Beam in one process; run by beam_test.

Reads the files that beam_test wrote to the current folder and prints the
results as JSON.
"""

import json
import sys
from unittest import mock

import tensorflow as tf

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data import create as pretraining_data
from bert_tf.data.generators import streaming_worker
from bert_tf.distribute import beam_runner
from bert_tf.errors import UserError


def _config(**flags):
    with open("flags.json", encoding="utf-8") as file:
        values = json.load(file) | {"runner": "DirectRunner"}
    return CreatePretrainingDataConfig(**(values | flags))


def _create(output_file):
    """Returns the contents of the created files by name."""
    pretraining_data.create(_config(output_file=output_file))
    folder = output_file.rpartition("/")[0]
    contents = {}
    for name in tf.io.gfile.listdir(folder):
        with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
            contents[name] = file.read().hex()
    return contents


def _begin(output_file):
    """Starts a data set and stops at its second part."""
    write_part = streaming_worker.write_part
    written = []

    def write_one(plan, part):
        if written:
            raise RuntimeError("Stopped.")
        written.append(part)
        write_part(plan, part)

    with mock.patch.object(streaming_worker, "write_part", write_one):
        try:
            pretraining_data.create(_config(output_file=output_file))
        except RuntimeError as error:
            return str(error)
    return "not stopped"


def _refusal(**flags):
    try:
        pretraining_data.create(_config(output_file="refused/x", **flags))
    except UserError as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    found = {
        # Files in memory, so these go through Beam's file systems.
        "elsewhere": _create("ram://out/x.tfrecord"),
        "stopped": _begin("begun/x.tfrecord"),
        "not_utf8": _refusal(input_file="latin.txt"),
        "empty": _refusal(input_file="blank.txt"),
        "unknown": _refusal(beam_options="--direct_num_worker=2"),
        "missing": _refusal(runner="DataflowRunner"),
        "unbalanced": _refusal(beam_options="'--direct_num_workers"),
    }
    with mock.patch.object(
        beam_runner, "on_one_machine", lambda config, work_dir: False
    ):
        found["copied"] = _create("copied/x.tfrecord")
    json.dump(found, sys.stdout)
