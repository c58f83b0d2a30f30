"""Tests for export.heads.classification."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.export import serving_module
from bert_tf.export.heads.classification import Classification
from bert_tf.export.heads.classification import MultipleChoice
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.export.verify import reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.tasks import registry
from bert_tf.tasks.classification import glue_tasks
from tests.support import tiny_exports
from tests.support import tiny_model

_ROWS = (
    ("the cat", ["sat", "dog 東"]),
    ("", ["the mats", "cat", "sitting on the dog . " * 4]),
    (" \t", ["dog", "the", "cat"]),
    ("dog " * 20, ["cat"]),
    ("the", []),
)


class ClassificationTest(tf.test.TestCase, parameterized.TestCase):
    def _build(self, task=None, stored_values=None, **flags):
        path = tiny_model.write_task(
            self.create_tempdir().full_path + "/model",
            task or tiny_exports.classification(),
            **(stored_values or {}),
        )
        config = SavedModelConfig(model_dir=path, output_dir="x", **flags)
        source = Source(formats.read(path), config, 12, (5, 8, 12))
        return Classification.build(source)

    @parameterized.parameters(
        ({}, {}, {}, ("text",)),
        ({"pair": True}, {}, {}, ("text", "text_pair")),
        ({"name": "mrpc"}, {}, {}, ("text", "text_pair")),
        ({"name": "sst-2"}, {}, {}, ("text",)),
        # Models of other projects store no columns, so --pair decides.
        ({}, {"columns": None}, {}, ("text",)),
        ({}, {"columns": None}, {"pair": True}, ("text", "text_pair")),
        ({"pair": True}, {}, {"pair": False}, ("text",)),
    )
    def test_takes_pairs_if_the_model_does(self, task, stored, flags, inputs):
        if "name" in task:
            task["official"] = glue_tasks.TASKS[task["name"]]
        head = self._build(tiny_exports.classification(**task), stored, **flags)
        self.assertEqual(head.inputs, inputs)
        self.assertEqual(list(head.input_specs()), list(inputs))

    def test_doc_stride_defaults_to_that_of_the_model(self):
        task = tiny_exports.classification(doc_stride=4)
        self.assertEqual(self._build(task).doc_stride, 4)
        self.assertEqual(self._build(task, doc_stride=2).doc_stride, 2)
        self.assertIsNone(self._build().doc_stride)
        self.assertIsNone(self._build().max_rows_at_once)
        self.assertIsNotNone(self._build(task).max_rows_at_once)

    def test_ties_choose_the_first_label(self):
        head = self._build()
        logits = tf.constant([[0.25, 0.375, 0.375]])
        answer = head.answer({"logits": logits}, Rows({}))
        self.assertAllEqual(answer["label"], [b"yes"])
        self.assertAllEqual(
            answer["classes"], [[b"no", b"yes", "ümlaut".encode()]]
        )


class MultipleChoiceTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        path = tiny_exports.write(folder, tiny_exports.multiple_choice())
        cls.model = bert_tf.load_model(path)
        cls.tokenizer = bert_tf.load_tokenizer(path)
        cls.head = MultipleChoice(
            cls.tokenizer,
            12,
            (5, 8, 12),
            registry.from_stored(formats.read(path)),
        )
        examples = reference.to_examples(
            [{"text": text, "choices": choices} for text, choices in _ROWS]
        )
        parsed = serving_module.parse_examples(
            tf.constant(examples, tf.string), cls.head.input_specs()
        )
        rows = cls.head.pack(parsed)
        cls.inputs = rows.inputs
        cls.answer = cls.head.answer(cls.model(rows.inputs), rows)

    def test_a_text_without_choices_returns_finite_numbers(self):
        self.assertAllClose(
            self.answer["probabilities"][-1], np.full([3], 1 / 3), atol=1e-6
        )

    @pytest.mark.slow
    def test_many_choices_of_a_text_are_computed_in_parts(self):
        words = ["cat", "dog", "mat", "sat", "the", "sitting"]
        choices = [
            " ".join(words[i] for i in (row % 6, n % 6, n // 6 % 6, n // 36))
            for row in range(2)
            for n in range(75)
        ]
        strings = {
            "text": tf.constant(["the cat", ""]),
            "choices": tf.reshape(choices, [2, 75]),
        }
        rows = self.head.pack(strings)
        expected = self.head.answer(self.model(rows.inputs), rows)
        module = serving_module.ServingModule(self.head, self.model)
        graph = module.signatures["serving_default"].graph.as_graph_def()
        names = {x.op for f in graph.library.function for x in f.node_def}
        self.assertTrue({"While", "StatelessWhile"} & names)
        for name, inputs in (
            ("serving_default", strings),
            ("from_ids", rows.inputs),
        ):
            answer = module.signatures[name](**inputs)
            for key in ("index", "probabilities"):
                self.assertAllClose(answer[key], expected[key], atol=1e-6)


if __name__ == "__main__":
    tf.test.main()
