"""Predicts the rows of a file with a fine-tuned model."""

import contextlib
import itertools
from collections.abc import Callable
from collections.abc import Iterator
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
from bert_tf.inference.output_rows import OutputRows
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import resumable_file
from bert_tf.modeling import inference
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.training import unpad as unpadding


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
    task = registry.from_stored(stored)
    rows = OutputRows(config, task)
    # The whole file is read before the model is built, so that an error in the
    # last row is not found hours later.
    total = sum(1 for _ in _read(task, config))
    predictor = build_predictor(
        stored,
        task,
        devices,
        config.batch_size,
        config.num_length_buckets,
        config.unpad,
    )
    with _open_output(config, stored, devices) as (num_stored, append):
        num_stored = coordinator.from_chief(num_stored)
        head = [rows.header] if rows.header else []
        num_done = max(0, num_stored - len(head))
        if num_done:
            logging.info("Resuming after %d of %d examples.", num_done, total)
        with progress.bar(
            total,
            "predicting",
            "example",
            initial=num_done,
            hidden=not coordinator.is_chief,
        ) as bar:
            for lines in _predict_chunks(
                predictor, config, rows, bar.update, num_done
            ):
                append(lines if num_stored else head + lines)
                num_stored += len(lines)
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
    unpad: str,
) -> Predictor:
    """Loads a fine-tuned model.

    Raises:
      UserError: If it has no vocabulary, its parts do not match, or it cannot
        leave padding out.
    """
    unpads = unpadding.choose(
        unpad,
        devices.kind,
        # Gathering takes no longer than transposing, and nothing is compiled.
        lambda: True,
        reads_padding=task.reads_padding,
    )
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
        unpads,
    )


def _read(task: Task, config: PredictConfig) -> Iterator[Any]:
    if config.keep_empty:
        return task.read_inputs(config.input_file, keep_empty=True)
    return task.read_inputs(config.input_file)


def _predict_chunks(
    predictor: Predictor,
    config: PredictConfig,
    rows: OutputRows,
    on_examples: Callable[[int], object],
    num_done: int = 0,
) -> Iterator[list[str]]:
    """Yields chunks of lines, one per example, in the file's order.

    Args:
      predictor: The model.
      config: The flags.
      rows: The format of the lines.
      on_examples: Called with the number of newly finished examples.
      num_done: Examples of the first chunks, which are skipped.

    Raises:
      UserError: If the file is invalid, or the model's outputs are not finite.
    """
    task = predictor.task
    inputs = iter(rows.inputs() or ())
    num_seen = 0
    for examples in task_prediction.chunks(task, _read(task, config)):
        num_seen += len(examples)
        # Of the same rows; none without --keep_columns.
        kept = list(itertools.islice(inputs, len(examples)))
        kept = kept or [{}] * len(examples)
        computed = [x for x in examples if not _is_empty(x, config)]
        if num_seen <= num_done:
            predictor.choose_lengths(computed)
            continue
        answers = iter(predictor.describe(computed, on_examples))
        yield [
            rows.line(
                values,
                rows.empty_answer()
                if _is_empty(example, config)
                else next(answers),
            )
            for values, example in zip(kept, examples, strict=True)
        ]
        on_examples(len(examples) - len(computed))


def _is_empty(example: Any, config: PredictConfig) -> bool:
    """Returns True for an example that gets an empty answer."""
    return config.keep_empty and classification_examples.has_empty_text(example)


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
