"""Tests for bert_tf.training.loss_scale."""

import tensorflow as tf

from bert_tf.training.loss_scale import LossScale


class LossScaleTest(tf.test.TestCase):
    def _adapt(self, scale, is_finite):
        return bool(scale.adapt(tf.constant(is_finite), tf.constant(True)))

    def test_halves_at_once_and_doubles_after_many_steps(self):
        scale = LossScale()
        self.assertEqual(float(scale.value()), 2.0**15)
        self.assertTrue(self._adapt(scale, False))
        self.assertEqual(float(scale.value()), 2.0**14)
        scale.restore({"loss_scale": 2.0**14, "calm_steps": 1998})
        self.assertTrue(self._adapt(scale, True))
        self.assertEqual(float(scale.value()), 2.0**14)
        self.assertTrue(self._adapt(scale, True))
        self.assertEqual(
            scale.state(), {"loss_scale": 2.0**15, "calm_steps": 0}
        )

    def test_an_overflow_resets_the_count_of_good_steps(self):
        scale = LossScale()
        scale.restore({"loss_scale": 8.0, "calm_steps": 1999})
        self._adapt(scale, False)
        self._adapt(scale, True)
        self.assertEqual(scale.state(), {"loss_scale": 4.0, "calm_steps": 1})

    def test_fails_if_the_scale_cannot_be_halved(self):
        scale = LossScale()
        scale.restore({"loss_scale": 2.0, "calm_steps": 0})
        self.assertTrue(self._adapt(scale, False))
        self.assertFalse(self._adapt(scale, False))

    def test_does_not_change_where_it_is_not_to_be_applied(self):
        scale = LossScale()
        scale.restore({"loss_scale": 8.0, "calm_steps": 1999})
        for is_finite in (True, False):
            scale.adapt(tf.constant(is_finite), tf.constant(False))
            self.assertEqual(
                scale.state(), {"loss_scale": 8.0, "calm_steps": 1999}
            )

    def test_a_checkpoint_without_a_scale_changes_nothing(self):
        scale = LossScale()
        scale.restore({"seed": 3})
        self.assertEqual(float(scale.value()), 2.0**15)


if __name__ == "__main__":
    tf.test.main()
