"""Converts a TensorFlow function to a .tflite file, in float32 or quantized.

An int8 matrix has one scale for all of its columns. In BERT a few columns of
the output of a block's second dense layer are a hundred times greater than the
other columns. The other columns then lose almost all of their precision. So
each column is divided by its greatest value before quantization, and multiplied
by that value in float32. The division is part of the kernel and costs nothing.

The inputs of dense layers also have a few columns that are ten times greater
than the rest. Only these columns are scaled down, to the range of the rest, and
the matching rows of the kernel are scaled up. Scaling all columns would lose
more precision in the kernel than it would gain in the inputs.

Sources:
  Bondarenko et al., 2021, https://arxiv.org/abs/2109.12948, sections 3 and
    4.1, find these columns, and give each group of columns its own scale.
  Xiao et al., 2022, https://arxiv.org/abs/2211.10438, equation 3, divide inputs
    and multiply kernels, but in all columns.
"""

import collections
import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.lite.python import convert as lite_convert
from tensorflow.lite.python import convert_phase
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.python.optimize import calibrator as calibrators

from bert_tf.errors import UserError
from bert_tf.io import terminal
from bert_tf.modeling.layers import Projection

SIGNATURE = "serving_default"
# A converter option that exists only as an undocumented attribute.
_PER_TENSOR = "_experimental_disable_per_channel_quantization_for_dense_layers"

# TF-Text's operators that tokenization in a .tflite file needs.
TEXT_OPERATORS = frozenset(
    {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
        "RaggedTensorToTensor",
    }
)
# Operators that stay in float32. In int8, one scale could not hold both -10000
# of the attention mask and other values. In softmax, layer normalization and
# residual sums, a few large values would use up most of the 256 steps. Products
# of two activations are slow in int8. For ONE_HOT, the converter stores 0 as
# the byte 0, but the result's scale reads that byte as 0.5.
_FLOAT_OPERATORS = (
    "ADD",
    "SUB",
    "MUL",
    "MEAN",
    "SQUARED_DIFFERENCE",
    "RSQRT",
    "SOFTMAX",
    "GELU",
    "BATCH_MATMUL",
    "ONE_HOT",
)

# Only the 2% of input columns with the largest values are scaled. Scaling 1% to
# 33% gave about the same error of the logits.
_USUAL = 0.98

# A function that returns samples, each with the model's inputs by name.
Samples = Callable[[], Iterable[Mapping[str, np.ndarray]]]
_BUILTINS = {
    number: name
    for name, number in vars(schema.BuiltinOperator).items()
    if isinstance(number, int)
}


def convert(
    function: Callable[..., Mapping[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
    quantization: str = "none",
    samples: Samples | None = None,
    text_operators: bool = False,
    per_tensor: bool = False,
) -> bytes:
    """Converts a function to a .tflite file with signature `serving_default`.

    Args:
      function: Takes the tensors of `specs` by name; returns tensors by name.
      specs: The dtypes and shapes of the inputs; a free dimension is None.
      quantization: One of `flags.export.QUANTIZATIONS`: "none" for float32;
        "float16" for float16 weights; "dynamic" for int8 weights, with
        activations quantized only for products; "full_int8" for int8 weights
        and activations.
      samples: Returns calibration inputs for "full_int8"; else unused.
      text_operators: Whether the file may have TF-Text's operators.
      per_tensor: Whether a dense layer has one scale instead of one per
        column, as runtimes before 2.15 need.

    Raises:
      UserError: If the file would need TensorFlow's own operators, or custom
        operators that are not allowed.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved_model")
        module = tf.Module()
        traced = trace(function, specs)
        module.weights = list(traced.graph.variables)
        with terminal.below(logging.WARNING):
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
            with terminal.below(logging.ERROR):
                content = converter.convert()
                if quantization == "full_int8":
                    content = _quantize(content, samples, per_tensor)
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


def trace(
    function: Callable[..., dict[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
):
    """Traces a function, and names each output tensor after its key."""

    def named(**inputs):
        outputs = function(**inputs)
        return {name: tf.identity(x, name) for name, x in outputs.items()}

    return tf.function(named, autograph=False).get_concrete_function(**specs)


def operators(content: bytes) -> collections.Counter[str]:
    """Counts the operators of a file.

    Custom operators have the name under which they are registered; all other
    operators have the schema's name, such as "FULLY_CONNECTED".
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = [
        code.customCode.decode()
        if code.customCode
        # Old files have only `deprecatedBuiltinCode`: their `builtinCode` is 0.
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


def _quantize(
    content: bytes, samples: Samples, per_tensor: bool = False
) -> bytes:
    """Quantizes the weights and activations of dense layers of a float32 file.

    Samples may have any shape that the file takes.
    """
    # Calibrate here: the converter supports only samples of one length, and
    # would also quantize the operators that must stay in float32.
    calibrator = calibrators.Calibrator(
        calibrators.add_intermediate_tensors(content), [], []
    )
    # Ignore TensorFlow's warning that LiteRT's interpreter should be used.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for sample in samples():
            # A call resizes inputs only for its first sample: use a call per
            # sample. Do not use `calibrate`, which would also write the file.
            calibrator._feed_tensors(lambda sample=sample: [sample], True)
    return lite_convert.mlir_quantize(
        calibrator.calibrate(lambda: ()),  # The samples were fed above.
        denylisted_ops=[*_FLOAT_OPERATORS],
        disable_per_channel_for_dense_layers=per_tensor,
    )


@contextlib.contextmanager
def scaled_columns(model: keras.Model, samples: Samples) -> Iterator[None]:
    """Scales the columns of dense layers while the `with` block runs.

    The scales are measured on samples. `inference.prepare` must have built the
    model. The outputs of the model change only by rounding.
    """
    projections = [
        layer
        # `layers` has only top-level layers; no public method has all layers.
        for layer in model._flatten_layers()
        if isinstance(layer, Projection)
    ]
    for projection, inputs, columns in _measure(model, projections, samples):
        projection.input_scales = _excess(inputs)
        # Columns that are always 0 need no scale.
        projection.column_scales = np.where(columns > 0, columns, 1.0)
    try:
        yield
    finally:
        for projection in projections:
            projection.column_scales = None
            projection.input_scales = None


def _excess(greatest: np.ndarray) -> np.ndarray:
    """Returns each column's maximum divided by the usual maximum, at least 1.

    The argument and the result are <float32>[input width].
    """
    usual = np.quantile(greatest, _USUAL)
    if not usual:
        return np.ones_like(greatest)
    return np.maximum(greatest / usual, 1.0).astype(np.float32)


def _measure(
    model: keras.Model, projections: list[Projection], samples: Samples
) -> list[tuple[Projection, np.ndarray, np.ndarray]]:
    """Returns the greatest magnitude of each input and output column.

    The arrays are <float32>[input width] and <float32>[output width]. Layers
    that the model does not call are left out.
    """
    greatest: dict[int, list[np.ndarray]] = {}

    def look(projection: Projection, *matrices: tf.Tensor) -> None:
        found = [
            tf.reduce_max(tf.abs(x), axis=[*range(x.shape.rank - 1)]).numpy()
            for x in matrices
        ]
        before = greatest.get(id(projection), found)
        greatest[id(projection)] = [*map(np.maximum, before, found)]

    for projection in projections:
        projection.on_rows = functools.partial(look, projection)
    try:
        for inputs in samples():
            model(
                {name: tf.constant(x) for name, x in inputs.items()},
                training=False,
            )
    finally:
        for projection in projections:
            projection.on_rows = None
    return [
        (projection, *greatest[id(projection)])
        for projection in projections
        if id(projection) in greatest
    ]
