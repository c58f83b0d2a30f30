"""The recipe of extracted text: finds finished and unfinished runs."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf import config as configs
from bert_tf.corpus import inputs
from bert_tf.corpus import report as reports
from bert_tf.errors import UserError
from bert_tf.flags.corpus import ExtractTextConfig
from bert_tf.io import files
from bert_tf.io import temporaries

_WITHOUT_EFFECT = configs.fields_affecting(
    ExtractTextConfig, "nothing"
) | configs.fields_affecting(ExtractTextConfig, "place")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that the output depends on.

    Attributes:
      flags: The flags, without paths.
      inputs: Path, hash and language of each file.
    """

    flags: dict[str, Any]
    inputs: list[list[str]]

    def hash(self) -> str:
        data = json.dumps(vars(self), sort_keys=True).encode()
        return hashlib.blake2b(data, digest_size=16).hexdigest()


def output_files(config: ExtractTextConfig) -> list[str]:
    """Returns the files to write; the last one is of held-out text, if any.

    >>> config = ExtractTextConfig(
    ...     input_file="a", output_file="b.txt.gz", heldout_share=0.1
    ... )
    >>> output_files(config)
    ['b.txt.gz', 'b_heldout.txt.gz']
    """
    path = config.output_file
    if "://" in path:
        raise UserError(
            f"--output_file must be a local path. Received: {path!r}; copy the "
            "files when they are complete."
        )
    if path.endswith((".bz2", ".xz", ".zst")):
        raise UserError(
            "--output_file must end in .gz to be compressed. Received: "
            f"{path!r}."
        )
    if os.path.isdir(path):
        raise UserError(
            f"--output_file must name a file. Received a directory: {path!r}."
        )
    files.require_no_stream(path)
    folder, name = os.path.split(path)
    compressed = ".gz" if name.endswith(".gz") else ""
    stem, ending = os.path.splitext(name.removesuffix(".gz"))
    ending += compressed
    names = [f"{stem}{ending}"]
    if count := config.num_shards:
        names = [f"{stem}-{i:05d}-of-{count:05d}{ending}" for i in range(count)]
    if config.heldout_share:
        names.append(f"{stem}_heldout{ending}")
    return [os.path.join(folder, name) for name in names]


def build(
    config: ExtractTextConfig, found: Sequence[inputs.InputFile]
) -> Recipe:
    """Returns the recipe; reads the start and the end of each file.

    Raises:
      UserError: If an output file is also read.
    """
    flags = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in _WITHOUT_EFFECT
    }
    entries = [
        [file.path, inputs.fingerprint(file.path), file.language]
        for file in found
    ]
    for pattern in (config.exclude_file or "").split(","):
        if pattern:
            for path in inputs.expand(pattern.strip(), "--exclude_file"):
                entries.append([path, inputs.fingerprint(path), "excluded"])
    outputs = {os.path.realpath(path) for path in output_files(config)}
    for path, *_ in entries:
        if os.path.realpath(path) in outputs:
            raise UserError(
                "--output_file must differ from the files that are read. "
                f"Received: {path!r} for both."
            )
    return Recipe(flags, entries)


def find_finished(
    output_file: str, names: Sequence[str], recipe: Recipe
) -> dict[str, Any] | None:
    """Returns the report if the text is complete."""
    path = reports.path_of(output_file)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        present = json.load(file)
    difference = _difference(recipe, Recipe(**present["recipe"]))
    if difference:
        raise UserError(
            f"{output_file} already exists, made with {difference}; use "
            "another --output_file, or start over with --overwrite_output_dir."
        )
    return present if all(map(os.path.exists, names)) else None


def _difference(recipe: Recipe, present: Recipe) -> str | None:
    """Returns how another recipe differs, as "another --languages", or None."""
    for flag, value in recipe.flags.items():
        if present.flags.get(flag) != value:
            return f"--{flag}={present.flags.get(flag)}"
    return None if recipe.inputs == present.inputs else "other input files"


def start_over(output_file: str, names: Sequence[str], work_dir: str) -> None:
    """Removes an earlier run's files, those of another number of shards too."""
    path = reports.path_of(output_file)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            names = [*names, *json.load(file)["files"]]
    for name in {*names, path, reports.picture_of(output_file)}:
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)
    shutil.rmtree(work_dir, ignore_errors=True)


def clear(names: Sequence[str]) -> None:
    """Removes temporary files that a killed run left beside the output files.

    Workers of a killed run live until the disk has stored what they wrote, so
    the first writes of the next run can be too early to remove their files.
    """
    folder = os.path.dirname(names[0]) or "."
    endings = (re.escape(os.path.basename(name)) for name in names)
    temporaries.clear(folder, "|".join(endings))


def written_path(work_dir: str) -> str:
    """Returns the file that lists the output files that are complete."""
    return os.path.join(work_dir, "written.json")


def begin(work_dir: str, names: Sequence[str], recipe: Recipe) -> None:
    """Stores the recipe in the work folder, or checks that it is the same.

    Parts are named by their contents and flags, so until the first output file
    is complete, flags and input may change: after a damaged file is replaced or
    a column is corrected, the other parts stay.

    Raises:
      UserError: If output files of another recipe exist.
    """
    path = os.path.join(work_dir, "recipe.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            present = Recipe(**json.load(file))
        difference = _difference(recipe, present)
        if difference and os.path.exists(written_path(work_dir)):
            raise UserError(
                f"{work_dir} is from an unfinished run with {difference}; "
                "finish it with its own flags and input, use another "
                "--output_file, or start over with --overwrite_output_dir."
            )
        logging.info("Resuming from %s.", work_dir)
    else:
        existing = [name for name in names if os.path.exists(name)]
        if existing:
            raise UserError(
                f"{existing[0]} already exists without a report; delete it, "
                "use another --output_file, or start over with "
                "--overwrite_output_dir."
            )
    reports.write(path, vars(recipe))
