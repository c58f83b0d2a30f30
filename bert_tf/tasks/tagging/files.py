"""The files of tagging: CoNLL's columns and own tables."""

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import Literal

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging.examples import ALONE
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.tasks.task_files import TEST
from bert_tf.tasks.task_files import TaskFiles
from bert_tf.tasks.task_files import existing_files

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingFiles(TaskFiles):
    """Files of words with a tag for each.

    Attributes:
      labels: "O" and the tags B-type and I-type of each type; none until the
        training data are read.
      word_column: The column of the words: a number or a name, as for
        `tagging_examples.read_examples`.
      tag_column: The column of the tags.
      sentence_column, comment_prefix, tag_names: As for `read_examples`.
      context: The unit that a window may span: "document" or "sentence".
    """

    kind: ClassVar[str] = "tagging"

    name: str = "custom"
    labels: tuple[str, ...] = ()
    word_column: int | str = 0
    tag_column: int | str = -1
    sentence_column: int | str | None = None
    comment_prefix: str | None = None
    tag_names: tuple[str, ...] | None = None
    context: Literal["document", "sentence"] = "document"

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        labels = tuple(values.get("labels") or ())
        return super().stored(values) | {"labels": labels}

    def read(self, split: str) -> Sequence[TaggingExample]:
        path = self.files[split]
        examples = tagging_examples.read_examples(
            path,
            self.word_column,
            self.tag_column,
            may_lack_tags=split.startswith(TEST),
            **{x: getattr(self, x) for x in tagging_examples.OPTIONS},
        )
        has_documents = any(
            x.document not in (ALONE, index) for index, x in enumerate(examples)
        )
        if not self.labels and self.context == "document" and not has_documents:
            logging.info(
                "%s has no -DOCSTART- lines, so each sentence is a document "
                "and its own context.",
                path,
            )
        unknown = tagging_examples.count_unknown_types(examples, self.labels)
        if unknown and self.labels:
            logging.warning(
                "%s: %d entities have types without a label in the model and "
                "count as missed: %s.",
                path,
                sum(unknown.values()),
                ", ".join(f"{name} ({n})" for name, n in unknown.items()),
            )
        return examples

    def read_inputs(self, path: str) -> Iterator[TaggingExample]:
        yield from tagging_examples.read_inputs(
            path, self.word_column, self.sentence_column, self.comment_prefix
        )

    def read_table(self, path: str) -> tables.Table | None:
        form = (self.word_column, self.sentence_column, self.comment_prefix)
        is_lines = tables.file_ending(path) == ".txt"
        if is_lines or not tagging_examples.has_texts(path, *form):
            return None
        return super().read_table(path)

    def check_inputs(self, path: str) -> None:
        form = (self.word_column, self.sentence_column, self.comment_prefix)
        if tagging_examples.has_texts(path, *form):
            # Splitting the texts into words would import TensorFlow.
            tagging_examples.open_texts(path, self.word_column)
        else:
            super().check_inputs(path)


def find_file(folder: str, kind: str) -> str:
    """Returns the one file of a split in a folder.

    Raises:
      UserError: If there is none, or several.
    """
    names = [_CONLL_NAMES[kind]]
    names += map("".join, itertools.product(_STEMS[kind], _ENDINGS))
    packed = (name + ending for name in names for ending in ("", ".gz"))
    existing = [*existing_files(folder, packed)]
    if len(existing) != 1:
        raise UserError(
            f"--data_dir must have one file of the {kind} set, for instance "
            f"{names[0]}, {names[1]} or {names[2]}, or name it with "
            f"--{kind}_file. Received: "
            f"{', '.join(existing) or 'none of them'} in {folder}."
        )
    return existing[0]
