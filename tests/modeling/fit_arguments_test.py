"""Tests of the checks of the numbers that `fit` takes."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import fit_arguments
from tests.support import fit_case


class FitArgumentsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    @parameterized.parameters(
        ({"epochs": "2"}, "epochs to be a whole number.*: epochs='2'"),
        ({"epochs": 0}, "epochs to be .* at least 1.*: epochs=0"),
        ({"epochs": None}, "epochs=None"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"batch_size": 0}, "batch_size to be a whole number.*: batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"steps_per_epoch": -1}, "steps_per_epoch=-1"),
        ({"validation_split": 1.0}, "0 to less than 1. Received: 1.0"),
        ({"validation_split": 20}, "0 to less than 1. Received: 20"),
        ({"validation_split": -0.1}, "less than 1. Received: -0.1"),
        ({"validation_split": "0.1"}, "less than 1. Received: '0.1'"),
    )
    def test_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            fit_arguments.check([], **{"batch_size": None, **arguments})

    def test_data_in_batches_is_not_split(self):
        dataset = tf.data.Dataset.from_tensor_slices(["a"])
        for data in (dataset, (one for one in ["a"])):
            with self.assertRaisesRegex(UserError, "give validation_data"):
                fit_arguments.check(data, None, validation_split=0.5)
            fit_arguments.check(data, None)

    def test_numpy_numbers(self):
        fit_arguments.check([], np.int64(2), np.int32(3), 4, np.float32(0.5))

    def test_methods_check_them(self):
        model = self.new()
        data = (fit_case.TEXTS, fit_case.LABELS)
        for call in (
            lambda: model.fit(*data, batch_size=0),
            lambda: model.evaluate(*data, batch_size=0),
            lambda: model.predict(data[0], batch_size=0),
        ):
            with self.assertRaisesRegex(UserError, "batch_size=0"):
                call()
        with self.assertRaisesRegex(UserError, "epochs=0"):
            model.fit(*data, epochs=0)

    @pytest.mark.slow
    def test_the_schedule_has_no_split_beside_validation_data(self):
        model = self.new()
        data = (fit_case.TEXTS, fit_case.LABELS)
        model.fit(
            *data,
            batch_size=1,
            verbose=0,
            validation_split=0.4,
            validation_data=data,
        )
        self.assertEqual(model.optimizer._learning_rate.num_train_steps, 5)


if __name__ == "__main__":
    tf.test.main()
