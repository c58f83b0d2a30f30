"""Tests for bert_tf.training.state."""

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import weight_map
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.training import optimizer as optimizers
from bert_tf.training import state as training_state
from tests.support import tiny_model


class TrainingStateTest(tf.test.TestCase):
    def _build(self):
        model = bert_model.BertForPretraining(tiny_model.CONFIG)
        optimizer = optimizers.build_optimizer("bert_adam")
        optimizer.build(model.trainable_variables)
        return bert_model.named_variables(model), optimizer

    def _random_state(self):
        rng = np.random.default_rng(0)
        state = training_state.read(*self._build())
        return {
            name: rng.normal(size=np.shape(value)).astype(np.float32)
            for name, value in state.items()
        } | {"global_step": np.int64(17)}

    def test_round_trip(self):
        state = self._random_state()
        built = self._build()
        training_state.assign(*built, state, "here")
        received = training_state.read(*built)
        self.assertEqual(set(received), set(state))
        for name, value in state.items():
            self.assertAllEqual(received[name], value, name)

    def test_names_all_tensors_that_differ(self):
        state = self._random_state()
        del state["bert/pooler/dense/bias/adam_v"]
        state["cls/predictions/output_bias"] = np.zeros(3, np.float32)
        state["further"] = np.zeros(2, np.float32)
        built = self._build()
        before = training_state.read(*built)
        with self.assertRaisesRegex(
            UserError,
            r"3 tensors differ: bert/pooler/dense/bias/adam_v \(expected "
            r"\(16,\), received nothing\), cls/predictions/output_bias "
            r"\(expected \(16,\), received \(3,\)\), further",
        ):
            training_state.assign(*built, state, "here")
        after = training_state.read(*built)
        for name, value in before.items():
            self.assertAllEqual(after[name], value, name)

    def _optimizer_state(self):
        return {
            name: value
            for name, value in self._random_state().items()
            if weight_map.is_optimizer_state(name)
        }

    def test_optimizer_state_does_not_change_the_weights(self):
        state = self._optimizer_state()
        built = self._build()
        before = training_state.read(*built)
        training_state.assign_optimizer(*built, state, "here")
        for name, value in training_state.read(*built).items():
            expected = state[name] if name in state else before[name]
            self.assertAllEqual(value, expected, name)

    def test_ignores_and_logs_moments_of_untrained_weights(self):
        state = self._optimizer_state()
        # A classifier that this model does not have.
        state["output_weights/adam_m"] = np.ones((3, 16), np.float32)
        variables, _ = self._build()
        optimizer = optimizers.build_optimizer("bert_adam")
        optimizer.build(
            [v for n, v in variables.items() if not n.startswith("bert/pooler")]
        )
        with self.assertLogs(level="INFO") as logs:
            training_state.assign_optimizer(variables, optimizer, state, "here")
        log = "\n".join(logs.output)
        self.assertIn("bert/pooler/dense/kernel/adam_v, output_weights/", log)
        self.assertNotIn("cls/predictions", log)
        self.assertEqual(int(optimizer.iterations), 17)

    def test_refuses_optimizer_state_that_does_not_fit(self):
        whole = self._optimizer_state()
        name = "bert/embeddings/word_embeddings/adam_m"
        built = self._build()
        before = training_state.read(*built)
        for changes, message in (
            ({name: None}, rf"{name} \(expected \(16, 16\), received nothing"),
            ({"global_step": None}, "1 tensors differ: global_step"),
            (
                {name: np.zeros((16, 15), np.float32)},
                r"received \(16, 15\)\); drop --init_optimizer_state",
            ),
            (
                {"bert/encoder/further/adam_v": np.zeros(2, np.float32)},
                r"further/adam_v \(expected nothing",
            ),
        ):
            state = whole | changes
            state = {k: v for k, v in state.items() if v is not None}
            with self.assertRaisesRegex(UserError, message):
                training_state.assign_optimizer(*built, state, "here")
        for state in ({}, {"global_step": np.int64(3)}):
            with self.assertRaisesRegex(UserError, "here holds no optimizer"):
                training_state.assign_optimizer(*built, state, "here")
        for key, value in training_state.read(*built).items():
            self.assertAllEqual(value, before[key], key)


if __name__ == "__main__":
    tf.test.main()
