"""Tests for bert_tf.training.loss_scale."""

import tensorflow as tf

from bert_tf.training.loss_scale import LossScale


class LossScaleTest(tf.test.TestCase):
    def _adapt(self, scale, is_finite):
        return bool(scale.adapt(tf.constant(is_finite)))

    def test_halves_at_once_and_doubles_after_long_calm(self):
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

    def test_an_overflow_ends_the_calm(self):
        scale = LossScale()
        scale.restore({"loss_scale": 8.0, "calm_steps": 1999})
        self._adapt(scale, False)
        self._adapt(scale, True)
        self.assertEqual(scale.state(), {"loss_scale": 4.0, "calm_steps": 1})

    def test_gives_up_when_nothing_is_left_to_halve(self):
        scale = LossScale()
        scale.restore({"loss_scale": 2.0, "calm_steps": 0})
        self.assertTrue(self._adapt(scale, False))
        self.assertFalse(self._adapt(scale, False))

    def test_a_checkpoint_without_a_scale_changes_nothing(self):
        scale = LossScale()
        scale.restore({"seed": 3})
        self.assertEqual(float(scale.value()), 2.0**15)


if __name__ == "__main__":
    tf.test.main()
