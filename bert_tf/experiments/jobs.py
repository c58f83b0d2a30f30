"""Jobs: commands of the project's scripts, with an id by their content."""

import dataclasses
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf import errors
from bert_tf.flags import flag_files

# Stand for the folder of the experiments and that of a job.
OUT = "{out}"
HERE = "{here}"

# Folders of --output_dir with the output of each kind of job.
FOLDERS = {
    "vocabulary": "vocabulary",
    "records": "records",
    "pretraining": "pretraining",
    "cell": "runs",
}
CELL = "cell"


@dataclasses.dataclass(frozen=True)
class Command:
    """A call of one of the project's scripts.

    Attributes:
      script: The script, as "run/pretrain.py".
      flags: Name to value; texts may contain `OUT` and `HERE`.
    """

    script: str
    flags: Mapping[str, Any]

    def words(self, places: Mapping[str, str]) -> list[str]:
        """Returns the flags as words, with paths in place of `places`."""
        return [_word(x, y, places) for x, y in self.flags.items()]

    def shell(self, places: Mapping[str, str]) -> str:
        """Returns the command for a shell in the current folder."""
        words = map(shlex.quote, self.words(places))
        program = errors.program(self.script)
        if program.startswith("python ") and not os.path.exists(self.script):
            program = f"python {shlex.quote(self._path)}"
        return " ".join([program, *words])

    @property
    def _path(self) -> str:
        clone = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        return os.path.join(clone, self.script)

    def argv(self, places: Mapping[str, str]) -> list[str]:
        """Returns the words that start the script with this Python."""
        path = self._path
        start = [path]
        if not os.path.exists(path):
            start = ["-m", "bert_tf", errors.command(self.script)]
        return [sys.executable, *start, *self.words(places)]


@dataclasses.dataclass(frozen=True)
class Score:
    """How to read the score of a cell from the results of its command.

    Attributes:
      results: The file, with `HERE` or `OUT`.
      split: The beginning of the split's name in a .json file.
      metric: The metric's name.
      factor: 100 for shares, which the paper gives in percent.
      seed: The seed of the run.
      majority: The score of the most frequent label, or None.
      mean_of: Cells whose scores are averaged, in place of `results`.
    """

    results: str
    split: str
    metric: str
    factor: float
    seed: int
    majority: float | None = None
    mean_of: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """Something that is made once: a vocabulary, records, a model or a cell.

    Attributes:
      id: A name with a hash of all that the result depends on.
      kind: A key of `FOLDERS`.
      title: A phrase for the progress bar.
      commands: The commands, in order; none where `score` reads what another
        job has written.
      needs: The ids of the jobs to do before.
      produces: A file that exists when all commands have succeeded.
      work: Estimated cost, in floating-point operations.
      score: Set for cells.
    """

    id: str
    kind: str
    title: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...]
    produces: str
    work: float
    score: Score | None = None

    @property
    def here(self) -> str:
        """The folder of its output, with `OUT`."""
        return folder(self.kind, self.id)

    def places(self, output_dir: str) -> dict[str, str]:
        """Returns the paths that `OUT` and `HERE` stand for."""
        return {HERE: self.here.replace(OUT, output_dir), OUT: output_dir}


def folder(kind: str, job_id: str) -> str:
    """Returns the folder of a job's output, with `OUT`."""
    return f"{OUT}/{FOLDERS[kind]}/{job_id}"


def content_id(
    name: str,
    commands: Sequence[Command],
    needs: Sequence[str],
    score: Score | None,
) -> str:
    """Returns a name followed by a hash of what the result depends on.

    Output folders are not part of it, as they are `OUT` and `HERE`; the files
    that commands read are, as their names contain hashes.
    """
    content = [
        [[x.script, with_flag_file(x.flags)] for x in commands],
        list(needs),
        [score.metric, score.split, list(score.mean_of)] if score else None,
    ]
    return f"{name}-{digest(content)}"


def with_flag_file(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flags, in front of them those of the file that they name."""
    found: dict[str, Any] = {}
    if "flagfile" in flags:
        for word in flag_files.expand([f"--flagfile={flags['flagfile']}"]):
            name, is_text, value = word.removeprefix("--").partition("=")
            found[name] = value if is_text else True
    return {**found, **flags}


def digest(values: Any) -> str:
    """Returns a short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fill(text: str, places: Mapping[str, str]) -> str:
    """Replaces `HERE` and `OUT` by paths."""
    for name, path in places.items():
        text = text.replace(name, path)
    return text


def _word(name: str, value: Any, places: Mapping[str, str]) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={fill(str(value), places)}"
