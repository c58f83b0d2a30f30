import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data import create
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.counts import RecordCounts

_MASK_ID = 4


def _make_config(**flags) -> CreatePretrainingDataConfig:
    return CreatePretrainingDataConfig(
        **{
            "input_file": "text.txt",
            "output_file": "x.tfrecord",
            "vocab_file": "vocab.txt",
            "max_seq_length": 40,
            **flags,
        }
    )


def _make_result(**changes) -> GenerationResult:
    histogram = np.zeros(41, np.int64)
    histogram[[7, 39, 40]] = [1, 2, 5]
    counts = RecordCounts(
        num_instances=8,
        num_random_next=4,
        num_truncated=6,
        num_pieces=285,
        num_predicted=40,
        num_masked=30,
        num_same=6,
        num_random=4,
        length_histogram=histogram,
    )
    return GenerationResult({}, 3, 17, dataclasses.replace(counts, **changes))


class RecordCountsTest(tf.test.TestCase):
    def _make_batch(self) -> dict[str, np.ndarray]:
        return {
            "input_ids": np.array(
                [[2, 4, 11, 9, 3, 0], [2, 4, 21, 22, 8, 3]], np.int32
            ),
            "input_mask": np.array(
                [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]], np.int32
            ),
            "masked_lm_positions": np.array(
                [[1, 2, 3, 0], [1, 4, 0, 0]], np.int32
            ),
            # [MASK], kept, random; [MASK], random. Where the weight is 0, the
            # id of position 0 must not count as kept.
            "masked_lm_ids": np.array(
                [[10, 11, 12, 2], [20, 24, 2, 2]], np.int32
            ),
            "masked_lm_weights": np.array(
                [[1, 1, 1, 0], [1, 1, 0, 0]], np.float32
            ),
            "next_sentence_labels": np.array([[1], [0]], np.int32),
        }

    def test_counts_of_a_batch(self):
        counts = RecordCounts()
        counts.add_batch(self._make_batch(), _MASK_ID, num_truncated=1)

        self.assertEqual(
            counts.to_dict(),
            {
                "num_instances": 2,
                "num_random_next": 1,
                "num_truncated": 1,
                "num_pieces": 11,
                "num_predicted": 5,
                "num_masked": 2,
                "num_same": 1,
                "num_random": 2,
                "length_histogram": [0, 0, 0, 0, 0, 1, 1],
            },
        )

    def test_left_to_right_replaces_nothing(self):
        counts = RecordCounts()
        counts.add_batch(self._make_batch(), _MASK_ID, 0, left_to_right=True)

        self.assertEqual(counts.num_predicted, 5)
        self.assertEqual(counts.num_same, 5)
        self.assertEqual(counts.num_masked + counts.num_random, 0)


class DataReportTest(tf.test.TestCase, parameterized.TestCase):
    def test_shares(self):
        report = create.build_report(_make_config(), _make_result())

        expected = {
            "num_documents": 3,
            "num_sentences": 17,
            "mean_length": 285 / 8,
            "padding_share": 35 / 320,
            "masked_share": 40 / 285,
            "replaced_by_mask_share": 0.75,
            "kept_share": 0.15,
            "replaced_by_random_share": 0.1,
            "random_next_share": 0.5,
            "truncated_share": 0.75,
        }
        for name, value in expected.items():
            self.assertAlmostEqual(report[name], value, msg=name)
        self.assertEqual(report["warnings"], [])

    @parameterized.parameters(16, 40, 128, 512)
    def test_length_bars_count_every_record(self, max_seq_length):
        histogram = np.arange(max_seq_length + 1)
        result = _make_result(length_histogram=histogram)
        config = _make_config(
            max_seq_length=max_seq_length, max_predictions_per_seq=5
        )

        bars = create.build_report(config, result)["length_histogram"]

        self.assertLessEqual(len(bars), 32)
        self.assertEqual(
            sum(bar["records"] for bar in bars), int(histogram.sum())
        )
        self.assertEqual((bars[0]["from"], bars[-1]["to"]), (1, max_seq_length))
        for before, after in zip(bars, bars[1:], strict=False):
            self.assertEqual(before["to"] + 1, after["from"])

    @parameterized.parameters(
        (60, True, True, False),
        (61, True, True, True),
        (61, False, True, True),
        (100, True, False, False),
    )
    def test_warns_about_paragraphs_instead_of_sentences(
        self, num_random, split_sentences, next_sentence_pairs, warns
    ):
        config = _make_config(
            split_sentences=split_sentences,
            next_sentence_pairs=next_sentence_pairs,
        )
        result = _make_result(num_instances=100, num_random_next=num_random)

        report = create.build_report(config, result)

        self.assertEqual(bool(report["warnings"]), warns)
        if warns:
            self.assertIn("61.0% of the pairs", report["warnings"][0])
            self.assertEqual(
                "--split_sentences" in report["warnings"][0],
                not split_sentences,
            )

    @parameterized.parameters(
        # Records of 7, 39 and 40 tokens, 1, 2 and 5 of each, with 3 special
        # tokens, or 2 if there is one segment.
        ({"left_to_right": True}, None),
        (
            {"left_to_right": True, "max_predictions_per_seq": 36},
            "5 of 8 records .*=36: 5 of 261 are left out; 37 would hold all",
        ),
        (
            {
                "left_to_right": True,
                "max_predictions_per_seq": 20,
                "next_sentence_pairs": False,
            },
            "7 of 8 records .*=20: 124 of 269 are left out; 38 would hold all",
        ),
        ({"max_predictions_per_seq": 6}, None),
        # 15% of 7, 39 and 40 are 1, 6 and 6.
        ({"max_predictions_per_seq": 5}, "7 of 43 are .*; 6 would"),
    )
    def test_warns_of_predictions_that_do_not_fit(self, flags, message):
        report = create.build_report(_make_config(**flags), _make_result())

        if message is None:
            self.assertEqual(report["warnings"], [])
        else:
            (warning,) = report["warnings"]
            self.assertRegex(warning, message)

    def test_report_of_no_record(self):
        report = create.build_report(
            _make_config(), GenerationResult({}, 0, 0, RecordCounts())
        )

        self.assertEqual(report["num_instances"], 0)
        self.assertEqual(report["random_next_share"], 0)


if __name__ == "__main__":
    tf.test.main()
