"""Converts a TensorFlow function to a .tflite file; reads its operators."""

import collections
import os
import tempfile
from collections.abc import Callable
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from tensorflow.lite.python import convert_phase
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.export.tflite import quantize
from bert_tf.io import quiet

SIGNATURE = "serving_default"
# The converter has this option only as an undocumented attribute.
_PER_TENSOR = "_experimental_disable_per_channel_quantization_for_dense_layers"

# TF-Text's operators that tokenization needs.
TEXT_OPERATORS = frozenset(
    {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
        "RaggedTensorToTensor",
    }
)
_BUILTINS = {
    number: name
    for name, number in vars(schema.BuiltinOperator).items()
    if isinstance(number, int)
}


def convert(
    function: Callable[..., Mapping[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
    quantization: str = "none",
    samples: quantize.Samples | None = None,
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
        module = tf.Module()
        traced = serving_module.trace(function, specs)
        module.weights = list(traced.graph.variables)
        with quiet.below(logging.WARNING):
            tf.saved_model.save(module, saved, signatures={SIGNATURE: traced})
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
            with quiet.below(logging.ERROR):
                content = converter.convert()
                if quantization == "full_int8":
                    content = quantize.quantize(content, samples, per_tensor)
        except convert_phase.ConverterError as error:
            raise UserError(
                "TensorFlow's converter must accept the model. It reported: "
                f"{str(error).split('error:')[-1].strip():.300}"
            ) from error
    allowed = TEXT_OPERATORS if text_operators else frozenset()
    wrong = sorted(custom_operators(content) - allowed)
    if wrong:
        raise UserError(
            "The .tflite file must only have TensorFlow Lite's own operators"
            f"{' and those of TF-Text' if text_operators else ''}. "
            f"Received: {', '.join(wrong)}."
        )
    return content


def operators(content: bytes) -> collections.Counter[str]:
    """Counts the operators of a file.

    Custom operators have the name under which they are registered; the others
    have that of the schema, such as "FULLY_CONNECTED".
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = [
        code.customCode.decode()
        if code.customCode
        # Old and new files have the number in different fields.
        else _BUILTINS[max(code.builtinCode, code.deprecatedBuiltinCode)]
        for code in model.operatorCodes
    ]
    return collections.Counter(
        names[operator.opcodeIndex]
        for subgraph in model.subgraphs
        for operator in subgraph.operators
    )


def custom_operators(content: bytes) -> set[str]:
    """Returns the operators that are not TensorFlow Lite's own."""
    return operators(content).keys() - _BUILTINS.values()
