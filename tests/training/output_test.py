"""Tests of the metrics, the output and the memory of training."""

import contextlib
import functools
import io
import json
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.training import metrics as training_metrics
from bert_tf.training import output as training_output
from bert_tf.training import step as training_step
from tests.support import scripts


def _finetuning_rows(steps):
    return [
        {
            "step": step,
            "loss": 9 / step,
            "learning_rate": 1e-4 * step,
            "grad_norm": 2.0 + step % 3,
            "examples_per_second": 50.0 + step,
            "tokens_per_second": 900.0 + step,
        }
        for step in steps
    ]


def _evaluations(steps):
    return [
        {
            "global_step": step,
            "loss": 5 / step,
            "HasAns_f1": 60 + step / 10,
            "HasAns_total": 5928,
        }
        for step in steps
    ]


class ReportTest(tf.test.TestCase):
    def test_has_scores_existing_files_and_commands(self):
        folder = self.create_tempdir().full_path
        os.mkdir(os.path.join(folder, "model"))
        for name in ("dev_predictions.jsonl", "train.log", "model.ckpt-5.json"):
            with open(os.path.join(folder, name), "w", encoding="utf-8"):
                pass
        results = {"dev": {"accuracy": 0.91666, "loss": 0.25, "global_step": 7}}
        with mock.patch("sys.stdout", io.StringIO()) as written:
            training_output.print_report(folder, results, ["use a", "use b"])
        expected = f"""
Scores:

    dev: accuracy 0.9167, loss 0.25

Files in {folder}:

    model                  the model, for every script
    train.log              the log
    dev_predictions.jsonl  predictions of dev

Next:

    use a
    use b
"""
        self.assertEqual(written.getvalue(), expected)


class LearningCurvesTest(tf.test.TestCase):
    def test_draws_the_metrics_of_a_run(self):
        folder = self.create_tempdir().full_path
        train = _finetuning_rows(range(1, 60))
        lines = "".join(f"{json.dumps(row)}\n" for row in train)
        path = os.path.join(folder, "train_metrics.jsonl")
        files.write_text(path, lines)
        for panels in (None, training_output.PRETRAINING):
            training_output.draw_learning_curves(
                folder, _evaluations([20, 59]), panels, "A run"
            )
            path = os.path.join(folder, "learning_curves.png")
            picture = tf.io.decode_png(tf.io.read_file(path), 3).numpy()
            orange = np.all(picture == [0xD9, 0x5F, 0x02], axis=-1)
            self.assertGreater(orange.sum(), 500)


class MeansTest(tf.test.TestCase):
    def test_weighs_calls_by_their_steps_and_continues(self):
        means = training_metrics.Means()
        means.add(1, {"loss": 8.0, "learning_rate": 0.1}, {"loss": 8.0})
        state = json.loads(json.dumps(means.state()))
        # The sum of three steps is 12; the metrics are of the last one.
        for one in (means, training_metrics.Means()):
            if one is not means:
                one.restore(state)
            one.add(3, {"loss": 3.0, "learning_rate": 0.4}, {"loss": 12.0})
            self.assertEqual(one.take(), {"loss": 5.0, "learning_rate": 0.4})
            one.add(1, {"loss": 2.0, "learning_rate": 0.5}, {"loss": 2.0})
            self.assertEqual(one.take(), {"loss": 2.0, "learning_rate": 0.5})


class MetricsLogTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = os.path.join(self.folder, "train_metrics.jsonl")

    def _open(self, **kwargs):
        log = training_metrics.MetricsLog(self.folder, **kwargs)
        return contextlib.closing(log)

    def _lines(self):
        with open(self.path) as file:
            return [json.loads(line) for line in file]

    def test_lines_are_written_at_once_and_exact(self):
        value = 0.1 + 0.2  # 0.30000000000000004: all digits count.
        with self._open() as log:
            log.write(1, {"loss": 9.5, "learning_rate": value})
            self.assertEqual(
                self._lines(),
                [{"step": 1, "loss": 9.5, "learning_rate": value}],
            )
            log.write(20, {"loss": float("nan"), "learning_rate": 0.0})
            self.assertIsNone(self._lines()[1]["loss"])

    def test_resuming_removes_later_and_incomplete_lines(self):
        with self._open() as log:
            for step in (1, 10, 20, 30):
                log.write(step, {"loss": step / 7})
        with open(self.path, "a") as file:
            file.write('{"step": 40, "lo')
        self.assertLen(training_metrics.read(self.path), 4)
        with self._open(start_step=20) as log:
            log.write(30, {"loss": 30 / 7})
        expected = [{"step": s, "loss": s / 7} for s in (1, 10, 20, 30)]
        self.assertEqual(self._lines(), expected)
        self.assertCountEqual(
            os.listdir(self.folder), ["summaries", "train_metrics.jsonl"]
        )

    def test_a_new_run_empties_the_file(self):
        with self._open() as log:
            log.write(5, {"loss": 1.0})
        training_metrics.MetricsLog(self.folder).close()
        self.assertEqual(self._lines(), [])

    def test_rejects_a_file_of_another_kind(self):
        with open(self.path, "w") as file:
            file.write('{"step": 1}\nnot json\n{"step": 3}\n')
        with self.assertRaisesRegex(UserError, "jsonl, line 2: expected"):
            training_metrics.MetricsLog(self.folder, 3)

    def test_tensorboard_gets_each_value(self):
        with self._open() as log:
            log.write(7, {"loss": 2.5})
            log.write_summaries("eval", 7, {"loss": 3.5})
        (events,) = tf.io.gfile.glob(os.path.join(self.folder, "summaries/*"))
        values = {
            value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
            for event in tf.compat.v1.train.summary_iterator(events)
            for value in event.summary.value
        }
        self.assertEqual(
            values, {"train/loss": (7, 2.5), "eval/loss": (7, 3.5)}
        )


class OutOfMemoryTest(tf.test.TestCase, parameterized.TestCase):
    def test_names_reason_and_flags(self):
        error = tf.errors.ResourceExhaustedError(
            None,
            None,
            "Graph execution error:\n\nDetected at node 'MatMul'\n"
            "OOM when allocating tensor with shape[64,512] and type float on "
            "/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node MatMul}}]]",
        )
        text = str(training_step.explain_out_of_memory(error, 128))
        self.assertRegex(
            text,
            r"Out of memory \(OOM when allocating tensor with shape\[64,512\].*"
            r"GPU_0_bfc\) in a step of 128 .*--micro_batch_size=64, --remat",
        )
        self.assertNotIn("\n", text)
        one = str(training_step.explain_out_of_memory(error, 1))
        self.assertNotIn("--micro_batch_size", one)

    @parameterized.parameters(
        ("Failed to load CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",) * 2,
        ("x: RESOURCE_EXHAUSTED: 9 bytes", "RESOURCE_EXHAUSTED: 9 bytes"),
    )
    def test_explains_out_of_memory_of_the_compiler(self, message, reason):
        for kind in (tf.errors.InternalError, tf.errors.UnknownError):
            error = training_step.explain_out_of_memory(
                kind(None, None, message), 8
            )
            reason = reason.removeprefix("Failed to load CUBIN: ")
            self.assertStartsWith(str(error), f"Out of memory ({reason}) ")

    @parameterized.parameters(
        tf.errors.ResourceExhaustedError(None, None, "x; No space left"),
        tf.errors.InvalidArgumentError(None, None, "OOM when allocating"),
        tf.errors.InternalError(
            None, None, "RESOURCE_EXHAUSTED: Shared memory size limit exceeded"
        ),
        tf.errors.UnknownError(None, None, "RESOURCE_EXHAUSTED: No space left"),
        tf.errors.InternalError(
            None, None, "RESOURCE_EXHAUSTED:\nShared memory size exceeded"
        ),
    )
    def test_other_errors_have_no_explanation(self, error):
        self.assertIsNone(training_step.explain_out_of_memory(error, 8))


@functools.cache
def _measure(**values):
    """Returns the output of tests/support/memory_program.py."""
    values = {"num_layers": 8, "hidden_size": 128, "batch_size": 96} | values
    process = scripts.python(
        *("-m", "tests.support.memory_program", json.dumps(values)),
        check=True,
        timeout=600,
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.thorough
class MeasuredTest(tf.test.TestCase):
    def test_remat_takes_less_memory_and_trains_the_same(self):
        kept, remat = _measure(), _measure(remat=True)
        self.assertEqual(remat["loss"], kept["loss"])
        self.assertEqual(remat["weights"], kept["weights"])
        self.assertGreater(kept["added"], 1.5 * remat["added"])

    def test_out_of_memory_is_one_sentence(self):
        # An array of attention scores takes 137 GB, all other arrays far less
        # than the limit. So no allocation of oneDNN or LLVM fails, which would
        # abort the process.
        error = _measure(
            num_layers=2,
            hidden_size=64,
            head_size=1,
            batch_size=32,
            max_seq_length=4096,
            limit=16_000_000_000,
        )["error"]
        self.assertRegex(
            error,
            r"^Out of memory \(OOM when allocating tensor with shape"
            r"\[32,64,4096,4096\]",
        )


if __name__ == "__main__":
    tf.test.main()
