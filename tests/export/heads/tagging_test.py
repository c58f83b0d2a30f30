"""Tests for export.heads.tagging."""

import os
import random

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.errors import UserError
from bert_tf.export.heads.head import Source
from bert_tf.export.heads.tagging import Tagging
from bert_tf.flags.export import SavedModelConfig
from tests.support import every_head
from tests.support import tiny_exports
from tests.support import tiny_model

_TEXTS = (
    "the cat sat on the mat.",
    "",
    "The matting (東), the U.S. dog sat; @cat #dog ... mats!",
    " \t\u3000\n",
    "\u200b \u0301",  # Words without any token.
    "sat\u200b \u200b matting é\u0301 \U0001f642 كلب",
    "cat\x00dog [MASK] the\ufffdmat",
    " ".join(["matting"] * 3 + ["the 東 mat."] * 7),
)
_BUCKETS = (4, 8, 12)


def _write(folder, **values):
    task = tiny_exports.tagging(**values)
    weights = every_head.tagging_weights(task, tiny_model.ONE_LAYER)
    path = os.path.join(folder, "model")
    return tiny_model.write_task(path, task, weights)


def _build(path, max_seq_length=12, **flags):
    stored = formats.read(path)
    config = SavedModelConfig(model_dir=path, output_dir="x", **flags)
    return Tagging.build(Source(stored, config, max_seq_length, _BUCKETS))


def _serve(head, model):
    """Returns a function that runs `model` between `pack` and `answer`."""

    @tf.function(input_signature=[head.input_specs()], autograph=False)
    def serve(strings):
        rows = head.pack(strings)
        return head.answer(model(rows.inputs, training=False), rows)

    return lambda texts: serve({"text": tf.constant(texts, tf.string)})


def _describe(answers):
    """Returns the answers in the form of `predict`, without padding."""
    described = []
    for words, tags, starts, ends in zip(
        *(
            answers[name].numpy()
            for name in ("words", "tags", "starts", "ends")
        ),
        strict=True,
    ):
        count = np.sum(starts >= 0)
        padding = {*words[count:], *tags[count:]}, {*starts[count:]}
        assert padding[0] <= {b""} and padding[1] <= {-1}, padding
        described.append(
            {
                "words": [word.decode() for word in words[:count]],
                "tags": [tag.decode() for tag in tags[:count]],
                "offsets": np.stack([starts, ends], 1)[:count].tolist(),
            }
        )
    return described


def _random_texts(count):
    rng = random.Random(3)
    parts = (*tiny_model.TOKENS, *" \t.,;()@#", "ting", "\u0301", "\x00", "A.")
    return [
        "".join(rng.choices(parts, k=rng.randint(0, 40))) for _ in range(count)
    ]


class TaggingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("linear", {}),
        ("bilstm", {"head": "bilstm", "lstm_size": 5}),
        (
            "features",
            {
                "approach": "feature_based",
                "layer_combination": "weighted_sum_all_layers",
                "lstm_size": 4,
            },
        ),
        ("one_window", {"doc_stride": 0}),
    )
    def test_answers_are_those_of_predict(self, values):
        path = _write(self.create_tempdir().full_path, **values)
        model = bert_tf.load_model(path)
        serve = _serve(_build(path), model)
        texts = [*_TEXTS, *_random_texts(60)]
        expected = model.predict(texts)
        self.assertEqual(_describe(serve(texts)), expected)
        # Single texts make rows of other lengths, and one without words.
        for text, wanted in zip(_TEXTS[:5], expected, strict=False):
            self.assertEqual(_describe(serve([text])), [wanted])
        tags = [tag for row in expected for tag in row["tags"]]
        # Equal tags everywhere would hide errors.
        self.assertGreater(len(set(tags)), 2)

    @pytest.mark.slow
    def test_max_seq_length_overrides_that_of_the_model(self):
        folder = self.create_tempdir().full_path
        path = _write(folder)
        model = bert_tf.load_model(path)
        for flags in ({}, {"doc_stride": 3}):
            other = _write(f"{folder}/{len(flags)}", max_seq_length=7, **flags)
            answers = _serve(_build(path, 7, **flags), model)(_TEXTS)
            expected = bert_tf.load_model(other).predict(list(_TEXTS))
            self.assertEqual(_describe(answers), expected)

    @parameterized.parameters((0, 0), (3, 3), (None, 6))
    def test_settings_have_the_stride_of_the_task(self, stride, expected):
        path = self.create_tempdir().full_path
        values = {} if stride is None else {"doc_stride": stride}
        head = _build(_write(path, **values))
        self.assertEqual(head.settings(), {"doc_stride": expected})


class TaggingTextsTest(tf.test.TestCase):
    """Tests of one model on several texts."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = os.path.join(tf.compat.v1.test.get_temp_dir(), "tagging")
        cls.path = _write(folder)
        cls.model = bert_tf.load_model(cls.path)
        cls.head = _build(cls.path)
        cls.serve = staticmethod(_serve(cls.head, cls.model))

    def test_empty_batch_gives_empty_answers(self):
        answers = self.serve([])
        self.assertEqual({x.shape for x in answers.values()}, {(0, 0)})

    def test_ignores_invalid_utf8(self):
        texts = [b"the\xff cat\xe6\x9d on", b"\xe6\x9d\xb1\x80 mat", b"\xc0"]
        decoded = [text.decode("utf-8", "ignore") for text in texts]
        self.assertEqual(
            _describe(self.serve(texts)), self.model.predict(decoded)
        )

    def test_rows_have_the_shortest_bucket(self):
        for text, length in (("", 4), ("the cat", 4), ("the cat sat", 8)):
            rows = self.head.pack({"text": tf.constant([text])})
            self.assertEqual(rows.inputs["input_ids"].shape, [1, length])

    def test_rejects_windows_that_would_lose_tokens(self):
        with self.assertRaisesRegex(UserError, r"Received: 6 with .*=7\."):
            _build(self.path, 7, doc_stride=6)


if __name__ == "__main__":
    tf.test.main()
