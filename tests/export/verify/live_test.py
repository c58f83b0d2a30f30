"""Tests for export.verify.live and the printed commands, with live servers."""

import contextlib
import dataclasses
import io
import json
import os
import shlex
import tempfile
import urllib.request
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.export import artifact as artifacts
from bert_tf.export import assets_extra
from bert_tf.export import graph_file
from bert_tf.export import model_card
from bert_tf.export import warmup
from bert_tf.export.verify import by_head
from bert_tf.export.verify import calls as verify_calls
from bert_tf.export.verify import clients
from bert_tf.export.verify import live
from bert_tf.export.verify import run as verification
from bert_tf.export.verify import texts as test_texts
from bert_tf.modeling import task_models
from tests.support import in_process
from tests.support import live_server
from tests.support import tiny_exports
from tests.support import tiny_model

_PAIRS = tiny_exports.classification(pair=True)
_SCORES = tiny_exports.classification("regression")


def _export(folder, name, task, scale, signatures=None):
    """Exports a classifier; returns its path and the version directory."""
    model = os.path.join(folder, "models", name)
    shape = task_models.BertForClassification(
        tiny_model.ONE_LAYER, **task.model_arguments()
    )
    weights = tiny_model.random_weights(shape, scale)
    tiny_model.write_task(model, task, weights)
    output_dir = os.path.join(folder, name)
    return model, tiny_exports.export(model, output_dir, signatures)


# Checks that only servers have.
_OF_SERVERS = {
    server: (
        f"classify by {server}, its own method",
        f"metadata by {server}",
        f"status by {server}",
    )
    for server in ("REST", "gRPC")
}


def _batches(self):
    """Returns all texts of the verification, and one by itself."""
    rows = self._rows(test_texts.TEXTS)
    return [rows[2:3], rows]


def _artifact(name):
    return artifacts.Artifact(
        model_name=name,
        version=1,
        head="classification",
        precision="float32",
        ids_only=False,
        max_seq_length=tiny_exports.MAX_SEQ_LENGTH,
        buckets=(5, 8, tiny_exports.MAX_SEQ_LENGTH),
        settings={"pair": True},
    )


@pytest.mark.slow
class LiveTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model, cls.version = _export(cls.folder, "pairs", _PAIRS, 0.5)
        _export(cls.folder, "others", _PAIRS, 0.4)
        _, cls.scores = _export(
            cls.folder, "scores", _SCORES, 0.5, ("serving_default", "regress")
        )
        cls.stored = checkpoint_loading.read(cls.model)
        with (
            in_process.verifying(),
            mock.patch.object(verify_calls, "plan", lambda *_: []),
        ):
            assets_extra.complete(cls.version, _artifact("pairs"), cls.stored)
        cls.enterClassContext(
            mock.patch.object(by_head.Classification, "batches", _batches)
        )
        names = ("pairs", "others", "scores")
        cls.grpc, cls.rest = cls.enterClassContext(
            live_server.serve(
                cls.folder, {x: os.path.join(cls.folder, x) for x in names}
            )
        )

    def _send(self, url):
        """Returns the checks of a server alone."""
        signatures = graph_file.read_signatures(self.version)
        planned = verification._plan(
            self.version, _artifact("pairs"), self.stored, signatures
        )
        return live.check(url, _artifact("pairs"), signatures, planned, 1e-5)

    def test_verifies_an_export_and_its_rest_server(self):
        url = f"http://{self.rest}/v1/models/pairs"
        with in_process.verifying():
            report = verification.verify(self.version, self.model, url)
        self.assertEmpty(report.faults)
        names = [check.name for check in report.checks]
        for signature in ("serving_default", "from_ids", "classify"):
            self.assertIn(f"{signature} by REST", names)
        self.assertContainsSubset(_OF_SERVERS["REST"], names)

    def test_verifies_a_grpc_server(self):
        checks = self._send(self.grpc)
        names = [check.name for check in checks]
        self.assertIn("from_examples by gRPC", names)
        self.assertContainsSubset(_OF_SERVERS["gRPC"], names)
        self.assertEmpty([x for x in checks if x.faults])

    def test_detects_a_server_with_another_model(self):
        checks = self._send(f"http://{self.rest}/v1/models/others")
        wrong = {check.name for check in checks if check.faults}
        self.assertContainsSubset(
            {
                "serving_default by REST",
                "from_ids by REST",
                "classify by REST, its own method",
            },
            wrong,
        )
        # Tokens and signatures are the same.
        self.assertNotIn("tokenize by REST", wrong)
        self.assertNotIn("metadata by REST", wrong)

    def test_detects_a_server_without_the_version(self):
        signatures = graph_file.read_signatures(self.version)
        for url in (self.grpc, f"http://{self.rest}/v1/models/pairs"):
            fewer = dict(signatures)
            del fewer["from_ids"]
            artifact = dataclasses.replace(_artifact("pairs"), version=3)
            metadata, status = live.check(url, artifact, fewer, [], 1e-5)
            self.assertEqual(
                metadata.faults, ("from_ids differs from the export",)
            )
            self.assertEqual(status.faults, ("version 3 is not AVAILABLE",))
            self.assertEqual(status.detail, "version 1 AVAILABLE")

    def test_a_missing_model_is_a_fault_of_each_check(self):
        for url, reason in (
            (f"http://{self.rest}/v1/models/pairs/versions/4", "404: "),
            (f"http://{self.rest}/v1/models/nothing", "404: "),
        ):
            checks = self._send(url)
            self.assertLen([x for x in checks if x.faults], len(checks))
            for check in checks:
                self.assertIn(reason, check.faults[0])

    def test_regression_by_its_own_method(self):
        signatures = graph_file.read_signatures(self.scores)
        rows = [{"text": text} for text in tiny_exports.TEXTS]
        plain = clients.Call("serving_default", test_texts.to_inputs(rows))
        examples = {"inputs": test_texts.to_examples(rows)}
        call = clients.Call("regress", examples)
        for url in (self.grpc, f"http://{self.rest}/v1/models/scores"):
            server = live.to_url(url, "scores", signatures)
            (expected,) = server.send([plain])
            (answer,) = server.send_methods([call])
            self.assertIsNone(answer.error)
            self.assertEqual(list(answer.outputs), ["outputs"])
            self.assertAllClose(
                answer.outputs["outputs"],
                expected.outputs["score"],
                rtol=0,
                atol=1e-6,
            )

    def test_json_cannot_encode_an_empty_matrix(self):
        rest = live.Rest("http://localhost:1/v1/models/x", {})
        grpc = live.Grpc("localhost:1", "x")
        for shape, is_said in (([0], True), ([2, 3], True), ([0, 3], False)):
            call = clients.Call(
                "serving_default", {"choices": np.empty(shape, object)}
            )
            self.assertEqual(rest.can_send(call), is_said, shape)
            self.assertTrue(grpc.can_send(call))

    def test_printed_commands_run(self):
        signature = graph_file.read_signatures(self.version)["serving_default"]
        artifact = _artifact("pairs")
        example = warmup.example(artifact, signature, self.stored)
        words = shlex.split(model_card.curl_line(artifact, example))
        url = words[-1].replace(f"localhost:{model_card.REST_PORT}", self.rest)
        body = words[words.index("-d") + 1].encode()
        with urllib.request.urlopen(url, body, 60) as reply:
            (row,) = json.load(reply)["predictions"]
        program = model_card.python_snippet(artifact, example)
        program = program.replace(
            f"localhost:{model_card.GRPC_PORT}", self.grpc
        )
        printed = io.StringIO()
        names = {}
        with contextlib.redirect_stdout(printed):
            exec(program, names)
        self.assertIn("probabilities [[", printed.getvalue())
        (label,) = tf.make_ndarray(names["reply"].outputs["label"])
        self.assertEqual(label.decode(), row["label"])
        (probabilities,) = tf.make_ndarray(
            names["reply"].outputs["probabilities"]
        )
        self.assertAllClose(probabilities, row["probabilities"], atol=1e-6)
        self.assertAllClose(np.sum(probabilities), 1.0)


if __name__ == "__main__":
    tf.test.main()
