"""Where a model is read and where another may be written."""

import os

from bert_tf.errors import UserError


def check(source: str, target: str, overwrite: bool) -> str:
    """Checks --input and --output before anything is read.

    Args:
      source: What --input names: a directory or the prefix of a checkpoint.
      target: What --output names: the directory to write.
      overwrite: Whether a directory that is there may be replaced.

    Returns:
      The directory to write, with links followed: what they point to is
      replaced, not the link.

    Raises:
      UserError: If a path is not local, if there is something at `target`
        that may not be replaced, or if that would touch `source`.
    """
    for flag, path in (("--input", source), ("--output", target)):
        if not path or "://" in path:
            raise UserError(
                f"{flag} must be a local path. Received: {path!r}; copy the "
                "files to a local disk first."
            )
    resolved = os.path.realpath(target)
    _check_apart(source, target, resolved)
    if not os.path.exists(resolved):
        return resolved
    if not os.path.isdir(resolved):
        raise UserError(
            f"--output must be a directory to write. Received: {target!r}, "
            "which is a file; choose another name."
        )
    if not overwrite:
        raise UserError(
            f"--output={target} is there already; choose another directory, or "
            "add --overwrite to replace it and everything in it."
        )
    for name, kept in (("working", os.getcwd()), ("home", "~")):
        if _contains(resolved, os.path.realpath(os.path.expanduser(kept))):
            raise UserError(
                f"--overwrite would replace --output={target}, in which your "
                f"{name} directory lies; choose another directory."
            )
    return resolved


def _check_apart(source: str, target: str, resolved: str) -> None:
    """Checks that writing `target` leaves `source` as it is."""
    read = os.path.realpath(source)
    if _contains(resolved, read):
        raise UserError(
            f"--output={target} is or contains --input={source}, which would "
            "be lost; choose another directory."
        )


def _contains(folder: str, path: str) -> bool:
    """Returns whether `path` is `folder` or lies in it; both resolved."""
    return os.path.commonpath([folder, path]) == folder
