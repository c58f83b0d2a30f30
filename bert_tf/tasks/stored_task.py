"""Reads a model's task.json and the files of its task, without TensorFlow."""

import os
from typing import Any

from bert_tf.checkpoints import task_values
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.tasks.classification.task_files import ClassificationFiles
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.tagging.examples import TaggingFiles
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.text.vocabulary import Vocabulary

_FILES = {
    files_class.variant or files_class.kind: files_class
    for files_class in (
        ClassificationFiles,
        MultipleChoiceFiles,
        SquadFiles,
        TaggingFiles,
        EmbeddingsFiles,
    )
}
# To save time, check input files above this size only after the model loads.
_MAX_BYTES = 10 << 20


def read(model_dir: str) -> dict[str, Any]:
    """Returns task.json, or {} if there is none that can be read.

    `model_dir` may also be the output directory of a training run.

    Raises:
      UserError: If a value in task.json has the wrong type.
    """
    for folder in (model_dir, os.path.join(model_dir, "model")):
        try:
            path = os.path.join(folder, "task.json")
            values = stored_files.read_object(path)
        except (OSError, ValueError):  # Loading the model reports this.
            continue
        # Ignore the task.json of KerasHub's presets, which has no "kind".
        if "kind" in values:
            task_values.check_task(values, path)
            return values
    return {}


def check_model(config: FinetuneConfig) -> None:
    """Checks the vocabulary of the model to start from, and --max_seq_length.

    Only local models in the original's and this project's formats are checked
    here; all other models are checked when they are read.

    Raises:
      UserError: If the vocabulary or configuration is invalid, or the model
        cannot read --max_seq_length tokens.
    """
    folder = config.pretrained_model_dir
    if not folder and not config.do_train:
        folder = os.path.join(config.output_dir, "model")
    shape, vocabulary = config.bert_config_file, config.vocab_file
    if folder:
        shape = os.path.join(folder, "bert_config.json")
        vocabulary = os.path.join(folder, "vocab.txt")
    elif shape:
        shape = paths.resolve_config(shape)
    if not all(x and os.path.isfile(x) for x in (shape, vocabulary)):
        return
    bert_config = files.read_bert_config(shape)
    Vocabulary.from_file(vocabulary).check_size(bert_config.vocab_size)
    options.require_length(config, bert_config, shape)


def read_for_evaluation(
    config: FinetuneConfig, kind: str
) -> dict[str, Any] | None:
    """Checks the model and returns its task.json, which names the columns.

    Returns None if the model's kind is not `kind`. For training, returns {},
    because then only flags name the columns.
    """
    check_model(config)
    if config.do_train:
        return {}
    values = read(config.pretrained_model_dir or config.output_dir)
    return values if values.get("kind") == kind else None


def describe_files(model_dir: str, flag: str) -> TaskFiles | None:
    """Returns the task's `TaskFiles`, without paths; None for unknown tasks.

    Raises:
      UserError: If the model was not fine-tuned.
    """
    values = read(model_dir)
    key = values.get("variant") or values.get("kind")
    if key in ("encoder", "pretraining"):
        raise not_fine_tuned(flag, model_dir, key)
    kind = _FILES.get(key)
    return kind and kind(**kind.stored(values))


def not_fine_tuned(flag: str, model_dir: str, key: str) -> UserError:
    """Returns the error for a model of the kind `key`, which has no task."""
    return UserError(
        f"{flag} must name a model that was fine-tuned for one of "
        f"{', '.join(_FILES)}. Received: {model_dir}, a model of kind={key!r}; "
        "fine-tune it first. run/predict.py embeds texts with any model, if "
        "--output_file ends with .npy or .parquet."
    )


def require_masked_lm(model_dir: str, kind: str | None) -> None:
    """Raises `UserError` if a kind is given and has no masked-LM head."""
    if kind and weight_map.MASKED_LM not in weight_map.HEADS.get(kind, ()):
        raise UserError(
            "--model_dir must have a masked-LM head, from pretraining, for "
            f"instance bert-base-uncased. Received: {model_dir}, a model of "
            f"kind={kind!r}."
        )


def check_inputs(
    task: TaskFiles | None,
    path: str,
    keep_empty: bool | None = None,
    kept_columns: tuple[str, ...] = (),
) -> None:
    """Checks the columns and rows of a file to predict; labels are not read.

    Large files, pipes (which can be read only once) and files of unknown tasks
    (None) are checked later, after the model is loaded. See `read_text` of
    classification for `keep_empty`. All `kept_columns` must exist.

    Raises:
      UserError: If the file lacks a column, or a row is invalid.
    """
    is_file = os.path.isfile(path) and os.path.getsize(path) <= _MAX_BYTES
    if task is None or not is_file:
        return
    has_empty = isinstance(task, ClassificationFiles)
    task.check_inputs(path, **{"keep_empty": keep_empty} if has_empty else {})
    if kept_columns and (table := task.read_table(path)):
        flags = dict.fromkeys(kept_columns, "--keep_columns")
        table.require(kept_columns, flags)
