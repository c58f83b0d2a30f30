"""Fuzz tests: the gRPC interface answers any bytes and keeps running."""

import grpc
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import predict_pb2

from tests.support import fuzzed_servers
from tests.support import fuzzing
from tests.support import toy_models

_METHODS = (
    *("PredictionService/Predict", "PredictionService/Classify"),
    *("PredictionService/Regress", "PredictionService/MultiInference"),
    *("PredictionService/GetModelMetadata", "ModelService/GetModelStatus"),
    "ModelService/HandleReloadConfigRequest",
)
# These codes mean a bug or an overload, so no small request may get them.
_FAULTS = ("INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "CANCELLED")
_FAULTS += ("DEADLINE_EXCEEDED",)
_NAME = st.sampled_from(["toy", "", "no"]) | st.text(max_size=300)
_SIZE = st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**62])
_TENSOR = st.builds(
    tensor_pb2.TensorProto,
    # All types, references to types (from 101), and numbers of no type.
    dtype=st.sampled_from([1, 3, 7, 9, 10, 19, 20, 21])
    | st.integers(0, 40)
    | st.integers(100, 130),
    tensor_shape=st.builds(
        lambda sizes, unknown: {
            "dim": [{"size": size} for size in sizes],
            "unknown_rank": unknown,
        },
        st.lists(_SIZE | st.just(1), max_size=4),
        st.sampled_from([False, False, False, True]),
    ),
    tensor_content=st.just(b"") | st.binary(max_size=16),
    string_val=st.lists(st.binary(max_size=8), max_size=3),
    float_val=st.lists(st.floats(width=32), max_size=3),
    int_val=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    bool_val=st.lists(st.booleans(), max_size=2),
)
_SPEC = st.builds(
    lambda name, signature, version: {
        "name": name,
        "signature_name": signature,
        **({} if version is None else {"version": {"value": version}}),
    },
    st.just("toy") | _NAME,
    st.sampled_from(fuzzed_servers.SIGNATURES) | _NAME,
    st.sampled_from([None, None, None, 1, 2, -1, 2**63 - 1]),
)
_PREDICT = st.builds(
    predict_pb2.PredictRequest,
    model_spec=_SPEC,
    inputs=st.dictionaries(
        st.sampled_from(fuzzed_servers.INPUTS) | _NAME, _TENSOR, max_size=3
    ),
    output_filter=st.lists(_NAME, max_size=2),
)


@st.composite
def _classify(draw):
    request = classification_pb2.ClassificationRequest(model_spec=draw(_SPEC))
    examples = request.input.example_list.examples
    for _ in range(draw(st.integers(0, 3))):
        features = examples.add().features.feature
        name = draw(st.sampled_from(["x", "text"]) | _NAME)
        kind = draw(st.integers(0, 3))
        if kind == 0:
            features[name].bytes_list.value.extend(
                draw(st.lists(st.binary(max_size=8), max_size=2))
            )
        elif kind == 1:
            features[name].float_list.value.extend(
                draw(st.lists(st.floats(width=32), max_size=2))
            )
        elif kind == 2:
            features[name].int64_list.value.extend(
                draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2))
            )
        else:
            features[name].SetInParent()
    return request


class GrpcFuzzTest(fuzzed_servers.FuzzCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = cls.enterClassContext(
            grpc.insecure_channel(f"localhost:{cls.config.port}")
        )

    def ask(self):
        signature = "serving_default" if self.engine else "echo"
        request = toy_models.predict_request(signature, text=["the cat"])
        answer = predict_pb2.PredictResponse.FromString(
            self.call(_METHODS[0], request.SerializeToString())
        )
        self.assertNotEmpty(answer.outputs)
        return {
            n: tf.make_ndarray(x).tolist() for n, x in answer.outputs.items()
        }

    def call(self, method, contents):
        """Returns the response's bytes, or b"" if the request is refused."""
        path = f"/tensorflow.serving.{method}"
        try:
            return self.channel.unary_unary(path)(
                contents, timeout=toy_models.TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            self.assertNotIn(error.code().name, _FAULTS, error.details())
            self.assertNotIn("Traceback", error.details())
            self.assertLess(len(error.details()), 2000)
            return b""

    def test_tensors_are_answered_or_refused(self):
        @fuzzing.run(self.examples, _PREDICT)
        def check(request):
            self.call(_METHODS[0], request.SerializeToString())

    def test_examples_are_answered_or_refused(self):
        @fuzzing.run(self.examples, st.sampled_from(_METHODS[1:3]), _classify())
        def check(method, request):
            self.call(method, request.SerializeToString())

    def test_changed_bytes_are_answered_or_refused(self):
        @fuzzing.run(
            self.examples, fuzzing.RANDOM, st.sampled_from(_METHODS), _PREDICT
        )
        def check(rng, method, request):
            contents = request.SerializeToString()
            self.call(method, fuzzing.mutate_bytes(rng, contents))


@pytest.mark.thorough
class SavedModelGrpcFuzzTest(GrpcFuzzTest):
    engine = "savedmodel"
    examples = 500


@pytest.mark.thorough
class LitertGrpcFuzzTest(GrpcFuzzTest):
    engine = "litert"
    examples = 500


if __name__ == "__main__":
    tf.test.main()
