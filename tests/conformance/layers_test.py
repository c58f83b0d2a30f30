"""Tests of properties that every layer has."""

import dataclasses
import inspect
import json
import pkgutil
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import modeling
from bert_tf.modeling import attention
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import bilstm
from bert_tf.modeling import encoder
from bert_tf.modeling import heads
from bert_tf.modeling import layers
from bert_tf.modeling import task_models
from tests.support import tiny_layers

_MODULES = (attention, bilstm, encoder, heads, layers, bert_model, task_models)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A layer to test.

    Attributes:
      cls: The class.
      arguments: Arguments of its constructor.
      inputs: Inputs by the names of the call's arguments.
      num_variables: Number of its weights.
      float32_outputs: Outputs that no policy rounds; "" means all.
    """

    cls: type
    arguments: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    num_variables: int
    float32_outputs: tuple[str, ...] = ()

    def build(self, **kwargs):
        """Returns the layer with distinct weights."""
        layer = self.cls(**self.arguments, **kwargs)
        layer(**self.inputs())
        return tiny_layers.randomize(layer)


def _hidden(name="hidden_states"):
    return lambda: {name: tiny_layers.normal(3, 5, 8)}


def _attention_inputs():
    mask = tiny_layers.inputs()["input_mask"]
    return _hidden()() | {
        "attention_bias": attention.build_attention_bias(mask).numpy()
    }


def _embedding_inputs():
    names = ("input_ids", "segment_ids")
    return {name: tiny_layers.inputs()[name] for name in names}


def _masked_lm_inputs():
    return {
        "sequence_output": tiny_layers.normal(3, 5, 8),
        "word_embeddings": tiny_layers.normal(19, 8, seed=1),
        "masked_lm_positions": tiny_layers.integers(5, 3, 2),
    }


def _pretraining_inputs():
    positions = {"masked_lm_positions": tiny_layers.integers(5, 3, 2)}
    return {"inputs": tiny_layers.inputs() | positions}


def _multiple_choice_inputs():
    """Returns three examples with two choices each."""
    inputs = tiny_layers.inputs(batch=6).items()
    return {"inputs": {name: x.reshape(3, 2, 5) for name, x in inputs}}


_CONFIG = {"config": tiny_layers.CONFIG}
# The encoder's outputs are needed to give each weight a large gradient. One
# layer is enough, because the entry of `BertModel` has two.
_MODEL = {
    "config": tiny_layers.replace(num_hidden_layers=1),
    "return_encoder_outputs": True,
}


def _model_inputs():
    return {"inputs": tiny_layers.inputs()}


# Every entry runs through all tests of `LayersTest`.
_ENTRIES = (
    Entry(layers.Projection, {"width": 6}, _hidden("inputs"), 2),
    Entry(layers.LayerNorm, {"epsilon": 0.01}, _hidden("inputs"), 2),
    Entry(layers.Intermediate, _CONFIG, _hidden("inputs"), 2),
    Entry(
        layers.ResidualOutput,
        _CONFIG,
        lambda: {
            "inputs": tiny_layers.normal(3, 5, 12),
            "residual": tiny_layers.normal(3, 5, 8),
        },
        4,
    ),
    Entry(bert_model.Embeddings, _CONFIG, _embedding_inputs, 5),
    Entry(attention.SelfAttention, _CONFIG, _attention_inputs, 6),
    Entry(attention.Attention, _CONFIG, _attention_inputs, 10),
    Entry(encoder.EncoderLayer, _CONFIG, _attention_inputs, 16),
    Entry(encoder.Encoder, _CONFIG, _attention_inputs, 32),
    Entry(heads.Pooler, _CONFIG, _hidden("sequence_output"), 2),
    Entry(heads.Transform, _CONFIG, _hidden("inputs"), 4),
    Entry(heads.MaskedLMHead, _CONFIG, _masked_lm_inputs, 5, ("",)),
    Entry(
        heads.LinearHead,
        _CONFIG | {"num_outputs": 3},
        _hidden("inputs"),
        2,
        ("",),
    ),
    Entry(
        heads.LayerCombination,
        _CONFIG | {"combination": "weighted_sum_all_layers"},
        lambda: {
            "embedding_output": tiny_layers.normal(3, 5, 8),
            "encoder_outputs": [
                tiny_layers.normal(3, 5, 8, seed=n) for n in (1, 2)
            ],
        },
        2,
    ),
    Entry(
        bilstm.BiLSTM,
        {"units": 3},
        lambda: {
            "inputs": tiny_layers.normal(3, 5, 8),
            "input_mask": tiny_layers.inputs()["input_mask"],
        },
        6,
    ),
    Entry(bert_model.BertModel, _CONFIG, _model_inputs, 39),
    Entry(
        bert_model.BertForPretraining,
        _MODEL,
        _pretraining_inputs,
        30,
        ("masked_lm_logits", "next_sentence_logits"),
    ),
    Entry(
        task_models.BertForClassification,
        _MODEL | {"labels": ["no", "maybe", "yes"]},
        _model_inputs,
        25,
        ("logits",),
    ),
    Entry(
        task_models.BertForTagging,
        _MODEL | {"num_labels": 4, "head_dropout_prob": 0.3},
        _model_inputs,
        25,
        ("logits",),
    ),
    Entry(
        task_models.BertForQuestionAnswering,
        _MODEL,
        _model_inputs,
        25,
        ("start_logits", "end_logits"),
    ),
    Entry(
        task_models.BertForMultipleChoice,
        _MODEL,
        _multiple_choice_inputs,
        25,
        ("logits",),
    ),
    Entry(
        task_models.BertForEmbeddings,
        _MODEL | {"pooling": "cls+mean"},
        _model_inputs,
        23,
        ("embedding",),
    ),
)
# Base classes are never built themselves, so they have no entry.
_BASES = {
    layers.BasicLayer,
    layers.BertLayer,
    bert_model.BertWithHead,
    task_models.BertWithOutputHead,
}
_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def _flatten(outputs):
    """Returns name to output; the only output of a layer has no name."""
    if isinstance(outputs, dict):
        return outputs
    return {"": outputs}


def _float32(outputs):
    return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), outputs)


class RegistryTest(tf.test.TestCase):
    def test_every_public_layer_is_registered(self):
        public = {
            cls
            for module in _MODULES
            for name, cls in inspect.getmembers(module, inspect.isclass)
            if issubclass(cls, keras.layers.Layer)
            and cls.__module__ == module.__name__
            and not name.startswith("_")
        }
        registered = {entry.cls for entry in _ENTRIES}
        self.assertEqual(registered, public - _BASES)
        self.assertLessEqual(_BASES, public)  # The exceptions exist.

    def test_every_module_with_layers_is_listed(self):
        looked_at = {module.__name__ for module in _MODULES}
        for info in pkgutil.iter_modules(
            modeling.__path__, "bert_tf.modeling."
        ):
            module = __import__(info.name, fromlist=["_"])
            has_layers = any(
                issubclass(cls, keras.layers.Layer)
                and cls.__module__ == module.__name__
                for _, cls in inspect.getmembers(module, inspect.isclass)
            )
            self.assertEqual(has_layers, info.name in looked_at, info.name)


def _replace_in_config(path, replacements):
    """Rewrites names in the config.json of a .keras file."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    config = contents["config.json"].decode()
    for new, old in replacements.items():
        config = config.replace(new, old)
    contents["config.json"] = config.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


@parameterized.named_parameters(
    (entry.cls.__name__, entry) for entry in _ENTRIES
)
class LayersTest(tf.test.TestCase, parameterized.TestCase):
    def _assert_same(self, received, expected, **tolerance):
        # Saved models return lists in place of tuples, so flatten both.
        for a, b in zip(
            tf.nest.flatten(received), tf.nest.flatten(expected), strict=True
        ):
            self.assertAllClose(a, b, **tolerance)

    def test_variables_are_created_once(self, entry):
        layer = entry.build()
        self.assertLen(layer.weights, entry.num_variables)
        self.assertLen(layer.trainable_weights, entry.num_variables)
        paths = [weight.path for weight in layer.weights]
        layer(**entry.inputs())
        self.assertEqual([weight.path for weight in layer.weights], paths)
        self.assertLen(set(paths), entry.num_variables)

    def test_configuration_round_trips_as_json(self, entry):
        layer = entry.build(name="some_name", dtype="mixed_bfloat16")
        serialized = keras.saving.serialize_keras_object(layer)
        copy = keras.saving.deserialize_keras_object(
            json.loads(json.dumps(serialized))
        )
        self.assertIsInstance(copy, entry.cls)
        self.assertEqual(copy.get_config(), layer.get_config())
        self.assertEqual(copy.name, "some_name")
        self.assertEqual(copy.compute_dtype, "bfloat16")
        copy(**entry.inputs())
        copy.set_weights(layer.get_weights())
        self._assert_same(
            _float32(copy(**entry.inputs())), _float32(layer(**entry.inputs()))
        )

    def test_configuration_holds_every_argument(self, entry):
        names = set()
        for cls in entry.cls.__mro__:
            if cls.__module__.startswith("bert_tf.") and "__init__" in vars(
                cls
            ):
                names |= set(inspect.signature(cls.__init__).parameters)
        names -= {"self", "kwargs"}
        config = entry.build(dtype="mixed_bfloat16").get_config()
        self.assertLessEqual(names | {"name", "dtype"}, set(config))

    def test_saving_round_trips(self, entry):
        layer = entry.build()
        inputs = tf.nest.map_structure(
            lambda x: keras.Input(x.shape[1:], x.shape[0], dtype=str(x.dtype)),
            entry.inputs(),
        )
        model = keras.Model(inputs, layer(**inputs))
        path = self.create_tempdir().full_path + "/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        expected = layer(**entry.inputs())
        self._assert_same(loaded(entry.inputs()), expected)
        _replace_in_config(
            path, {"dropout_id": "salt", "attention_bias": "adder"}
        )
        of_earlier_version = keras.models.load_model(path)
        inputs = {
            "adder" if name == "attention_bias" else name: value
            for name, value in entry.inputs().items()
        }
        self._assert_same(of_earlier_version(inputs), expected)

    def test_weights_are_float32_under_any_policy(self, entry):
        expected = entry.build()(**entry.inputs())
        for policy in _POLICIES:
            layer = entry.build(dtype=policy)
            received = layer(**entry.inputs())
            for weight in layer.weights:
                self.assertEqual(weight.dtype, "float32")
            for name, output in _flatten(received).items():
                exact = name in entry.float32_outputs
                dtype = "float32" if exact else layer.compute_dtype
                for tensor in tf.nest.flatten(output):
                    self.assertEqual(tensor.dtype, dtype)
            tolerance = {"float32": 0.0, "mixed_float16": 0.02}.get(policy, 0.1)
            self._assert_same(
                _float32(received), expected, rtol=tolerance, atol=tolerance
            )

    def test_graph_accepts_an_unknown_batch_size(self, entry):
        layer = entry.build()
        signature = tf.nest.map_structure(
            lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype),
            entry.inputs(),
        )
        call = tf.function(lambda x: layer(**x), input_signature=[signature])
        expected = layer(**entry.inputs())
        self._assert_same(call(entry.inputs()), expected, atol=1e-5)
        one = tf.nest.map_structure(lambda x: x[:1], entry.inputs())
        if "word_embeddings" in one:  # It has no batch axis.
            one["word_embeddings"] = entry.inputs()["word_embeddings"]
        first = tf.nest.map_structure(lambda x: x[:1], expected)
        self._assert_same(call(one), first, atol=1e-5)

    def test_compiled_chains_change_nothing(self, entry):
        if entry.cls in (layers.Projection, bilstm.BiLSTM):
            return  # They have no chain.
        expected = entry.build()(**entry.inputs())
        fused = entry.build(fuse=True)
        self._assert_same(fused(**entry.inputs()), expected, atol=1e-5)

    def test_every_weight_gets_a_gradient(self, entry):
        layer = entry.build()
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(layer(**entry.inputs()))
            rng = np.random.default_rng(1)
            total = tf.add_n(
                [
                    tf.reduce_sum(x * rng.normal(size=x.shape).astype("f4"))
                    for x in outputs
                ]
            )
        weights = layer.weights
        if entry.cls is layers.Projection:
            weights = [layer.kernel]  # The caller adds the bias.
        gradients = tape.gradient(total, [x.value for x in weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            self.assertIsInstance(gradient, tf.Tensor, weight.path)
            if not weight.path.endswith("key/bias"):  # Cancels in a softmax.
                largest = np.abs(gradient).max()
                self.assertGreater(largest, 1e-4, weight.path)


if __name__ == "__main__":
    tf.test.main()
