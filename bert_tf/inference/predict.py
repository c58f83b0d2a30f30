"""Predicts the rows of a file with a fine-tuned model, or embeds its texts."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io.run_folder import RunFolder
from bert_tf.modeling import inference
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.training import unpad as unpadding

# Tables show this many significant digits; JSON lines have all digits.
_DIGITS = 5
# A kept input column gets this prefix if an answer column has the same name.
_PREFIX = "input_"
_PROBABILITIES = "probabilities"
_BREAKS = re.compile(r"[\t\r\n]+")


class OutputRows:
    """Formats predictions, with the kept columns of the input in front."""

    def __init__(self, config: Flags, task: Task) -> None:
        self._ending = config.output_ending
        self._top_k = config.top_k
        self._path = config.input_file
        self._task = task
        key = task.variant or task.kind
        form = task.problem_type if key == "classification" else key
        names = _NAMES.get(form, ())
        if config.keep_empty and key != "classification":
            raise UserError(
                "--keep_empty is for classification. Received: a model for "
                f"{key}; drop it."
            )
        if config.top_k is not None and _PROBABILITIES not in names:
            raise UserError(
                "--top_k is for models that choose among labels or choices. "
                f"Received: a model for {key}; drop it."
            )
        # User-defined tasks have no fixed answer columns, so refuse tables.
        if not names and (self._ending or config.keep_columns):
            raise UserError(
                "Tables and --keep_columns are for the tasks of this project. "
                f"Received: a model for {key}; write JSON lines (.jsonl) "
                "without kept columns."
            )
        self._empty = {x: [] if x == "labels" else None for x in names}
        names = self._answer_names(names)
        self._kept = _kept_names(config, task, set(names))
        self._columns = (*self._kept.values(), *names)

    @property
    def header(self) -> str | None:
        """The first line of a table; None for JSON lines."""
        if not self._ending:
            return None
        return self._table_line({name: name for name in self._columns})

    def inputs(self) -> Iterator[Mapping[str, Any]]:
        """Returns each row's kept columns; endless {} if none are kept."""
        if not self._kept:
            return itertools.repeat({})
        rows = self._task.read_table(self._path).rows
        return (
            {new: row.values.get(old) for old, new in self._kept.items()}
            for row in rows
        )

    def empty_answer(self) -> dict[str, Any]:
        """Returns the answer for a row with an empty text."""
        return dict(self._empty)

    def line(self, kept: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns one row of the output, from kept columns and an answer.

        The answer is from `Task.prediction_to_json`. A .csv row may span
        several lines.
        """
        if self._ending:
            return self._table_line({**kept, **self._flat(answer)})
        if self._top_k is not None and answer.get(_PROBABILITIES):
            best = dict(self._best(answer))
            answer = {**answer, _PROBABILITIES: best}
        values = {**kept, **answer}
        return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"

    def _best(self, answer: Mapping[str, Any]) -> list[tuple[str, float]]:
        pairs = answer[_PROBABILITIES].items()
        return sorted(pairs, key=lambda x: -x[1])[: self._top_k]

    def _answer_names(self, names: Sequence[str]) -> list[str]:
        """Returns the answers' columns in a table.

        With --top_k=2, columns are label, probability, label_2, probability_2.
        """
        if self._top_k is None or not self._ending:
            return [
                x for x in names if x != _PROBABILITIES or "labels" in names
            ]
        first = 2 if "label" in names else 1
        names = [x for x in names if x != _PROBABILITIES]
        labels = getattr(self._task, "labels", None) or range(self._top_k)
        rejects = getattr(self._task, "reject_below", None) is not None
        most = min(self._top_k, len(labels) + rejects)
        for rank in range(first, most + 1):
            names += [f"label_{rank}", f"probability_{rank}"]
        return names

    def _flat(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the cells of an answer by column name."""
        cells = dict(answer)
        probabilities = cells.pop(_PROBABILITIES, None)
        if "labels" in cells:
            labels = cells["labels"] or ()
            separator = getattr(self._task, "label_separator", ",")
            cells["labels"] = separator.join(labels)
            if self._top_k is None and probabilities is not None:
                cells[_PROBABILITIES] = separator.join(
                    _number(probabilities[label]) for label in labels
                )
        if self._top_k is not None and probabilities:
            # If the answer is "none of these", the best label is `label_2`.
            first = 1 + (cells.get("label") not in (None, *probabilities))
            for rank, (label, value) in enumerate(self._best(answer), first):
                cells |= {f"label_{rank}": label, f"probability_{rank}": value}
        if cells.get("offsets"):
            cells["offsets"] = [f"{a}-{b}" for a, b in cells["offsets"]]
        return cells

    def _table_line(self, cells: Mapping[str, Any]) -> str:
        values = [_cell(cells.get(name)) for name in self._columns]
        if self._ending == ".tsv":
            return "\t".join(_BREAKS.sub(" ", x) for x in values) + "\n"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        return text.getvalue()


# Answer columns by problem type or kind of task.
_NAMES = {
    "single_label": ("label", "probability", _PROBABILITIES),
    "multi_label": ("labels", _PROBABILITIES),
    "regression": ("score",),
    "multiple_choice": ("label", "index", "probability", _PROBABILITIES),
    "tagging": ("words", "tags", "offsets"),
    "embeddings": ("text", "embedding"),
    "question_answering": (
        "id",
        "answer",
        "start",
        "end",
        "score",
        "no_answer_score",
    ),
}


def _kept_names(config: Flags, task: Task, answers: set[str]) -> dict[str, str]:
    """Returns the kept columns: name in the input to name in the output."""
    if not config.keep_columns:
        return {}
    table = task.read_table(config.input_file)
    if table is None:
        raise UserError(
            f"--keep_columns is for tables. Received: {config.input_file}, "
            "which has no columns with names; drop the flag."
        )
    columns = config.columns_to_keep() or table.columns  # None means all.
    table.require(columns, dict.fromkeys(columns, "--keep_columns"))
    if not config.output_ending:  # JSON lines always have probabilities.
        answers = answers | {_PROBABILITIES}
    kept = {}
    for column in columns:
        name = column
        while name in answers or (name != column and name in columns):
            name = _PREFIX + name
        kept[column] = name
    return kept


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list) and all(isinstance(x, str) for x in value):
        return " ".join(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    return f"{value:.{_DIGITS}g}"


def run(config: Flags) -> None:
    """Runs prediction for run/predict.py.

    All workers compute the predictions; only the chief writes them.
    """
    files.require_writable(config.output_file, "--output_file")
    # Workers must connect before TensorFlow computes anything.
    devices = device_setup.prepare(config)
    with devices.together():
        _run_on(devices, config)


def _run_on(devices: Devices, config: Flags) -> None:
    coordinator = devices.coordinator
    stored = checkpoint_loading.read(config.model_dir, flag="--model_dir")
    if coordinator.num_workers > 1:
        coordinator.agree(
            config.common_flags()
            | {
                "the file of --input_file": files.sha256(config.input_file),
                "the model": stored.fingerprint,
            },
            "flags, model and data",
        )
    task = _choose_task(stored, config)
    rows = OutputRows(config, task)
    # Read all rows first, or an error in the last row would come hours later.
    total = sum(1 for _ in _read(task, config))
    predictor = build_predictor(stored, task, devices, config)
    with _open_output(config, stored, devices) as run:
        finished = coordinator.from_chief(run and _finished_chunks(run))
        if finished:
            logging.info("Resuming after %d chunks of examples.", finished)
        with progress.bar(
            total, "predicting", "example", hidden=not coordinator.is_chief
        ) as bar:
            chunks = _predict_chunks(
                predictor, config, rows, bar.update, finished
            )
            for number, lines in enumerate(chunks, start=finished):
                if run:
                    files.write_text(_chunk_path(run, number), "".join(lines))
        if run:
            _join(run, config, rows.header)
    if coordinator.is_chief:
        logging.info(
            "Wrote the predictions for %d examples to %s.",
            total,
            config.output_file,
        )


def _choose_task(stored: StoredModel, config: Flags) -> Task:
    """Returns a model's task; only embeddings can be written as arrays."""
    kind = stored.task["kind"]
    if not config.array_ending:
        return registry.from_stored(stored)
    stored_task.require_embeddings(kind)
    return registry.build_embeddings(stored)


def build_predictor(
    stored: StoredModel, task: Task, devices: Devices, config: Flags
) -> Predictor:
    """Loads a fine-tuned model; flags set its batches, padding and precision.

    Raises:
      UserError: If the model has no vocabulary, its files do not match, or
        --unpad=on is not possible.
    """
    unpad = unpadding.choose(
        config.unpad,
        devices.kind,
        # No step is compiled here, so leaving padding out always saves time.
        lambda: True,
        reads_padding=task.reads_padding,
    )
    tokenizer = stored.build_tokenizer()
    with devices.strategy.scope():
        model = inference.prepare(
            checkpoint_loading.build_model(
                stored, task.kind, **task.model_arguments()
            ),
            devices.precision.name,
        )
    model.bert.encoder.shares_graph = True
    return Predictor(
        model,
        task,
        tokenizer,
        config.batch_size,
        config.num_length_buckets,
        devices.strategy,
        unpad,
    )


def _read(task: Task, config: Flags) -> Iterator[Any]:
    has_empty = (task.variant or task.kind) == "classification"
    options = {"keep_empty": config.keep_empty} if has_empty else {}
    return task.read_inputs(config.input_file, **options)


def _predict_chunks(
    predictor: Predictor,
    config: Flags,
    rows: OutputRows,
    on_examples: Callable[[int], object],
    finished: int,
) -> Iterator[list[str]]:
    """Yields chunks of lines, one line per example, in the file's order.

    The first `finished` chunks are skipped, as an earlier run has written them.
    `on_examples` is called as by `Predictor.predict`.
    """
    task = predictor.task
    inputs = rows.inputs()
    chunks = task_prediction.chunks(task, _read(task, config))
    for number, examples in enumerate(chunks):
        kept = list(itertools.islice(inputs, len(examples)))
        computed = [x for x in examples if not _is_empty(x, config)]
        if number < finished:
            predictor.choose_lengths(computed)
            on_examples(len(examples))
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


def _is_empty(example: Any, config: Flags) -> bool:
    """Returns True for an example that gets an empty answer."""
    return config.keep_empty and classification_examples.has_empty_text(example)


@contextlib.contextmanager
def _open_output(
    config: Flags, stored: StoredModel, devices: Devices
) -> Iterator[RunFolder | None]:
    """Yields the folder of finished chunks on the chief, else None.

    Removes the chunks of earlier runs with another model, input or flag.
    """
    if not devices.coordinator.is_chief:
        yield None
        return
    identity = config.common_flags() | {
        "the model": stored.fingerprint,
        "the file of --input_file": files.sha256(config.input_file),
        "the precision": devices.precision.name,
        "examples of a chunk": task_prediction.EXAMPLES_PER_CHUNK,
    }
    with RunFolder(config.output_file, identity) as run:
        if difference := run.difference:
            logging.warning("Starting over, as %s.", difference)
            run.start_over()
        run.resume(())
        try:
            yield run
        except BaseException:
            if not _finished_chunks(run):
                run.discard()
            raise


def _chunk_path(run: RunFolder, number: int) -> str:
    return os.path.join(run.work_dir, f"chunk-{number:06d}")


def _finished_chunks(run: RunFolder) -> int:
    return next(
        x for x in itertools.count() if not files.exists(_chunk_path(run, x))
    )


def _join(run: RunFolder, config: Flags, header: str | None) -> None:
    """Writes the output file from its chunks, then removes the chunks."""
    chunks = (
        files.read_bytes(_chunk_path(run, number))
        for number in range(_finished_chunks(run))
    )
    with files.atomic_file(config.output_file) as temporary:
        if config.array_ending:
            _write_embeddings(temporary, config.array_ending, chunks)
        else:
            with tf.io.gfile.GFile(temporary, "wb") as file:
                file.write((header or "").encode())
                for chunk in chunks:
                    file.write(chunk)
    run.finish()


def _write_embeddings(path: str, ending: str, chunks: Iterable[bytes]) -> None:
    """Writes embeddings as .npy, or .parquet with texts and kept columns."""
    others, vectors = [], []
    for chunk in chunks:
        rows = [json.loads(line) for line in chunk.splitlines()]
        vectors.append(np.array([row.pop("embedding") for row in rows], "f4"))
        others += rows
    values = np.concatenate(vectors)
    if ending == ".npy":
        with tf.io.gfile.GFile(path, "wb") as file:
            np.save(file, values)
        return
    import pyarrow as pa
    from pyarrow import parquet

    columns = {x: [_cell(row[x]) for row in others] for x in others[0]}
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(
        pa.array(values.ravel()), values.shape[1]
    )
    parquet.write_table(pa.table(columns), path)
