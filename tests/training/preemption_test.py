"""Tests for trainer.Preemption, and for runs that get SIGTERM."""

import os
import shutil
import signal
import threading
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.distribute import packed_weights
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.pretraining import evaluation
from bert_tf.training import checkpoints
from bert_tf.training import preemption as preemptions
from bert_tf.training.preemption import Preemption
from bert_tf.training.step import TrainingStep
from tests.support import killed_process
from tests.support import pretrain_case
from tests.support import tiny_pretraining


def _send_sigterm(*_):
    os.kill(os.getpid(), signal.SIGTERM)


class PreemptionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (signal.SIGTERM, "SIGTERM", 0), (signal.SIGINT, "Ctrl-C", 130)
    )
    def test_stops_at_once(self, number, name, status):
        before = signal.getsignal(number)
        message = f"Stopped on {name}; rerun the same command"
        with self.assertRaisesRegex(Preempted, message) as raised:
            with Preemption() as preemption:
                os.kill(os.getpid(), number)
                self.fail("The block continued.")
        self.assertTrue(preemption.requested)
        self.assertEqual(raised.exception.status, status)
        self.assertEqual(signal.getsignal(number), before)

    def test_stops_at_the_end_of_a_deferred_block(self):
        done = []
        with self.assertRaises(Preempted), Preemption() as preemption:
            with preemption.deferred():
                self.assertFalse(preemption.requested)
                _send_sigterm()
                self.assertTrue(preemption.requested)
                done.append("all of it")
            done.append("more")
        self.assertEqual(done, ["all of it"])

    def test_refuses_packed_weights_before_anything_else(self):
        assumed = {packed_weights.VARIABLE: "1"}
        with (
            mock.patch.dict(os.environ, assumed),
            self.assertRaisesRegex(UserError, packed_weights.VARIABLE),
            # None would fail if devices or flags were read before the check.
            preemptions.prepare(None),
        ):
            self.fail("The block began.")

    def test_a_second_signal_ends_the_process(self):
        with self.assertRaises(Preempted), Preemption() as preemption:
            with preemption.deferred():
                _send_sigterm()
                for number in (signal.SIGTERM, signal.SIGINT):
                    self.assertEqual(signal.getsignal(number), signal.SIG_DFL)

    def test_does_nothing_in_another_thread(self):
        requested = []

        def work():
            with Preemption() as preemption:
                requested.append(preemption.requested)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(requested, [False])


class PreemptedPretrainingTest(pretrain_case.PretrainCase):
    def _pretrain_with_sigterm(self, call, **flags):
        """Pretrains; SIGTERM comes while a call into the graph runs."""
        calls = []
        run = TrainingStep.run

        def run_and_send(*args):
            calls.append(args)
            if len(calls) == call:
                _send_sigterm()
            return run(*args)

        with mock.patch.object(TrainingStep, "run", run_and_send):
            self.pretrain(**flags)

    @pytest.mark.slow
    def test_resumes_bit_for_bit(self):
        self.copy_run("through", iterations_per_loop=1)
        # No checkpoint is due at step 3, so SIGTERM must cause one.
        with self.assertRaisesRegex(Preempted, "Stopped at step 3 on SIGTERM"):
            self._pretrain_with_sigterm(3, iterations_per_loop=1)
        self.assertEqual(
            checkpoints.CheckpointStore(self.path("out")).steps(), [3, 2]
        )
        self.assertEqual(self.metrics()[-1]["step"], 3)
        self.assertFalse(os.path.exists(self.path("out", "model")))
        self.pretrain(iterations_per_loop=1)
        self.assert_same_run("through", "out")

    def test_a_checkpoint_that_cannot_be_written_is_an_error(self):
        full = mock.Mock(side_effect=OSError("no space"))
        with mock.patch.object(tf1_checkpoint, "write", full):
            with self.assertRaisesRegex(UserError, "could not be written"):
                self._pretrain_with_sigterm(1)

    @pytest.mark.slow
    def test_stops_during_the_evaluation(self):
        self.copy_run()
        # A run that was killed before its export has no model.
        shutil.rmtree(self.path("out", "model"))
        with mock.patch.object(evaluation, "build_evaluation", _send_sigterm):
            with self.assertRaisesRegex(Preempted, "rerun the same command"):
                self.pretrain(do_eval=True)
        self.assertFalse(os.path.exists(self.path("out", "model")))
        log = self.pretrain(do_eval=True)
        self.assertIn("All 6 steps are done already", "\n".join(log))
        self.assertTrue(os.path.exists(self.path("out", "model")))

    @parameterized.parameters(
        (signal.SIGTERM, "SIGTERM", 0), (signal.SIGINT, "Ctrl-C", 130)
    )
    @pytest.mark.thorough
    def test_the_process_has_the_status_of_the_signal(
        self, number, name, status
    ):
        flags = tiny_pretraining.write_flags(
            self.folder, num_train_steps=100_000, iterations_per_loop=1
        )
        script = os.path.join("run", "pretrain.py")
        process = killed_process.start(
            tiny_pretraining.command_line(script, **flags)
        )
        log = killed_process.end_after(process, flags["output_dir"], 5, number)
        self.assertEqual(process.returncode, status, log)
        step = self.metrics()[-1]["step"]
        self.assertIn(f"Stopped at step {step} on {name}", log.splitlines()[-1])
        store = checkpoints.CheckpointStore(flags["output_dir"])
        self.assertEqual(store.restore_latest().step, step)


if __name__ == "__main__":
    tf.test.main()
