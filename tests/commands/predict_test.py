"""Tests for run/predict.py with a model from run/finetune_classifier.py."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from tests.support import command_case
from tests.support import predictions
from tests.support import tiny_model

_TRAIN = (
    ("id", "label", "first", "second"),
    (1, "cat", "the cat", "sat, on the mat"),
    (2, "dog", "a dog", 'said "mats"'),
    (3, "both; dog", "dogs", "cats"),
)
_TEST = (
    # Other columns in another order, and unknown labels.
    ("second", "label", "first", "note"),
    ("cats on\na mat", "bird", "the dog", ""),
    ("sat", "", "the cats, the dogs", "東"),
    ("the mat . the mat . the mat . the mat .", "dog", "on", "too long"),
)


class PredictTest(command_case.ClassifierCase):
    @parameterized.parameters(
        ({"problem_type": "multi_label", "label_separator": ";"}, "labels"),
        ({"doc_stride": 3, "head": "bilstm"}, "label"),
    )
    @pytest.mark.slow
    def test_predictions_equal_those_of_fine_tuning(self, flags, key):
        test_file = self.write_csv("test.csv", *_TEST)
        unlabelled = [[row[i] for i in (0, 2, 3)] for row in _TEST]
        self.run_script(
            task_name="custom",
            train_file=self.write_csv("train.csv", *_TRAIN),
            test_file=self.write_csv("unlabelled.csv", *unlabelled),
            text_column="first",
            text_pair_column="second",
            pretrained_model_dir=tiny_model.write(
                str(self.folder / "start"), config=tiny_model.ONE_LAYER
            ),
            learning_rate="1e-2",
            train_batch_size="2",
            num_train_epochs="2",
            do_train=True,
            do_predict=True,
            **flags,
        )
        model = str(self.output / "model")
        rows = self.predict(test_file)
        expected = self.lines("test_predictions.jsonl")
        self.assertLen(rows, 3)
        for row, other in zip(rows, expected, strict=True):
            self.assertEqual(row[key], other[key])
            self.assertAllClose(
                row["probabilities"], other["probabilities"], atol=1e-5
            )
        pairs = [(row[2], row[0]) for row in _TEST[1:]]
        predictions.assert_close(
            self, bert_tf.load_model(model).predict(pairs, verbose=0), rows
        )


if __name__ == "__main__":
    tf.test.main()
