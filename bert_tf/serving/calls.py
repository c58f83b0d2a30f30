"""Turns requests of `PredictionService` into `Call`s, for REST and gRPC.

A `Call` has a signature and its inputs, and turns the outputs into a response.
All functions raise `RequestError` for a request that the model cannot answer.
Rules and error messages are TensorFlow Serving's (predict_util.cc,
classifier.cc, regressor.cc, multi_inference.cc), also for warmup requests.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import model_pb2
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving.servable import DEFAULT_SIGNATURE
from bert_tf.serving.servable import DTYPES
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Servable
from bert_tf.serving.servable import Signature

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
_INPUTS = tf.saved_model.CLASSIFY_INPUTS
_CLASSES = tf.saved_model.CLASSIFY_OUTPUT_CLASSES
_SCORES = tf.saved_model.CLASSIFY_OUTPUT_SCORES
_OUTPUTS = tf.saved_model.REGRESS_OUTPUTS
WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
# Maximum warmup requests, as in TensorFlow Serving (saved_model_warmup_util.h).
_MAX_WARMUP_RECORDS = 1000
_LIMITS = ServeLimits()

# Bytes that a string in a tensor takes in addition to its characters.
_STRING_BYTES = 24
_PART = 1 << 16
_MAX_RANK = 32


@dataclasses.dataclass(frozen=True)
class Call:
    """The computation for a request.

    Attributes:
      inputs: The inputs of the signature, already checked.
      respond: Turns the outputs by name into the response, which is a proto for
        gRPC or a body for REST. None if there is no client.
    """

    signature: Signature
    inputs: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    respond: Callable[[Arrays], Any] | None = None


def predict(
    request: predict_pb2.PredictRequest,
    servable: Servable,
    limits: ServeLimits = _LIMITS,
) -> Call:
    """Returns the call for a `Predict` request."""
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = servable.signatures.get(name)
    if signature is None:
        raise errors.failed_precondition(
            f'Serving signature key "{errors.shortened(name)}" not found.'
        )
    # Refuse unknown inputs first: converting them could make large arrays.
    signature.check_names(request.inputs)
    for name, spec in signature.inputs.items():
        proto = request.inputs[name]
        if spec.has_free_batch() and proto.tensor_shape.dim:
            sizes = _sizes(proto)
            of_rows = sizes if spec.dtype == tf.string else sizes[:1]
            bodies.check_rows(math.prod(of_rows), limits)
    inputs = {
        name: _to_array(name, proto, limits)
        for name, proto in request.inputs.items()
    }
    signature.check(inputs)
    outputs = _requested_outputs(signature, request.output_filter)

    def respond(values: Arrays) -> message.Message:
        response = predict_pb2.PredictResponse(
            model_spec=_model_spec(servable, signature)
        )
        for name, value in values.items():
            response.outputs[name].CopyFrom(
                _from_array(value, signature.outputs[name].dtype)
            )
        return response

    return Call(signature, inputs, outputs, respond)


def _examples_call(
    build: Callable[[Signature, np.ndarray], Call],
    response: type[message.Message],
    request: message.Message,
    servable: Servable,
    limits: ServeLimits = _LIMITS,
) -> Call:
    """Returns the call for a `Classify` or `Regress` request.

    `build` returns a call that builds only the field `result` of the response.
    """
    signature = _find(
        servable, request.model_spec, "No signature was found with the name: {}"
    )
    call = build(signature, _examples(request.input, limits))
    return _with_model_spec(call, servable, response, "result")


def _with_model_spec(
    call: Call, servable: Servable, response: type[message.Message], field: str
) -> Call:
    """Returns `call` with its result as the field `field` of a `response`."""

    def respond(values: Arrays) -> message.Message:
        return response(
            model_spec=_model_spec(servable, call.signature),
            **{field: call.respond(values)},
        )

    return dataclasses.replace(call, respond=respond)


def multi_inference(
    request: inference_pb2.MultiInferenceRequest,
    servable: Servable,
    limits: ServeLimits = _LIMITS,
) -> list[Call]:
    """Returns a call for each task of a `MultiInference` request.

    The response of each call is an `InferenceResult`.
    """
    examples = _examples(request.input, limits)
    calls = []
    for task in request.tasks:
        signature = _find(
            servable,
            task.model_spec,
            "Requested signature not found in model graph: {}",
        )
        if any(call.signature is signature for call in calls):
            raise errors.invalid(
                f"Duplicate evaluation of signature: {signature.name}"
            )
        if task.method_name not in _METHODS:
            raise errors.unimplemented(
                "Unsupported signature method_name: "
                f"{errors.shortened(task.method_name)}"
            )
        build, field = _METHODS[task.method_name]
        call = build(signature, examples)
        response = inference_pb2.InferenceResult
        calls.append(_with_model_spec(call, servable, response, field))
    tensors = {call.signature.inputs[_INPUTS].tensor_name for call in calls}
    if len(tensors) > 1:
        raise errors.invalid(
            "Input tensor must be the same for all Signatures."
        )
    return calls


def check_tasks(request: inference_pb2.MultiInferenceRequest) -> None:
    """Checks that the tasks of a request are for one model."""
    names = [task.model_spec.name for task in request.tasks]
    if not names:
        raise errors.invalid("Inference request must have at least one task")
    if not all(names):
        raise errors.invalid("Found ModelSpec with an empty model name.")
    if len(set(names)) > 1:
        raise errors.invalid(
            "All ModelSpecs in a MultiInferenceRequest must access the same "
            "model name."
        )


def _classification(signature: Signature, examples: np.ndarray) -> Call:
    _check_examples_input(signature, "classification")
    if len(signature.outputs) not in (1, 2):
        raise errors.invalid(
            "Expected one or two output Tensors, found "
            f"{len(signature.outputs)}"
        )
    outputs = tuple(x for x in (_CLASSES, _SCORES) if x in signature.outputs)
    if not outputs:
        raise errors.failed_precondition(
            "Expected classification signature outputs to contain at least one "
            f'of "{_CLASSES}" or "{_SCORES}". Signature was: {signature.name}'
        )

    def respond(values: Arrays) -> message.Message:
        for name, value in values.items():
            _check_classes(name, value, len(examples))
        shapes = {value.shape[1] for value in values.values()}
        if len(shapes) > 1:
            raise errors.invalid(
                "Tensors class and score should match in dim_size(1). Got "
                + " vs. ".join(str(x.shape[1]) for x in values.values())
            )
        result = classification_pb2.ClassificationResult()
        shape = [len(examples), *shapes]
        labels = values.get(_CLASSES, np.full(shape, b"", object))
        scores = values.get(_SCORES, np.zeros(shape))
        for pairs in zip(labels, scores, strict=True):
            row = result.classifications.add()
            for label, score in zip(*pairs, strict=True):
                # Strings of a proto must be UTF-8, so replace other bytes.
                text = label.decode("utf-8", "replace")
                row.classes.add(label=text, score=score)
        return result

    return Call(signature, {_INPUTS: examples}, outputs, respond)


def _regression(signature: Signature, examples: np.ndarray) -> Call:
    _check_examples_input(signature, "regression")
    if len(signature.outputs) != 1:
        raise errors.invalid("Expected one output Tensor.")
    if _OUTPUTS not in signature.outputs:
        raise errors.failed_precondition(
            f"No regression outputs found in SignatureDef: {signature.name}"
        )

    def respond(values: Arrays) -> message.Message:
        value = values[_OUTPUTS]
        if value.ndim != 1 and not (value.ndim == 2 and value.shape[1] == 1):
            raise errors.invalid(
                "Expected output Tensor shape to be either [batch_size] or "
                f"[batch_size, 1] but got {list(value.shape)}"
            )
        if len(value) != len(examples):
            raise errors.invalid(
                "Input batch size did not match output batch size. Expected: "
                f"{len(examples)} Got: {len(value)}"
            )
        if value.dtype != np.float32:
            raise errors.invalid(
                f"Expected output Tensor of DT_FLOAT. Got: {value.dtype}"
            )
        result = regression_pb2.RegressionResult()
        for number in value.ravel().tolist():
            result.regressions.add(value=number)
        return result

    return Call(signature, {_INPUTS: examples}, (_OUTPUTS,), respond)


# Maps a method to the function for its calls, and to the field of its results.
_METHODS = {
    CLASSIFY: (_classification, "classification_result"),
    REGRESS: (_regression, "regression_result"),
}
# Both functions map a request to its `Call`, as `predict` does.
classify = functools.partial(
    _examples_call, _classification, classification_pb2.ClassificationResponse
)
regress = functools.partial(
    _examples_call, _regression, regression_pb2.RegressionResponse
)


def _check_examples_input(signature: Signature, what: str) -> None:
    if len(signature.inputs) != 1:
        raise errors.invalid("Expected one input Tensor.")
    if _INPUTS not in signature.inputs:
        raise errors.failed_precondition(
            f"No {what} inputs found in SignatureDef: {signature.name}"
        )
    if signature.inputs[_INPUTS].dtype != tf.string:
        raise errors.invalid(
            f"The input of signature {signature.name} takes no tf.Example."
        )


def _check_classes(name: str, value: np.ndarray, num_examples: int) -> None:
    if value.ndim != 2:
        raise errors.invalid(
            "Expected Tensor shape: [batch_size num_classes] but got "
            f"{list(value.shape)}"
        )
    if name == _CLASSES and value.dtype.kind not in "OS":
        raise errors.invalid(
            f"Expected classes Tensor of DT_STRING. Got: {value.dtype}"
        )
    if name == _SCORES and value.dtype != np.float32:
        raise errors.invalid(
            f"Expected scores Tensor of DT_FLOAT. Got: {value.dtype}"
        )
    if len(value) != num_examples:
        raise errors.invalid(
            f"Expected {name} output batch size of {num_examples}. Got: "
            f"{len(value)}"
        )


def _examples(
    request_input: input_pb2.Input, limits: ServeLimits = _LIMITS
) -> np.ndarray:
    """Returns the serialized examples of a request, <string>[batch]."""
    part = getattr(request_input, request_input.WhichOneof("kind") or "", None)
    if part is None or not part.examples:
        raise errors.invalid("Input is empty.")
    context = b""
    if isinstance(part, input_pb2.ExampleListWithContext):
        # Put the context first, so that the example's features override it.
        context = part.context.SerializeToString()
    bodies.check_rows(len(part.examples), limits)
    repeated = len(context) * len(part.examples)
    subject = "The context of all examples"
    errors.check_limit(repeated, limits, "max_tensor_bytes", subject)
    array = np.empty(len(part.examples), object)
    array[:] = [
        context + example.SerializeToString() for example in part.examples
    ]
    return array


def _requested_outputs(signature: Signature, output_filter) -> tuple[str, ...]:
    names = tuple(output_filter) or tuple(signature.outputs)
    for name in names:
        if name not in signature.outputs:
            name = errors.shortened(name)
            raise errors.invalid(
                f"output tensor alias not found in signature: {name} Outputs "
                f"expected to be in the set {{{','.join(signature.outputs)}}}."
            )
        if names.count(name) > 1:
            raise errors.invalid(f"duplicate output tensor alias: {name}")
    return names


def _find(
    servable: Servable, spec: model_pb2.ModelSpec, sentence: str
) -> Signature:
    name = spec.signature_name or DEFAULT_SIGNATURE
    if name not in servable.signatures:
        raise errors.invalid(sentence.format(errors.shortened(name)))
    return servable.signatures[name]


def _model_spec(servable: Servable, signature: Signature):
    spec = model_pb2.ModelSpec(
        name=servable.name, signature_name=signature.name
    )
    spec.version.value = servable.version
    return spec


_WARMUP_CALLS = {
    "predict_log": lambda *args: [predict(*args)],
    "classify_log": lambda *args: [classify(*args)],
    "regress_log": lambda *args: [regress(*args)],
    "multi_inference_log": multi_inference,
}


def warm_up(servable: Servable, directory: str) -> int:
    """Runs the requests in a version's warmup file; returns their number.

    Raises:
      RequestError: If a request fails. Then the version must not be served.
    """
    path = os.path.join(directory, WARMUP_FILE)
    if not os.path.exists(path):
        return 0
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            count += 1
            if count > _MAX_WARMUP_RECORDS:
                raise errors.invalid(
                    "Number of warmup records exceeds the maximum "
                    f"({_MAX_WARMUP_RECORDS}) at {path}"
                )
            _warm_up_with(servable, record, path)
    except tf.errors.DataLossError as error:
        raise errors.RequestError(
            tf.errors.DATA_LOSS,
            f"{error.message}. Please verify your warmup data is in TFRecord "
            "format.",
        ) from error
    return count


def _warm_up_with(servable: Servable, record: bytes, path: str) -> None:
    log = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except message.DecodeError as error:
        raise errors.invalid(
            f"Failed to parse warmup record: {record[:80]!r} from {path}"
        ) from error
    kind = log.WhichOneof("log_type")
    request = getattr(log, kind).request if kind in _WARMUP_CALLS else None
    if request is None:
        raise errors.unimplemented(
            f"Unsupported log_type for warmup: {kind}. In {path}"
        )
    for call in _WARMUP_CALLS[kind](request, servable):
        try:
            outputs = servable.run(call.signature, call.inputs, call.outputs)
        except tf.errors.OpError as error:
            raise errors.from_exception(error) from error
        call.respond(outputs)


def parsed_size(request: message.Message) -> int:
    """Returns a request's bytes, or a tensor's number of values if larger."""
    tensors = getattr(request, "inputs", {}).values()
    return max([request.ByteSize(), *(math.prod(_sizes(x)) for x in tensors)])


def _sizes(proto: tensor_pb2.TensorProto) -> list[int]:
    """Returns up to `_MAX_RANK` dimensions of a tensor, with 1 instead of 0."""
    return [dim.size or 1 for dim in proto.tensor_shape.dim[:_MAX_RANK]]


def _to_array(
    name: str, proto: tensor_pb2.TensorProto, limits: ServeLimits
) -> np.ndarray:
    """Returns the tensor in a request.

    The array's size is checked first: a few bytes can describe a huge array.
    """
    name = errors.shortened(name)
    dtype = _dtype(name, proto.dtype)
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise _unreadable(name, "the shape is not known")
    if len(shape) > _MAX_RANK:
        raise _unreadable(
            name,
            f"{len(shape)} dimensions; at most {_MAX_RANK} are supported",
        )
    size = math.prod(shape)
    errors.check_limit(
        # Count a size of 0 as 1: for an empty tensor of shape [0, 10**9], a
        # model may still compute 10**9 values.
        _num_bytes(proto, dtype, math.prod(x or 1 for x in shape)),
        limits,
        "max_tensor_bytes",
        f"tensor parsing error: {name}: the shape {list(shape)}",
    )
    if size and dtype == tf.string and not proto.string_val:
        return np.full(shape, b"", object)
    try:
        return tf.make_ndarray(proto)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, problem: object) -> errors.RequestError:
    return errors.invalid(f"tensor parsing error: {name}: {problem}")


def _from_array(value: np.ndarray, dtype: tf.DType) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype == tf.string:
        proto.string_val.extend(value.ravel().tolist())
    elif dtype in DTYPES:
        field = getattr(proto, DTYPES[dtype][0])
        flat = value.ravel()
        # Copy in parts, so that other threads can run between the parts.
        for first in range(0, flat.size, _PART):
            field.extend(flat[first : first + _PART].tolist())
    elif dtype in (tf.float16, tf.bfloat16):
        proto.half_val.extend(value.ravel().view(np.uint16).tolist())
    else:
        return tf.make_tensor_proto(value, dtype)
    return proto


def _dtype(name: str, number: int) -> tf.DType:
    try:
        dtype = tf.as_dtype(number)
    except TypeError as error:
        raise _unreadable(name, f"unknown type {number}") from error
    if not dtype.is_numpy_compatible:
        raise _unreadable(name, f"{dtype.name} is not supported")
    return dtype


def _num_bytes(
    proto: tensor_pb2.TensorProto, dtype: tf.DType, size: int
) -> int:
    """Returns the bytes that `size` values of a proto take in memory."""
    if dtype != tf.string:
        return size * dtype.size
    values = proto.string_val
    # The last string is repeated for missing strings.
    repeated = max(0, size - len(values)) * len(values[-1]) if values else 0
    return size * _STRING_BYTES + sum(map(len, values)) + repeated
