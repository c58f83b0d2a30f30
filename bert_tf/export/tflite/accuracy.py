"""Accuracy, size and latency of a .tflite file compared with the model.

Shapes:
  N: rows of features.
  B: rows of a call.
  T: tokens per row.
  L: number of labels.
  C: number of classes or positions to choose from.
"""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from scipy import special

from bert_tf.data import length_buckets
from bert_tf.errors import UserError
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import eval_set
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.costs import Latency
from bert_tf.export.tflite.eval_set import EvalSet
from bert_tf.export.tflite.eval_set import Evaluation
from bert_tf.features import INPUT_IDS
from bert_tf.flags.export import QUANTIZATIONS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import progress
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import Task

# Kinds of tasks whose official metric is in percent, not between 0 and 1.
_IN_POINTS = (SquadTask.kind,)

# Keeps logarithms of probabilities finite.
_LEAST = float(np.finfo(np.float32).tiny)

_THRESHOLD = 0.5

_Arrays = Mapping[str, np.ndarray]
_Choose = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The score of a file compared with that of its model.

    Attributes:
      eval_file: The evaluation set.
      num_examples: Its number of examples.
      metric: The name of the task's main metric.
      score: The score of the file, in percentage points; errors, of which less
        is better, are not scaled.
      model_score: The score of the model, in the same unit.
      drop: The loss of the file in points, negative if it is better; for
        errors, their increase in percent.
      agreement: The share of examples with equal predictions; None if there is
        no decision, as in regression.
      scores: All metrics of the file.
      model_scores: All metrics of the model.
    """

    eval_file: str
    num_examples: int
    metric: str
    score: float
    model_score: float
    drop: float
    agreement: float | None
    scores: Mapping[str, float]
    model_scores: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Report:
    """The accuracy, size, latency and memory of a file.

    Attributes:
      quantization: One of `flags.export.QUANTIZATIONS`.
      num_bytes: The size of the file.
      latencies: The latencies of calls with one row, or with the fixed batch
        size of the file.
      peak_memory: The peak memory of a process with one thread, in bytes; None
        if the system does not report it.
      accuracy: The accuracy; None without --eval_file.
    """

    quantization: str
    num_bytes: int
    latencies: Sequence[Latency]
    peak_memory: int | None
    accuracy: Accuracy | None

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return dataclasses.asdict(self)

    def text(self) -> str:
        """Returns the report as lines of text."""
        lines = [f"{self.num_bytes / 1e6:.1f} MB"]
        if self.peak_memory is not None:
            lines[0] += f", {self.peak_memory / 1e6:.0f} MB of memory"
        for one in self.latencies:
            lines.append(f"{one.milliseconds:.2f} ms for {one.setting}")
        found = self.accuracy
        if found is not None:
            line = (
                f"{found.metric} {found.score:.2f} on {found.eval_file} (model "
                f"{found.model_score:.2f})"
            )
            if found.agreement is not None:
                line += (
                    f"; predictions agree on {100 * found.agreement:.2f} % of "
                    f"{found.num_examples:,} examples"
                )
            lines.append(line)
        return "\n".join(lines)


class Gate:
    """Measures and scores the files that are built from a model.

    Args:
      build: The build of the files, with any quantization.

    Attributes:
      examples: The examples of --eval_file; empty without it.

    Raises:
      UserError: If --eval_file is not of the model's task.
    """

    def __init__(self, build: Build) -> None:
        self._is_text = build.config.input == "text"
        self._rows = eval_set.read(build)
        self.examples: Sequence[Any] = ()
        if self._rows is not None:
            self.examples = self._rows.examples
        self._lengths = _lengths(build, self._rows)
        self._model: Evaluation | None = None
        if self._rows is not None:
            self._model = self._rows.evaluate_model(build.model)

    def measure(self, contents: Mapping[str, bytes]) -> dict[str, Report]:
        """Returns a report for each file.

        Args:
          contents: The files by quantization.
        """
        latencies = costs.measure_latencies(
            contents, self._lengths, self._is_text
        )
        reports = {}
        for quantization, content in contents.items():
            reports[quantization] = Report(
                quantization,
                len(content),
                latencies[quantization],
                costs.measure_peak_memory(
                    content, self._lengths[-1], self._is_text
                ),
                self._score(content),
            )
            logging.info(
                "%s: %s.",
                quantization,
                reports[quantization].text().replace("\n", ", "),
            )
        return reports

    def _score(self, content: bytes) -> Accuracy | None:
        rows = self._rows
        if rows is None:
            return None
        model = LiteModel(content, os.cpu_count() or 1, self._is_text)
        found = rows.evaluate(compute_outputs(rows, model))
        metric = rows.task.metric
        score, model_score = found.scores[metric], self._model.scores[metric]
        if rows.task.more_is_better:
            points = 1.0 if rows.task.kind in _IN_POINTS else 100.0
            score, model_score = points * score, points * model_score
            drop = model_score - score
        else:
            drop = _percent_more(score, model_score)
        return Accuracy(
            rows.path,
            len(rows.examples),
            metric,
            score,
            model_score,
            drop,
            found.agreement(self._model),
            found.scores,
            self._model.scores,
        )


def _percent_more(score: float, model_score: float) -> float:
    if score == model_score:
        return 0.0
    return 100.0 * (score / max(model_score, np.finfo(float).tiny) - 1.0)


def require(report: Report, max_drop: float) -> None:
    """Checks that a file is accurate enough to be published.

    Args:
      report: The report of the file.
      max_drop: The maximum loss in points compared with the model.

    Raises:
      UserError: If the loss is greater.
    """
    found = report.accuracy
    if found is None or is_good_enough(report, max_drop):
        return
    number = QUANTIZATIONS.index(report.quantization)
    advice = (
        f"try --quantization={QUANTIZATIONS[number - 1]}"
        if number
        else "the model's outputs are ambiguous, or its weights are damaged"
    )
    raise UserError(
        f"The {found.metric} of the .tflite file must be at most --max_drop="
        f"{max_drop:g} points below the model's, {found.model_score:.2f} on "
        f"{found.eval_file}. Received: {found.score:.2f} with --quantization="
        f"{report.quantization}, {found.drop:.2f} below; {advice}."
    )


def is_good_enough(report: Report, max_drop: float) -> bool:
    """Returns whether `require` accepts a file."""
    # False if the drop is NaN.
    return report.accuracy is None or report.accuracy.drop <= max_drop


def _lengths(build: Build, rows: EvalSet | None) -> tuple[int, ...]:
    """Returns the row lengths to time, in ascending order.

    For files with rows of any length, these are the median length of the
    evaluation set and the maximum length of the model.
    """
    longest = build.seq_length or build.head.max_seq_length
    if build.seq_length is not None or rows is None:
        return (longest,)
    median = int(np.median(rows.features.lengths))
    return tuple(sorted({median, longest}))


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """One call of a file.

    Attributes:
      indices: <int64>[at most B], its rows; the remaining rows are padding.
      inputs: [B, ...] each, by name.
    """

    indices: np.ndarray
    inputs: Mapping[str, np.ndarray]


def compute_outputs(
    rows: EvalSet, model: LiteModel
) -> dict[str, list[np.ndarray]]:
    """Computes the outputs of a .tflite file for `EvalSet.evaluate`.

    Args:
      rows: N rows.
      model: The file.
    """
    outputs: dict[str, list] = {}
    count = len(rows.features)
    with progress.bar(count, "scoring the file", "row") as bar:
        for call in _calls(rows, model):
            answer = model.run(call.inputs)
            computed = rows.task.select_outputs(_as_of_model(rows.task, answer))
            for name, values in computed.items():
                of_rows = outputs.setdefault(name, [None] * count)
                for index, value in zip(
                    call.indices, np.asarray(values), strict=False
                ):
                    of_rows[index] = value
            bar.update(len(call.indices))
    return outputs


def _calls(rows: EvalSet, model: LiteModel) -> Iterator[_Call]:
    takes_ids = INPUT_IDS.name in model.inputs
    _, shape = next(iter(model.inputs.values()))
    count = len(rows.features)
    size = shape[0] if shape[0] > 0 else min(eval_set.BATCH_SIZE, count)
    if not takes_ids:
        for start in range(0, count, size):
            indices = np.arange(start, min(start + size, count))
            texts = [rows.examples[i] for i in np.resize(indices, size)]
            yield _Call(indices, _strings(texts, [*model.inputs]))
        return
    lengths = (shape[-1],) if shape[-1] > 0 else rows.lengths()
    for planned in length_buckets.prediction_batches(
        rows.features.lengths, size, lengths
    ):
        batch = rows.features.batch(
            np.resize(planned.indices, size), planned.length
        )
        inputs = {name: batch[name] for name in task_prediction.MODEL_INPUTS}
        yield _Call(planned.indices, inputs)


def _strings(examples: Sequence, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns <object>[B] of bytes for `text` and `text_pair`."""
    columns = {
        "text": [example.text_a for example in examples],
        "text_pair": [example.text_b for example in examples],
    }
    return {
        name: np.array([text.encode() for text in columns[name]], object)
        for name in names
    }


def _as_of_model(
    task: Task, answer: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Recovers the outputs of the model from the answer of a serving head.

    Logits are recovered up to a constant for each row.

    Args:
      task: The task.
      answer: Tensors by name, as from `ServingHead.answer_ids`.
    """
    if any(name.endswith("logits") for name in answer):
        return answer
    if "score" in answer:
        return {"logits": answer["score"][..., np.newaxis]}
    probabilities = np.asarray(answer["probabilities"], np.float64)
    if (
        isinstance(task, ClassificationTask)
        and task.problem_type == "multi_label"
    ):
        logits = special.logit(np.clip(probabilities, _LEAST, 1 - 2**-53))
    else:
        logits = np.log(np.maximum(probabilities, _LEAST))
    return {"logits": logits}


def measure_agreement(
    expected: Sequence[_Arrays],
    actual: Sequence[_Arrays],
    is_multi_label: bool = False,
) -> dict[str, float]:
    """Measures the agreement of decisions of a file with those of its model.

    Args:
      expected: The outputs of the model, by call and name.
      actual: The outputs of the file.
      is_multi_label: Whether `probabilities` are of independent labels.

    Returns:
      For each output with decisions, the share of equal decisions between 0
      and 1; for `embedding`, the lowest cosine.
    """
    choices = _choices(expected[0], is_multi_label)
    found = {}
    for name in expected[0]:
        pairs = [
            (outputs[name], answer[name])
            for outputs, answer in zip(expected, actual, strict=True)
        ]
        if name in choices:
            found[f"agreement of {name}"] = _share(pairs, choices[name])
        elif name == "embedding":
            found["least cosine"] = min(_cosine(*pair) for pair in pairs)
    return found


def _choices(
    outputs: Collection[str], is_multi_label: bool
) -> Mapping[str, _Choose]:
    """Returns the functions that choose from outputs, by name."""
    if "token_ids" in outputs:
        # They are sorted by probability, so the first is the best.
        return {"token_ids": _first}
    return {
        "probabilities": _assigned_labels if is_multi_label else _best,
        "start_logits": _best,
        "end_logits": _best,
    }


def _share(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    choose: _Choose,
) -> float:
    """Returns the share of equal decisions."""
    same = [choose(expected) == choose(actual) for expected, actual in pairs]
    same = np.concatenate([np.ravel(one) for one in same])
    return float(same.mean()) if same.size else 1.0


def _best(values: np.ndarray) -> np.ndarray:
    """Returns [N], the index of the largest value in each row of [N, C]."""
    return values.argmax(-1)


def _assigned_labels(values: np.ndarray) -> np.ndarray:
    return values >= _THRESHOLD


def _first(values: np.ndarray) -> np.ndarray:
    return values[..., 0]


def _cosine(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the lowest cosine of two arrays of vectors, [N, C] each."""
    norms = np.linalg.norm(expected, axis=-1) * np.linalg.norm(actual, axis=-1)
    return float(((expected * actual).sum(-1) / norms).min())
