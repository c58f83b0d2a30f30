"""The original's released models: names, addresses and shapes.

The table `recipes/models.json` names the source of every fact; a field is empty
if no source was found.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Mapping

from bert_tf import errors
from bert_tf.errors import UserError

BASE_VARIABLE = "BERT_TF_RELEASES_URL"
_TABLE = os.path.join(os.path.dirname(__file__), "models.json")
_PART = r"[\w-][\w.-]*"
_NAME = r"[\w.-]+"
_HUBS = {
    "hf": (
        rf"hf://({_NAME}/{_NAME})(?:@([\w./-]+))?",
        "hf://owner/name, or hf://owner/name@revision",
    ),
    "kaggle": (
        rf"kaggle://({_NAME}/{_NAME}/(?:keras|tensorFlow2)/{_NAME}"
        r"(?:/\d+)?)",
        "kaggle://owner/model/keras/variation, or with /version; tensorFlow2 "
        "in place of keras for a SavedModel",
    ),
}


# Errors list these prefixes, not http://, which only local servers may use.
_NAMED = ("hf://", "kaggle://", "https://", "gs://")
# File systems that TensorFlow can read, some of them with extra packages.
_FILE_SYSTEMS = ("file", "gs", "hdfs", "ram", "s3", "viewfs")
_PREFIXES = ("hf", "kaggle", "https", "http", *_FILE_SYSTEMS)


@dataclasses.dataclass(frozen=True)
class Release:
    """One released model.

    Attributes:
      name: Short name.
      file: Path of the zip file, relative to the address of all releases.
      layers: Number of hidden layers, L.
      hidden_size: Width, H.
      heads: Attention heads, A.
      cased: Whether the model distinguishes upper and lower case.
      gelu: "tanh" for the approximate GELU, or "erf" for the exact GELU.
      license: SPDX identifier.
      bytes: Size of the zip file, None if no source states it.
      sha256: Hash of the zip file, None if no source states it.
      files_sha256: Hashes of the unpacked files, where a source states them.
      also: Other short names.
    """

    name: str
    file: str
    layers: int
    hidden_size: int
    heads: int
    cased: bool
    gelu: str
    license: str
    bytes: int | None
    sha256: str | None
    files_sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The address of the zip file, with the user's base if one is set."""
        base = os.environ.get(BASE_VARIABLE) or official_base()
        return f"{base.rstrip('/')}/{self.file}"

    @property
    def is_official(self) -> bool:
        """True if the zip file comes from the original's own address."""
        return self.url == f"{official_base()}/{self.file}"


@functools.cache
def _contents() -> dict:
    with open(_TABLE, encoding="utf-8") as file:
        return json.load(file)


def official_base() -> str:
    """Returns the address below which the original released its models."""
    return _contents()["base"]


@functools.cache
def releases() -> tuple[Release, ...]:
    """Returns all released models, in the order of the table."""
    return tuple(
        Release(**row | {"also": tuple(row.get("also", ()))})
        for row in _contents()["models"]
    )


def find(name: str) -> Release | None:
    """Returns the release of a short name, None if there is none."""
    return next((x for x in releases() if name in (x.name, *x.also)), None)


def parse_hub_name(name: str) -> re.Match | None:
    """Returns the parts of a hub's name; None for other names.

    Raises `UserError` if the name is incomplete.
    """
    pattern, form = _HUBS.get(name.partition("://")[0], (None, None))
    if pattern is None:
        return None
    match = re.fullmatch(pattern, name)
    if not match:
        raise UserError(f"Expected {form}. Received: {name!r}.")
    return match


def hub_id(source: str) -> str | None:
    """Returns the name on Hugging Face's hub for a model's name or revision.

    >>> hub_id("bert-tiny (https://there/file.zip, SHA-256 01)")
    'google/bert_uncased_L-2_H-128_A-2'
    """
    if match := re.match(_HUBS["hf"][0], source):
        return match[1]
    release = find(source.partition(" ")[0])
    if release and release.name.startswith("bert-L"):
        return f"google/bert_{os.path.basename(release.file)[:-4]}"
    return release and f"google-bert/{release.name}"


def refuse_name(name: str, flag: str | None = None) -> None:
    """Raises `UserError` for a missing path that looks like a model's name.

    The error message suggests a similar name.
    """
    start = f"{flag}: n" if flag else "N"
    if re.fullmatch(f"{_PART}/{_PART}", name):
        if not os.path.isdir(os.path.dirname(name)):
            raise UserError(
                f"{start}o such directory: {name!r}; for the model of the "
                f"Hugging Face Hub give hf://{name}."
            )
    elif re.fullmatch(_PART, name) and ".ckpt" not in name:
        # Users may give a zip file's name, as in the original's documentation.
        zips = {os.path.basename(x.file)[:-4]: x.name for x in releases()}
        known = [x for r in releases() for x in (r.name, *r.also)]
        hint = errors.did_you_mean(
            zips.get(name, name),
            known,
            otherwise="; give a path, a name of the list, or hf://owner/name.",
        )
        raise UserError(
            f"{start}o model is named {name!r}, and there is no such path"
            f"{hint} (`{errors.program('run/models.py')}` lists the names.)"
        )


def refuse_prefix(name: str, flag: str | None = None) -> None:
    """Raises `UserError` for an address whose prefix no model can have."""
    prefix, separator, _ = name.partition("://")
    if separator and prefix not in _PREFIXES:
        expected = f"{flag}: e" if flag else "E"
        raise UserError(
            f"{expected}xpected a path, a name of the table of models, or a "
            f"name that begins with one of {', '.join(_NAMED)}. Received: "
            f"{name!r}; download it first and give its path."
        )


def format_table() -> str:
    """Returns the table of all models as text, one model a line."""
    rows = [("name", "L", "H", "A", "text", "GELU", "license", "size", "file")]
    rows += [
        (
            x.name,
            *map(str, (x.layers, x.hidden_size, x.heads)),
            "cased" if x.cased else "uncased",
            x.gelu,
            x.license,
            format_bytes(x.bytes) if x.bytes else "",
            x.file,
        )
        for x in releases()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [
        f"{' and '.join(release.also)}: {release.name}"
        for release in releases()
        if release.also
    ]
    return "\n".join(lines) + "\n"


def format_bytes(number: int | None) -> str:
    """Formats a number of bytes, such as "408 MB"; None is "size unknown"."""
    if number is None:
        return "size unknown"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
