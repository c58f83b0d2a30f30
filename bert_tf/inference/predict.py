"""Predicts the rows of a file with a fine-tuned model."""

import contextlib
import json
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.flags.predict import PredictConfig
from bert_tf.inference import load
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import resumable_file
from bert_tf.modeling import inference
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task


def run(config: PredictConfig) -> None:
    """Runs prediction: run/predict.py.

    All workers compute; only the chief writes.

    Raises:
      UserError: For bad flags, files or models.
    """
    keras_backend.require_tensorflow()
    _check_paths(config)
    # Workers must connect before anything is computed.
    devices = device_setup.prepare(config)
    with devices.together():
        _run_on(devices, config)


def _run_on(devices: Devices, config: PredictConfig) -> None:
    """Runs prediction on prepared devices."""
    coordinator = devices.coordinator
    stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    if coordinator.num_workers > 1:
        coordinator.agree(
            config.common_flags()
            | {
                "the file of --input_file": files.sha256(config.input_file),
                "the model": stored.fingerprint(),
            },
            "flags, model and data",
        )
    predictor = build_predictor(
        stored,
        registry.from_stored(stored),
        devices,
        config.batch_size,
        config.num_length_buckets,
    )
    # The whole file is read before the first row is computed, so that an error
    # in the last row is not found hours later.
    total = sum(1 for _ in predictor.task.read_inputs(config.input_file))
    with _open_output(config, stored, devices) as (num_stored, append):
        num_done = coordinator.from_chief(num_stored)
        if num_done:
            logging.info("Resuming after %d of %d examples.", num_done, total)
        with progress.bar(
            total,
            "predicting",
            "example",
            initial=num_done,
            hidden=not coordinator.is_chief,
        ) as bar:
            chunks = predict_chunks(
                predictor, config.input_file, bar.update, num_done
            )
            for lines in chunks:
                append(lines)
    if coordinator.is_chief:
        logging.info(
            "Wrote the predictions for %d examples to %s.",
            total,
            config.output_file,
        )


def build_predictor(
    stored: StoredModel,
    task: Task,
    devices: Devices,
    batch_size: int,
    num_length_buckets: int,
) -> Predictor:
    """Loads a fine-tuned model.

    Raises:
      UserError: If it has no vocabulary, or its parts do not match.
    """
    tokenizer = stored.build_tokenizer()
    with devices.strategy.scope():
        model = inference.prepare(
            load.build_model(stored, task.kind, **task.model_arguments()),
            devices.precision.name,
        )
    return Predictor(
        model,
        task,
        tokenizer,
        batch_size,
        num_length_buckets,
        devices.strategy,
    )


def predict_chunks(
    predictor: Predictor,
    path: str,
    on_examples: Callable[[int], object],
    num_done: int = 0,
) -> Iterator[list[str]]:
    """Yields chunks of JSON lines, one line per example, in the file's order.

    Args:
      predictor: The model.
      path: The file.
      on_examples: Called with the number of newly finished examples.
      num_done: Examples of the first chunks, which are skipped.

    Raises:
      UserError: If the file is invalid, or the model's outputs are not finite.
    """
    task = predictor.task
    num_seen = 0
    for examples in task_prediction.chunks(task, task.read_inputs(path)):
        num_seen += len(examples)
        if num_seen > num_done:
            yield [
                _to_line(described)
                for described in predictor.describe(examples, on_examples)
            ]
        else:
            predictor.choose_lengths(examples)


def _to_line(described: Mapping[str, Any]) -> str:
    line = json.dumps(described, ensure_ascii=False, allow_nan=False)
    return f"{line}\n"


@contextlib.contextmanager
def _open_output(
    config: PredictConfig, stored: StoredModel, devices: Devices
) -> Iterator[tuple[int, Callable[[Sequence[str]], object]]]:
    """Yields the number of stored lines, and the function that adds lines.

    The file gets its name when it is complete.
    """
    path = config.output_file
    if not devices.coordinator.is_chief:
        yield 0, lambda lines: None
    elif "://" in path:  # Remote disks cannot append to a file.
        with (
            files.atomic_file(path) as temporary,
            tf.io.gfile.GFile(temporary, "w") as file,
        ):
            yield 0, lambda lines: file.write("".join(lines))
    else:
        identity = config.common_flags() | {
            "the model": stored.fingerprint(),
            "the file of --input_file": files.sha256(config.input_file),
            "the precision": devices.precision.name,
            "examples of a chunk": task_prediction.EXAMPLES_PER_CHUNK,
        }
        with resumable_file.open_partial(path, identity) as output:
            yield output.num_lines, output.append


def _check_paths(config: PredictConfig) -> None:
    files.require_file(config.input_file, "--input_file")
    files.require_other(config.output_file, config.input_file)
    files.require_writable(config.output_file, "--output_file")
