"""The output of one run: a lock, a recipe, resuming, and starting over.

Until the output is complete, the folder `<output_file>.work` holds finished
parts and `recipe.json`. This JSON file has the recipe (all that the output
depends on) and the paths of the files that the run writes. A run with another
recipe is refused, so that files never mix. Starting over removes exactly the
registered files. When the output is complete, its report or manifest holds the
recipe and the paths, and `<output_file>.work` is removed.

In an `--output_dir`, checkpoints hold the recipe (`training.resume`), and
`written_files.json` lists the files that runs have written.
"""

import contextlib
import dataclasses
import os
import re
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import paths
from bert_tf.io import text_files

WRITTEN_FILE = "written_files.json"
# The thread that writes checkpoints registers files, too, hence the lock.
_register_lock = threading.Lock()
_HASH = re.compile(r"[0-9a-f]{32,}")
_NAMES_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Made:
    """Files that a run has written or registered, and their recipe.

    Attributes:
      recipe: JSON values that the output depends on, by names such as "--seed"
        and "the vocabulary".
      files: Path to size in bytes, or None for any size. The last file shows
        that the output is complete.
      extras: Paths of files that a complete output may lack.
    """

    recipe: Mapping[str, Any]
    files: Mapping[str, int | None]
    extras: Sequence[str] = ()

    def is_complete(self) -> bool:
        return all(
            files.exists(path) and size in (None, compression.stored_size(path))
            for path, size in self.files.items()
        )


class RunFolder(contextlib.ExitStack):
    """The output of a run, locked against other processes in the context.

    Args:
      path: The output file; the paths of other outputs begin with this path.
      recipe: See `Made`.
      find_finished: Reads the reports or manifests; returns a `Made` for each
        file, or None for a missing file.
    """

    def __init__(
        self,
        path: str,
        recipe: Mapping[str, Any],
        find_finished: Callable[[], Sequence[Made | None]] = tuple,
        work_dir: str | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._recipe = recipe
        self._find_finished = find_finished
        self.work_dir = work_dir or f"{path}.work"
        self._folder = os.path.dirname(self.work_dir) or "."
        self._record = os.path.join(self.work_dir, "recipe.json")

    def __enter__(self) -> "RunFolder":
        self.enter_context(errors.naming(self.work_dir))
        # Without a lock, a second process would remove files of the first.
        self.enter_context(
            locks.one_writer(self.work_dir, "--output_file", is_replaced=True)
        )
        return self

    def ends_at_once(self) -> bool:
        """Returns True if the output is complete and has the same recipe."""
        found = self._find_finished()
        is_finished = bool(found) and all(
            each is not None
            and each.is_complete()
            and not changes(each.recipe, self._recipe)
            for each in found
        )
        if is_finished:
            logging.info(
                "%s is already finished with these flags; nothing to do.",
                self._path,
            )
            self.finish()  # A run that was killed here may have left its work.
        return is_finished

    @property
    def difference(self) -> str:
        """How this recipe differs from existing output's; "" if it does not."""
        for each in self._registered():
            if changed := changes(each.recipe, self._recipe):
                return "; ".join(changed)
        return ""

    def resume(self, outputs: Sequence[str], fits_any: bool = False) -> bool:
        """Registers the files to write; returns False if nothing is done yet.

        Args:
          outputs: The files that the run will write.
          fits_any: Whether a run with another recipe may reuse parts of the
            work until the first output file exists. Parts are named by a hash
            of their input and flags, so outdated parts are not reused.

        Raises:
          UserError: If earlier output has another recipe, or is not registered.
        """
        known = {_absolute(path) for path in self._files()}
        existing = [path for path in (*known, *outputs) if files.exists(path)]
        if (existing or not fits_any) and (difference := self.difference):
            raise UserError(
                f"{self._path} was made with other flags or input: "
                f"{difference}; use those, another --output_file, or start "
                "over with --overwrite_output_dir."
            )
        foreign = [path for path in existing if _absolute(path) not in known]
        if foreign:
            raise UserError(
                f"No run has registered {shown(foreign)}, which this run would "
                "replace; delete it or use another --output_file."
            )
        is_begun = files.exists(self._record)
        if is_begun:
            logging.info("Resuming from %s.", self.work_dir)
        else:  # Remove work without a record: its recipe may differ.
            files.remove(self.work_dir)
        names = [
            path
            if paths.is_remote(path)
            else os.path.relpath(path, self._folder)
            for path in outputs
        ]
        values = {"recipe": self._recipe, "files": names}
        files.write_json(self._record, values)
        return is_begun

    def finish(self) -> None:
        """Removes the work, and temporary files that killed processes left."""
        found = self._files()
        for folder in {os.path.dirname(path) for path in found}:
            names = [re.escape(os.path.basename(path)) for path in found]
            files.clear_temporaries(folder or ".", "|".join(names))
        self.discard()

    def discard(self) -> None:
        """Removes the record, then the work, so that no run reuses it."""
        files.remove(self._record)
        files.remove(self.work_dir)

    def start_over(self, inputs: Iterable[tuple[str, str]] = ()) -> None:
        """Removes the files that earlier runs registered, and their work.

        Raises `UserError` if an input, a (flag, path), would be removed.
        """
        found = [path for path in self._files() if files.exists(path)]
        refuse_removal(found, inputs, "--output_file")
        for path in found:
            files.remove(path)
        if files.exists(self.work_dir):
            self.discard()
            found.append(self.work_dir)
        if found:
            logging.info("Starting over: removed %s.", shown(found))

    def _registered(self) -> list[Made]:
        """Returns the unfinished output, if any, and the finished outputs."""
        found = [each for each in self._find_finished() if each is not None]
        if files.exists(self._record):
            stored = text_files.read_json(self._record)
            names = [
                x if paths.is_remote(x) else os.path.join(self._folder, x)
                for x in stored["files"]
            ]
            found.insert(0, Made(stored["recipe"], dict.fromkeys(names)))
        return found

    def _files(self) -> list[str]:
        """Returns all registered files; files that mark outputs come last."""
        made = self._registered()
        return [
            *dict.fromkeys(x for each in made for x in each.extras),
            *dict.fromkeys(x for each in made for x in each.files),
        ]


@contextlib.contextmanager
def registering(folder: str) -> Iterator[None]:
    """Registers the files that this process writes to a folder."""
    record = os.path.join(folder, WRITTEN_FILE)

    def register(path: str) -> None:
        name = os.path.relpath(path, folder)
        parts = name.split("/")
        if parts[0] in ("..", WRITTEN_FILE) or any(
            map(files.is_temporary, parts)
        ):
            return
        with _register_lock:
            names = _read_written(folder)
            if name not in names:
                files.write_json(record, sorted([*names, name]))

    files.on_write.append(register)
    try:
        yield
    finally:
        files.on_write.remove(register)


def _read_written(folder: str) -> list[str]:
    record = os.path.join(folder, WRITTEN_FILE)
    return text_files.read_json(record) if files.exists(record) else []


def remove_registered(
    folder: str, inputs: Iterable[tuple[str, str]]
) -> list[str]:
    """Removes the files that runs have registered in a folder; returns names.

    Raises `UserError` if one of the inputs would be removed.
    """
    found = {
        name: path
        for name in _read_written(folder)
        if files.exists(path := os.path.join(folder, name))
    }
    refuse_removal(found.values(), inputs, "--output_dir")
    for path in found.values():
        files.remove(path)
        while len(path := os.path.dirname(path)) > len(folder):
            files.remove_empty([path])
    files.remove(os.path.join(folder, WRITTEN_FILE))
    if found:
        logging.info(
            "Starting over: removed %s from %s.", shown([*found]), folder
        )
    return [*found]


def _absolute(path: str) -> str:
    return path if paths.is_remote(path) else os.path.abspath(path)


def changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    sources: Mapping[str, str | None] | None = None,
) -> list[str]:
    """Describes the differences of two recipes: "--seed was 1 and is 2 now".

    If a hash differs, names the hashed file or model, `sources[name]`.
    """
    found = []
    for name in {**before, **now}:
        pair = old, new = before.get(name), now.get(name)
        if old == new:
            continue
        source = (sources or {}).get(name)
        here = f": {source}" if source else ""
        if not any(isinstance(x, str) and _HASH.fullmatch(x) for x in pair):
            found.append(f"{name} was {old!r} and is {new!r} now")
        elif old is None:
            found.append(f"{name} was not used and is now{here}")
        elif new is None:
            found.append(f"{name} was used and is not now")
        else:
            found.append(f"{name} was changed or replaced{here}")
    return found


def refuse_removal(
    removed: Iterable[str], inputs: Iterable[tuple[str, str]], flag: str
) -> None:
    """Raises `UserError` if an input of a run would be removed."""
    real = set(map(os.path.realpath, removed))
    for name, path in inputs:
        above = os.path.realpath(path)
        while above not in real and above != os.path.dirname(above):
            above = os.path.dirname(above)
        # An input may be a checkpoint's prefix: keep its files "prefix.*", too.
        prefix = os.path.realpath(path) + "."
        if above in real or any(x.startswith(prefix) for x in real):
            raise UserError(
                f"--overwrite_output_dir would remove {name}={path}; choose "
                f"another {flag}, or give a copy of the input."
            )


def shown(names: Sequence[str], most: int | None = _NAMES_SHOWN) -> str:
    """Returns up to `most` names and the number of others, for a message."""
    text = ", ".join(names[:most])
    more = len(names) - len(names[:most])
    return f"{text} and {more} more" if more else text
