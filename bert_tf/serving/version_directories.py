"""The versions of a model that lie on the disk."""

import os

# A version's number is what TensorFlow Serving takes for one: an int64.
_MAX_VERSION = 2**63 - 1


def find(base_path: str) -> dict[int, str]:
    """Returns the directories of a model by the number that is their name.

    Args:
      base_path: The folder that holds them.

    Raises:
      OSError: If it cannot be read.
    """
    found = {}
    with os.scandir(base_path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = entry.name
            if name.isascii() and name.isdigit() and entry.is_dir():
                if int(name) <= _MAX_VERSION:
                    found[int(name)] = entry.path
    return found


def fingerprint(directory: str) -> frozenset[tuple[str, int, int]]:
    """Returns what changes when something is written into a directory.

    A file that vanishes meanwhile is left out: the next look will differ.
    """
    found = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            found.add((path, status.st_size, status.st_mtime_ns))
    return frozenset(found)
