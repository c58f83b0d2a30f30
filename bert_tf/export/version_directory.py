"""Version directories of an export: numbered, and created atomically.

Servers load directories whose names are numbers. A version has a temporary name
until it is complete and verified.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from collections.abc import Sequence

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import files

_VERSION = re.compile(r"[0-9]+")


def check(output_dir: str) -> None:
    """Checks that a directory exists or can be created.

    Raises:
      UserError: If the path or one of its parents is a file.
    """
    path = output_dir.rstrip("/")
    while path and not tf.io.gfile.exists(path):
        path = os.path.dirname(path)
    if path and not tf.io.gfile.isdir(path):
        raise UserError(
            "--output_dir must be a directory or a new path. Received: "
            f"{output_dir!r}, but {path!r} is a file."
        )


def choose(version: int | None, output_dirs: Sequence[str]) -> int:
    """Returns the number of a new version.

    Args:
      version: The value of --version; None for the highest existing version
        plus one.
      output_dirs: Directories in which the version must not exist yet.

    Raises:
      UserError: If the version exists.
    """
    taken = {number for path in output_dirs for number in _versions(path)}
    following = max(taken, default=0) + 1
    if version is None:
        return following
    if version in taken:
        raise UserError(
            f"--version={version} exists in {' or '.join(output_dirs)}, and "
            "versions are never overwritten; drop the flag to write version "
            f"{following}."
        )
    return version


def _versions(output_dir: str) -> list[int]:
    if not tf.io.gfile.isdir(output_dir):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(output_dir)]
    # Servers read 007 as 7.
    return [int(name) for name in names if _VERSION.fullmatch(name)]


@contextlib.contextmanager
def write(output_dir: str, version: int) -> Iterator[str]:
    """Yields a temporary directory that becomes the version on success.

    A killed process leaves a directory whose name is not a number, which no
    server loads.

    Raises:
      UserError: If another process created the version meanwhile.
    """
    tf.io.gfile.makedirs(output_dir)
    final = os.path.join(output_dir, str(version))
    temporary = f"{final}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield temporary
        for folder, _, names in tf.io.gfile.walk(temporary, topdown=False):
            for name in names:
                files.sync(os.path.join(folder, name))
            files.sync(folder)
        _publish(temporary, final)
        files.sync(output_dir)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
        raise


def _publish(temporary: str, final: str) -> None:
    """Renames a directory without replacing one that is not empty."""
    taken = UserError(
        f"{final} was written by another process meanwhile; export again."
    )
    if tf.io.gfile.exists(final):
        raise taken
    if "://" in final:
        tf.io.gfile.rename(temporary, final)
        return
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise taken from error
        raise
