"""The versions of an export: numbered directories that appear whole.

A server looks for directories whose names are numbers. Until a version is
complete and verified it has another name.
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
    """Checks that there can be versions in a directory.

    Raises:
      UserError: If it, or what should be above it, is a file.
    """
    path = output_dir.rstrip("/")
    while path and not tf.io.gfile.exists(path):
        path = os.path.dirname(path)
    if path and not tf.io.gfile.isdir(path):
        raise UserError(
            "--output_dir must name a directory, or one that can be made. "
            f"Received: {output_dir!r}, but {path!r} is a file."
        )


def choose(wanted: int | None, output_dirs: Sequence[str]) -> int:
    """Returns the number of a new version.

    Args:
      wanted: The number, or None for the one after the greatest.
      output_dirs: Where it must be free.

    Raises:
      UserError: If it is taken.
    """
    taken = {version for path in output_dirs for version in _versions(path)}
    following = max(taken, default=0) + 1
    if wanted is None:
        return following
    if wanted in taken:
        raise UserError(
            f"--version={wanted} is taken in {' or '.join(output_dirs)}, and "
            "no version is overwritten; leave the flag out to write version "
            f"{following}."
        )
    return wanted


def _versions(output_dir: str) -> list[int]:
    if not tf.io.gfile.isdir(output_dir):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(output_dir)]
    # Servers read 007 as 7.
    return [int(name) for name in names if _VERSION.fullmatch(name)]


@contextlib.contextmanager
def write(output_dir: str, version: int) -> Iterator[str]:
    """Yields a temporary directory that becomes the version on success.

    A process that is killed leaves a directory whose name is no number, so
    that no server loads it.

    Raises:
      UserError: If the version is there meanwhile.
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
    """Renames a directory, and never replaces one that has something in it."""
    taken = UserError(
        f"{final} was written by somebody else meanwhile; export again."
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
