r"""Fine-tunes a BERT to choose one of several texts for a context.

SWAG, CODAH and ComVE, from their official files:

  python run/finetune_multiple_choice.py --task_name=swag --data_dir=swag \
      --pretrained_model_dir=bert-base-uncased --output_dir=output/swag \
      --train_batch_size=16 --learning_rate=2e-5 \
      --do_train --do_eval --do_predict

Your own .csv, .tsv or .jsonl files, with any number of choices:

  python run/finetune_multiple_choice.py --train_file=train.csv \
      --dev_file=dev.csv --choice_columns=a,b,c --context_column=question \
      --label_column=answer ...

Rerun the same command to resume from the last checkpoint.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bert_tf.flags import options
from bert_tf.flags.finetune import NamedTaskConfig
from bert_tf.flags.finetune import own_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceConfig(NamedTaskConfig):
    """Flags of run/finetune_multiple_choice.py."""

    task_name: str | None = options.data(
        "Task: a data set in --data_dir, or custom for your own files "
        "(default: custom).",
        choices=("swag", "codah", "comve_a", "comve_b", "custom"),
    )
    context_column: str | None = own_files(
        "custom: column of the text that the choices continue or answer "
        "(default: context); --context_column= if there is none."
    )
    choice_columns: str | None = own_files(
        "custom: columns of the choices, separated by commas; a single column "
        "of a .jsonl or .json file holds lists of choices (default: choices)."
    )
    label_column: str | None = own_files(
        "custom: column of the correct choice: its index from 0, or the name "
        "of its column (default: label)."
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.label_column != "",
            "--label_column must not be empty; a test set may lack it.",
        )
        columns = [
            *options.values(self, "choice_columns"),
            *(x for x in (self.context_column, self.label_column) if x),
        ]
        options.require(
            len(set(columns)) == len(columns),
            "--choice_columns, --context_column and --label_column must name "
            "different columns. Received: "
            f"{', '.join(map(repr, columns))}.",
        )


def main(config: MultipleChoiceConfig) -> None:
    from bert_tf.tasks import stored_task

    stored = stored_task.read_for_evaluation(config, "multiple_choice")
    task_files = None
    if stored is not None or not config.is_custom:
        task_files = find_files(config, stored or {}).load()
    from bert_tf.finetuning import run as finetuning

    finetuning.run(config, functools.partial(build_task, task_files=task_files))


def find_files(config: MultipleChoiceConfig, stored: Mapping[str, Any]):
    """Returns the `MultipleChoiceFiles` of the flags."""
    from bert_tf.tasks import dev_split
    from bert_tf.tasks.multiple_choice.examples import OFFICIAL
    from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles

    if config.is_custom:
        columns = _columns(config, stored.get("columns") or {})
        files = config.named_files()
    else:
        official = OFFICIAL[config.task_name]
        columns = official.columns
        files = {
            kind: official.find_file(config.data_dir, kind)
            for kind in config.requested_splits()
        }
    task = MultipleChoiceFiles(
        name=config.task_name, files=files, columns=columns
    )
    return dev_split.split(task, config)


def _columns(config: MultipleChoiceConfig, stored: Mapping[str, Any]):
    """Returns the columns of the flags, or else of `stored`."""
    from bert_tf.tasks.multiple_choice.examples import Columns

    if config.context_column is None:
        context = stored.get("context", "context")
    else:
        context = config.context_column or None
    return Columns(
        choices=(
            options.values(config, "choice_columns")
            or tuple(stored.get("choices", ("choices",)))
        ),
        context=context,
        # Ignore the stored `start` column if flags set other choice columns.
        start=None if config.choice_columns else stored.get("start"),
        label=config.label_column or stored.get("label") or "label",
    )


def build_task(
    config: MultipleChoiceConfig,
    stored_task: Mapping[str, Any] | None,
    task_files: Any = None,
):
    """Returns the `MultipleChoiceTask` of the flags."""
    from bert_tf.tasks import task as tasks
    from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask

    stored = stored_task or {}
    task_files = task_files or find_files(config, stored)
    length = config.max_seq_length
    tasks.warn_of_settings(stored, {"max_seq_length": length})
    return MultipleChoiceTask(
        **task_files.arguments(),
        max_seq_length=length,
        head=stored.get("head", "linear") if stored else config.head,
        head_dropout_prob=config.head_dropout_prob,
    )
