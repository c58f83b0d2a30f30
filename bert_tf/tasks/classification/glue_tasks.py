"""The GLUE tasks, XNLI and SNLI: their files, columns, labels and metrics."""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.tasks import metrics
from bert_tf.tasks.task_files import USUAL_STEMS
from bert_tf.tasks.task_files import OfficialFiles

_SENTENCE = (("sentence",),)
_SENTENCES = (("sentence1", "sentence2"),)
_PREMISE = (("premise", "hypothesis"), ("Premise", "Hypothesis"))
_BINARY = ("0", "1")
# Diagnostics (gluebenchmark.com/diagnostics), and another name of their folder.
_AX, _AX_FOLDER = "ax", "diagnostic"
# Label ids follow the original's order (run_classifier.py:225-227, 288-290).
_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
# Maps numbers, which some files have instead of labels, to labels.
_NUMBERED_NLI = {"0": "entailment", "1": "neutral", "2": "contradiction"}
_NUMBERED_ENTAILMENT = {"0": "entailment", "1": "not_entailment"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask(OfficialFiles):
    """A task with official files; its title is also the name of its folder.

    Attributes:
      texts: The columns of texts, one or two, in each edition of the files.
      labels: The labels in the order of their ids; None for regression.
      metrics: Names in `metrics.METRICS`. The first name is the metric in the
        paper, and selects the best model.
      label_columns: The possible names of the label's column; the first that
        exists is read.
      aliases: Maps other spellings of labels to the labels.
      columns_of_longer_rows: Columns of rows with more fields than the header.
      submissions: Maps a split to the name of the file to submit for it.
      has_broken_rows: Whether the official files have broken rows, which are
        left out and counted.
    """

    endings: ClassVar[tuple[str, ...]] = (
        ".tsv",
        ".jsonl",
        ".json",
        ".csv",
        ".txt",
    )

    texts: tuple[tuple[str, ...], ...] = _SENTENCES
    labels: tuple[str, ...] | None = _BINARY
    metrics: tuple[str, ...] = (metrics.ACCURACY,)
    label_columns: tuple[str, ...] = ("gold_label", "label")
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    columns_of_longer_rows: Sequence[str] = ()
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_broken_rows: bool = False

    @property
    def name(self) -> str:
        """The task's name in flags."""
        return self.title.lower()

    @property
    def is_pair(self) -> bool:
        """True if the task has two texts."""
        return len(self.texts[0]) == 2

    @property
    def problem_type(self) -> str:
        """The problem type, "single_label" or "regression"."""
        return "regression" if self.labels is None else "single_label"

    @property
    def has_languages(self) -> bool:
        """True if there are files or rows in several languages."""
        return self.name == "xnli"


def _usual_stems(prefix: str) -> dict[str, tuple[str, ...]]:
    """Returns `USUAL_STEMS` with a second, prefixed name for each split."""
    return {
        split: (first, prefix + first, *others)
        for split, (first, *others) in USUAL_STEMS.items()
    }


def _glue(title: str, prefix: str = "", **values: Any) -> GlueTask:
    """Returns a task of GLUE, which is submitted as the file <title>.tsv."""
    usual = {
        "stems": _usual_stems(prefix),
        "submissions": {"test": f"{title}.tsv"},
    }
    return GlueTask(title=title, **usual | values)


TASKS: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        _glue(
            "CoLA",
            texts=_SENTENCE,
            metrics=(metrics.MATTHEWS,),
            columns_without_header=("source", "label", "mark", "sentence"),
        ),
        _glue("SST-2", texts=_SENTENCE),
        _glue(
            "MRPC",
            texts=(("#1 String", "#2 String"), *_SENTENCES),
            prefix="msr_paraphrase_",
            metrics=(metrics.F1, metrics.ACCURACY),
            label_columns=("Quality", "label"),
        ),
        _glue(
            "STS-B",
            labels=None,
            metrics=(metrics.SPEARMAN, metrics.PEARSON),
            label_columns=("score", "label"),
        ),
        _glue(
            "QQP",
            texts=(("question1", "question2"),),
            metrics=(metrics.F1, metrics.ACCURACY),
            label_columns=("is_duplicate", "label"),
            has_broken_rows=True,
        ),
        _glue(
            "MNLI",
            texts=(*_SENTENCES, *_PREMISE),
            stems={
                "train": ("train", "multinli_1.0_train"),
                **{
                    f"dev_{x}": (
                        f"dev_{x}",
                        f"multinli_1.0_dev_{x}",
                        f"validation_{x}",
                    )
                    for x in ("matched", "mismatched")
                },
                **{
                    f"test_{x}": (
                        f"test_{x}",
                        f"multinli_0.9_test_{x}_unlabeled",
                    )
                    for x in ("matched", "mismatched")
                },
            },
            labels=_NLI,
            aliases=_NUMBERED_NLI,
            submissions={
                "test_matched": "MNLI-m.tsv",
                "test_mismatched": "MNLI-mm.tsv",
            },
        ),
        _glue(
            "QNLI",
            texts=(("question", "sentence"),),
            labels=_ENTAILMENT,
            aliases=_NUMBERED_ENTAILMENT,
        ),
        _glue(
            "RTE",
            texts=(*_SENTENCES, *_PREMISE),
            labels=_ENTAILMENT,
            aliases=_NUMBERED_ENTAILMENT,
        ),
        _glue("WNLI"),
        # The diagnostic set has no training data, so models of MNLI predict it.
        _glue(
            "AX",
            texts=(*_SENTENCES, *_PREMISE),
            stems={"test": ("AX", "diagnostic", "diagnostic-full", "test")},
            hint="; train with --task_name=mnli, and give that model as "
            "--pretrained_model_dir with --do_predict",
            labels=_NLI,
            metrics=(metrics.MATTHEWS, metrics.ACCURACY),
            label_columns=("Label", "label"),
            aliases=_NUMBERED_NLI,
        ),
        # Each language has its own training file; --language sets {language}.
        GlueTask(
            title="XNLI",
            texts=(*_SENTENCES, ("premise", "hypo"), *_PREMISE),
            stems={
                "train": (
                    "multinli/multinli.train.{language}",
                    "XNLI-MT-1.0/multinli/multinli.train.{language}",
                    "multinli.train.{language}",
                ),
                "dev": ("xnli.dev", "XNLI-1.0/xnli.dev"),
                "test": ("xnli.test", "XNLI-1.0/xnli.test"),
            },
            labels=_NLI,
            aliases={**_NUMBERED_NLI, "contradictory": "contradiction"},
            has_broken_rows=True,
        ),
        GlueTask(
            title="SNLI",
            texts=(*_SENTENCES, *_PREMISE),
            stems=_usual_stems("snli_1.0_"),
            labels=_NLI,
            aliases=_NUMBERED_NLI,
            # The header of GLUE's train.tsv is for one annotator. Rows of five
            # annotators are longer, so they need their own column names.
            columns_of_longer_rows=(
                "index captionID pairID sentence1_binary_parse "
                "sentence2_binary_parse sentence1_parse sentence2_parse "
                "sentence1 sentence2 label1 label2 label3 label4 label5 "
                "gold_label"
            ).split(),
        ),
    )
}


# Tasks in one group ask the same question, so one model serves all of them.
_ALIKE = (frozenset({"mnli", "ax", "snli", "xnli"}), frozenset({"mrpc", "qqp"}))


def are_alike(name: str, other: str | None) -> bool:
    """Returns True if a model of one named task may predict for the other.

    Also returns True if a name is not in `TASKS`, such as "custom".
    """
    if name == other or not {name, other} <= TASKS.keys():
        return True
    return any({name, other} <= alike for alike in _ALIKE)


def fold(name: str) -> str:
    """Returns a name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def find_folder(glue_dir: str, task: GlueTask) -> str | None:
    """Returns the folder of a task in --glue_dir, or None if it is missing."""
    expected = {fold(task.name)}
    if task.name == _AX:
        expected.add(_AX_FOLDER)
    names = files.names_in(glue_dir) if files.is_folder(glue_dir) else []
    for name in names:
        path = os.path.join(glue_dir, name)
        if fold(name) in expected and files.is_folder(path):
            return path
    # GLUE's website offers AX.tsv without a folder, so also accept this file.
    file = os.path.join(glue_dir, f"{task.title}.tsv")
    return glue_dir if task.name == _AX and files.exists(file) else None


def of_leaderboard() -> list[GlueTask]:
    """Returns the tasks of the leaderboard."""
    return [task for task in TASKS.values() if task.submissions]


def require_folders(glue_dir: str) -> None:
    """Raises `UserError` if --glue_dir has no folder of a task."""
    tasks = of_leaderboard()
    if not any(find_folder(glue_dir, task) for task in tasks):
        raise UserError(
            "--glue_dir must have the folders of GLUE's tasks, "
            f"{', '.join(task.title for task in tasks)}. Received: "
            f"{glue_dir!r}, {paths.describe(glue_dir)}."
        )


def get_task(name: str) -> GlueTask:
    """Returns a task by its name, ignoring case, hyphens and underscores."""
    for task in TASKS.values():
        if fold(task.name) == fold(name):
            return task
    own = "; for your own files give --task_name=custom."
    raise UserError(
        f"--task_name must be one of {', '.join(TASKS)}, or custom. Received: "
        f"{name!r}{did_you_mean(name, TASKS, otherwise=own)}"
    )
