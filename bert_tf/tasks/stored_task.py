"""Reads and checks the small files of models, without TensorFlow.

These files are task.json, the configuration, and the files of the task.
"""

import glob
import os
from typing import Any

from bert_tf.checkpoints import task_values
from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import run_folder
from bert_tf.io import stored_files
from bert_tf.tasks.classification.task_files import ClassificationFiles
from bert_tf.tasks.embeddings.examples import EmbeddingsFiles
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.tagging.examples import TaggingFiles
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.text.vocabulary import Vocabulary

TASKS = {
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
    """Returns a local model's task.json, or {} if there is none to read.

    `model_dir` may also be the output directory of a training run. The files of
    remote models, such as hf://, are read when the model is loaded.
    """
    if paths.is_remote(model_dir):
        return {}
    for folder in ("", "model"):
        path = os.path.join(model_dir, folder, "task.json")
        try:
            values = stored_files.read_object(path)
        except (OSError, ValueError):  # Loading the model reports this.
            continue
        # Ignore the task.json of KerasHub's presets, which has no "kind".
        if "kind" in values:
            task_values.check_task(values, path)
            return values
    return {}


def read_kind(path: str) -> str | None:
    """Returns the kind of a local model, or None if no small file shows it.

    In a Hugging Face directory, the class in config.json shows the kind of a
    fine-tuned model, and the names in model.safetensors that of others.
    """
    if kind := read(path).get("kind"):
        return kind
    classes = task_values.read_shape(path).get("architectures")
    kind = weight_map.kind_of_class(classes)
    if kind in weight_map.FINE_TUNED:
        return kind
    file = os.path.join(path, "model.safetensors")
    if not kind or not os.path.isfile(file):
        return None
    with open(file, "rb") as weights:
        header = weights.read(1 << 20)  # It has the names of the weights.
    return weight_map.kind_of(
        f"{x}/"
        for x in (weight_map.MASKED_LM, weight_map.NEXT_SENTENCE)
        if x.replace("/", ".").encode() in header
    )


def check_model(config: FinetuneConfig, kind: str | None = None) -> None:
    """Checks small files of the model to start from, and of the run to resume.

    Only local models are checked here, and of Hugging Face's only the length
    and `kind`, which an evaluation needs. The rest is checked in reading.

    Raises:
      UserError: If the vocabulary or configuration is invalid, the model cannot
        read --max_seq_length tokens or is of another kind, or a run in
        --output_dir was started with other flags.
    """
    folder = config.pretrained_model_dir
    if not folder and not config.do_train:
        folder = os.path.join(config.output_dir, "model")
        is_known = config.init_checkpoint or paths.is_remote(folder)
        if not (is_known or paths.may_be_model(folder)):
            raise no_trained_model(folder)
    shape, vocabulary = config.bert_config_file, config.vocab_file
    if folder:
        shape = os.path.join(folder, "bert_config.json")
        vocabulary = os.path.join(folder, "vocab.txt")
    elif shape:
        shape = paths.resolve_config(shape)
    if all(x and os.path.isfile(x) for x in (shape, vocabulary)):
        bert_config = files.read_bert_config(shape)
        Vocabulary.from_file(vocabulary).check_size(bert_config.vocab_size)
    if start := folder or shape:
        check_length(config, start)
    if kind and not config.do_train and (found := read_kind(folder)):
        require_kind(found, kind, folder)
    if config.do_train and not config.overwrite_output_dir:
        _check_resumed(config)


def _check_resumed(config: FinetuneConfig) -> None:
    """Compares the flags with those in the newest checkpoint's JSON file."""
    trial, *others = config.trials()
    found = glob.glob(f"{config.output_dir}/model.ckpt-*.json")
    if others or not found:
        return  # Only a single trial writes its checkpoints to --output_dir.
    newest = stored_files.peek_object(max(found, key=lambda x: (len(x), x)))
    metadata = newest.get("metadata", {})
    before, now = metadata.get("identity") or {}, config.identity(trial)
    # A flag without a value may get its value when the model is read.
    names = [x for x in now if x in before and now[x] is not None]
    options.refuse(
        run_folder.changes(*({x: y[x] for x in names} for y in (before, now))),
        f"Cannot resume the trial in {config.output_dir}",
        config.allow_changed_data,
    )


def check_length(config: Flags, path: str) -> None:
    """Raises `UserError` if a local model cannot read --max_seq_length."""
    if longest := task_values.read_size(path, "max_position_embeddings"):
        options.require_length(config, longest, path)


def no_trained_model(folder: str) -> UserError:
    """Returns the error for an evaluation without a trained model."""
    return UserError(
        f"There is no trained model in {folder}; add --do_train, or give a "
        "fine-tuned one with --pretrained_model_dir."
    )


def require_kind(kind: str, expected: str, source: str) -> None:
    """Raises `UserError` unless a model to evaluate is of the expected kind."""
    options.require(
        kind == expected,
        f"Without --do_train the model must be fine-tuned for {expected}. "
        f"Received: {source}, a model of kind={kind!r}; add --do_train, or "
        "give a model that was fine-tuned for it.",
    )


def read_for_evaluation(
    config: FinetuneConfig, kind: str
) -> dict[str, Any] | None:
    """Checks the model and returns its task.json, which names the columns.

    Returns None if the model has no task.json. For training, returns {},
    because then only flags name the columns.
    """
    check_model(config, kind)
    if config.do_train:
        return {}
    return read(config.pretrained_model_dir or config.output_dir) or None


def require_embeddings(kind: str | None) -> None:
    """Raises `UserError` if a model's kind has no embeddings to write."""
    options.require(
        kind not in TASKS or kind == "embeddings",
        "--output_file in .npy or .parquet is for embeddings. Received: a "
        f"model for {kind}; write .jsonl, .csv or .tsv.",
    )


def describe_files(model_dir: str, flag: str) -> TaskFiles | None:
    """Returns the task's `TaskFiles`, without paths; None for unknown tasks."""
    values = read(model_dir)
    key = values.get("variant") or values.get("kind")
    found = key or read_kind(model_dir)
    if found in weight_map.HEADS and found not in TASKS:
        raise not_fine_tuned(flag, model_dir, found)
    kind = TASKS.get(key)
    return kind and kind(**kind.stored(values))


def not_fine_tuned(flag: str, model_dir: str, key: str) -> UserError:
    """Returns the error for a model of the kind `key`, which has no task."""
    return UserError(
        f"{flag} must name a model that was fine-tuned for one of "
        f"{', '.join(TASKS)}. Received: {model_dir}, a model of kind={key!r}; "
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
    """
    is_file = os.path.isfile(path) and os.path.getsize(path) <= _MAX_BYTES
    if task is None or not is_file:
        return
    has_empty = isinstance(task, ClassificationFiles)
    task.check_inputs(path, **{"keep_empty": keep_empty} if has_empty else {})
    if kept_columns and (table := task.read_table(path)):
        flags = dict.fromkeys(kept_columns, "--keep_columns")
        table.require(kept_columns, flags)
