"""Exceptions that end a script early, and the names of scripts for messages."""

import contextlib
import difflib
import errno
import functools
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

PROGRAM = "bert-tf"

# A longer message is shortened, because it may quote names of any length.
_MAX_MESSAGE = 4000
# These characters are escaped in messages: a control character could change the
# terminal, and half of a surrogate pair cannot be printed.
_UNPRINTABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

# Matches a script's name, such as run/serve.py, but not within a longer path.
_SCRIPT = re.compile(r"(?<![\w./-])(?:python )?((?:run|export)/\w+\.py)\b")

# Package -> extra that installs it; a test compares this with pyproject.toml.
EXTRAS = {
    "ai_edge_litert": "tflite",
    "apache_beam": "beam",
    "datasketch": "corpus",
    "flatbuffers": "tflite",
    "ftfy": "corpus",
    "httptools": "serve",
    "kagglehub": "interop",
    "keras_hub": "interop",
    "mwparserfromhell": "corpus",
    "orjson": "serve",
    "prometheus_client": "serve",
    "py3langid": "corpus",
    "pyarrow": "parquet",
    "requests": "interop",
    "starlette": "serve",
    "uvicorn": "serve",
    "zstandard": "corpus",
}


class UserError(ValueError):
    """A user's mistake: a bad input, flag, file or combination of them.

    The message is one sentence: the expected input, the received input and what
    to do. Scripts print it without a traceback and exit with status 1. Control
    characters are escaped, and the middle of a very long message is left out.
    """

    # Keeps Keras from adding the arguments of a layer to the message.
    _keras_call_info_injected = True

    def __init__(self, message: object = "") -> None:
        text = str(message)
        if len(text) > _MAX_MESSAGE:
            half = _MAX_MESSAGE // 2
            text = f"{text[:half]} ... {text[-half:]}"
        super().__init__(
            _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
        )


class WorkerEndedError(UserError):
    """A worker process was killed; finished work is kept."""


class NotFiniteError(UserError):
    """A run stops because its loss or weights are no longer finite.

    Other trials of a search continue, as their hyperparameters may be better.
    """


def _texts(*codes: int) -> str:
    return "|".join(re.escape(os.strerror(code)) for code in codes)


# Pattern of an error message -> problem and advice. On a full disk, NumPy omits
# the system's text and writes only "8 requested and 4 written".
_REFUSALS = {
    _texts(errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    + r"|\d+ requested and \d+ written": (
        "The disk is full",
        "free some space and rerun the same command.",
    ),
    _texts(errno.EACCES, errno.EROFS): (
        "The system refuses access",
        "correct the rights, or name another path.",
    ),
    "File system scheme .* not implemented": (
        "TensorFlow cannot open this address",
        "copy the file to a local disk, and name the copy.",
    ),
}

# The exit status after Ctrl-C, as shells report it: 128 + SIGINT.
INTERRUPTED = 130


class Preempted(BaseException):
    """The run received SIGTERM or Ctrl-C, saved its state and stops.

    Scripts log the message and exit with `status`. The base class is not
    `Exception`, so that `except Exception` does not catch a `Preempted`.

    Attributes:
      status: The exit status: 0, or 130 after Ctrl-C.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def closest(name: str, choices: Iterable[str]) -> list[str]:
    """Returns up to three choices that a wrong name may mean.

    The first rule that finds choices decides. In order, the rules find choices
    that contain the name, are part of it, resemble it most, have a similar
    word, have its letters in order (huggingface for hf), or have its first
    word.
    """
    word = re.sub(r"[-_ ]", "", name.lower())
    folded = {str(x): re.sub(r"[-_ ]", "", str(x).lower()) for x in choices}

    def likeness(choice: str) -> float:
        return difflib.SequenceMatcher(None, choice, word).ratio()

    best = max(folded.values(), key=likeness, default="")
    first = re.split("[-_ ]", name.lower())[0]
    letters = re.compile(".*".join(map(re.escape, word)))
    tests = (
        lambda x: len(word) > 2 and word in folded[x],
        lambda x: len(folded[x]) > 3 and folded[x] in word,
        lambda x: folded[x] == best and likeness(best) >= 0.65,
        lambda x: difflib.get_close_matches(
            word, re.split(r"[-_/ ]", x.lower()), 1, 0.75
        ),
        lambda x: len(word) > 1 and letters.match(folded[x]),
        lambda x: len(first) > 3 and first in re.split(r"[-_/ ]", x.lower()),
    )
    found = (list(filter(test, folded)) for test in tests)
    return next(filter(None, found), [])[:3]


def did_you_mean(
    name: str, choices: Iterable[str], form: str = "{}", otherwise: str = "."
) -> str:
    """Returns the end of a message about a wrong name.

    >>> did_you_mean("hf", ["tf1", "huggingface"])
    '; did you mean huggingface?'
    """
    found = " or ".join(form.format(x) for x in closest(name, choices))
    return f"; did you mean {found}?" if found else otherwise


def no_attribute(
    owner: str, name: str, choices: Iterable[str], otherwise: str = "."
) -> AttributeError:
    """Returns the error for a wrong name of an attribute."""
    hint = did_you_mean(name, choices, "{!r}", otherwise)
    # Without `name`, Python would append a hint of its own.
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)


def require_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises `UserError` unless an argument is one of its choices."""
    if value not in [*choices]:
        raise UserError(
            f"`{name}` must be one of {', '.join(choices)}. Received: "
            f"{name}={value!r:.80}{did_you_mean(str(value), choices)}"
        )


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of arguments; for a class, also of its base classes."""
    makers = [x.__init__ for x in getattr(function, "__mro__", ())]
    signatures = map(inspect.signature, makers or [function])
    return [name for one in signatures for name in one.parameters]


def check_arguments(
    function: str, given: Iterable[str], known: list[str], otherwise: str = "."
) -> None:
    """Raises `UserError` for an argument that a function does not have."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, "{}=", otherwise)
            raise UserError(f"{function}() has no argument {name!r}{hint}")


def suggests_arguments(function: Any) -> Any:
    """Makes a function suggest one of its arguments for an unknown one."""
    known = arguments_of(function)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*args, **kwargs):
        check_arguments(name, kwargs, known)
        return function(*args, **kwargs)

    return call


def first_line(error: Exception) -> str:
    """Returns the first line of an error, without TensorFlow's operator names.

    >>> first_line(OSError("{{function_node x}} a.txt; No space [Op:Save]"))
    'a.txt; No space'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\{\{.*?\}\} | *\[Op:\w+\].*$", "", line)


@contextlib.contextmanager
def full_disks() -> Iterator[None]:
    """Turns errors about full disks, rights and addresses into `UserError`s."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        for text, (problem, advice) in _REFUSALS.items():
            if re.search(text, str(error)):
                line = first_line(error)
                raise UserError(f"{problem}: {line}; {advice}") from error
        raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds a path to an `OSError` that names none, as when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = path
        raise


@contextlib.contextmanager
def extras() -> Iterator[None]:
    """Names the extra to install if an import in the block fails.

    Raises:
      UserError: If the block imports a missing package of one of the extras.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise _missing(package) from error


def require(extra: str) -> None:
    """Raises `UserError` if a package of an extra is missing; imports none."""
    for package in EXTRAS:
        if EXTRAS[package] == extra and not importlib.util.find_spec(package):
            raise _missing(package)


def _missing(package: str) -> UserError:
    return UserError(
        f"This needs the package {package}, which is not installed: "
        f'pip install "bert_tf[{EXTRAS[package]}]"'
    )


def command(script: str) -> str:
    """Returns a script's name as a subcommand of `bert-tf`.

    >>> command("run/fill_mask.py"), command("export/tflite.py")
    ('fill-mask', 'export-tflite')
    """
    folder, _, name = script.removesuffix(".py").rpartition("/")
    if folder == "export":
        name = "verify_export" if name == "verify" else f"export_{name}"
    return name.replace("_", "-")


def program(script: str) -> str:
    """Returns the words that start a script, for messages.

    In a clone the result is like `python run/predict.py`. Without a clone, and
    in a process that `bert-tf` started, it is like `bert-tf predict`.
    """
    clone = os.path.dirname(os.path.dirname(__file__))
    started_by_name = sys.argv[0].startswith(f"{PROGRAM} ")
    if started_by_name or not os.path.exists(os.path.join(clone, script)):
        return f"{PROGRAM} {command(script)}"
    return f"python {script}"


def name_programs(text: str) -> str:
    """Replaces scripts in a text by subcommands, where `program` does.

    For example, "start run/serve.py" becomes "start bert-tf serve".
    """

    def replace(match: re.Match) -> str:
        words = program(match[1])
        return match[0] if words.startswith("python ") else words

    return _SCRIPT.sub(replace, text)
