"""Tests for bert_tf.pretraining.samples."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.inference.fill_mask import FillMask
from bert_tf.io import files
from bert_tf.pretraining import samples
from bert_tf.text.vocabulary import Vocabulary
from tests.support import logical_devices
from tests.support import pretrain_case
from tests.support import record_files

logical_devices.make()

_WORDS = "ab cd ef gh ij kl mn op qr st uv wx ##yz ##x . - 7 घर की 家".split()
_VOCABULARY = Vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    # The model of `tiny_pretraining` needs a vocabulary of 64 tokens.
    + [f"v{number}" for number in range(59 - len(_WORDS))]
)
_LENGTH = 16


def _record(text, predicted, length=_LENGTH):
    """Returns the features of a text with `predicted` tokens masked."""
    tokens = f"[CLS] {text} [SEP]".split()
    ids = [_VOCABULARY.id(token) for token in tokens]
    labels = [ids[i] for i in predicted]
    for i in predicted:
        ids[i] = _VOCABULARY.mask_id
    room = 4 - len(predicted)
    padding = [0] * (length - len(ids))
    return {
        "input_ids": np.array(ids + padding, np.int32),
        "input_mask": np.array([1] * len(ids) + padding, np.int32),
        "segment_ids": np.zeros(length, np.int32),
        "masked_lm_positions": np.array([*predicted] + [0] * room, np.int32),
        "masked_lm_ids": np.array(labels + [0] * room, np.int32),
        "masked_lm_weights": np.array(
            [1] * len(predicted) + [0] * room, np.float32
        ),
        "next_sentence_labels": np.array([0]),
    }


class ChooseTest(tf.test.TestCase, parameterized.TestCase):
    def choose(self, *records):
        """Returns the text of each sample, with its masked word."""
        rows = {
            name: np.stack([record[name] for record in records])
            for name in records[0]
        }
        found = samples.choose(
            tf.data.Dataset.from_tensor_slices(rows).batch(2), _VOCABULARY
        )
        for sample in found:
            tokens = [_VOCABULARY.tokens[i] for i in sample["input_ids"]]
            self.assertEqual(
                " ".join(tokens).replace(" ##", ""), sample["text"]
            )
        return [(sample["text"], sample["word"]) for sample in found]

    @parameterized.parameters(
        # The first word that fits stays masked; the other masks are undone.
        ("ab cd ef ##x gh . ij kl", (2, 7), "ab [MASK] efx gh . ij kl", "cd"),
        # A sign, a number and the two tokens of one word are skipped.
        (
            "ab . 7 ef ##x gh - ij kl",
            (2, 3, 4, 5, 9),
            "ab . 7 efx gh - ij [MASK]",
            "kl",
        ),
        # The vowel sign in this word is no letter but must count as a part.
        ("घर की ab cd ef gh ij kl", (2,), "घर [MASK] ab cd ef gh ij kl", "की"),
        ("ab 家 cd ef gh ij kl mn", (2,), "ab [MASK] cd ef gh ij kl mn", "家"),
        # The first segment is too short, so the second one is chosen.
        (
            "ab cd ef [SEP] gh ij kl mn op qr st uv",
            (2, 6),
            "gh [MASK] kl mn op qr st uv",
            "ij",
        ),
    )
    def test_masks_one_word(self, text, predicted, expected, word):
        self.assertEqual(
            self.choose(_record(text, predicted)), [(expected, word)]
        )

    @parameterized.parameters(
        ("ab cd ef gh ij kl mn", (2,)),  # Fewer than 8 tokens.
        ("ab cd ef gh ij kl mn op", ()),  # No masked token.
        ("ab . ef gh ij ##x kl mn", (2, 5, 6)),  # No whole word.
    )
    def test_leaves_out_other_rows(self, text, predicted):
        self.assertEmpty(self.choose(_record(text, predicted)))

    def test_a_long_row_is_cut_between_words(self):
        text = " ".join(["cd", *20 * ["ab"], "ef", *20 * ["gh"], "ij ##x"])
        for word, expected in (
            ("ef", "ab " * 12 + "[MASK]" + " gh" * 12),
            ("cd", "[MASK]" + " ab" * 20 + " ef gh gh gh"),
        ):
            place = text.split().index(word) + 1
            record = _record(text, (place,), 64)
            self.assertEqual(self.choose(record), [(expected, word)])
        # A window must not split a word, so this one is shorter.
        text = "ab ##x" + " ##yz ab" * 10 + " ef mn" + " gh ##x" * 15
        place = text.split().index("ef") + 1
        ((found, _),) = self.choose(_record(text, (place,), 64))
        self.assertEqual(found, "abyz " * 5 + "ab [MASK] mn" + " ghx" * 5)

    def test_takes_the_first_rows_with_other_words(self):
        text = "ab cd ef gh ij kl mn op"
        places = (2, 2, 3, 4, 5, 6, 7)
        found = self.choose(*(_record(text, (place,)) for place in places))
        self.assertEqual(
            [word for _, word in found], ["cd", "ef", "gh", "ij", "kl"]
        )


@pytest.mark.slow
class RunTest(pretrain_case.PretrainCase):
    def setUp(self):
        super().setUp()
        for name in ("train", "heldout"):
            words = _WORDS[:9] if name == "train" else _WORDS[2:11]
            path = self.path(f"{name}.tfrecord")
            with tf.io.TFRecordWriter(path) as writer:
                for place in range(1, 8):
                    record = _record(" ".join(words), (place, 9))
                    writer.write(record_files.serialize(record))

        _VOCABULARY.write(self.path("vocab.txt"))

    def pretrain(self, **flags):
        inputs = {
            "input_file": self.path("train.tfrecord"),
            "vocab_file": self.path("vocab.txt"),
            "max_seq_length": _LENGTH,
            "max_predictions_per_seq": 4,
        }
        return super().pretrain(**(inputs | flags))

    def read(self, output_dir="out"):
        return files.read_json(self.path(output_dir, samples.FILE))

    def test_a_resumed_run_shows_the_words_of_its_start(self):
        held_out = self.path("heldout.tfrecord")
        flags = {"do_eval": True, "eval_input_file": held_out}
        self.pretrain(output_dir=self.path("through"), **flags)
        self.pretrain(stop_at_step=2, **flags)
        stopped = self.read()
        # A run killed before its end has not written `after`.
        for sample in stopped:
            del sample["after"]
        files.write_json(self.path("out", samples.FILE), stopped)
        self.pretrain(**flags)
        found = self.read()
        self.assertEqual(found, self.read("through"))
        self.assertEqual([x["word"] for x in found], _WORDS[2:7])
        self.assertEqual(
            [x["before"] for x in found], [x["before"] for x in stopped]
        )
        self.assertNotEqual(
            [x["after"] for x in found], [x["before"] for x in found]
        )
        # FillMask, the log and the card must show the same words.
        self._assert_filled(found, self.path("out", "model"))
        card = files.read_bytes(self.path("out", "model/README.md")).decode()
        for each, lines in zip(
            found, samples.describe(self.path("out")), strict=True
        ):
            self.assertStartsWith(lines, f"{each['text']}\n")
            after = f"\n  after:   {'  '.join(each['after'])}"
            self.assertTrue(lines.endswith(after), lines)
            self.assertIn(lines.replace("\n", " "), card)

    def _assert_filled(self, found, model_dir):
        texts = [x["text"] for x in found]
        candidates = FillMask(model_dir)(texts, top_k=3)
        self.assertEqual(
            [[y.token for y in x[0]] for x in candidates],
            [x["after"] for x in found],
        )

    def test_new_runs_choose_again(self):
        self.pretrain(
            num_train_steps=1, distribution_strategy="mirrored", num_gpus=2
        )
        for word, sample in zip(_WORDS, self.read(), strict=False):
            self.assertEqual(sample["word"], word)
            # The first step's rate is 0, so the predictions stay the same.
            self.assertEqual(sample["after"], sample["before"])
        held_out = self.path("heldout.tfrecord")
        self.pretrain(
            num_train_steps=1,
            overwrite_output_dir=True,
            do_eval=True,
            eval_input_file=held_out,
        )
        self.assertEqual(self.read()[0]["word"], _WORDS[2])
        # A run killed before its first checkpoint leaves no model.
        for name in os.listdir(self.path("out")):
            if name.startswith(("model", "checkpoint")):
                path = self.path("out", name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        self.pretrain(num_train_steps=1, left_to_right=True)
        self.assertFalse(os.path.exists(self.path("out", samples.FILE)))
        card = files.read_bytes(self.path("out", "model/README.md"))
        self.assertNotIn(b"Masked words", card)

    def test_without_a_vocabulary_nothing_is_chosen(self):
        self.pretrain(num_train_steps=1, vocab_file=None)
        self.assertEmpty(samples.describe(self.path("out")))


if __name__ == "__main__":
    tf.test.main()
