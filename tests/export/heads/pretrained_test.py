"""Tests for export.heads.pretrained."""

import dataclasses
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.export.heads.pretrained import Embeddings
from bert_tf.export.heads.pretrained import FillMask
from bert_tf.flags.export import SavedModelConfig
from bert_tf.inference import fill_mask
from tests.support import tiny_exports
from tests.support import tiny_model

_LENGTHS = [1, 4, 6]
_TOP_K = 4
_BUCKETS = (5, 8, 12)
_TEXTS = (
    "The [MASK] sat[MASK]on the mats.",
    "[MASK]",
    "[SEP] [CLS][MASK] [mask]",  # Only [MASK] is special.
    "\U0001f642 caf\u00e9 \u6771[MASK]\u200b [MASK][MASK]",
    "dog [MASK] \u03a3[MASK]\u03a3",
)


def _build(path, max_seq_length=12, top_k=_TOP_K):
    config = SavedModelConfig(model_dir=path, output_dir="x", top_k=top_k)
    buckets = tuple(x for x in _BUCKETS if x < max_seq_length)
    return FillMask.build(
        Source(
            formats.read(path),
            config,
            max_seq_length,
            (*buckets, max_seq_length),
        )
    )


def _pack(head, *texts):
    return head.pack({"text": tf.constant(texts, tf.string)})


class FillMaskTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(
            os.path.join(
                cls.enterClassContext(tempfile.TemporaryDirectory()), "model"
            )
        )

    def _compare(self, outputs, expected):
        """Compares with candidates, text by text and [MASK] by [MASK]."""
        tokens = outputs["tokens"].numpy()
        probs = outputs["probabilities"].numpy()
        most = max(map(len, expected))
        self.assertEqual(tokens.shape, (len(expected), most, _TOP_K))
        self.assertEqual(probs.shape, tokens.shape)
        for row, masks in enumerate(expected):
            for place, candidates in enumerate(masks):
                self.assertEqual(
                    [token.decode() for token in tokens[row, place]],
                    [one.token for one in candidates],
                )
                self.assertAllClose(
                    probs[row, place],
                    [one.probability for one in candidates],
                    rtol=0,
                    atol=1e-5,
                )
            self.assertFalse(any(tokens[row, len(masks) :].ravel()))
            self.assertFalse(probs[row, len(masks) :].any())

    @pytest.mark.slow
    def test_saved_model_predicts_like_the_library(self):
        folder = self.create_tempdir().full_path
        version = tiny_exports.export(
            self.path, os.path.join(folder, "served"), top_k=_TOP_K
        )
        loaded = tf.saved_model.load(version)
        serve = loaded.signatures["serving_default"]
        expected = fill_mask.FillMask(self.path)(_TEXTS, _TOP_K)
        self.assertEqual([len(x) for x in expected], [2, 1, 1, 3, 2])
        outputs = serve(text=tf.constant(_TEXTS))
        self._compare(outputs, expected)
        self.assertGreater(len({*outputs["tokens"].numpy().ravel()}), _TOP_K)
        for text, masks in zip(_TEXTS, expected, strict=True):
            self._compare(serve(text=tf.constant([text])), [masks])
        # Texts without [MASK] have no candidates, in batches and alone.
        texts = ["cat", _TEXTS[0], ""]
        self._compare(serve(text=tf.constant(texts)), [[], expected[0], []])
        for texts in ([], [""], ["the mask", ""]):
            outputs = serve(text=tf.constant(texts, tf.string))
            for values in outputs.values():
                self.assertEqual(values.shape, [len(texts), 0, _TOP_K])

        inputs = _pack(_build(self.path), *_TEXTS).inputs
        names = ("input_ids", "input_mask", "segment_ids")
        outputs = loaded.signatures["from_ids"](
            **{name: inputs[name] for name in names}
        )
        self._compare(outputs, expected)
        ids = outputs["token_ids"].numpy()
        vocabulary = np.array([*tiny_model.TOKENS, ""]).astype(object)
        self.assertAllEqual(
            vocabulary[ids], outputs["tokens"].numpy().astype(str)
        )

    def test_ignores_masks_in_padding(self):
        head = _build(self.path)
        rows = head.ids_rows(
            {
                "input_ids": tf.constant([[2, 4, 3, 4], [2, 6, 4, 3]]),
                "input_mask": tf.constant([[1, 1, 1, 0], [1, 1, 1, 1]]),
                "segment_ids": tf.zeros([2, 4], tf.int32),
            }
        )
        self.assertAllEqual(rows.inputs["masked_lm_positions"], [[1], [2]])

    def test_truncates_masks_beyond_the_maximum_length(self):
        head = _build(self.path, max_seq_length=6)
        rows = _pack(head, "cat [MASK] the [MASK] on [MASK]", "dog")
        self.assertEqual(rows.inputs["input_ids"].shape, [2, 6])
        self.assertAllEqual(
            rows.inputs["masked_lm_positions"], [[2, 4], [0, 0]]
        )

    def test_parts_return_the_same_as_one_call(self):
        head = _build(self.path)
        model = checkpoint_loading.build_model(formats.read(self.path))
        rows = _pack(head, *_TEXTS)
        expected = head.answer(model(rows.inputs), rows)
        outputs = serving_module.compute(model, rows.inputs, 2, head.condense)
        # An axis as long as the vocabulary would take too much memory.
        for values in outputs.values():
            self.assertEqual(values.shape, [len(_TEXTS), 3, _TOP_K])
        received = head.answer(outputs, rows)
        self.assertAllEqual(received["tokens"], expected["tokens"])
        self.assertAllClose(
            received["probabilities"], expected["probabilities"], atol=1e-6
        )

    def test_tokenize_returns_the_tokens_of_the_model(self):
        head = _build(self.path)
        texts = [*_TEXTS, "", "cat", "[MASK][MASK]"]
        ids, starts, ends = head.tokenize_with_offsets(tf.constant(texts))
        packed = _pack(_build(self.path, 40), *texts).inputs["input_ids"]
        mask_id = tiny_model.TOKENS.index("[MASK]")
        for row, text in enumerate(texts):
            tokens = ids[row].numpy().tolist()
            self.assertEqual(
                [x for x in packed[row].numpy().tolist() if x], [2, *tokens, 3]
            )
            places = zip(starts[row].numpy(), ends[row].numpy(), strict=True)
            spans = [text.encode()[start:end] for start, end in places]
            is_mask = [span == b"[MASK]" for span in spans]
            self.assertEqual(is_mask, [x == mask_id for x in tokens])
            self.assertEqual(sum(is_mask), text.count("[MASK]"))
        # Offsets count bytes, so multi-byte characters must move them.
        self.assertAllEqual(starts[3][-1], len(texts[3].encode()) - 6)
        self.assertAllEqual(ids[-1], [mask_id, mask_id])
        self.assertAllEqual(starts[-1], [0, 6])
        self.assertAllEqual(ends[-1], [6, 12])

    def test_rejects_more_candidates_than_tokens(self):
        with self.assertRaisesRegex(UserError, "at most .* 16. Received: 17"):
            _build(self.path, top_k=17)


def _build_embeddings(pooling, layer, normalize=False, **changes):
    return Embeddings(
        tiny_model.tokenizer(),
        12,
        (12,),
        dataclasses.replace(tiny_model.CONFIG, **changes),
        pooling,
        layer,
        normalize,
    )


class EmbeddingsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(5)
        self.states = rng.normal(size=[3, 6, 16]).astype(np.float32) - 2
        self.rows = Rows(
            {"input_mask": tf.sequence_mask(_LENGTHS, 6, tf.int32)}
        )

    @parameterized.product(
        pooling=("mean", "max", "cls", "mean_sqrt_len", "max+cls", "last"),
        normalize=(False, True),
    )
    def test_pooling_ignores_padding(self, pooling, normalize):
        changes = {}
        if pooling == "last":
            pooling, changes = "cls", {"left_to_right": True}
        head = _build_embeddings(pooling, -1, normalize, **changes)
        outputs = {"sequence_output": tf.constant(self.states)}
        pools = {
            "mean": lambda x: x.mean(0),
            "max": lambda x: x.max(0),
            "cls": lambda x: x[-1 if changes else 0],
            "mean_sqrt_len": lambda x: x.sum(0) / len(x) ** 0.5,
        }
        expected = np.stack(
            [
                np.concatenate([pools[x](row[:n]) for x in pooling.split("+")])
                for row, n in zip(self.states, _LENGTHS, strict=True)
            ]
        )
        if normalize:
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        for answer in (
            head.answer(outputs, self.rows),
            head.answer_ids(outputs, self.rows),
        ):
            self.assertEqual(list(answer), ["embedding"])
            self.assertAllClose(answer["embedding"], expected, atol=1e-6)

    def test_rows_of_padding_return_finite_numbers(self):
        rows = Rows({"input_mask": tf.zeros([3, 6], tf.int32)})
        outputs = {"sequence_output": tf.constant(self.states)}
        for pooling in ("mean", "max", "cls"):
            for normalize in (False, True):
                head = _build_embeddings(pooling, -1, normalize)
                answer = head.answer_ids(outputs, rows)
                self.assertTrue(np.isfinite(answer["embedding"]).all())

    def test_rejects_other_poolings(self):
        with self.assertRaisesRegex(UserError, "cls, max.*'mean.Dense'"):
            _build_embeddings("mean+Dense", -1)

    @parameterized.parameters((0, 1), (1, 2), (-1, 2), (-2, 1))
    def test_leaves_out_layers_above_the_chosen_one(self, layer, count):
        values = _build_embeddings("mean", layer).model_values
        self.assertEqual(values["config"]["num_hidden_layers"], count)

    @parameterized.parameters(2, -3)
    def test_rejects_a_missing_layer(self, layer):
        with self.assertRaisesRegex(UserError, f"between -2 and 1.* {layer}"):
            _build_embeddings("mean", layer)

    def test_half_precision_returns_float32(self):
        states = tf.constant(self.states, tf.bfloat16)
        answer = _build_embeddings("mean", -1).answer(
            {"sequence_output": states}, self.rows
        )
        self.assertEqual(answer["embedding"].dtype, tf.float32)


if __name__ == "__main__":
    tf.test.main()
