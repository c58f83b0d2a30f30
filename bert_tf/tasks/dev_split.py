"""A dev set out of the training set: --dev_fraction and validation_split.

Rows are split by a hash of the text, not by position, so the order of rows does
not matter, and equal texts are in the same part. The dev set gets the same
share of every label's texts, and takes the texts with the smallest hashes.
"""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TRAIN
from bert_tf.tasks.task_files import SplitKey
from bert_tf.tasks.task_files import TaskFiles

_FOLDER = "split"
# In these formats, a row is not a line, so both parts are written as .jsonl.
_NO_LINES = (".json", ".parquet")


def choose(
    keys: Sequence[SplitKey],
    fraction: float,
    flag: str = "validation_split",
    source: str = "the rows",
) -> list[bool]:
    """Returns, for each example, whether it is in the dev set.

    The dev set gets `fraction` of each label's texts, rounded, but at least one
    and not all. For 0.1, the dev set gets 2 of 24 texts, or 1 of 3 texts. A
    text with several labels counts only for its rarest label. Errors name the
    `flag` that sets the fraction and the `source` of the rows.

    Raises:
      UserError: If the fraction is not between 0 and 1, if a label has a single
        text, or if all texts are the same.
    """
    options.require(
        isinstance(fraction, float | int) and 0 < fraction < 1,
        f"{flag} must be above 0 and below 1. Received: {fraction!r}.",
    )
    texts = [json.dumps(key.text, ensure_ascii=False) for key in keys]
    labels_of: dict[str, set[str]] = defaultdict(set)
    for text, key in zip(texts, keys, strict=True):
        labels_of[text].update(key.labels)
    counts = Counter(x for labels in labels_of.values() for x in labels)
    single = sorted(repr(x) for x, count in counts.items() if count == 1)
    received = f"{len(labels_of)}"
    if single:
        received = f"one text of {run_folder.shown(single)}"
    options.require(
        not single and len(labels_of) > 1,
        f"{flag} needs two different texts {'of each label ' * bool(counts)}"
        f"in {source}, one for each part. Received: {received}; add rows, or "
        "give a dev set.",
    )
    strata = defaultdict(list)
    for text, labels in labels_of.items():
        rarest = min(labels, key=lambda x: (counts[x], x), default=None)
        strata[rarest].append(text)
    dev: set[str] = set()
    for stratum in strata.values():
        stratum.sort(key=lambda x: hashlib.sha256(x.encode()).digest())
        count = max(1, round(fraction * len(stratum)))
        dev.update(stratum[: min(count, len(stratum) - 1)])
    return [text in dev for text in texts]


def split(task: TaskFiles, config: Flags) -> Any:
    """Returns the task with --train_file split in two, if requested.

    The two parts are in memory; `write` writes them to files.

    Raises:
      UserError: If the file is invalid, or cannot be split.
    """
    path, fraction = config.train_file, config.dev_fraction
    if fraction is None or not (config.do_train or config.do_eval):
        return task
    # Read the file also as dev, to keep questions that SQuAD drops from train.
    splits = (TRAIN, DEV) if config.do_train else (DEV,)
    whole = dataclasses.replace(task, files=dict.fromkeys(splits, path)).load()
    keys = whole.split_keys(whole.data[DEV].examples)
    is_dev = choose(keys, fraction, f"--dev_fraction={fraction:g}", path)
    dev = {x.text for x, chosen in zip(keys, is_dev, strict=True) if chosen}
    ending = tables.file_ending(path)
    if ending in _NO_LINES and not isinstance(task, SquadFiles):
        ending = ".jsonl"
    folder = os.path.join(config.output_dir, _FOLDER)
    paths, data = dict(task.files), {}
    for name in splits:
        examples = whole.data[name].examples
        pairs = zip(examples, whole.split_keys(examples), strict=True)
        part = [x for x, key in pairs if (key.text in dev) == (name == DEV)]
        data[name] = whole.data[name]._replace(examples=part)
        paths[name] = os.path.join(folder, name + ending)
        logging.info("%s: %d examples are the %s set.", path, len(part), name)
    return dataclasses.replace(task, files=paths, data=data)


def write(task: TaskFiles, source: str) -> None:
    """Writes both parts of the training set `source`, split by `split`."""
    places = {
        name: {_place(x) for x in task.data[name].examples}
        for name in (TRAIN, DEV)
    }
    starts = places[TRAIN] | places[DEV]
    for name, kept in places.items():
        lines = _lines(source, kept, starts)
        files.write_text(task.files[name], "".join(f"{x}\n" for x in lines))


def _place(example: Any) -> int | str:
    """Returns an example's line in its file; in SQuAD the question's id."""
    if hasattr(example, "guid"):
        return int(example.guid.rpartition(":")[2])
    return example.line if hasattr(example, "line") else example.qas_id


def _lines(
    source: str, kept: Collection[Any], starts: Collection[Any]
) -> Iterator[str]:
    """Yields the header of the file `source` and the records of one part.

    `kept` has the first line (in SQuAD, the question's id) of each record to
    yield; `starts` has the first lines of all records. Any other line belongs
    to the record before it.
    """
    if isinstance(next(iter(starts)), str):
        stored = text_files.read_json(source)
        for article in stored["data"]:
            for paragraph in article["paragraphs"]:
                questions = paragraph["qas"]
                paragraph["qas"] = [
                    x for x in questions if str(x["id"]) in kept
                ]
        yield json.dumps(stored, ensure_ascii=False)
    elif tables.file_ending(source) in _NO_LINES:
        for row in tables.read_table(source).rows:
            if row.line in kept:
                yield json.dumps(row.values, ensure_ascii=False)
    else:
        is_kept = True
        for number, line in text_files.read_lines(source):
            if number in starts:
                is_kept = number in kept
            if is_kept:
                yield line
