"""Tests for bert_tf.checkpoints.stored_model."""

import dataclasses

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import stored_models
from tests.support.shared_data import golden


class StoredModelTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (True, ("cat", "##s", "[unused7]", "[Name]", "<S>", "\u211d", "東")),
        (False, ("cat", "Cat")),
        (False, ("cat", "##S")),
        (False, ("über", "Über")),
    )
    def test_lower_case_follows_the_vocabulary(self, expected, tokens):
        vocabulary = Vocabulary(SPECIAL_TOKENS + tokens)
        self.assertIs(stored_model.derive_lower_case(vocabulary), expected)

    @parameterized.parameters(
        ("uncased", True),
        ("chinese", True),
        ("cased", False),
        ("multilingual-cased", False),
    )
    def test_released_vocabularies_have_their_case(self, name, expected):
        path = golden(f"vocab/bert-base-{name}-vocab.txt")
        vocabulary = Vocabulary.from_file(path)
        self.assertIs(stored_model.derive_lower_case(vocabulary), expected)

    @parameterized.parameters(
        (1, True), (49, True), (50, False), (100, False), (101, False)
    )
    def test_share_of_capitals_determines_lower_case(self, count, expected):
        words = [f"{'wÄ'[i < count]}{i}" for i in range(1000)]
        vocabulary = Vocabulary((*SPECIAL_TOKENS, "[unused1]", *words))
        with self.assertLogs() as logs:
            logging.info("Nothing else.")
            lower_case = stored_model.derive_lower_case(vocabulary)
        self.assertIs(lower_case, expected)
        is_doubtful = 50 <= count <= 100
        self.assertEqual("--do_lower_case" in str(logs.output), is_doubtful)

    def test_fingerprint_depends_on_all_parts(self):
        stored = stored_models.build("classification")
        weights = {name: stored.weights[name] for name in stored.weights}
        weights["output_bias"] = weights["output_bias"] + np.float32(1e-6)
        words = Vocabulary(stored.vocabulary.tokens[::-1])
        changes = [
            {"config": dataclasses.replace(stored.config, hidden_act="relu")},
            {"weights": Tensors.from_arrays(weights)},
            {"vocabulary": words},
            {"tokenizer_settings": {"lower_case": False}},
            {"task": stored.task | {"labels": ["1", "2", "3"]}},
        ]
        found = [
            dataclasses.replace(stored, **change).fingerprint
            for change in changes
        ]
        self.assertLen({stored.fingerprint, *found}, 1 + len(changes))
        moved = dataclasses.replace(stored, path="elsewhere")
        self.assertEqual(moved.fingerprint, stored.fingerprint)


class ScriptsWithoutCapitalsTest(tf.test.TestCase):
    def test_a_few_capitals_among_hangul_mean_cased(self):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        hangul = [chr(0xAC00 + i) for i in range(2000)]
        for letters, expected in (("abcABC", False), ("abc", True)):
            vocabulary = Vocabulary([*special, *hangul, *letters])
            lower_case = stored_model.derive_lower_case(vocabulary)
            self.assertEqual(lower_case, expected)


if __name__ == "__main__":
    tf.test.main()
