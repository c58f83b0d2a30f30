"""Temporary names of outputs, leftovers of killed processes, and exchanges."""

import contextlib
import ctypes
import errno
import functools
import os
import re
import secrets
import shutil

from absl import logging

_TEMPORARY = re.compile(r".+\.tmp-\d+-[0-9a-f]{8}")
# Arguments of renameat2, from <fcntl.h> and <linux/fs.h>.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Errors of kernels and file systems that cannot exchange two paths.
_NO_EXCHANGE = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
)

# Temporary paths that this process made.
_own: set[str] = set()


def new_name(path: str) -> str:
    """Returns a new temporary path beside an output, with the process's id.

    The first call for an output removes the leftovers of killed processes.
    """
    _clear_once(os.path.abspath(path))
    name = f"{path.rstrip('/')}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    _own.add(os.path.abspath(name))
    return name


def is_temporary(path: str) -> bool:
    """Returns True for a temporary path that a killed process left behind."""
    return _TEMPORARY.fullmatch(path.rstrip("/")) is not None


@functools.cache
def _clear_once(path: str) -> None:
    folder, name = os.path.split(path)
    if "://" not in path:
        clear(folder, re.escape(name))


def clear(folder: str, names: str = ".+") -> None:
    """Removes temporary files and folders of processes that are gone.

    Their names have the ids of their processes. A process of another container
    or host counts as gone, as it cannot be seen from here; `locks` keep two of
    them from writing one output. What a killed process left stays while another
    process has its id.

    Args:
      folder: A local folder; if it is missing, nothing is done.
      names: A regular expression of the names of the outputs in it.
    """
    if not os.path.isdir(folder):
        return
    pattern = re.compile(rf"(?:{names})\.tmp-(\d+)-[0-9a-f]{{8}}")
    with os.scandir(folder) as entries:
        found = [(x.path, pattern.fullmatch(x.name)) for x in entries]
    for path, match in found:
        if match is None or _is_alive(int(match[1]), path):
            continue
        logging.info("Removing %s, which a killed process left.", path)
        # Another process may be removing it, too.
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)


def _is_alive(process: int, path: str) -> bool:
    """Returns whether the process that made a temporary path still exists."""
    if process == os.getpid():  # Each container may give its program this id.
        return os.path.abspath(path) in _own
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # It is another user's.
        return True
    return True


def exchange(first: str, second: str) -> bool:
    """Swaps two directories in one step, so that neither name is ever free.

    Returns:
      False where the system cannot: remote, an old kernel, or not Linux.

    Raises:
      OSError: If it can, and fails.
    """
    if "://" in second:
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # Another C library.
        return False
    a, b = (os.fsencode(path.rstrip("/")) for path in (first, second))
    if not renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), second)
