"""Checks of the paths in flags, with the standard library alone.

A script refuses a wrong path before TensorFlow is imported. Remote paths, such
as gs://, are checked later, by TensorFlow.
"""

import contextlib
import dataclasses
import glob
import ipaddress
import os
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from typing import Any

from bert_tf.errors import UserError
from bert_tf.errors import closest
from bert_tf.recipes import releases

# Kinds of paths that a flag may have; see `config.option`.
FILE, FILES, FOLDER, MODEL, MODELS = "file files folder model models".split()

RECIPES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "recipes")
# A directory may hold a model if one of its entries matches this pattern.
_MODEL_PARTS = re.compile(
    r"\.(json|index|meta|safetensors|bin|h5|keras|pb)$|\.ckpt|\.data-|"
    "^checkpoint$|^model$"
)
_NO_MODELS = (
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".gz", ".zip"),
    *(".safetensors", ".bin", ".h5", ".pb"),  # Parts of a model's directory.
)
# A flag has a path if its name matches this pattern, or if it declares `reads`.
_PATH_NAME = re.compile(r"(\w+_)?(file|dirs?|path|output)")
_NO_PATH = re.compile(r"\w+=\s*|output\w*=-|output_file=.*/")
_HOME = re.compile(r"(^|[,=]\s*)~(?=/|$)")
# Extension for standard input -> pattern that its first line must match.
_FIRST_LINES = {
    ".jsonl": re.compile(r"\{"),
    ".csv": re.compile(r"(text|[\w -]+(,[\w-][\w -]*)+)$"),
    ".tsv": re.compile(r"[\w-]+(\t[\w -]+)+$"),
}
# Only archives with these endings are fetched from web addresses.
ARCHIVE_ENDINGS = (".zip", ".tar.gz", ".tgz")
_NAMES_SHOWN = 8


def is_remote(path: str) -> bool:
    """Returns True for a path on a remote file system, such as gs://."""
    return "://" in path


def base_names(value: str) -> str:
    """Returns comma-separated paths without their folders; URLs stay whole.

    For a folder `model`, which training writes, its parent's name is returned.

    >>> base_names("/films/run/model"), base_names("data/a.csv,b.csv")
    ('run', 'a.csv,b.csv')
    """
    if is_remote(value):
        return value
    found = (re.sub(r"(?<=.)(/model)?/*$", "", x) for x in value.split(","))
    return ",".join(map(os.path.basename, found))


def read_flag(name: str, field: dataclasses.Field, value: Any) -> Any:
    """Returns a flag's value; ~/ is expanded in paths, also after "," and "=".

    Raises `UserError` for an empty path, an output "-" or a file "folder/".
    """
    is_path = field.metadata["reads"] or _PATH_NAME.fullmatch(name)
    if not is_path or not isinstance(value, str):
        return value
    if _NO_PATH.fullmatch(f"{name}={value}"):
        raise UserError(
            f"--{name} must name a file or folder. Received: {value!r}; name "
            "one, or drop the flag."
        )
    return _HOME.sub(r"\1" + os.path.expanduser("~"), value)


def check_inputs(config: Any) -> None:
    """Checks the input paths among a script's flags, in their order.

    `config` is a dataclass of flags; flags for inputs declare `reads`, the kind
    of input. A method `unread_inputs` may return the names of flags that this
    run does not read. A method `input_hints` may return advice for missing
    inputs, by flag. The field `output_dir` names a folder to write to;
    `output_file` and `output` name paths to replace.
    """
    unread = getattr(config, "unread_inputs", frozenset)()
    hints = getattr(config, "input_hints", dict)()
    for field in dataclasses.fields(config):
        check = _CHECKS.get(field.metadata.get("reads"))
        value = getattr(config, field.name)
        if not check or not value or field.name in unread:
            continue
        try:
            check(value, f"--{field.metadata['name'] or field.name}")
        except UserError as error:
            # Add no hint to an error that ends with "did you mean ...?".
            if field.name in hints and not str(error).endswith("?"):
                text = f"{str(error).rstrip('.')}; {hints[field.name]}"
                raise UserError(text) from error
            raise
    output = getattr(config, "output_file", None)
    target = output and os.path.realpath(output)
    for flag, path in inputs_of(config) if output else ():
        if os.path.realpath(path) == target:
            raise UserError(
                f"--output_file must differ from {flag}, which it would "
                f"replace. Received: {path!r} for both."
            )
    if getattr(config, "worker_hosts", None):  # Only the chief host writes.
        return
    for name in ("output_dir", "output_file", "output"):
        path = getattr(config, name, None)
        if path and not is_remote(path):
            _check_output(name, path)


def inputs_of(config: Any) -> Iterator[tuple[str, str]]:
    """Yields a pair of flag and path for each input of a command."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not field.metadata["reads"] or not value:
            continue
        for path in map(str.strip, value.split(",")):
            found = [] if is_remote(path) else glob.glob(path)
            yield from ((f"--{field.name}", x) for x in (path, *found))


@contextlib.contextmanager
def reading_stdin(config: Any) -> Iterator[Any]:
    """Yields flags with a temporary file in place of "-", the standard input.

    Commands may read the file several times. The ending of its name is .jsonl
    if the first line begins with "{", .csv after a header such as "text,label",
    .tsv after a header with tabs, and .txt otherwise.
    """
    names = [
        field.name
        for field in dataclasses.fields(config)
        if field.metadata.get("reads") in (FILE, FILES)
        and getattr(config, field.name) == "-"
    ]
    if not names:
        yield config
        return
    contents = sys.stdin.buffer.read()
    line = contents.partition(b"\n")[0].decode(errors="replace").strip()
    ending = next((x for x, y in _FIRST_LINES.items() if y.match(line)), ".txt")
    with tempfile.NamedTemporaryFile(prefix="stdin_", suffix=ending) as file:
        file.write(contents)
        file.flush()
        yield dataclasses.replace(config, **dict.fromkeys(names, file.name))


def no_file(path: str, flag: str) -> UserError:
    """Returns the error for a missing file."""
    folder, name = os.path.split(path)
    others = sorted(glob.glob("*.*", root_dir=folder), key=len)
    stems = {os.path.splitext(x)[0]: x for x in others}
    hint = "."
    if os.path.isdir(path):
        return UserError(f"{flag} takes a file. Received a folder: {path!r}.")
    if similar := closest(os.path.splitext(name)[0], stems):
        hint = f"; did you mean {stems[similar[0]]!r}?"
    elif not os.path.isabs(path):
        hint = f". The current directory is {os.getcwd()}."
    return UserError(f"{flag}: no such file: {path!r}{hint}")


def no_match(pattern: str, flag: str) -> UserError:
    """Returns the error for a glob that matches no file."""
    if os.path.isdir(pattern):
        everything = os.path.join(pattern, "*")
        return UserError(
            f"{flag} takes files. Received: the folder {pattern!r}; for all "
            f"files in it, give {everything!r}."
        )
    if pattern and not glob.has_magic(pattern):
        return no_file(pattern, flag)
    return UserError(
        f"{flag} matches no file. Received: {pattern!r} (in {os.getcwd()})."
    )


def describe(path: str) -> str:
    """Describes what is at a path that holds no model, for a message."""
    if is_remote(path):
        return "where there is no model"
    if not os.path.exists(path):
        return "where there is nothing"
    if not os.path.isdir(path):
        return "a file that is no checkpoint"
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return "a directory that cannot be read"
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    shown = ", ".join(names[:_NAMES_SHOWN]) + more
    return f"a directory that holds {shown or 'nothing'}"


def may_be_model(path: str) -> bool:
    """Returns False for a local path that certainly holds no model.

    The path may be a directory, a file, or the prefix of a checkpoint's files.
    """
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            return any(_MODEL_PARTS.search(entry.name) for entry in entries)
    if os.path.exists(path):
        return not path.endswith(_NO_MODELS)
    return any(glob.iglob(f"{glob.escape(path)}.*"))


def no_model(path: str, flag: str | None = None) -> UserError:
    """Returns the error for a path without a model of any format."""
    return UserError(
        f"{f'{flag}: e' if flag else 'E'}xpected a model directory, a "
        "checkpoint of the original with bert_config.json beside it, a Hugging "
        "Face directory, a KerasHub preset, a Model Garden checkpoint, a "
        "SavedModel of TF Hub or a .keras file of bert_tf. "
        f"Received: {path!r}, {describe(path)}."
    )


def cache_dir() -> str:
    """Returns the folder for files that can be computed or fetched again."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("BERT_TF_CACHE") or os.path.join(home, "bert_tf")
    return os.path.expanduser(folder)


def require_safe_url(url: str) -> None:
    """Raises `UserError` unless a URL is HTTPS, or HTTP on this machine."""
    with contextlib.suppress(ValueError):  # An invalid URL, or no IP address.
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        if parts.scheme == "https" and host:
            return
        if parts.scheme == "http" and (
            host == "localhost" or ipaddress.ip_address(host).is_loopback
        ):
            return
    raise UserError(
        "Expected an https:// address (http:// is for servers on this machine "
        f"only). Received: {url!r:.200}."
    )


def require_archive_url(url: str) -> None:
    """Raises `UserError` unless an archive may be fetched from an address."""
    require_safe_url(url)
    if not urllib.parse.urlsplit(url).path.endswith(ARCHIVE_ENDINGS):
        raise UserError(
            "Expected the address of an archive, which ends with "
            f"{', '.join(ARCHIVE_ENDINGS)}. Received: {url!r}."
        )


def resolve_config(path: str) -> str:
    """Returns the path of a configuration file.

    A missing path that begins with `configs/` is searched in `bert_tf/recipes`,
    so flag files in this folder work in any current directory.
    """
    recipe = os.path.join(RECIPES, path)
    is_recipe = path.startswith("configs/") and os.path.exists(recipe)
    return recipe if is_recipe and not os.path.exists(path) else path


def _check_file(path: str, flag: str) -> None:
    path = resolve_config(path)
    is_file = os.path.exists(path) and not os.path.isdir(path)
    if not is_remote(path) and not is_file:
        raise no_file(path, flag)


def _check_files(patterns: str, flag: str) -> None:
    for pattern in map(str.strip, patterns.split(",")):
        # Only TensorFlow can expand these patterns, so it checks them later.
        if is_remote(pattern) or set(pattern) & set("[\\{"):
            continue
        matches = glob.iglob(pattern, include_hidden=True) if pattern else ()
        if all(os.path.isdir(path) for path in matches):
            raise no_match(pattern, flag)


def check_folder(path: str, flag: str) -> None:
    """Raises `UserError` unless a path is remote or a folder."""
    if not is_remote(path) and not os.path.isdir(path):
        raise UserError(
            f"{flag}: no such directory: {path!r}. The current directory is "
            f"{os.getcwd()}."
        )


def _check_model(path: str, flag: str) -> None:
    if is_remote(path):
        releases.refuse_prefix(path, flag)
        if not releases.parse_hub_name(path) and path.startswith("http"):
            require_archive_url(path)
    elif not may_be_model(path):
        if not os.path.exists(path):
            if releases.find(path):
                return  # The model of this name is fetched later.
            releases.refuse_name(path, flag)
        raise no_model(path, flag)


def _check_models(patterns: str, flag: str) -> None:
    for pattern in map(str.strip, patterns.split(",")):
        for path in glob.glob(pattern) or [pattern]:
            _check_model(path, flag)


def _check_output(name: str, path: str) -> None:
    folder = path if name == "output_dir" else os.path.dirname(path)
    present = os.path.abspath(folder)
    while not os.path.lexists(present):
        present = os.path.dirname(present)
    reason = None
    if name == "output_file" and os.path.isdir(path):
        reason = "it is a directory"
    elif not os.path.isdir(present):
        reason = f"{present} is not a directory"
    elif not os.access(present, os.W_OK | os.X_OK):
        reason = f"{present} is read-only for you"
    if reason:
        raise UserError(
            f"--{name}={path} cannot be written ({reason}); choose another."
        )


_CHECKS = {
    FILE: _check_file,
    FILES: _check_files,
    FOLDER: check_folder,
    MODEL: _check_model,
    MODELS: _check_models,
}
