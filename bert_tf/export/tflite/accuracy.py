"""What a .tflite file is worth: its score beside the model's, and its price."""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf.errors import UserError
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import eval_set
from bert_tf.export.tflite import lite_outputs
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.costs import Latency
from bert_tf.export.tflite.eval_set import EvalSet
from bert_tf.export.tflite.eval_set import Evaluation
from bert_tf.flags.export import QUANTIZATIONS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.tasks.squad.task import SquadTask

# Kinds of tasks whose official evaluator has points of 100; others have parts
# of 1.
_IN_POINTS = (SquadTask.kind,)


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How a file scores beside its model.

    Attributes:
      eval_file: What both were scored on.
      num_examples: How many examples that has.
      metric: The task's metric that counts.
      score: The file's, in points of 100; errors, of which less is better, as
        they are.
      model_score: The same of the model.
      drop: By how many points the file is worse, below 0 if it is better; of
        errors by how many percent.
      agreement: The part of the examples of which both say the same; None
        where nothing is decided, as in regression.
      scores: All metrics of the file, as the task has them.
      model_scores: All of the model.
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
    """What a file is worth.

    Attributes:
      quantization: One of `run_config.export.QUANTIZATIONS`.
      num_bytes: Its size.
      latencies: How long calls of one row take, or of as many as the file has.
      peak_memory: The most bytes that a process needs for it with one thread;
        None where the system does not tell.
      accuracy: How it scores; None without --eval_file.
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
        """Returns lines for people."""
        lines = [f"{self.num_bytes / 1e6:.1f} MB"]
        if self.peak_memory is not None:
            lines[0] += f", {self.peak_memory / 1e6:.0f} MB of memory"
        for one in self.latencies:
            lines.append(f"{one.milliseconds:.2f} ms for {one.setting}")
        found = self.accuracy
        if found is not None:
            line = (
                f"{found.metric} {found.score:.2f} on {found.eval_file}, that "
                f"of the model {found.model_score:.2f}"
            )
            if found.agreement is not None:
                line += (
                    f"; both say the same of {100 * found.agreement:.2f} % of "
                    f"{found.num_examples:,} examples"
                )
            lines.append(line)
        return "\n".join(lines)


class Gate:
    """Measures the files that are made of a model, and scores them.

    Args:
      build: What the files are of, whatever its quantization.

    Attributes:
      examples: Those of --eval_file, of the task's own form; none without it.

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
        """Returns a report of each file.

        Args:
          contents: Files by quantization.
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
        found = rows.evaluate(lite_outputs.compute(rows, model))
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
    """Checks that a file is good enough to be published.

    Args:
      report: What `Gate.measure` says of it.
      max_drop: By how many points it may be worse than its model.

    Raises:
      UserError: If it is worse.
    """
    found = report.accuracy
    if found is None or is_good_enough(report, max_drop):
        return
    number = QUANTIZATIONS.index(report.quantization)
    advice = (
        f"try --quantization={QUANTIZATIONS[number - 1]}"
        if number
        else "the model's numbers are near the edge, or damaged"
    )
    raise UserError(
        f"The {found.metric} of the .tflite file must be at most --max_drop="
        f"{max_drop:g} points below the model's, {found.model_score:.2f} on "
        f"{found.eval_file}. Received: {found.score:.2f} with --quantization="
        f"{report.quantization}, {found.drop:.2f} below; {advice}."
    )


def is_good_enough(report: Report, max_drop: float) -> bool:
    """Returns whether `require` lets a file pass."""
    # What is not a number is no drop that may be.
    return report.accuracy is None or report.accuracy.drop <= max_drop


def _lengths(build: Build, rows: EvalSet | None) -> tuple[int, ...]:
    """Returns what calls are timed with, rising.

    Where rows may have any length these are the median of the evaluation set
    and the longest that the model was trained on.
    """
    longest = build.seq_length or build.head.max_seq_length
    if build.seq_length is not None or rows is None:
        return (longest,)
    median = int(np.median(rows.features.lengths))
    return tuple(sorted({median, longest}))
