"""Tests for bert_tf.tasks.squad.predictions; the goldens have their own."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support.squad_files import logits_at

_PIECES = ("who", "?", "the", "steve", "smith", "'", "s", "son", "of", "ann")


def _tokenizer():
    return BertTokenizer(Vocabulary([*SPECIAL_TOKENS, *_PIECES]))


def _examples(*contexts):
    return [
        squad_examples.make_example(f"q{number}", "who?", text)
        for number, text in enumerate(contexts)
    ]


class SquadPredictionsTest(tf.test.TestCase, parameterized.TestCase):
    def _predict(self, examples, logits, max_seq_length=64, **options):
        """Predicts from start and end logits, one pair for each window."""
        tokenizer = _tokenizer()
        features = list(
            squad_features.convert_examples_to_features(
                examples, tokenizer, max_seq_length, 2, max_query_length=2
            )
        )
        return list(
            squad_predictions.predict_answers(
                examples, features, logits, tokenizer, **options
            )
        )

    def test_answers_have_text_and_place_in_the_paragraph(self):
        # [CLS] who ? [SEP] the steve smith ' s son [SEP]
        context = "\n The  \u015at\u00e9ve\tSMITH's\u202fson. "
        length = 12
        logits = (
            logits_at(length, _5=3, _4=1, _9=0.5),
            logits_at(length, _6=2, _9=1.5, _5=1, _4=0),
        )
        (prediction,) = self._predict(_examples(context), [logits])
        best = [
            (one.text, context[one.start : one.end])
            for one in prediction.nbest[:6]
        ]
        self.assertEqual(
            best,
            [
                ("\u015at\u00e9ve SMITH", "\u015at\u00e9ve\tSMITH"),
                (
                    "\u015at\u00e9ve SMITH's son",
                    "\u015at\u00e9ve\tSMITH's\u202fson",
                ),
                ("\u015at\u00e9ve", "\u015at\u00e9ve"),
                ("The \u015at\u00e9ve SMITH", "The  \u015at\u00e9ve\tSMITH"),
                (
                    "The \u015at\u00e9ve SMITH's son",
                    "The  \u015at\u00e9ve\tSMITH's\u202fson",
                ),
                ("The \u015at\u00e9ve", "The  \u015at\u00e9ve"),
            ],
        )
        scores = np.array(
            [one.start_logit + one.end_logit for one in prediction.nbest]
        )
        self.assertAllEqual(scores[:6], [5, 4.5, 4, 3, 2.5, 2])
        self.assertAllClose(
            [one.probability for one in prediction.nbest],
            np.exp(scores) / np.exp(scores).sum(),
        )
        self.assertIsNone(prediction.null_odds)
        self.assertEqual(prediction.answer(), "\u015at\u00e9ve SMITH")

    @parameterized.parameters(
        # The tokens lack the separate accent, so the whole word is taken.
        ("of ste\u0301ve's son", 5, 5, "ste\u0301ve's"),
        ("of st\u00e9ve's son", 5, 5, "st\u00e9ve"),
        # [UNK] does not show its text, so the whole word is taken.
        ("of bob's son", 5, 6, "bob's"),
        ("of bob's son", 6, 7, "'s"),
        # One CJK name does not make this a script without spaces.
        ("of \u6771's son", 5, 5, "\u6771's"),
    )
    def test_unaligned_answers_are_whole_words(
        self, context, start, end, expected
    ):
        # [CLS] who ? [SEP] of steve ' s son [SEP]
        logits = [
            (logits_at(10, **{f"_{start}": 3}), logits_at(10, **{f"_{end}": 3}))
        ]
        (prediction,) = self._predict(_examples(context), logits)
        best = prediction.nbest[0]
        self.assertEqual(best.text, expected)
        self.assertEqual(context[best.start : best.end], expected)

    @parameterized.parameters(
        ("of bob's son", 5, 6, "bob'"),
        ("of bob's son", 6, 7, "'s"),
        ("of\tste\u0301ve  's", 4, 5, "of\tste\u0301ve"),
    )
    def test_offsets_give_the_text(self, context, start, end, expected):
        logits = [
            (logits_at(10, **{f"_{start}": 3}), logits_at(10, **{f"_{end}": 3}))
        ]
        (prediction,) = self._predict(
            _examples(context), logits, original_texts=False
        )
        best = prediction.nbest[0]
        self.assertEqual(best.text, expected)
        self.assertEqual(context[best.start : best.end], expected)

    def test_no_candidate_gives_null_or_placeholder(self):
        # One example's end is before its start; the other has no window.
        examples = _examples("ann of", " ")
        logits = [(logits_at(7, _0=2, _5=4), logits_at(7, _0=1, _4=4))]
        predictions = self._predict(
            examples, logits, n_best_size=1, version_2_with_negative=True
        )
        for prediction, null_odds in zip(predictions, (3.0, 0.0), strict=True):
            self.assertEqual(
                [(one.text, one.probability) for one in prediction.nbest],
                [("", 1.0)],
            )
            self.assertEqual(prediction.null_odds, null_odds)
            for threshold in (-99.0, 0.0, 99.0):
                self.assertEqual(prediction.answer(threshold), "")
        # For SQuAD 1.1 the original answers with a placeholder.
        predictions = self._predict(examples, logits, n_best_size=1)
        self.assertEqual([one.answer() for one in predictions], ["empty"] * 2)

    def test_examples_keep_their_order_across_chunks(self):
        contexts = [("ann of", "of steve")[n % 2] for n in range(2500)]
        logits = [(logits_at(7, _4=3), logits_at(7, _5=3))] * len(contexts)
        predictions = self._predict(_examples(*contexts), logits)
        self.assertEqual([one.answer() for one in predictions], contexts)
        self.assertEqual(
            [one.qas_id for one in predictions],
            [f"q{n}" for n in range(len(contexts))],
        )


if __name__ == "__main__":
    tf.test.main()
