"""Tests for bert_tf.inference.fill_mask and run/fill_mask.py."""

import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.errors import UserError
from bert_tf.inference import fill_mask
from tests.support import scripts
from tests.support import tiny_model
from tests.support.repository import ROOT


def _expected(model, tokens, places):
    """Returns probabilities for each position, from all logits."""
    ids = [tiny_model.TOKENS.index(token) for token in tokens.split()]
    logits = model({"input_ids": np.array([ids])})["masked_lm_logits"]
    logits = np.float64(logits[0])[places]
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    return probs / probs.sum(-1, keepdims=True)


class FillMaskTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.path = tiny_model.write(f"{folder}/model")
        cls.filler = fill_mask.FillMask(cls.path)
        cls.model = checkpoint_loading.build_model(
            model_directory.read_model(cls.path)
        )

    def test_probabilities_equal_the_models_softmax(self):
        texts = ["The [MASK] sat[MASK]on the mats.", "[MASK]."]
        found = self.filler(texts, top_k=16)
        expected = [
            _expected(
                self.model,
                "[CLS] the [MASK] sat [MASK] on the mat ##s . [SEP]",
                [2, 4],
            ),
            # This text is shorter than the other one, so it is padded.
            _expected(self.model, "[CLS] [MASK] . [SEP]", [1]),
        ]
        self.assertEqual([len(masks) for masks in found], [2, 1])
        for masks, probs in zip(found, expected, strict=True):
            for candidates, row in zip(masks, probs, strict=True):
                order = np.argsort(-row)
                self.assertEqual([c.token_id for c in candidates], list(order))
                self.assertEqual(
                    [c.token for c in candidates],
                    [tiny_model.TOKENS[i] for i in order],
                )
                self.assertAllClose(
                    [c.probability for c in candidates], row[order]
                )

    def test_many_texts_stay_in_order(self):
        texts = ["the [MASK]" + " cat" * (n % 5) for n in range(70)]
        found = self.filler(texts, top_k=1)
        self.assertLen(found, 70)
        for number in (0, 31, 32, 69):
            (alone,) = self.filler([texts[number]], top_k=1)
            self.assertEqual(found[number][0][0].token, alone[0][0].token)

    @parameterized.parameters(
        ("the mask", "must contain at least one .MASK."),
        ("the [mask]", "must contain at least one .MASK."),
        ("cats " * 5 + "[MASK]", "at most 12 tokens.* Received: 13"),
    )
    def test_rejects_texts_it_cannot_fill(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self.filler([text])

    def test_rejects_more_candidates_than_tokens(self):
        with self.assertRaisesRegex(UserError, "between 1 and .* 16"):
            self.filler(["[MASK]"], top_k=17)

    def test_rejects_models_that_cannot_fill(self):
        folder = self.create_tempdir().full_path
        blind = tiny_model.write(f"{folder}/blind", with_vocabulary=False)
        with self.assertRaisesRegex(UserError, "has no vocab.txt"):
            fill_mask.FillMask(blind)
        other = tiny_model.write(f"{folder}/other", kind="encoder")
        with self.assertRaisesRegex(UserError, "kind='encoder'"):
            fill_mask.FillMask(other)
        with self.assertRaisesRegex(UserError, "Expected a model directory"):
            fill_mask.FillMask(folder)

    def test_output_is_aligned_and_shows_the_text(self):
        masks = [
            [
                fill_mask.Candidate("cat", 6, 0.9123),
                fill_mask.Candidate("東", 15, 0.05),
            ],
            [fill_mask.Candidate("##s", 11, 1.0)],
        ]
        self.assertEqual(
            fill_mask.render("The [MASK] mat [MASK].", masks).split("\n"),
            [
                "[MASK] 1 of 2",
                " 91.23%  cat  The cat mat [MASK].",
                "  5.00%  東   The 東 mat [MASK].",
                "[MASK] 2 of 2",
                "100.00%  ##s  The [MASK] mats.",
                "",
            ],
        )

    @pytest.mark.slow
    def test_script_writes_the_candidates(self):
        command = [
            "run/fill_mask.py",
            f"--model_dir={self.path}",
            "--text=the [MASK]",
            "--top_k=2",
        ]
        (done,) = scripts.run((command, ROOT))
        (((first, second),),) = self.filler(["the [MASK]"], top_k=2)
        self.assertEqual(done.status, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertLen(lines, 2)
        self.assertIn(f"{first.probability:.2%}  {first.token}", lines[0])
        self.assertIn(f"{second.probability:.2%}  {second.token}", lines[1])


if __name__ == "__main__":
    tf.test.main()
