"""Tests for export.examples."""

import tensorflow as tf

from bert_tf.export import examples


def _example(**features):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(
                    bytes_list=tf.train.BytesList(
                        value=[value.encode() for value in values]
                    )
                )
                for name, values in features.items()
            }
        )
    ).SerializeToString()


_SPECS = {
    "text": tf.TensorSpec([None], tf.string),
    "choices": tf.TensorSpec([None, None], tf.string),
}


class ExamplesTest(tf.test.TestCase):
    def test_returns_the_features_in_the_specs(self):
        serialized = [
            _example(text=["ümlaut"], choices=["a", "b", "c"], other=["x"]),
            _example(choices=[], text=[""]),
            _example(text=["東"], choices=["d"]),
        ]
        parse = tf.function(
            lambda x: examples.parse(x, _SPECS),
            input_signature=[examples.spec("inputs")],
        )
        parsed = parse(tf.constant(serialized))
        self.assertEqual(set(parsed), {"text", "choices"})
        self.assertAllEqual(
            parsed["text"], ["ümlaut".encode(), b"", "東".encode()]
        )
        self.assertAllEqual(
            parsed["choices"],
            [[b"a", b"b", b"c"], [b"", b"", b""], [b"d", b"", b""]],
        )
        empty = parse(tf.zeros([0], tf.string))
        self.assertEqual(empty["text"].shape, [0])
        self.assertEqual(empty["choices"].shape, [0, 0])

    def test_an_example_without_text_fails(self):
        for wrong in ([_example(choices=["a"])], [b"no example"]):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                examples.parse(tf.constant(wrong), _SPECS)


if __name__ == "__main__":
    tf.test.main()
