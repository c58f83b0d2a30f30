"""Checks SQuAD files before TensorFlow is imported."""

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.squad import SquadConfig
from bert_tf.io import tables
from bert_tf.tasks.squad import checks
from bert_tf.tasks.squad import examples as squad_examples

# A JSON file is read whole up to this size, which takes a tenth of a second;
# of a larger one, this start.
_MAX_BYTES = 1 << 22
# A syntax error this close to the end of the start may be due to the cut.
_CUT_CHARACTERS = 16
_CUT_STRING = "Unterminated string"


def check(config: SquadConfig) -> None:
    """Checks the files that the flags let the script read.

    Raises:
      UserError: If a file is not in SQuAD's format, or lacks answers.
    """
    files = {}
    if config.do_train:
        files[config.train_file] = True
    if config.may_score_dev:
        files.setdefault(config.predict_file, False)
    for path, is_training in files.items():
        check_labeled(path, is_training, config.version_2_with_negative)


def check_labeled(
    path: str, is_training: bool, version_2_with_negative: bool
) -> None:
    """Checks a file of questions and, if they are known, their answers.

    Raises:
      UserError: If a small file is invalid, or if the start of a large one is
        not JSON of an object.
    """
    if not os.path.isfile(path):  # Remote, or a pipe.
        return
    if not _is_small(path):
        _check_start(path)
        return
    read = squad_examples.read_squad_examples(
        path, is_training, version_2_with_negative
    )
    if not is_training:
        checks.require_answers(path, read.examples, version_2_with_negative)


def check_questions(
    values: Mapping[str, Any], path: str
) -> tables.Table | None:
    """Checks a file to predict: columns and rows, or SQuAD's format.

    Args:
      values: The contents of task.json.
      path: The file.

    Returns:
      The table, with its rows unread; None if the file is in SQuAD's format.

    Raises:
      UserError: As `examples.read_questions`.
    """
    del values
    is_json = tables.file_ending(path) == ".json"
    if is_json and not _is_small(path):
        return None
    for _ in squad_examples.read_questions(path):
        pass
    if is_json and not squad_examples.has_rows(path):
        return None
    return tables.read_table(path)


def _is_small(path: str) -> bool:
    is_packed = path.lower().endswith(".gz")
    return os.path.getsize(path) * (4 if is_packed else 1) <= _MAX_BYTES


def _check_start(path: str) -> None:
    """Raises `UserError` if the start of a file is not JSON of an object.

    Only the first bytes are looked at; mistakes further on are reported by the
    reader, which reads the whole file.
    """
    opener = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            contents = file.read(_MAX_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return  # The reader of the file reports it.
    text = contents.decode("utf-8-sig", errors="replace")
    start = text.lstrip()
    if not start.startswith("{"):
        raise UserError(
            f"{path} must be a JSON object with 'data', in SQuAD's format. "
            f"Received: a file that begins with {start[:20]!r}."
        )
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = (
            error.msg.startswith(_CUT_STRING)
            or len(text[error.pos :].strip()) < _CUT_CHARACTERS
        )
        if not is_cut:
            raise UserError(
                f"{path}, line {error.lineno} is not valid JSON: {error.msg} "
                f"at column {error.colno}."
            ) from error
    except (ValueError, RecursionError):
        return  # The reader of the file reports it.
