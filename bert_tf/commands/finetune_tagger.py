r"""Fine-tunes a BERT to tag words, as in named-entity recognition.

CoNLL-2003, or any files with a word and its tag (IOB1 or IOB2) on each line:

  python run/finetune_tagger.py --data_dir=conll2003 \
      --pretrained_model_dir=bert-base-cased --output_dir=output/conll \
      --max_seq_length=512 --do_train --do_eval --do_predict

Your own files, with a first line that names the columns:

  python run/finetune_tagger.py --train_file=train.tsv --dev_file=dev.tsv \
      --word_column=token --tag_column=ner --do_train --do_eval \
      --pretrained_model_dir=bert-base-cased --output_dir=output/own

The paper's feature-based approach, BiLSTMs on top of a frozen encoder:

  --approach=feature_based --layer_combination=concat_last_four_hidden

Rerun the same command to resume from the last checkpoint.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bert_tf.config import APPROACHES
from bert_tf.config import DEFAULT_LAYER_COMBINATION
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import DEFAULT_RATE
from bert_tf.flags.finetune import FilesConfig

# The paper states no learning rate for feature-based taggers. The BiLSTMs start
# from random weights, so this rate is higher than in fine-tuning.
_FEATURE_BASED_RATE = "1e-3"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerConfig(FilesConfig):
    """Flags of run/finetune_tagger.py."""

    reads_pooler = False

    word_column: str | None = options.data(
        "Column of the words: a number from 0 (or from -1 backwards), or a "
        "name if the first line names the columns (default: the model's if "
        "it is only used, else 0)."
    )
    tag_column: str | None = options.data(
        "Column of the tags in IOB1 or IOB2, as for --word_column (default: "
        "the model's if it is only used, else -1)."
    )
    sentence_column: str | None = options.data(
        "Column with a sentence's number or name, given as for --word_column, "
        "for files without empty lines between sentences."
    )
    comment_prefix: str | None = options.data(
        "Skip lines before a sentence that begin with this (default: #, unless "
        "the line can be a word with its tag). An empty value skips no line."
    )
    labels: str | None = options.data(
        "Names of the tags 0, 1, ..., separated by commas, for files with "
        "numbers as tags."
    )
    approach: str = options.model(
        "fine_tuning trains the encoder; feature_based freezes it and trains "
        "two BiLSTMs on top of it (section 5.3).",
        "fine_tuning",
        choices=APPROACHES,
    )
    layer_combination: str | None = options.model(
        "feature_based: encoder layers that the BiLSTMs read, one of "
        f"{', '.join(LAYER_COMBINATIONS)} (Table 7; default: the best one "
        "there, concat_last_four_hidden); a list trains one trial for each "
        "value.",
        needs="approach=feature_based",
    )
    lstm_size: int | None = options.model(
        "Units in each direction of a BiLSTM (default: 768).",
        at_least=1,
        needs=("approach=feature_based", "head=bilstm"),
    )
    context: str | None = options.data(
        "Extent of a window: the whole document, as -DOCSTART- lines delimit "
        "it, or one sentence (default: the model's if it is only used, else "
        "document).",
        choices=("document", "sentence"),
    )
    doc_stride: int | None = options.data(
        "Distance between the starts of windows, in tokens; a word is tagged "
        "in the window where it has the most context (default: the model's "
        "if it is only used, else half of --max_seq_length). 0 uses one "
        "window, and words after it get the tag O."
    )
    learning_rate: str | None = options.training(
        "Peak learning rate; a list such as 5e-5,3e-5 trains one trial for "
        "each value (default: 5e-5; feature_based: 1e-3)."
    )

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            is_new = self.approach == "feature_based"
            default = _FEATURE_BASED_RATE if is_new else DEFAULT_RATE
            object.__setattr__(self, "learning_rate", default)
        if self.do_train:
            from bert_tf.tasks.tagging.examples import TaggingFiles

            # Without training, leave these flags None, so task.json sets them.
            for name in ("word_column", "tag_column", "context"):
                if getattr(self, name) is None:
                    default = str(getattr(TaggingFiles, name))
                    object.__setattr__(self, name, default)
        super().__post_init__()

    def check(self) -> None:
        super().check()
        options.require(
            (self.doc_stride or 0) <= self.max_seq_length - 2,
            "--doc_stride must be at most --max_seq_length - 2, or tokens "
            f"between windows are lost. Received: {self.doc_stride} with "
            f"--max_seq_length={self.max_seq_length}.",
        )
        options.values(self, "labels")
        columns = [self.parse_column(x) for x in ("word_column", "tag_column")]
        if None not in columns:
            _require_columns(*columns)

    def layer_combinations(self) -> tuple[str | None, ...]:
        """Returns the values of --layer_combination, or (None,)."""
        names = options.values(self, "layer_combination")
        options.require(
            set(names) <= {*LAYER_COMBINATIONS},
            f"--layer_combination must be one of "
            f"{', '.join(LAYER_COMBINATIONS)}, or several, separated by "
            f"commas. Received: {self.layer_combination!r}.",
        )
        return names or (None,)

    def parse_column(self, name: str) -> int | str | None:
        """Returns a column flag as a number or a name, or None if not set."""
        value = getattr(self, name)
        if value is None:
            return None
        is_number = value.removeprefix("-").isdecimal()
        return int(value) if is_number else value


def _require_columns(word_column: int | str, tag_column: int | str) -> None:
    """Raises `UserError` unless the columns of words and tags differ."""
    options.require(
        isinstance(word_column, int) == isinstance(tag_column, int)
        and word_column != tag_column,
        "--word_column and --tag_column must be two different numbers, or two "
        f"different names. Received: {word_column} and {tag_column}.",
    )


def main(config: TaggerConfig) -> None:
    from bert_tf.tasks import stored_task

    stored = stored_task.read_for_evaluation(config, "tagging")
    task_files = None
    if stored is not None:
        task_files = find_files(config, stored).load()
    from bert_tf.finetuning import run as finetuning

    finetuning.run(config, functools.partial(build_task, task_files=task_files))


def find_files(config: TaggerConfig, stored: Mapping[str, Any]):
    """Returns the `TaggingFiles` of the flags."""
    from bert_tf.tasks import dev_split
    from bert_tf.tasks.tagging import examples as tagging_examples
    from bert_tf.tasks.task_files import TRAIN

    paths = {
        kind: getattr(config, f"{kind}_file")
        or (
            config.data_dir
            and tagging_examples.find_file(config.data_dir, kind)
        )
        for kind in config.requested_splits()
    }
    reading = _reading(config, stored)
    del reading["doc_stride"]
    task = tagging_examples.TaggingFiles(
        name="tagging",
        files=paths,
        labels=tuple(stored.get("labels") or ()),
        **reading,
    )
    task = dev_split.split(task, config)
    if not config.do_train:
        return task
    task = task.load(TRAIN)
    labels = tagging_examples.collect_labels(task.data[TRAIN].examples)
    return dataclasses.replace(task, labels=tuple(labels))


def _reading(config: TaggerConfig, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns, context and stride from flags, `stored` or defaults."""
    from bert_tf.tasks.tagging.examples import TaggingFiles

    columns = ("word_column", "tag_column", "sentence_column")
    flags = {
        **{name: config.parse_column(name) for name in columns},
        "comment_prefix": config.comment_prefix,
        "tag_names": options.values(config, "labels") or None,
        "context": config.context,
        "doc_stride": config.doc_stride,
    }
    reading = {}
    for name, flag in flags.items():
        candidates = (flag, stored.get(name), getattr(TaggingFiles, name, None))
        reading[name] = next((x for x in candidates if x is not None), None)
    _require_columns(reading["word_column"], reading["tag_column"])
    return reading


def build_task(
    config: TaggerConfig,
    stored_task: Mapping[str, Any] | None,
    task_files: Any = None,
):
    """Returns the `TaggingTask` of the flags."""
    from bert_tf.tasks import task as tasks
    from bert_tf.tasks.tagging.task import TaggingTask

    form = {
        name: getattr(config, name)
        for name in ("head", "approach", "lstm_size")
    }
    # Use the first layer combination here; each trial sets its own later.
    form["layer_combination"] = config.layer_combinations()[0]
    if config.approach == "feature_based" and not config.layer_combination:
        form["layer_combination"] = DEFAULT_LAYER_COMBINATION
    stored = stored_task or {}
    reading = _reading(config, stored)
    if stored_task is not None:
        kind, labels = stored.get("kind"), stored.get("labels")
        if kind != TaggingTask.kind or not labels:
            raise UserError(
                "Without --do_train the model must be a tagger with the names "
                f"of its tags. Received: a model of kind={kind!r} with "
                f"labels={labels!r}."
            )
        form = {name: stored[name] for name in form if name in stored}
        tasks.warn_of_settings(
            stored, reading | {"max_seq_length": config.max_seq_length}
        )
    task_files = task_files or find_files(config, stored)
    return TaggingTask(
        **task_files.arguments(),
        max_seq_length=config.max_seq_length,
        doc_stride=reading["doc_stride"],
        head_dropout_prob=config.head_dropout_prob,
        **form,
    )
