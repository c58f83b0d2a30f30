"""Tests for bert_tf.pretraining.evaluation."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.modeling import bert as bert_model
from bert_tf.pretraining import evaluation
from bert_tf.training import output as training_output
from tests.support import files_case
from tests.support import logical_devices
from tests.support import record_files
from tests.support import step_trainer

logical_devices.make()

_CONFIG = step_trainer.CONFIG


def _numpy_results(model, examples):
    """Evaluates one example at a time, in float64."""
    sums = np.zeros(6)
    for example in examples:
        batch = {
            name: value[None].astype(np.int32)
            for name, value in example.items()
        }
        labels = batch.pop("next_sentence_labels")[0, 0]
        ids = batch.pop("masked_lm_ids")[0]
        batch.pop("masked_lm_weights")
        outputs = model(batch)
        for row in np.flatnonzero(example["masked_lm_weights"]):
            logits = np.float64(outputs["masked_lm_logits"][0, row])
            loss = np.log(np.exp(logits).sum()) - logits[ids[row]]
            sums[:3] += [1, loss, logits.argmax() == ids[row]]
        logits = np.float64(outputs["next_sentence_logits"][0])
        loss = np.log(np.exp(logits).sum()) - logits[labels]
        sums[3:] += [1, loss, logits.argmax() == labels]
    return {
        "masked_lm_loss": sums[1] / sums[0],
        "masked_lm_accuracy": sums[2] / sums[0],
        "masked_lm_perplexity": np.exp(sums[1] / sums[0]),
        "next_sentence_loss": sums[4] / sums[3],
        "next_sentence_accuracy": sums[5] / sums[3],
        "loss": sums[1] / sums[0] + sums[4] / sums[3],
        "global_step": 12,
    }


def _set_weights(model):
    rng = np.random.default_rng(1)
    for variable in model.weights:
        variable.assign(rng.normal(size=variable.shape))


class EvaluateTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.examples = [record_files.make_features(n) for n in range(21)]
        path = record_files.write(f"{self.folder}/data", range(21))
        # 21 examples in batches of 8: three rows of the last batch are blank.
        self.data = PretrainingInput([path], 8, 3, 8)

    def test_matches_numpy_over_all_examples(self):
        model = bert_model.BertForPretraining(_CONFIG)
        _set_weights(model)
        results = evaluation.build_evaluation(
            model, self.data.evaluation_dataset()
        )(12)
        expected = _numpy_results(model, self.examples)
        error = results.pop("masked_lm_perplexity_error")
        self.assertAllClose(error, self._error(model), rtol=1e-4)
        self.assertAllClose(results, expected, rtol=1e-5)
        # One batch has other means than all, so ignoring the limit would fail.
        first = evaluation.build_evaluation(
            model, self.data.evaluation_dataset(), max_eval_steps=1
        )(12)
        expected = _numpy_results(model, self.examples[:8])
        # The error is estimated from several batches, so one batch has none.
        self.assertAllClose(first, expected, rtol=1e-5)

    def _error(self, model):
        """Returns the perplexity's error from losses of batches of 8."""
        counts, losses = [], []
        for start in range(0, 21, 8):
            rows = self.examples[start : start + 8]
            counts.append(sum(np.sum(x["masked_lm_weights"]) for x in rows))
            mean = _numpy_results(model, rows)["masked_lm_loss"]
            losses.append(mean * counts[-1])
        mean = sum(losses) / sum(counts)
        squares = sum(
            (loss - mean * count) ** 2
            for loss, count in zip(losses, counts, strict=True)
        )
        error = np.sqrt(3 / 2 * squares) / sum(counts)
        return np.exp(mean) * error

    @parameterized.parameters((2, 8), (4, 3))
    @pytest.mark.slow
    def test_results_do_not_depend_on_the_devices(self, count, batch_size):
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{number}" for number in range(count)]
        )
        with strategy.scope():
            model = bert_model.BertForPretraining(_CONFIG)
        _set_weights(model)
        # The last batch is not full, so replicas get unequal numbers of rows.
        # In batches of 3, the fourth replica has only blank rows.
        data = PretrainingInput(self.data.record_files, 8, 3, batch_size)
        results = evaluation.build_evaluation(
            model, data.evaluation_dataset(), strategy=strategy
        )(12)
        expected = _numpy_results(model, self.examples)
        for name, value in expected.items():
            self.assertAllClose(results[name], value, rtol=1e-5, msg=name)

    def test_unpadded_evaluation_gives_the_same_results(self):
        model = bert_model.BertForPretraining(_CONFIG)
        dataset = self.data.evaluation_dataset()
        expected = evaluation.build_evaluation(model, dataset)(12)
        results = evaluation.build_evaluation(model, dataset, unpad=True)(12)
        self.assertAllClose(results, expected, rtol=1e-5)

    def test_writes_results_in_the_original_format(self):
        path = self.path("eval_results.txt")
        results = {"loss": 1 / 3, "global_step": 20, "masked_lm_loss": 0.25}
        training_output.write_results(path, results)
        with open(path) as file:
            self.assertEqual(
                file.read(),
                "global_step = 20\nloss = 0.33333334\nmasked_lm_loss = 0.25\n",
            )


if __name__ == "__main__":
    tf.test.main()
