"""The repository's root and its files."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def files(*suffixes):
    """Yields the repository's files, relative to its root."""
    for folder, subfolders, names in os.walk(ROOT):
        folder = pathlib.Path(folder).relative_to(ROOT)
        subfolders[:] = [
            name
            for name in subfolders
            if not (name.startswith(".") or name.startswith("bazel-"))
            and str(folder / name) not in ("build", "data", "dist", "output")
        ]
        for name in names:
            if name.endswith(suffixes):
                yield folder / name
