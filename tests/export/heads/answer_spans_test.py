"""Tests for export.heads.answer_spans."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.heads.question_answering import QuestionAnswering
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import squad_goldens
from tests.support import tiny_model

_INPUTS = ("input_ids", "input_mask", "segment_ids")


def _pack(head, **strings):
    tensors = {name: tf.constant(x, tf.string) for name, x in strings.items()}
    return head.pack(tensors)


def _pad(values, length):
    return np.pad(values, [0, length - len(values)])


class AnswerWindowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("v1_uncased", "v2_cased")
    def test_cuts_the_windows_of_the_original(self, name):
        config, expected = squad_goldens.read_features(name)
        head = squad_goldens.build_head(config)
        rows = _pack(head, **squad_goldens.read_questions(config))
        for key in _INPUTS:
            self.assertAllEqual(rows.inputs[key], [x[key] for x in expected])
        is_max_context = np.zeros(rows.inputs["input_ids"].shape, bool)
        for row, window in enumerate(expected):
            for place, value in window["token_is_max_context"].items():
                is_max_context[row, int(place)] = value
        self.assertAllEqual(rows.state["is_max_context"], is_max_context)

    @parameterized.product(doc_stride=(1, 3, 4, 50), max_query_length=(1, 3))
    def test_cuts_texts_of_any_length(self, doc_stride, max_query_length):
        length = max_query_length + 8
        task = SquadTask(
            max_seq_length=length,
            doc_stride=doc_stride,
            max_query_length=max_query_length,
        )
        tokenizer = BertTokenizer(Vocabulary(tiny_model.TOKENS))
        head = QuestionAnswering(tokenizer, length, (length,), task)
        words = "the cat sat on dog mats . 東 , matting".split()
        contexts = [" ".join(words * 3)[: n * n] for n in range(12)]
        questions = ["the cat sat"[: 3 * (n % 5)] for n in range(12)]
        rows = _pack(head, question=questions, context=contexts)
        examples = [
            squad_examples.make_example("", *pair)
            for pair in zip(questions, contexts, strict=True)
        ]
        windows = list(
            squad_features.convert_examples_to_features(
                examples, tokenizer, length, doc_stride, max_query_length
            )
        )
        self.assertGreater(len(windows), len(examples))
        self.assertAllEqual(
            rows.state["questions"], [x.example_index for x in windows]
        )
        self.assertAllEqual(
            rows.inputs["input_ids"],
            [_pad(x.input_ids, length) for x in windows],
        )
        self.assertAllEqual(
            rows.inputs["input_mask"],
            [_pad(np.ones_like(x.input_ids), length) for x in windows],
        )
        self.assertAllEqual(
            rows.inputs["segment_ids"],
            [_pad(x.segment_ids, length) for x in windows],
        )
        self.assertAllEqual(
            rows.state["is_max_context"],
            [
                _pad(np.pad(x.is_max_context, [x.doc_offset, 0]), length)
                for x in windows
            ],
        )


if __name__ == "__main__":
    tf.test.main()
