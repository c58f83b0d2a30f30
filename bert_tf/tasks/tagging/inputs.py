"""Finds and checks the files of the flags, before TensorFlow is imported."""

import itertools
import os

from bert_tf.errors import UserError
from bert_tf.flags.tagger import TaggerConfig
from bert_tf.io import files
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
_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".iob")


def check(config: TaggerConfig) -> None:
    """Checks the files that training reads, with their columns and tags.

    Without --do_train the model may name the columns, so they are checked when
    it is read. Files that can be read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`, or for a bad line.
    """
    if "://" in (config.data_dir or ""):
        return
    for kind, path in find_files(config).items():
        if config.do_train and os.path.isfile(path):
            tagging_examples.read_examples(
                path,
                config.parse_column("word_column"),
                config.parse_column("tag_column"),
                may_lack_tags=kind == "test",
            )


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
