r"""Fine-tunes a BERT to classify texts or pairs of texts, or to score them.

The tasks of GLUE, XNLI and SNLI, from their official files:

  python run/finetune_classifier.py --task_name=mrpc --data_dir=glue/MRPC \
      --pretrained_model_dir=bert-base-uncased --output_dir=output/mrpc \
      --do_train --do_eval --do_predict

The model may also be given by --vocab_file, --bert_config_file and
--init_checkpoint, as for the original's run_classifier.py. Your own .csv, .tsv
or .jsonl files:

  python run/finetune_classifier.py --train_file=train.csv \
      --dev_file=dev.csv --test_file=test.csv --text_column=text \
      --label_column=label --pretrained_model_dir=bert-base-uncased \
      --output_dir=output/own --do_train --do_eval --do_predict

With a few texts of each label, add --few_shot and start from a model that
embeds sentences, such as hf://sentence-transformers/all-MiniLM-L6-v2.

Rerun the same command to resume from the last checkpoint.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import NamedTaskConfig
from bert_tf.flags.finetune import own_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(NamedTaskConfig):
    """Flags of run/finetune_classifier.py."""

    task_name: str | None = options.data(
        "Task: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, xnli, "
        "snli, or custom for your own files (default: custom)."
    )
    language: str | None = options.data(
        "Language for XNLI (default: the model's if it is only used; else "
        "zh, as in the original).",
        not_with="task_name=custom",
    )
    text_column: str | None = own_files(
        "custom: column of the text (default: text)."
    )
    text_pair_column: str | None = own_files(
        "custom: column of the second text of a pair."
    )
    label_column: str | None = own_files(
        "custom: column of the label (default: label); for multi_label also "
        "several columns of 0 and 1, separated by commas."
    )
    label_separator: str | None = own_files(
        "custom: separator between the labels of a multi_label row (default: "
        "a comma)."
    )
    problem_type: str | None = own_files(
        "custom: type of the labels (default: single_label).",
        choices=("single_label", "multi_label", "regression"),
    )
    class_weights: str | None = options.training(
        "Weight of each label in the loss: balanced, or "
        "label:weight,label:weight,... (default: 1 for each label)."
    )
    few_shot: bool = options.training(
        "Learn from few texts of each label, best below 50: train embeddings "
        "on pairs of texts, then a linear head on the embeddings.",
        False,
        needs="do_train",
        not_with=(
            "doc_stride",
            "head=bilstm",
            "new_pooler",
            "keep_best",
            "early_stopping_patience",
            "train_batch_size=1",
        ),
    )
    doc_stride: int | None = options.data(
        "Split long texts into windows that start this many tokens apart "
        "(default: truncate them).",
        at_least=1,
    )
    calibrate: bool | None = options.scoring(
        "Fit the probabilities, and the thresholds of multi_label, on the dev "
        "set, or for --few_shot without a dev set by cross-validation "
        "(default: true if a run with --do_eval or --few_shot trains on your "
        "own labels).",
        needs=("do_eval", "few_shot"),
    )
    reject_below: float | None = options.scoring(
        "Answer --reject_label if the best label is less probable than this.",
        above=0,
        below=1,
        not_with="reject_precision",
    )
    reject_precision: float | None = options.scoring(
        "Choose the value of --reject_below on the dev set, so that this share "
        "of the answers that are not rejected is correct.",
        above=0,
        below=1,
        needs=("do_eval", "few_shot"),
    )
    reject_label: str | None = options.scoring(
        "Answer for rejected texts, and in dev and test sets the label of rows "
        "that should be rejected (default: none of these).",
        needs=("reject_below", "reject_precision"),
    )

    def __post_init__(self) -> None:
        from bert_tf.tasks.classification import glue_tasks

        if self.task_name and not self.is_custom:
            glue_tasks.get_task(self.task_name)  # Raises if unknown.
        super().__post_init__()


def main(config: ClassifierConfig) -> None:
    from bert_tf.tasks import stored_task

    stored = stored_task.read_for_evaluation(config, "classification")
    task_files = None
    if stored is not None:
        task_files = find_files(config, stored).load()
    build = functools.partial(build_task, task_files=task_files)
    if config.few_shot:
        _check_few(task_files, config)
        from bert_tf.finetuning import contrastive

        contrastive.train_few_shot(config, build)
    else:
        from bert_tf.finetuning import run as finetuning

        finetuning.run(config, build)


def _check_few(task_files: Any, config: ClassifierConfig) -> None:
    """Checks few-shot training data; warns of labels the dev set lacks."""
    from bert_tf.tasks.classification import labels as label_values

    if task_files.problem_type != "single_label":
        raise UserError(
            "--few_shot is for single-label problems. Received: a task with "
            f"--problem_type={task_files.problem_type}."
        )
    for split, data in task_files.data.items():
        texts, path = data.examples, task_files.files[split]
        if split.startswith("train"):
            if config.dev_fraction:  # The file of this part is not yet written.
                path = f"{config.train_file} without the rows of --dev_fraction"
            label_values.check_few(texts, task_files.labels, path)
        elif split.startswith("dev"):
            label_values.warn_of_missing(texts, task_files.labels, path)


def find_files(config: ClassifierConfig, stored: Mapping[str, Any]):
    """Returns the `ClassificationFiles` of the flags."""
    from bert_tf.tasks.classification import labels as label_values
    from bert_tf.tasks.task_files import TRAIN

    if stored.get("kind", "classification") != "classification":
        stored = {"kind": stored["kind"]}  # Drop another task's columns.
    find = _find_own_files if config.is_custom else _find_official_files
    task = find(config, stored).with_threshold(stored).with_confidence(config)
    weights = config.class_weights if config.do_train else None
    if weights is None:
        return task
    if task.problem_type != "single_label":
        raise UserError(
            "--class_weights is for single-label problems. Received: "
            f"a task with --problem_type={task.problem_type}."
        )
    if weights == label_values.BALANCED:
        task = task.load(TRAIN)
        train = task.data[TRAIN].examples
        weights = label_values.balanced_weights(
            train, task.labels, task.files[TRAIN]
        )
    else:
        weights = label_values.parse_weights(weights, task.labels)
    return dataclasses.replace(task, class_weights=weights)


def _find_official_files(config: ClassifierConfig, stored: Mapping[str, Any]):
    from bert_tf.tasks.classification import glue_tasks
    from bert_tf.tasks.classification.examples import Columns
    from bert_tf.tasks.classification.task_files import ClassificationFiles

    official = glue_tasks.get_task(config.task_name)
    if config.language is not None and not official.has_languages:
        raise UserError(
            f"--language is for xnli. Received: --task_name={config.task_name}."
        )
    language = config.language or stored.get("language") or "zh"
    files = {}
    for kind, flag in config.requested_splits().items():
        files |= official.find_files(config.data_dir, kind, language, flag)
    labels = official.labels
    if labels is not None and stored.get("labels"):
        if sorted(stored["labels"]) != sorted(labels):
            raise UserError(
                f"The model has the labels {', '.join(stored['labels'])}, and "
                f"{official.title} has {', '.join(labels)}; give a model that "
                "was trained for it, or rename its labels."
            )
        labels = tuple(stored["labels"])
    return ClassificationFiles(
        name=official.name,
        files=files,
        labels=labels,
        problem_type=official.problem_type,
        columns=Columns(*official.texts[0]),
        class_weights=ClassificationFiles.stored(stored).get("class_weights"),
        official=official,
        language=language,
    )


def _find_own_files(config: ClassifierConfig, stored: Mapping[str, Any]):
    from bert_tf.tasks import dev_split
    from bert_tf.tasks import stored_task
    from bert_tf.tasks.classification.examples import Columns
    from bert_tf.tasks.classification.task_files import ClassificationFiles

    known = ClassificationFiles.stored(stored)
    columns = known.get("columns") or Columns("text")
    trained = known.get("problem_type")
    if config.problem_type and trained not in (None, config.problem_type):
        raise UserError(
            f"The model was trained with --problem_type={trained}. Received: "
            f"--problem_type={config.problem_type}."
        )
    task = ClassificationFiles(
        files=config.named_files(),
        problem_type=config.problem_type or trained or "single_label",
        columns=columns.with_flags(config),
        label_separator=config.label_separator
        or known.get("label_separator", ","),
        labels=known["labels"],
        class_weights=known.get("class_weights"),
    )
    _check_columns(config, task.columns, task.problem_type)
    task = dev_split.split(task, config)
    if task.problem_type == "regression":
        return dataclasses.replace(task, labels=None)
    if task.labels:
        return task
    if len(task.columns.labels) > 1:
        return dataclasses.replace(task, labels=task.columns.labels)
    if config.train_file is not None:
        return task.with_labels_of(config.train_file)
    source = config.pretrained_model_dir or config.output_dir
    stored_task.require_kind(stored.get("kind", task.kind), task.kind, source)
    raise UserError(
        "The model does not have the names of its labels; give the "
        "--train_file that it was trained with."
    )


def _check_columns(
    config: ClassifierConfig, columns: Any, problem_type: str
) -> None:
    if len(columns.labels) > 1 and problem_type != "multi_label":
        raise UserError(
            "Several label columns need --problem_type=multi_label. "
            f"Received: --label_column={','.join(columns.labels)} and "
            f"--problem_type={problem_type}."
        )
    named = [*columns.texts, *columns.labels]
    for column in named:
        if named.count(column) > 1:
            raise UserError(
                "--text_column, --text_pair_column and --label_column must "
                f"name different columns. Received: {column!r} twice."
            )
    has_names = problem_type == "multi_label" and len(columns.labels) == 1
    if config.label_separator is not None and not has_names:
        raise UserError(
            "--label_separator is for --problem_type=multi_label with one "
            "--label_column that holds the names of all labels."
        )


def build_task(
    config: ClassifierConfig,
    stored_task: Mapping[str, Any] | None,
    task_files: Any = None,
):
    """Returns the `ClassificationTask` of the flags."""
    from bert_tf.tasks import metrics
    from bert_tf.tasks import task as tasks
    from bert_tf.tasks.classification.task import ClassificationTask

    stored = stored_task or {}
    task_files = task_files or find_files(config, stored)
    length = config.max_seq_length
    tasks.warn_of_settings(stored, {"max_seq_length": length})
    official, problem_type = task_files.official, task_files.problem_type
    return ClassificationTask(
        **task_files.arguments(),
        max_seq_length=length,
        metric_names=official.metrics
        if official
        else metrics.METRICS_OF_PROBLEM[problem_type],
        doc_stride=config.doc_stride or stored.get("doc_stride"),
        head=config.head
        if stored_task is None
        else stored.get("head", "linear"),
        head_dropout_prob=config.head_dropout_prob,
        pooling=stored.get("pooling"),
        normalize=bool(stored.get("normalize")),
    )
