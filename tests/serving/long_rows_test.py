"""Tests of the limits of a row, and that it ends with its client."""

import contextlib
import json
import os
import socket
import tempfile
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.serving import litert
from bert_tf.serving import saved_model
from tests.support import tiny_exports
from tests.support import toy_models

_SIGNATURES = ("serving_default", "from_examples", "from_ids", "tokenize")
_ENGINES = {"savedmodel": saved_model.SavedModel, "litert": litert.Litert}
# Minutes of computing, if nothing ended it.
_ENDLESS = "cat " * 1_000_000


def _example(**texts):
    example = tf.train.Example()
    for name, values in texts.items():
        values = [x.encode() for x in np.atleast_1d(values).tolist()]
        example.features.feature[name].bytes_list.value.extend(values)
    return example.SerializeToString()


class LongRowsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        for name, task, flags in (
            ("toy", tiny_exports.squad(), {"litert": True}),
            ("choice", tiny_exports.multiple_choice(), {}),
        ):
            folder = os.path.join(cls.folder, f"{name}_model")
            model_dir = tiny_exports.write(folder, task)
            output_dir = os.path.join(cls.folder, name)
            tiny_exports.export(model_dir, output_dir, _SIGNATURES, **flags)

    def serve(self, name, **flags):
        """Serves a model as "toy"."""
        server, config = self.enterContext(
            toy_models.serving(
                os.path.join(self.folder, name), model_name="toy", **flags
            )
        )
        self.port = config.rest_api_port
        self.channel = f"localhost:{config.port}"

    def stub(self):
        channel = self.enterContext(grpc.insecure_channel(self.channel))
        return prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def assert_limit(self, flag, signature, largest, too_large):
        for inputs, is_refused in ((largest, False), (too_large, True)):
            request = toy_models.predict_request(signature, **inputs)
            call = self.stub().Predict.future(request)
            if not is_refused:
                call.result(toy_models.TIMEOUT_SECONDS)
                continue
            error = call.exception(toy_models.TIMEOUT_SECONDS)
            self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn(f"--{flag}", error.details())

    @parameterized.parameters(*_ENGINES)
    def test_tokens(self, engine):
        self.serve("toy", engine=engine, max_row_tokens=1000)
        for text, count in (
            ("cat ", 999),
            ("東", 999),
            (".", 999),
            # 64 bytes for a token.
            (" ", 63_996),
        ):
            rows = [
                {"question": ["", "cat"], "context": ["", text * number]}
                for number in (count, count + 2)
            ]
            self.assert_limit("max_row_tokens", "serving_default", *rows)
            examples = [
                {"examples": [_example(question="cat", context=text * number)]}
                for number in (count, count + 2)
            ]
            self.assert_limit("max_row_tokens", "from_examples", *examples)
        body = {"instances": [{"question": "cat", "context": "cat " * 1000}]}
        status, answer = toy_models.predict(self.port, body)
        self.assertEqual(status, 413, answer)

    def test_choices(self):
        self.serve("choice", max_row_choices=3)
        texts, examples, ids = [], [], []
        for count in (3, 4):
            choices = ["cat"] * count
            texts.append({"text": ["dog"], "choices": [choices]})
            example = _example(text="dog", choices=choices)
            examples.append({"examples": [example]})
            names = ("input_ids", "input_mask", "segment_ids")
            row = np.ones([1, count, 5], np.int32)
            ids.append(dict.fromkeys(names, row))
        self.assert_limit("max_row_choices", "serving_default", *texts)
        self.assert_limit("max_row_choices", "from_examples", *examples)
        self.assert_limit("max_row_choices", "from_ids", *ids)

    @contextlib.contextmanager
    def leaving(self, how):
        """Sends an endless row, whose client leaves after the block."""
        body = {"instances": [{"question": "", "context": _ENDLESS}]}
        if how == "rest":
            body = json.dumps(body).encode()
            address = ("127.0.0.1", self.port)
            with socket.create_connection(address) as connection:
                connection.sendall(
                    b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost"
                    b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                yield
            return
        request = toy_models.predict_request(
            "serving_default", question=[""], context=[_ENDLESS]
        )
        # A deadline passes by itself.
        timeout = 5 if how == "deadline" else None
        call = self.stub().Predict.future(request, timeout=timeout)
        yield
        if how == "cancel":
            call.cancel()

    @parameterized.parameters(
        ("savedmodel", "rest"), ("savedmodel", "deadline"), ("litert", "cancel")
    )
    def test_others_are_answered_until_the_row_ends(self, engine, how):
        begun, ended = [], []
        servable = _ENGINES[engine]
        run = servable.run

        def observed(self, signature, inputs, outputs, stop=None):
            is_endless = len(inputs["context"][0]) == len(_ENDLESS)
            begun.extend([1] * is_endless)
            try:
                return run(self, signature, inputs, outputs, stop)
            except Exception:
                ended.extend([1] * is_endless)
                raise

        self.serve("toy", engine=engine, max_row_tokens=10_000_000)
        self.enterContext(mock.patch.object(servable, "run", observed))
        row = {"question": "cat", "context": "the cat sat on the mat"}
        with self.leaving(how):
            toy_models.wait_until(lambda: begun)
            status, _ = toy_models.predict(
                self.port, {"instances": [row] * 100}
            )
            self.assertEqual(status, 200)
            if how != "deadline":
                self.assertEmpty(ended)
        toy_models.wait_until(lambda: ended)
        row["context"] = "the cat " * 3000
        status, answer = toy_models.predict(self.port, {"instances": [row]})
        self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    tf.test.main()
