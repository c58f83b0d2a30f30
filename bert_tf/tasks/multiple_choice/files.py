"""SWAG, CODAH and ComVE: their files, and the columns of these."""

import dataclasses
import itertools
import os
from collections.abc import Mapping

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks.multiple_choice.examples import Columns

_ENDINGS = (".csv", ".tsv", ".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class OfficialFiles:
    """The files of a data set.

    Attributes:
      title: What people call it.
      columns: The columns of its files.
      stems: Split to the names of its file, without ending, the first that is
        there counts.
      columns_without_header: The columns of files that have no header.
    """

    title: str
    columns: Columns
    stems: Mapping[str, tuple[str, ...]]
    columns_without_header: tuple[str, ...] = ()

    def find(self, data_dir: str, split: str) -> str:
        """Returns the path of a split's file.

        Raises:
          UserError: If there is none.
        """
        names = [
            "".join(parts)
            for parts in itertools.product(
                self.stems[split], _ENDINGS, ("", ".gz")
            )
        ]
        for name in names:
            path = os.path.join(data_dir, name)
            if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
                return path
        raise UserError(
            f"--data_dir has no file {names[0]} or one like it for the split "
            f"{split} of {self.title}. Received: {data_dir!r}."
        )


_SPLITS = {
    "train": ("train",),
    "dev": ("dev", "val", "validation"),
    "test": ("test",),
}
_FOUR_ENDINGS = ("ending0", "ending1", "ending2", "ending3")

OFFICIAL: Mapping[str, OfficialFiles] = {
    # The beginning of the second sentence belongs to each of its endings, as
    # in the scripts that are published for SWAG: segment B is a sentence.
    "swag": OfficialFiles(
        "SWAG",
        Columns(_FOUR_ENDINGS, "sent1", start="sent2", label="label"),
        _SPLITS,
    ),
    "codah": OfficialFiles(
        "CODAH",
        Columns(_FOUR_ENDINGS, "question", label="label"),
        _SPLITS,
        ("category", "question", *_FOUR_ENDINGS, "label"),
    ),
    # Which of two statements is against common sense?
    "comve_a": OfficialFiles(
        "ComVE, sub-task A",
        Columns(
            ("Correct Statement", "Incorrect Statement"),
            right="Incorrect Statement",
        ),
        _SPLITS,
    ),
    # And why is it?
    "comve_b": OfficialFiles(
        "ComVE, sub-task B",
        Columns(
            ("Right Reason1", "Confusing Reason1", "Confusing Reason2"),
            "Incorrect Statement",
            right="Right Reason1",
        ),
        _SPLITS,
    ),
}
