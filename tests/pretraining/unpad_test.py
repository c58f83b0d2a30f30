"""Tests of `--unpad` in pretraining runs."""

import pytest
import tensorflow as tf

from bert_tf.training.checkpoints import CheckpointStore
from tests.support import pretrain_case

_NOT_COMPUTED = "Padding is not computed: a micro-batch of 4 examples"


class UnpadTest(pretrain_case.PretrainCase):
    @pytest.mark.thorough
    def test_choice_is_kept_on_resuming_and_losses_are_the_same(self):
        # Compiling takes most of the time, and makes no difference here.
        flags = {"iterations_per_loop": 1, "xla": "off"}
        log = self.pretrain(unpad="on", stop_at_step=2, **flags)
        self.assertIn(_NOT_COMPUTED, "\n".join(log))
        log = "\n".join(self.pretrain(stop_at_step=4, do_eval=True, **flags))
        self.assertIn(_NOT_COMPUTED, log)
        self.assertNotIn("from here on", log)
        checkpoint = CheckpointStore(self.path("out"), 1).restore_latest()
        self.assertEqual(checkpoint.step, 4)
        self.assertIs(checkpoint.metadata["unpad"], True)
        log = "\n".join(self.pretrain(unpad="off", **flags))
        self.assertIn("Padding is computed from here on: --unpad=off", log)
        self.assertNotIn(_NOT_COMPUTED, log)

        self.copy_run("padded", iterations_per_loop=1)
        padded = CheckpointStore(self.path("padded"), 1).restore_latest()
        self.assertIs(padded.metadata["unpad"], False)
        self.assertAllClose(
            [line["loss"] for line in self.metrics()],
            [line["loss"] for line in self.metrics("padded")],
            rtol=1e-5,
            atol=0,
        )


if __name__ == "__main__":
    tf.test.main()
