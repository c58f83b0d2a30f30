"""The files of a task, each read once, without TensorFlow."""

import abc
import contextlib
import dataclasses
import gc
import itertools
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import NamedTuple
from typing import Self

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.io import text_files

# Kinds of splits. MNLI has two splits of kind dev: dev_matched, dev_mismatched.
TRAIN, DEV, TEST = "train", "dev", "test"
# SuperGLUE names its dev files "val"; Hugging Face names them "validation".
USUAL_STEMS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "val", "validation"),
    "test": ("test",),
}


class Data(NamedTuple):
    """The examples of a split, and the hash of its file if there is a file."""

    examples: Sequence[Any]
    sha256: str | None


class SplitKey(NamedTuple):
    """The texts and labels of an example, by which `dev_split` splits.

    Examples with equal texts stay in one split. Each split gets texts of each
    label.
    """

    text: Any
    labels: Sequence[str] = ()


def existing_files(folder: str, names: Iterable[str]) -> Iterator[str]:
    """Yields the paths of the files in a folder that exist."""
    paths = (os.path.join(folder, name) for name in names)
    return filter(files.is_file, paths)


def splits_of(splits: Iterable[str], kind: str) -> tuple[str, ...]:
    """Returns the splits of a kind, "train", "dev" or "test", in order."""
    return tuple(x for x in splits if x.split("_")[0] == kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialFiles:
    """The files of an official data set.

    Attributes:
      title: The data set's name.
      stems: Maps a split to the possible names of its file, without ending, the
        best one first; a file named like the split is tried last.
      columns_without_header: The columns of files without a header.
      hint: The end of the error message if a kind of split does not exist.
    """

    # A data file has one of these endings, possibly followed by .gz.
    endings: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".jsonl", ".json")

    title: str
    stems: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: USUAL_STEMS
    )
    columns_without_header: tuple[str, ...] = ()
    hint: str = ""

    def splits(self, kind: str) -> tuple[str, ...]:
        """Returns the splits of a kind, "train", "dev" or "test", in order."""
        return splits_of(self.stems, kind)

    def find_files(
        self,
        data_dir: str,
        kind: str,
        language: str = "zh",
        flag: str = "--data_dir",
    ) -> dict[str, str]:
        """Returns the file of each split of a kind; warns of missing files.

        `language` replaces {language} in the names of XNLI's files; error
        messages name `flag`.
        """
        splits = self.splits(kind)
        if not splits:
            kinds = dict.fromkeys(split.split("_")[0] for split in self.stems)
            raise UserError(
                f"{flag} needs a {kind} set, and {self.title} has only "
                f"{', '.join(kinds)}{self.hint}."
            )
        found = {x: next(self._find(data_dir, x, language), "") for x in splits}
        if not any(found.values()):
            self.find_file(data_dir, splits[0], language)  # Raises an error.
        for split, path in found.items():
            if not path:
                logging.warning(
                    "%s has no file of the split %s, which is left out.",
                    data_dir,
                    split,
                )
        return {split: path for split, path in found.items() if path}

    def find_file(
        self,
        data_dir: str,
        split: str,
        language: str = "zh",
        flag: str = "--data_dir",
    ) -> str:
        """Returns the path of a split's file."""
        for path in self._find(data_dir, split, language):
            return path
        name = self.file_names(split)[0].replace("{language}", language)
        raise UserError(
            f"{flag} has no file {name} or one like it for the split "
            f"{split} of {self.title}. Received: {data_dir!r}."
        )

    def file_names(self, split: str) -> list[str]:
        """Returns the possible names of a split's file, the best one first."""
        stems = dict.fromkeys((*self.stems[split], split))
        parts = itertools.product(stems, self.endings, ("", ".gz"))
        return ["".join(x) for x in parts]

    def _find(self, data_dir: str, split: str, language: str) -> Iterator[str]:
        names = self.file_names(split)
        return existing_files(
            data_dir, (x.replace("{language}", language) for x in names)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFiles(abc.ABC):
    """The files of a task, and what is needed to read them. Immutable.

    `Task` adds features, loss and metrics. Commands read files with a subclass
    of this class before they import TensorFlow, so a bad row is reported early.

    Attributes:
      name: The task's name in flags and results, such as "mrpc".
      files: Maps splits to files; splits are "train", "dev" and "test", or
        begin with one of these names, as "dev_mismatched" does.
      data: Maps each split that `load` has read to its data.
    """

    # The kind of head, a key of `weight_map.HEADS`.
    kind: ClassVar[str]
    # task.json stores this name to distinguish tasks with equal kinds of heads.
    variant: ClassVar[str | None] = None

    name: str
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Data] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def splits(self, kind: str) -> tuple[str, ...]:
        """Returns the splits of a kind, "train", "dev" or "test", in order."""
        return splits_of(self.files, kind)

    def load(self, *splits: str) -> Self:
        """Returns the task with the data of `splits`, by default of all."""
        data = dict(self.data)
        for split in splits or self.files:
            if split in data:
                continue
            path = self.files[split]
            with text_files.collect_hashes() as hashes, _no_collection():
                examples = self.read(split)
            if path not in hashes and files.is_file(path):
                hashes[path] = files.sha256(path)
            data[split] = Data(examples, hashes.get(path))
        return dataclasses.replace(self, data=data)

    def arguments(self) -> dict[str, Any]:
        """Returns all fields, as arguments of the constructor of a task."""
        return dict(vars(self))

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the constructor's arguments that task.json has.

        By default, keeps all values that are not null and belong to a field.
        """
        names = [x.name for x in dataclasses.fields(cls)]
        return {x: values[x] for x in names if values.get(x) is not None}

    @abc.abstractmethod
    def read(self, split: str) -> Sequence[Any]:
        """Reads the examples of a split, and logs how many it leaves out.

        Raises:
          UserError: If the file is not in the expected format.
        """

    @abc.abstractmethod
    def read_inputs(self, path: str) -> Iterator[Any]:
        """Yields the examples of a file to predict; labels are not read.

        Raises:
          UserError: If the file is not in the expected format.
        """

    def split_keys(self, examples: Sequence[Any]) -> list[SplitKey]:
        """Returns the key of each example for `dev_split`."""
        raise UserError(
            f"The {len(examples)} examples of the task {self.name} cannot be "
            f"split, as its class {type(self).__name__} has no `split_keys`; "
            "give a dev set."
        )

    def check_inputs(self, path: str, **options: Any) -> None:
        """Raises the errors of `read_inputs`, without importing TensorFlow."""
        for _ in self.read_inputs(path, **options):
            pass

    def read_table(self, path: str) -> tables.Table | None:
        """Opens a file of `read_inputs` as a table with a row per example.

        Returns None if the file is not a table.
        """
        return tables.read_table(path) if tables.is_table(path) else None


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Turns off the garbage collector, which would double the reading time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
