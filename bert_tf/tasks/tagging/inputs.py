"""Finds and checks the files of the flags, before TensorFlow is imported."""

import itertools
import os
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.tagger import TaggerConfig
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.tasks import stored_task
from bert_tf.tasks.tagging import examples as tagging_examples

# The possible names of files in --data_dir, without ending.
_STEMS = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation", "devel"),
    "test": ("test",),
}
_CONLL_NAMES = {
    "train": "eng.train",
    "dev": "eng.testa",
    "test": "eng.testb",
}
_DEFAULT_COLUMNS = {"word_column": 0, "tag_column": -1}
_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".iob")


def check(config: TaggerConfig) -> None:
    """Checks the files that are read, with their columns and tags.

    Without --do_train the model's task.json may name the columns; for models of
    other formats they are checked when the model is read. Files that can be
    read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`, or for a bad line.
    """
    if "://" in (config.data_dir or ""):
        return
    files_of_splits = find_files(config)
    stored = stored_task.read_for_evaluation(config, "tagging")
    if stored is None:
        return
    flags = config.reading()
    set_flags = {name: x for name, x in flags.items() if x is not None}
    for kind, path in files_of_splits.items():
        check_labeled(path, kind, stored | set_flags)


def check_labeled(path: str, kind: str, values: Mapping[str, Any]) -> None:
    """Checks a file with tags.

    Args:
      path: The file.
      kind: "train", "dev" or "test", which may lack tags.
      values: The contents of a model's task.json, which name the columns.

    Raises:
      UserError: As `examples.read_examples`.
    """
    if os.path.isfile(path):  # Neither remote nor a pipe.
        columns = [
            values.get(name, default)
            for name, default in _DEFAULT_COLUMNS.items()
        ]
        tagging_examples.read_examples(
            path,
            *columns,
            kind == "test",
            **{x: values[x] for x in tagging_examples.OPTIONS if x in values},
        )


def check_sentences(
    values: Mapping[str, Any], path: str
) -> tables.Table | None:
    """Checks a file to predict: the column, and the words of its sentences.

    Args:
      values: The contents of the model's task.json.
      path: The file.

    Returns:
      The table of raw texts, with its rows unread; None if the file has lines
      of words or of texts.

    Raises:
      UserError: As `examples.read_inputs`.
    """
    default = _DEFAULT_COLUMNS["word_column"]
    word_column = values.get("word_column", default)
    form = [values.get(x) for x in ("sentence_column", "comment_prefix")]
    if tagging_examples.has_texts(path, word_column, *form):
        table, _ = tagging_examples.open_texts(path, word_column)
        is_lines = tables.file_ending(path) == ".txt"
        return None if is_lines else table
    for _ in tagging_examples.read_untagged(path, word_column, *form):
        pass
    return None


def find_files(config: TaggerConfig) -> dict[str, str]:
    """Returns the files of the requested splits, by split."""
    return {
        kind: getattr(config, f"{kind}_file")
        or find_file(config.data_dir, kind)
        for kind in config.requested_splits()
    }


def find_file(folder: str, kind: str) -> str:
    """Returns the one file of a split in a folder.

    Raises:
      UserError: If there is none, or several.
    """
    names = [_CONLL_NAMES[kind]]
    names += map("".join, itertools.product(_STEMS[kind], _ENDINGS))
    paths = [
        os.path.join(folder, name + packed)
        for name in names
        for packed in ("", ".gz")
    ]
    existing = [path for path in paths if files.is_file(path)]
    if len(existing) != 1:
        raise UserError(
            f"--data_dir must have one file of the {kind} set, for instance "
            f"{names[0]}, {names[1]} or {names[2]}, or name it with "
            f"--{kind}_file. Received: "
            f"{', '.join(existing) or 'none of them'} in {folder}."
        )
    return existing[0]
