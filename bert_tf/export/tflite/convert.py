"""Converts a TensorFlow function to a .tflite file."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.lite.python import convert_phase

from bert_tf.errors import UserError
from bert_tf.export.tflite import quantize
from bert_tf.export.tflite import tflite_file

SIGNATURE = "serving_default"
# The converter has this option only as an undocumented attribute.
_PER_TENSOR = "_experimental_disable_per_channel_quantization_for_dense_layers"

_Function = Callable[..., Mapping[str, tf.Tensor]]
_Samples = Callable[[], Iterable[Mapping[str, np.ndarray]]]


def convert(
    function: _Function,
    specs: Mapping[str, tf.TensorSpec],
    quantization: str = "none",
    samples: _Samples | None = None,
    text_operators: bool = False,
    per_tensor: bool = False,
) -> bytes:
    """Converts a function to a file with one signature, `serving_default`.

    Args:
      function: Takes the tensors of `specs` by name; returns tensors by name.
      specs: The dtypes and shapes of its inputs; None for free dimensions.
      quantization: One of `flags.export.QUANTIZATIONS`: "none" for float32;
        "float16" for float16 weights; "dynamic" for int8 weights, with
        activations quantized only for products; "full_int8" for int8 weights
        and activations, see `quantize`.
      samples: Returns inputs by name to calibrate "full_int8"; otherwise
        unused.
      text_operators: Whether the file may have TF-Text's operators.
      per_tensor: Whether a dense layer has one scale instead of one per
        column, as runtimes before 2.15 need it.

    Raises:
      UserError: If the file would need TensorFlow's own operators, or custom
        operators that are not allowed.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved_model")
        _save(function, specs, saved)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            saved, signature_keys=[SIGNATURE]
        )
        converter.allow_custom_ops = text_operators
        setattr(converter, _PER_TENSOR, per_tensor)
        if quantization in ("float16", "dynamic"):
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantization == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            with quiet():
                content = converter.convert()
                if quantization == "full_int8":
                    content = quantize.quantize(content, samples, per_tensor)
        except convert_phase.ConverterError as error:
            raise UserError(
                "TensorFlow's converter must accept the model. It reported: "
                f"{str(error).split('error:')[-1].strip():.300}"
            ) from error
    tflite_file.require_operators(content, text_operators)
    return content


def _save(
    function: _Function, specs: Mapping[str, tf.TensorSpec], directory: str
) -> None:
    def named(**inputs):
        outputs = function(**inputs)
        return {name: tf.identity(x, name) for name, x in outputs.items()}

    traced = tf.function(named, autograph=False).get_concrete_function(**specs)
    saved = tf.Module()
    saved.weights = list(traced.graph.variables)
    tf.saved_model.save(saved, directory, signatures={SIGNATURE: traced})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences log messages below errors."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
