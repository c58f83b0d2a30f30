"""Tests for models whose tables have rows without a token, in every format."""

import dataclasses
import os
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import extend_vocabulary
from bert_tf.checkpoints import formats
from bert_tf.checkpoints.extend_vocabulary import NewTokens
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import original
from bert_tf.export.heads.pretrained import FillMask as FillMaskHead
from bert_tf.inference.fill_mask import FillMask
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import stored_models
from tests.support import tiny_model

_COUNT = len(tiny_model.TOKENS)
# The first "cat" and the empty line have no token, nor do three more rows.
_TOKENS = (*tiny_model.TOKENS, "", "cat")
_CAT, _NEW_CAT = tiny_model.TOKENS.index("cat"), _COUNT + 1
_WITHOUT_TOKEN = {_CAT, *range(_COUNT, _COUNT + 5)} - {_NEW_CAT}


def _stored():
    return stored_models.build(tokens=_TOKENS, vocab_size=_COUNT + 5)


class VocabularyRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("bert_tf",),
        ("tf1",),
        ("huggingface",),
        ("huggingface", "vocab.txt"),
        ("model_garden",),
    )
    def test_every_format_keeps_the_rows(self, target, removed=None):
        stored = _stored()
        path = self.create_tempdir().full_path
        formats.module_of(target).write_model(path, stored)
        if removed:
            os.remove(os.path.join(path, removed))
        read = formats.read(path)
        self.assertEqual(read.config.vocab_size, _COUNT + 5)
        for name in stored.weights:
            self.assertAllEqual(read.weights[name], stored.weights[name])
        ids = read.build_tokenizer().tokenize("The cat sat.")
        self.assertAllEqual(ids, [5, _NEW_CAT, 8, 13])
        if not removed:
            self.assertEqual(read.vocabulary.tokens, _TOKENS)

    def test_no_text_becomes_a_row_without_a_token(self):
        tokenizer = BertTokenizer(Vocabulary(_TOKENS))
        texts = ["cat \U0002ceaa16 \U0002ceaa", "cats \x00 ", "", " "]
        for one in (tokenizer, LiteTokenizer(tokenizer)):
            ids = one.tokenize(texts)
            self.assertEqual(ids[0, 0], _NEW_CAT)
            self.assertFalse(_WITHOUT_TOKEN & set(ids.flat_values.numpy()))

    def test_masks_are_filled_with_tokens(self):
        path = self.create_tempdir().full_path
        formats.module_of("bert_tf").write_model(path, _stored())
        count = _COUNT
        ((found,),) = FillMask(path)(["the [MASK] sat"], top_k=count)
        ids = [candidate.token_id for candidate in found]
        self.assertEqual(set(ids), set(range(_COUNT + 5)) - _WITHOUT_TOKEN)
        with self.assertRaisesRegex(ValueError, f"vocabulary, {count}"):
            FillMask(path)(["the [MASK] sat"], top_k=count + 1)
        head = FillMaskHead(BertTokenizer(Vocabulary(_TOKENS)), 8, (8,), count)
        logits = np.arange(_COUNT + 5, dtype=np.float32)[None, None]
        best = head.condense({"masked_lm_logits": logits})
        self.assertAllEqual(
            [x for x in reversed(range(_COUNT + 5)) if x not in _WITHOUT_TOKEN],
            best["best_ids"][0, 0],
        )

    def test_random_replacements_are_tokens(self):
        vocabulary = Vocabulary(_TOKENS)
        masking = dataclasses.replace(
            DynamicMasking.from_vocabulary(vocabulary, 0.15),
            mask_rate=0.0,
            same_rate=0.0,
        )
        drawn = masking._replace(
            tf.zeros([500, 2], tf.int32),
            tf.tile([[1, 2]], [500, 1]),
            tf.range(500, dtype=tf.int64),
            seed=1,
        )
        self.assertEqual(set(drawn.numpy().ravel()), set(vocabulary.token_ids))
        config = CreatePretrainingDataConfig(
            input_file="", output_file="", vocab_file=""
        )
        generator = original._Masker(config, BertTokenizer(vocabulary))
        rng = random.Random(2)
        drawn = {generator._replacement(7, rng) for _ in range(5000)}
        self.assertEqual(drawn, set(vocabulary.token_ids))

    def test_new_words_follow_the_table(self):
        stored = _stored()
        new = NewTokens("words", {"mats": (10, 11)})
        extended = extend_vocabulary.extend(stored, new).model
        self.assertEqual(extended.vocabulary.id("mats"), _COUNT + 5)
        self.assertEqual(extended.vocabulary.id("cat"), _NEW_CAT)
        self.assertEqual(extended.config.vocab_size, _COUNT + 6)


if __name__ == "__main__":
    tf.test.main()
