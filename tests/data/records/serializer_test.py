import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import features
from bert_tf.data.records import serializer


def make_batch(
    num_records: int,
    max_seq_length: int = 16,
    max_predictions_per_seq: int = 5,
    vocab_size: int = 30522,
) -> dict[str, np.ndarray]:
    """Returns records whose values differ everywhere, of unequal lengths."""
    rng = np.random.default_rng(num_records + vocab_size)
    lengths = rng.integers(3, max_seq_length + 1, num_records)[:, np.newaxis]
    predictions = rng.integers(1, max_predictions_per_seq + 1, num_records)
    places = np.arange(max_seq_length)
    weights = np.arange(max_predictions_per_seq) < predictions[:, np.newaxis]
    drawn = rng.integers(1, vocab_size, (num_records, max_seq_length))
    labels = rng.integers(1, vocab_size, weights.shape)
    positions = np.sort(rng.integers(1, max_seq_length, weights.shape), axis=1)
    return {
        "input_ids": (drawn * (places < lengths)).astype(np.int32),
        "input_mask": (places < lengths).astype(np.int32),
        "segment_ids": ((lengths // 2 <= places) & (places < lengths)).astype(
            np.int32
        ),
        "masked_lm_positions": (positions * weights).astype(np.int32),
        "masked_lm_ids": (labels * weights).astype(np.int32),
        "masked_lm_weights": weights.astype(np.float32) * 0.75,
        "next_sentence_labels": rng.integers(0, 2, (num_records, 1)),
    }


def serialize_with_tensorflow(batch: dict[str, np.ndarray], row: int) -> bytes:
    stored = {}
    for feature in features.PRETRAINING:
        values = batch[feature.name][row]
        if feature.stored_dtype == "int64":
            as_list = {"int64_list": tf.train.Int64List(value=values)}
        else:
            as_list = {"float_list": tf.train.FloatList(value=values)}
        stored[feature.name] = tf.train.Feature(**as_list)
    example = tf.train.Example(features=tf.train.Features(feature=stored))
    return example.SerializeToString(deterministic=True)


class ExampleSerializerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("ids_of_one_byte", 7, 16, 5, 100),
        ("ids_of_two_bytes", 7, 16, 5, 16000),
        ("ids_of_three_bytes", 40, 128, 20, 119547),
        ("ids_of_five_bytes", 3, 16, 5, 2**31 - 1),
        ("one_record", 1, 64, 10, 30522),
        ("positions_of_two_bytes", 3, 512, 77, 30522),
        ("long_records", 2, 20000, 3000, 30522),
        ("several_blocks", 1300, 16, 5, 300),
    )
    def test_bytes_equal_tensorflow(
        self, num_records, max_seq_length, max_predictions_per_seq, vocab_size
    ):
        batch = make_batch(
            num_records, max_seq_length, max_predictions_per_seq, vocab_size
        )
        path = f"{self.create_tempdir().full_path}/expected.tfrecord"
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(num_records):
                writer.write(serialize_with_tensorflow(batch, row))
        with open(path, "rb") as file:
            expected = file.read()

        self.assertEqual(serializer.serialize(batch), expected)

    @parameterized.parameters(200, 30522, 2**20, 2**31 - 1)
    def test_zeros_may_be_anywhere(self, vocab_size):
        batch = make_batch(9, vocab_size=vocab_size)
        batch["input_ids"] = batch["input_ids"].astype(np.int64)
        batch["input_ids"][:, 0] = vocab_size - 1
        batch["input_ids"][2, 1] = 0
        batch["masked_lm_ids"][:] = 0
        data = serializer.serialize(batch)
        begin = 12
        for row in range(9):
            expected = serialize_with_tensorflow(batch, row)
            self.assertEqual(data[begin : begin + len(expected)], expected)
            begin += len(expected) + 16
        self.assertLen(data, begin - 12)

    def test_negative_integers_are_rejected(self):
        batch = make_batch(2)
        batch["input_ids"][1, 3] = -4

        with self.assertRaisesRegex(ValueError, "must not be negative.*-4"):
            serializer.serialize(batch)

    @parameterized.parameters(1, 2, 4)
    def test_different_numbers_of_rows_are_rejected(self, num_rows):
        batch = make_batch(3)
        batch["input_mask"] = make_batch(4)["input_mask"][:num_rows]

        with self.assertRaisesRegex(ValueError, f"'input_mask': {num_rows}"):
            serializer.serialize(batch)


if __name__ == "__main__":
    tf.test.main()
