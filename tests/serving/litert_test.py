"""Tests for bert_tf.serving.litert."""

import asyncio
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import errors
from bert_tf.serving import litert
from bert_tf.serving import saved_model
from bert_tf.serving.batching import BatchingOptions
from bert_tf.serving.batching import BatchScheduler
from bert_tf.serving.calls import Call
from bert_tf.serving.litert import LitertEngine
from bert_tf.serving.pieces import PieceScheduler
from bert_tf.serving.saved_model import SavedModelEngine
from tests.support import every_head
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support import toy_models

_TEXTS = tiny_exports.TEXTS
# All signatures but the one that needs the SavedModel's weights.
_OFFERED = ("serving_default", "from_ids", "from_examples", "tokenize")
_OFFERED += ("classify", "regress")
_MASK_ID = tiny_model.TOKENS.index("[MASK]")


def _strings(values):
    array = np.empty(np.shape(values), object)
    for index in np.ndindex(array.shape):
        value = values
        for place in index:
            value = value[place]
        array[index] = value.encode("utf-8")
    return array


def _inputs(names, masked):
    """Returns rows of strings for the inputs of a head."""
    texts = [f"[MASK] {x} [MASK]" if masked else x for x in (*_TEXTS, "")]
    columns = {
        "text": texts,
        "text_pair": texts[::-1],
        "question": texts[::-1],
        "context": texts,
        "choices": [[x, y] for x, y in zip(texts, texts[::-1], strict=True)],
    }
    return {name: _strings(columns[name]) for name in names}


def _examples(inputs):
    serialized = []
    for number in range(len(_TEXTS) + 1):
        example = tf.train.Example()
        for name, values in inputs.items():
            feature = example.features.feature[name].bytes_list.value
            feature.extend(np.atleast_1d(values[number]))
        serialized.append(example.SerializeToString())
    array = np.empty(len(serialized), object)
    array[:] = serialized
    return array


def _ids(rank):
    """Returns rows of ids; one is all padding, one has padding inside."""
    rng = np.random.default_rng(2)
    shape = (4, 9) if rank == 2 else (2, 2, 9)
    ids = rng.integers(5, len(tiny_model.TOKENS), shape, np.int32)
    ids[..., 2] = _MASK_ID
    mask = np.ones(shape, np.int32)
    rows = mask.reshape(-1, 9)
    rows[0, 6:], rows[1], rows[2, 4] = 0, 0, 0
    segments = np.zeros(shape, np.int32)
    segments[..., 5:] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


class EveryHeadTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())

    # Tagging has outputs per token, multiple choice has rows on two axes.
    @parameterized.parameters("tagging", "multiple_choice")
    @pytest.mark.slow
    def test_both_engines_agree(self, name):
        self._compare(name, ("serving_default", "from_ids"))

    # All heads take long, so this test is a thorough one.
    @parameterized.parameters(*every_head.NAMES)
    @pytest.mark.thorough
    def test_both_engines_agree_on_all_signatures(self, name):
        self._compare(name, None)

    def _compare(self, name, signatures):
        model_dir, flags = every_head.write_model(self.folder, name)
        directory = tiny_exports.export(
            model_dir,
            os.path.join(self.folder, name),
            signatures,
            litert=True,
            litert_quantization="none",
            **flags,
        )
        expected = SavedModelEngine().load(name, 1, directory)
        given = LitertEngine().load(name, 1, directory)
        offered = set(expected.signatures) & set(_OFFERED)
        self.assertEqual(set(given.signatures), offered)
        self.assertContainsSubset({"serving_default", "from_ids"}, offered)
        for key, signature in given.signatures.items():
            self.assertEqual(signature, expected.signatures[key])
            for inputs in self._requests(given, signature, name):
                self._assert_same(expected, given, signature, inputs)
            # Computing rows of unequal lengths in pieces must change nothing.
            inputs = next(self._requests(given, signature, name))
            for servable in (expected, given):
                self._assert_same_in_pieces(servable, signature, inputs)

    def _requests(self, servable, signature, name):
        serving = servable.signatures["serving_default"]
        strings = _inputs(serving.inputs, masked=name == "fill_mask")
        if signature.name == "from_ids":
            rank = len(signature.inputs["input_ids"].shape)
            yield _ids(rank)
            return
        if "examples" in signature.inputs or "inputs" in signature.inputs:
            (key,) = signature.inputs
            strings = {key: _examples(strings)}
        elif signature.name == "tokenize":
            strings = {"text": _strings(_TEXTS)}
        yield strings
        yield {key: x[:1] for key, x in strings.items()}
        yield {key: x[:0] for key, x in strings.items()}
        if signature.name == "serving_default" and name == "fill_mask":
            yield {"text": _strings(["the cat", "no mask"])}

    def _assert_same(self, expected, given, signature, inputs):
        names = tuple(signature.outputs)
        own = expected.signatures[signature.name]
        reference = expected.run(own, inputs, names)
        answer = given.run(signature, inputs, names)
        self._assert_equal_outputs(answer, reference, 1e-4)

    def _assert_equal_outputs(self, outputs, expected, tolerance):
        self.assertEqual(set(outputs), set(expected))
        for key, value in expected.items():
            self.assertEqual(outputs[key].dtype, value.dtype, key)
            self.assertEqual(outputs[key].shape, value.shape, key)
            if value.dtype.kind == "f":
                tolerances = tolerance, tolerance
                self.assertAllClose(outputs[key], value, *tolerances, msg=key)
            else:
                self.assertAllEqual(outputs[key], value, key)

    def _assert_same_in_pieces(self, servable, signature, inputs):
        options = BatchingOptions(max_batch_size=1)
        scheduler = BatchScheduler(options)

        async def compute():
            limits = ServeLimits()
            pieces = PieceScheduler(scheduler, scheduler, options, limits)
            call = Call(signature, inputs, tuple(signature.outputs))
            return await pieces.compute(servable, call)

        pieces = asyncio.run(compute())
        scheduler.stop()
        outputs = servable.run(signature, inputs, tuple(signature.outputs))
        self._assert_equal_outputs(pieces, outputs, 1e-5)


@pytest.mark.slow
class LitertTest(tf.test.TestCase, parameterized.TestCase):
    """Serves a classifier in int8."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = tiny_exports.write(cls.folder, tiny_exports.classification())
        cls.directory = tiny_exports.export(
            model,
            os.path.join(cls.folder, "m"),
            ("serving_default", "from_ids", "from_examples", "attention"),
            litert=True,
        )

    def setUp(self):
        super().setUp()
        self.base_path = self.create_tempdir().full_path
        toy_models.copy(self.directory, self.base_path, 1)

    def _ask(self, config, **body):
        return toy_models.ask(
            config.rest_api_port, "POST", "/v1/models/m:predict", body
        )

    def _serving(self, engine="litert"):
        return toy_models.serving(self.base_path, engine=engine, model_name="m")

    def test_serves_and_loads_new_versions(self):
        with self._serving() as (server, config):
            before = self._ask(config, instances=list(_TEXTS))
            toy_models.copy(self.directory, self.base_path, 2)
            toy_models.refresh(server._service.manager)
            states = toy_models.states(config.rest_api_port, "m")
            after = self._ask(config, instances=list(_TEXTS))
        self.assertEqual(states, {"2": "AVAILABLE", "1": "END"})
        self.assertEqual(after, before)
        self.assertLen(before[1]["predictions"], len(_TEXTS))

    @parameterized.parameters("litert", "savedmodel")
    def test_bad_ids_and_examples_are_client_errors(self, engine):
        good = {key: x[:1].tolist() for key, x in _ids(2).items()}
        vocab_size = len(tiny_model.TOKENS)
        longest = tiny_model.CONFIG.max_position_embeddings
        bad = [
            ("`input_ids` must", {"input_ids": [[vocab_size] * 9]}),
            ("`input_ids` must", {"input_ids": [[-1] * 9]}),
            ("must have the shape of `input_ids`", {"input_mask": [[1] * 8]}),
            (f"1 to {longest}", dict.fromkeys(good, [[1] * (longest + 1)])),
            (f"1 to {longest}", dict.fromkeys(good, [[]])),
            ("`segment_ids` must", {"segment_ids": [[2] * 9]}),
            ("`segment_ids` must", {"segment_ids": [[-1] * 9]}),
        ]
        if engine == "savedmodel":
            bad = bad[-2:]  # TensorFlow has its own messages for the others.
        bad = [("from_ids", text, good | values) for text, values in bad]
        text = "must be serialized tf.Examples"
        bad += [("from_examples", text, [{"b64": x}]) for x in ("////", "YWJj")]
        with (
            self._serving(engine) as (_, config),
            self.assertNoLogs(level="ERROR"),
        ):
            for name, text, inputs in bad:
                body = {"signature_name": name, "inputs": inputs}
                status, answer = self._ask(config, **body)
                self.assertEqual(status, 400, text)
                self.assertIn(text, answer["error"])
            body = {"signature_name": "from_ids", "inputs": good}
            status, answer = self._ask(config, **body)
            self.assertEqual(status, 200, answer)

    def test_a_version_without_litert_is_refused_with_the_flag(self):
        shutil.rmtree(os.path.join(self.base_path, "1", litert.FOLDER))
        with (
            self.assertRaisesRegex(UserError, "export/savedmodel.py --litert"),
            self._serving(),
        ):
            pass

    @parameterized.parameters(
        "saved_model.pb", litert.MODEL_FILE, "litert/saved_model.pb"
    )
    def test_incomplete_version_waits(self, name):
        path = pathlib.Path(self.base_path, "1", name)
        whole = path.read_bytes()
        path.unlink()
        self.assertEqual(
            LitertEngine().missing(path.parents[name.count("/")]), name
        )
        path.write_bytes(whole[: len(whole) // 2])
        engine = LitertEngine()
        self.assertIsNone(engine.missing(path.parents[name.count("/")]))
        with self.assertRaises(errors.RequestError):
            engine.load("m", 1, os.path.join(self.base_path, "1"))
        path.write_bytes(whole)
        servable = engine.load("m", 1, os.path.join(self.base_path, "1"))
        servable.retire()
        self.assertTrue(servable.wait_closed(0))

    def test_weights_of_the_saved_model_are_not_read(self):
        shutil.rmtree(os.path.join(self.base_path, "1", "variables"))
        directory = os.path.join(self.base_path, "1")
        servable = LitertEngine().load("m", 1, directory)
        (answer,) = servable.run(
            servable.signatures["serving_default"],
            {"text": _strings(["the cat"])},
            ("label",),
        ).values()
        self.assertIn(answer[0].decode(), tiny_exports.LABELS)
        with self.assertRaises(errors.RequestError):
            SavedModelEngine().load("m", 1, directory)
        self.assertIn("attention", saved_model.read_signature_defs(directory))


class _Sum:
    """A model that sums the tokens of rows and records its calls."""

    def __init__(self, calls):
        self._calls = calls
        shape = (-1, -1)
        self.inputs = dict.fromkeys(
            ("input_ids", "input_mask"), (np.int32, shape)
        )
        self.outputs = {
            "of_row": (np.int32, (-1, 2)),
            "of_pieces": (np.int32, shape),
        }

    def run(self, inputs):
        self._calls.append(inputs["input_ids"].shape)
        shown = inputs["input_ids"] * inputs["input_mask"]
        total = shown.sum(1, keepdims=True)
        return {"of_row": np.repeat(total, 2, 1), "of_pieces": shown + 1}


class RunRowsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.calls = []

    def _run(self, shape, lengths):
        """Returns the ids without padding, the mask, and the outputs."""
        lengths = np.reshape(np.array(lengths, np.int32), shape[:-1])
        ids = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
        mask = np.arange(shape[-1]) < lengths[..., np.newaxis]
        inputs = {"input_ids": ids, "input_mask": mask.astype(np.int32)}
        outputs = litert.run_rows(
            _Sum(self.calls), inputs | {"else": ids}, lengths
        )
        return ids * mask, mask, outputs

    def test_rows_come_back_in_their_order(self):
        shown, mask, outputs = self._run((3, 2, 90), [90, 9, 64, 41, 1, 40])
        total = shown.sum(-1)
        self.assertAllEqual(outputs["of_row"], np.stack([total] * 2, -1))
        self.assertAllEqual(outputs["of_pieces"] * mask, (shown + 1) * mask)
        self.assertCountEqual(self.calls, [(1, 90), (1, 64), (2, 41), (2, 9)])

    def test_short_rows_are_grouped_and_long_ones_alone(self):
        self._run((40, 129), [16] * 20 + [2] * 19 + [129])
        self.assertEqual(
            self.calls, [(1, 129), (8, 16), (8, 16), (4, 16), (19, 2)]
        )


if __name__ == "__main__":
    tf.test.main()
