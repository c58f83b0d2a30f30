"""Tests for export/savedmodel.py: exports answer in a fresh process."""

import functools
import json
import math
import os
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.inference.fill_mask import FillMask
from bert_tf.text import packing
from tests.support import every_head
from tests.support import fresh_process
from tests.support import tiny_exports

_TEXTS = tiny_exports.TEXTS
_PAIRS = list(zip(_TEXTS, reversed(_TEXTS), strict=True))
_CHOICES = [
    ("the cat", ["sat", "dog 東", "on the mat . " * 9]),
    ("東 " * 20, ["the mats", "cat"]),
    ("dog", ["cat", "the the", "the dog sitting . mat"]),
]
_QUESTIONS = [
    ("the cat", "東 dog sat, the CAT sat\u00a0on the mat ."),
    ("dog 東 " * 9, "matting . " * 9 + "the café\u0301 dogs"),
    ("the", "cat"),
    ("on", "the dog . the cat . the mat . 東 sat"),
]
_MASKED = [
    "the [MASK]",
    "[MASK] dog [MASK] . 東",
    "the [MASK] sitting on the mats,[MASK].",
]


# Prefixes of the entries of a checkpoint that are no weights.
_INTERNAL = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter")
# A head's answers do not depend on these weights, so exports omit them.
_UNREAD = {
    "next_sentence": ("cls/predictions/",),
    "fill_mask": ("cls/seq_relationship/", "bert/pooler/"),
    "embeddings": ("bert/pooler/",),
    "question_answering": ("bert/pooler/",),
    "tagging": ("bert/pooler/",),
}


def _call(texts):
    return ["serving_default", {"text": texts}]


def _call_pairs(pairs):
    first, second = zip(*pairs, strict=True)
    return ["serving_default", {"text": first, "text_pair": second}]


def _call_choices(rows):
    most = max(len(choices) for _, choices in rows)
    return [
        "serving_default",
        {
            "text": [text for text, _ in rows],
            "choices": [x + [""] * (most - len(x)) for _, x in rows],
        },
    ]


def _call_questions(rows):
    questions, contexts = zip(*rows, strict=True)
    return ["serving_default", {"question": questions, "context": contexts}]


def _pack(model_dir, *columns):
    """Returns the model's inputs, without buckets."""
    tokenizer = bert_tf.load_tokenizer(model_dir)
    tokens = [tokenizer.tokenize(list(column)) for column in columns]
    return packing.pack(
        tokens[0],
        tokens[1] if len(tokens) > 1 else None,
        tiny_exports.MAX_SEQ_LENGTH,
        tokenizer.vocabulary,
    )


def _batches(rows):
    """Returns the rows one by one, and all together."""
    return [*([row] for row in rows), list(rows)]


@pytest.mark.slow
class HeadsTest(tf.test.TestCase, parameterized.TestCase):
    """Calls each head in a fresh process, without the model's directory."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.expected, cls.num_bytes, calls = {}, {}, {}
        published = every_head.publish(with_ids=False)
        for name, (batches, expect) in _cases().items():
            moved = os.path.join(cls.folder, name)
            if name == "windows":
                model_dir = cls._export_windows(moved)
            else:
                model_dir = published[name].model_dir
                shutil.copytree(f"{published[name].output_dir}/1", moved)
            cls.expected[name] = expect(model_dir)
            cls.num_bytes[name] = _count_bytes(name, model_dir, moved)
            if name == "windows":
                shutil.rmtree(os.path.dirname(model_dir))
            calls[moved] = batches
        answers = fresh_process.call(calls)
        cls.answers = {
            name: answers[os.path.join(cls.folder, name)]
            for name in cls.expected
        }

    @classmethod
    def _export_windows(cls, moved):
        """Exports a model that will be deleted; returns its directory."""
        folder = os.path.join(cls.folder, "deleted")
        model_dir = tiny_exports.write(
            folder, tiny_exports.classification(doc_stride=4)
        )
        version = tiny_exports.export(
            model_dir,
            os.path.join(folder, "out"),
            signatures=("serving_default",),
        )
        shutil.move(version, moved)
        return model_dir

    def _compare(self, name):
        """Compares answers to single rows, and to all rows, with the model."""
        expected = self.expected[name]
        *alone, together = self.answers[name]
        for key, values in expected.items():
            for row, answer in enumerate(alone):
                self.assertLen(answer[key], 1)
                self._compare_row(answer[key][0], values[row])
                self._compare_row(together[key][row], values[row])
            self.assertLen(together[key], len(values))
        self.assertEqual(set(together), set(expected))
        # Equal rows would hide a wrong order.
        self.assertGreater(len({str(x) for x in together[key]}), 2)

    def _compare_row(self, answer, expected):
        if isinstance(expected, list):
            for actual, row in zip(answer, expected, strict=False):
                self._compare_row(actual, row)
            self.assertGreaterEqual(len(answer), len(expected))
            self._assert_padding(answer[len(expected) :])
        elif isinstance(expected, str):
            self.assertEqual(answer, expected)
        else:
            self.assertAllClose(answer, expected, rtol=0, atol=1e-5)

    def _assert_padding(self, values):
        """Checks the padding after a row that is shorter than another."""
        for value in values:
            if isinstance(value, list):
                self._assert_padding(value)
            else:
                self.assertIn(value, ("", 0.0, -1))

    def test_stores_only_weights_that_predictions_use(self):
        for name, (stored, read) in self.num_bytes.items():
            self.assertEqual(stored, read, name)

    @parameterized.parameters(*every_head.NAMES, "windows")
    def test_answers_equal_those_of_the_model(self, name):
        self._compare(name)


def _count_bytes(name, model_dir, version):
    """Returns the bytes of all stored weights, and of the weights in use."""
    weights = formats.read(model_dir).weights
    reader = tf.train.load_checkpoint(f"{version}/variables/variables")
    shapes = reader.get_variable_to_shape_map()
    return tuple(
        4 * sum(math.prod(shape) for shape in of_weights)
        for of_weights in (
            [x for key, x in shapes.items() if not key.startswith(_INTERNAL)],
            [
                weights.shapes[key]
                for key in weights
                if not key.startswith(_UNREAD.get(name, ()))
            ],
        )
    )


def _cases():
    """Returns calls and expected outputs, by name."""
    texts = [_call(batch) for batch in _batches(_TEXTS)]
    pairs = [_call_pairs(batch) for batch in _batches(_PAIRS)]
    choices = [_call_choices(batch) for batch in _batches(_CHOICES)]
    questions = [_call_questions(batch) for batch in _batches(_QUESTIONS)]
    masked = [_call(batch) for batch in _batches(_MASKED)]
    return {
        "classification": (texts, _expect_label),
        "pair": (pairs, lambda path: _expect_label(path, _PAIRS)),
        "windows": (texts, _expect_label),
        "multi_label": (texts, _expect_labels),
        "regression": (
            pairs,
            lambda path: {"score": _column(path, _PAIRS, "score")},
        ),
        "multiple_choice": (choices, _expect_choice),
        "next_sentence": (pairs, _expect_next_sentence),
        "embeddings": (texts, _expect_embedding),
        "question_answering": (questions, _expect_answers),
        "tagging": (texts, _expect_tags),
        "fill_mask": (masked, _expect_candidates),
    }


def _column(model_dir, rows, key):
    return [row[key] for row in _predict(model_dir, json.dumps(rows))]


@functools.cache
def _predict(model_dir, rows):
    """Returns predictions for rows, which are JSON so that they are cached."""
    return bert_tf.load_model(model_dir).predict(json.loads(rows))


def _expect_label(model_dir, rows=_TEXTS):
    probabilities = _column(model_dir, rows, "probabilities")
    return {
        "label": _column(model_dir, rows, "label"),
        "probabilities": [list(row.values()) for row in probabilities],
    }


def _expect_labels(model_dir):
    probabilities = _column(model_dir, _TEXTS, "probabilities")
    labels = _column(model_dir, _TEXTS, "labels")
    count = len(tiny_exports.LABELS)
    return {
        "labels": [row + [""] * (count - len(row)) for row in labels],
        "probabilities": [list(row.values()) for row in probabilities],
    }


def _expect_choice(model_dir):
    rows = [{"context": text, "choices": x} for text, x in _CHOICES]
    probabilities = _column(model_dir, rows, "probabilities")
    return {
        "index": _column(model_dir, rows, "index"),
        "probabilities": [list(row.values()) for row in probabilities],
    }


def _expect_next_sentence(model_dir):
    model = bert_tf.load_model(model_dir)
    packed = _pack(model_dir, *zip(*_PAIRS, strict=True))
    logits = model(packed)["next_sentence_logits"].numpy()
    names = np.array(["is_next", "not_next"])
    return {
        "label": names[logits.argmax(-1)].tolist(),
        "probabilities": special.softmax(logits, -1).tolist(),
    }


def _expect_embedding(model_dir):
    model = bert_tf.load_model(model_dir, return_all_layers=True)
    packed = _pack(model_dir, _TEXTS)
    states = model(packed)["encoder_outputs"][-1].numpy()
    lengths = packed["input_mask"].numpy().sum(-1)
    means = [
        row[:length].mean(0)
        for row, length in zip(states, lengths, strict=True)
    ]
    return {"embedding": [(x / np.linalg.norm(x)).tolist() for x in means]}


def _expect_answers(model_dir):
    rows = [{"question": x, "context": y} for x, y in _QUESTIONS]
    columns = {
        name: _column(model_dir, rows, name)
        for name in ("answer", "start", "end", "score", "no_answer_score")
    }
    for name in ("start", "end"):
        columns[name] = [-1 if x is None else x for x in columns[name]]
    return columns


def _expect_tags(model_dir):
    offsets = _column(model_dir, _TEXTS, "offsets")
    return {
        "words": _column(model_dir, _TEXTS, "words"),
        "tags": _column(model_dir, _TEXTS, "tags"),
        "starts": [[start for start, _ in row] for row in offsets],
        "ends": [[end for _, end in row] for row in offsets],
    }


def _expect_candidates(model_dir):
    filled = FillMask(model_dir)(_MASKED, top_k=3)
    return {
        "tokens": [[[x.token for x in mask] for mask in row] for row in filled],
        "probabilities": [
            [[x.probability for x in mask] for mask in row] for row in filled
        ],
    }


if __name__ == "__main__":
    tf.test.main()
