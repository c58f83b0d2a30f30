"""A classifier's reports: test_results.tsv, plots and tables."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.io import files
from bert_tf.tasks import metrics
from bert_tf.tasks import plots
from bert_tf.tasks import result_tables
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.classification import features as classification_features
from bert_tf.tasks.classification.examples import InputExample

if TYPE_CHECKING:
    from bert_tf.tasks.classification.task import ClassificationTask
    from bert_tf.tasks.classification.task import Prediction


def write(
    task: "ClassificationTask",
    output_dir: str,
    split: str,
    examples: Sequence[InputExample],
    predictions: Sequence["Prediction"],
) -> None:
    """Writes the original's test_results.tsv, plots and tables.

    A test set gets test_results.tsv, a task's further test sets with their
    names, as test_mismatched_results.tsv. Examples with labels get a plot and
    a table: confusion_matrix.png and .txt for single labels, label_scores.png
    and .txt for multi-label problems, score_scatter.png and .txt for scores.
    Their names begin with the split unless it is "dev".

    Args:
      task: The task.
      output_dir: A folder.
      split: The predicted split.
      examples: Its examples, all with labels or all without.
      predictions: Their predictions.
    """
    if split.split("_")[0] == task_lib.TEST:
        is_first = split == task.splits(task_lib.TEST)[0]
        name = task_lib.TEST if is_first else split
        files.write_text(
            os.path.join(output_dir, f"{name}_results.tsv"),
            results_text(predictions),
        )
    if not task.is_labeled(examples):
        return
    prefix = "" if split == task_lib.DEV else f"{split}_"
    label_ids = classification_features.convert_labels(
        examples, task.labels, task.problem_type
    )
    _WRITERS[task.problem_type](
        os.path.join(output_dir, prefix),
        task.labels,
        label_ids,
        task.predicted_ids(predictions),
    )


def results_text(predictions: Sequence["Prediction"]) -> str:
    """Returns a line per example, with its probabilities between tabs.

    Source: run_classifier.py:952-968 of the original, which writes `str` of a
    <float32>.
    """
    return "".join(
        "\t".join(map(str, prediction.values)) + "\n"
        for prediction in predictions
    )


def _write_matrix(
    prefix: str,
    labels: Sequence[str],
    label_ids: np.ndarray,
    predicted_ids: np.ndarray,
) -> None:
    counts = metrics.confusion_matrix(label_ids, predicted_ids, len(labels))
    plots.draw_confusion_matrix(f"{prefix}confusion_matrix.png", labels, counts)
    files.write_text(
        f"{prefix}confusion_matrix.txt",
        result_tables.confusion_matrix_text(
            labels, counts, plots.needs_numbers(labels)
        ),
    )


def _write_label_scores(
    prefix: str,
    labels: Sequence[str],
    label_ids: np.ndarray,
    predicted_ids: np.ndarray,
) -> None:
    scores = (labels, label_ids, predicted_ids)
    plots.draw_entity_scores(
        f"{prefix}label_scores.png", result_tables.label_score_rows(*scores)
    )
    files.write_text(
        f"{prefix}label_scores.txt",
        result_tables.label_scores_text(*scores, plots.needs_numbers(labels)),
    )


def _write_scatter(
    prefix: str, labels: None, label_ids: np.ndarray, scores: np.ndarray
) -> None:
    del labels  # There are none.
    plots.draw_score_scatter(f"{prefix}score_scatter.png", label_ids, scores)
    files.write_text(
        f"{prefix}score_scatter.txt",
        result_tables.score_scatter_text(label_ids, scores),
    )


_WRITERS = {
    "single_label": _write_matrix,
    "multi_label": _write_label_scores,
    "regression": _write_scatter,
}
