"""Tests for bert_tf.tasks.tagging.features."""

import itertools

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks.tagging import features as tagging_features
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

# Ids from 5: the letters, then the letters as continuations.
_LETTERS = "abcdefgh"
_TOKENIZER = BertTokenizer(
    Vocabulary(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        + list(_LETTERS)
        + [f"##{letter}" for letter in _LETTERS]
    )
)
_CLS, _SEP, _UNK = 2, 3, 1
_LABELS = ["O", "B-x", "I-x"]
_EXAMPLES = (
    TaggingExample(("ab", "\u200b", "C", "dz"), ("B-x", "I-x", "I-x", "O"), 0),
    TaggingExample(("e", "fgh"), ("O", "B-x"), 0),
    TaggingExample(("h",), ("B-y",), 1),
)


def _convert(examples, max_seq_length=10, **kwargs):
    return tagging_features.convert_examples_to_features(
        examples, _TOKENIZER, max_seq_length, **kwargs
    )


def _decode(features, tag_ids, labels):
    task = TaggingTask(name="tagging", labels=tuple(labels))
    outputs = {"tag_ids": tag_ids}
    return task.predict((), features, outputs, _TOKENIZER)


def _windows(features):
    """Returns the tokens of each window as text."""
    vocabulary = _TOKENIZER.vocabulary.tokens
    return [
        " ".join(vocabulary[x] for x in features.input_ids[a:b][1:-1])
        for a, b in itertools.pairwise(features.row_splits)
    ]


class FeaturesTest(tf.test.TestCase):
    def test_sentences_become_rows_of_tokens(self):
        with self.assertLogs(level="WARNING") as logs:
            features = _convert(
                _EXAMPLES, labels=_LABELS, context="sentence", doc_stride=1
            )
        self.assertLen(logs.output, 1)
        self.assertIn("1 of 7 words have only characters", logs.output[0])
        batch = features.batch(np.array([1, 0, 2]), 7)
        a, h = 5, 12
        self.assertAllEqual(
            batch["input_ids"],
            [
                [_CLS, a + 4, a + 5, h + 7, h + 8, _SEP, 0],
                [_CLS, a, h + 2, a + 2, _UNK, _SEP, 0],
                [_CLS, h, _SEP, 0, 0, 0, 0],
            ],
        )
        self.assertAllEqual(
            batch["input_mask"], [[1] * 6 + [0]] * 2 + [[1] * 3 + [0] * 4]
        )
        self.assertAllEqual(batch["segment_ids"], np.zeros([3, 7]))
        self.assertAllEqual(
            batch["label_ids"],
            [[0, 0, 1, 0, 0, 0, 0], [0, 1, 0, 2, 0, 0, 0], [0] * 7],
        )
        # The tag of "h" is not a label, so its weight is 0.
        self.assertAllEqual(
            batch["label_weights"],
            [[0, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0, 0], [0] * 7],
        )
        for name, dtype in (("input_ids", "i4"), ("label_weights", "f4")):
            self.assertEqual(batch[name].dtype, np.dtype(dtype))
        self.assertLen(features, 3)
        self.assertAllEqual(features.lengths, [6, 6, 3])

    def test_truncation_is_counted(self):
        examples = [TaggingExample(tuple("abcde"), ("O",) * 5)]
        examples += _EXAMPLES[2:]
        with self.assertLogs(level="WARNING") as logs:
            features = _convert(
                examples, 5, labels=_LABELS, context="sentence", doc_stride=None
            )
        self.assertIn("2 of 6 words are behind --max", logs.output[0])
        self.assertEqual(_windows(features), ["a b c", "h"])
        tags = _decode(features, [np.ones(5, int)] * 2, _LABELS)
        self.assertEqual(tags, [("B-x",) * 3 + ("O", "O"), ("B-x",)])

    def test_every_label_is_learned_once(self):
        rng = np.random.default_rng(3)
        examples = [
            TaggingExample(
                tuple(
                    "".join(rng.choice(list(_LETTERS), rng.integers(1, 7)))
                    for _ in range(size)
                ),
                tuple(rng.choice(_LABELS, size).tolist()),
                document=number // 4,
            )
            for number, size in enumerate(rng.integers(1, 20, 30))
        ]
        for context in ("document", "sentence"):
            for length, stride in ((3, 1), (9, 3), (16, 14), (64, 20)):
                features = _convert(
                    examples,
                    length,
                    labels=_LABELS,
                    context=context,
                    doc_stride=stride,
                )
                self.assertLessEqual(features.lengths.max(), length)
                batch = features.batch(np.arange(len(features)), length)
                self.assertEqual(
                    batch["label_weights"].sum(),
                    sum(len(example.words) for example in examples),
                )
                tags = _decode(features, batch["label_ids"], _LABELS)
                self.assertEqual(tags, [example.tags for example in examples])

    def test_words_without_tokens_are_tagged_O(self):
        features = _convert(
            [TaggingExample(("\u200b",), ("B-x",))], doc_stride=1
        )
        self.assertLen(features, 0)
        self.assertEqual(_decode(features, [], _LABELS), [("O",)])
        self.assertLen(_convert([], doc_stride=1), 0)

    def test_rejects_lengths_without_room(self):
        with self.assertRaisesRegex(UserError, "must be at least 3.*: 2"):
            _convert(_EXAMPLES, max_seq_length=2, doc_stride=1)


if __name__ == "__main__":
    tf.test.main()
