"""How many records each file holds, found once and checked.

The counts come from the manifest beside the files, from a cache of an earlier
count, or from a walk over the lengths in the file, which reads no record.
"""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.records import manifest
from bert_tf.data.records import tfrecords
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import progress


def known(
    record_files: Sequence[str], cache_file: str | None = None
) -> dict[str, FileCounts]:
    """Returns what manifests and the cache say that files held, by path.

    Files that neither knows are left out.
    """
    found = manifest.find(record_files)
    entries = found.files if found else {}
    if cache_file and tf.io.gfile.exists(cache_file):
        entries = files.read_json(cache_file) | entries
    return {
        path: FileCounts(entries[path]["records"], entries[path]["bytes"])
        for path in record_files
        if path in entries
    }


def count(
    record_files: Sequence[str],
    cache_file: str | None = None,
    keep: bool = True,
) -> np.ndarray:
    """Returns <int64>[num_files], the records of each file.

    Args:
      record_files: The files.
      cache_file: A JSON file that keeps the counts of files without a manifest,
        so that a run that continues need not count again.
      keep: Whether to write there what had to be counted.

    Raises:
      UserError: If a file is cut short or no record file.
    """
    found = manifest.find(record_files)
    described = found.files if found else {}
    cached = {}
    if cache_file and tf.io.gfile.exists(cache_file):
        cached = files.read_json(cache_file)
    counts = dict.fromkeys(record_files, 0)
    uncounted = {}
    for path in record_files:
        num_bytes = tf.io.gfile.stat(path).length
        entry = described.get(path) or cached.get(path)
        # Another size means another file: what is known of it is not true.
        if entry and entry["bytes"] == num_bytes:
            counts[path] = entry["records"]
        else:
            uncounted[path] = num_bytes
    counts |= _walk(uncounted)
    for path in described.keys() & uncounted.keys():
        raise UserError(
            f"{path} is not the file that {found.source} describes: that had "
            f"{described[path]['bytes']} bytes. Received: "
            f"{uncounted[path]} bytes; make the records again."
        )
    if cache_file and keep and uncounted:
        for path, num_bytes in uncounted.items():
            cached[path] = {"records": counts[path], "bytes": num_bytes}
        try:
            files.write_json(cache_file, cached)
        except (OSError, tf.errors.OpError) as error:
            # Without the cache the next run only counts again.
            logging.warning("%s could not be written: %s", cache_file, error)
    return np.array([counts[path] for path in record_files], np.int64)


def _walk(uncounted: Mapping[str, int]) -> dict[str, int]:
    """Counts the records of each file; the values are the files' bytes."""
    if not uncounted:
        return {}
    counts = {}
    with progress.bar(sum(uncounted.values()), "counting records", "B") as bar:
        for path, num_bytes in uncounted.items():
            counts[path] = tfrecords.count_records(path)
            bar.update(num_bytes)
    return counts
