"""Small record files for tests; every value of every record differs."""

import numpy as np
import tensorflow as tf

from bert_tf.features import PRETRAINING


def make_features(number, max_seq_length=8, max_predictions_per_seq=3):
    """Returns the features of record `number`, name to array."""
    rng = np.random.default_rng(number)
    length = int(rng.integers(5, max_seq_length + 1))
    width = max_predictions_per_seq
    predictions = int(rng.integers(1, width + 1))
    is_token = np.arange(max_seq_length) < length
    is_prediction = np.arange(width) < predictions
    positions = np.sort(rng.permutation(length)[:width])
    return {
        # The first id identifies the record.
        "input_ids": np.where(
            np.arange(max_seq_length) == 0,
            number,
            rng.integers(5, 30, max_seq_length) * is_token,
        ),
        "input_mask": is_token.astype(np.int64),
        "segment_ids": (np.arange(max_seq_length) >= 3) * is_token,
        "masked_lm_positions": positions * is_prediction,
        "masked_lm_ids": rng.integers(5, 30, width) * is_prediction,
        "masked_lm_weights": is_prediction.astype(np.float32),
        "next_sentence_labels": np.array([number % 2]),
    }


def serialize(values):
    """Returns the `tf.train.Example` of a record's features."""
    stored = {}
    for name, array in values.items():
        if array.dtype.kind == "f":
            feature = tf.train.Feature(
                float_list=tf.train.FloatList(value=array)
            )
        else:
            feature = tf.train.Feature(
                int64_list=tf.train.Int64List(value=array.astype(np.int64))
            )
        stored[name] = feature
    example = tf.train.Example(features=tf.train.Features(feature=stored))
    return example.SerializeToString()


def write(path, numbers, **lengths):
    """Writes one record per number; returns the path."""
    with tf.io.TFRecordWriter(path) as writer:
        for number in numbers:
            writer.write(serialize(make_features(number, **lengths)))
    return path


def read(path):
    """Returns the features of all records of a file, stacked."""
    features = {x.name: [] for x in PRETRAINING}
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        stored = tf.train.Example.FromString(record).features.feature
        for x in PRETRAINING:
            kind = {"int64": "int64_list", "float32": "float_list"}
            values = getattr(stored[x.name], kind[x.stored_dtype]).value
            features[x.name].append(np.array(values, x.stored_dtype))
    return {x: np.stack(rows) for x, rows in features.items() if rows}


def damage(path, number):
    """Flips a bit of a record's contents; returns the record's offset."""
    with open(path, "r+b") as file:
        offset = 0
        for _ in range(number):
            # A length of 8 bytes and two checksums of 4 bytes add 16.
            file.seek(offset)
            offset += int.from_bytes(file.read(8), "little") + 16
        file.seek(offset + 40)
        (byte,) = file.read(1)
        file.seek(offset + 40)
        file.write(bytes([byte ^ 1]))
    return offset
