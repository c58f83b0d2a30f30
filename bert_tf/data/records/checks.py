"""Record counts of files, and checks that find unreadable records."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.records import manifest
from bert_tf.data.records import tfrecords
from bert_tf.errors import UserError
from bert_tf.features import Feature
from bert_tf.io import files
from bert_tf.io import progress

Sizes = Mapping[Feature, int]


def parsing_spec(sizes: Sizes) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the features for `tf.io.parse_example`."""
    return {
        feature.name: tf.io.FixedLenFeature(
            [size], tf.dtypes.as_dtype(feature.stored_dtype)
        )
        for feature, size in sizes.items()
    }


def check_first_records(record_files: Sequence[str], sizes: Sizes) -> None:
    """Checks the first record of each file.

    Raises:
      UserError: If a feature is missing or has another length or type.
    """
    firsts = tf.data.Dataset.from_tensor_slices(list(record_files)).interleave(
        lambda path: (
            tf.data.TFRecordDataset(path)
            .take(1)
            .map(lambda record: (path, record))
        ),
        cycle_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    iterator = firsts.as_numpy_iterator()
    while True:
        try:
            path, record = next(iterator)
        except StopIteration:
            return
        except tf.errors.DataLossError as error:
            raise find_bad_record(record_files, sizes) or error from error
        problem = describe_mismatch(record, sizes)
        if problem:
            raise UserError(f"{path.decode()}, record 0: {problem}")


def describe_mismatch(record: bytes, sizes: Sizes) -> str | None:
    """Returns what is wrong with a serialized example, or None."""
    example = tf.train.Example()
    try:
        example.ParseFromString(record)
    except message.DecodeError:
        return "not a tf.train.Example."
    stored = example.features.feature
    for feature, size in sizes.items():
        if feature.name not in stored:
            return (
                f"the feature `{feature.name}` is missing. Received: "
                f"{', '.join(sorted(stored)) or 'none'}."
            )
        kind = "int64_list" if feature.stored_dtype == "int64" else "float_list"
        values = stored[feature.name]
        if values.WhichOneof("kind") != kind:
            return (
                f"`{feature.name}` must be of type {feature.stored_dtype}. "
                f"Received: {values.WhichOneof('kind')}."
            )
        received = len(getattr(values, kind).value)
        if received != size:
            flag = "" if size == 1 else f" (--{feature.length}={size})"
            return (
                f"`{feature.name}` must have {size} values{flag}. Received: "
                f"{received}; use the length that the data was made with, "
                "or create the data again."
            )
    return None


def find_bad_record(
    record_files: Sequence[str], sizes: Sizes
) -> UserError | None:
    """Reads all records and returns an error for the first unusable one."""
    total = sum(tf.io.gfile.stat(path).length for path in record_files)
    with progress.bar(total, "looking for a bad record", "B") as bar:
        for path in record_files:
            number, offset = 0, 0
            records = tf.data.TFRecordDataset(path).as_numpy_iterator()
            while True:
                try:
                    record = next(records)
                except StopIteration:
                    break
                except tf.errors.DataLossError:
                    return UserError(
                        f"{path} is corrupt: record {number}, at byte "
                        f"{offset}, cannot be read; copy or create the file "
                        "again, or skip such records with "
                        "--max_corrupt_records."
                    )
                problem = describe_mismatch(record, sizes)
                if problem:
                    return UserError(
                        f"{path}, record {number} at byte {offset}: {problem}"
                    )
                # A record has 16 bytes of lengths and checksums around it.
                number, size = number + 1, len(record) + 16
                offset += size
                bar.update(size)
    return None


def stored_counts(
    record_files: Sequence[str], cache_file: str | None = None
) -> dict[str, FileCounts]:
    """Returns the counts in manifests and the cache, by path.

    Files without a stored count are left out.
    """
    described = manifest.find(record_files)
    entries = described.files if described else {}
    if cache_file and tf.io.gfile.exists(cache_file):
        entries = files.read_json(cache_file) | entries
    return {
        path: FileCounts(entries[path]["records"], entries[path]["bytes"])
        for path in record_files
        if path in entries
    }


def count_records(
    record_files: Sequence[str],
    cache_file: str | None = None,
    keep: bool = True,
) -> np.ndarray:
    """Returns the number of records in each file, <int64>[num_files].

    The counts come from the manifests, from a cache of an earlier count, or
    from the record lengths in the file, without reading the records.

    Args:
      record_files: The files.
      cache_file: A JSON file that stores the counts of files without a
        manifest, so that a resumed run need not count again.
      keep: Whether to write new counts to the cache.

    Raises:
      UserError: If a file is truncated or not a record file.
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
        # Another size means another file: its stored count is invalid.
        if entry and entry["bytes"] == num_bytes:
            counts[path] = entry["records"]
        else:
            uncounted[path] = num_bytes
    counts |= _walk(uncounted)
    for path in described.keys() & uncounted.keys():
        raise UserError(
            f"{path} is not the file that {found.source} describes, which had "
            f"{described[path]['bytes']} bytes. Received: "
            f"{uncounted[path]} bytes; create the records again."
        )
    if cache_file and keep and uncounted:
        for path, num_bytes in uncounted.items():
            cached[path] = {"records": counts[path], "bytes": num_bytes}
        try:
            files.write_json(cache_file, cached)
        except (OSError, tf.errors.OpError) as error:
            # Without the cache, the next run counts again.
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
