"""Finds records that cannot be read and says where they are."""

from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf
from google.protobuf import message

from bert_tf.errors import UserError
from bert_tf.features import Feature
from bert_tf.io import progress

Sizes = Mapping[Feature, int]


def parsing_spec(sizes: Sizes) -> dict[str, tf.io.FixedLenFeature]:
    """Returns what `tf.io.parse_example` has to know of the features."""
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
            found = find_bad_record(record_files, sizes)
            raise found or error from error
        problem = describe_mismatch(record, sizes)
        if problem:
            raise UserError(f"{path.decode()}, record 0: {problem}")


def describe_mismatch(record: bytes, sizes: Sizes) -> str | None:
    """Says what is wrong with a serialized example, or returns None."""
    example = tf.train.Example()
    try:
        example.ParseFromString(record)
    except message.DecodeError:
        return "this is no tf.train.Example."
    stored = example.features.feature
    for feature, size in sizes.items():
        if feature.name not in stored:
            return (
                f"the feature `{feature.name}` is missing. It holds: "
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
                f"{received}; give the length that the data was made with, "
                "or make the data again."
            )
    return None


def find_bad_record(
    record_files: Sequence[str], sizes: Sizes
) -> UserError | None:
    """Reads all records and describes the first one that cannot be used."""
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
                        f"{offset}, cannot be read; copy or make it again, or "
                        "leave such records out with --max_corrupt_records."
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
