"""Tests with inputs in published forms, one folder of testdata/cases each.

Tagged inputs are in tests/tasks/tagging/examples_test.py, questions in
tests/tasks/squad. Heads without a pooler are in tests/api/load_test.py.
"""

import json
import os

import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints.huggingface import model as huggingface
from bert_tf.data import create as pretraining_data
from bert_tf.tasks.classification import examples as classification_examples
from tests.support import record_case
from tests.support import repository
from tests.support import stored_models

_CASES = repository.ROOT / "tests/testdata/cases"
_OF_TOKENIZERS = (
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class RealInputsTest(record_case.RecordCase):
    @parameterized.parameters(
        ("hf_other_class_name", "the", "HF_ColBERT"),
        ("padded_word_embeddings", "the film was", "BertModel", 16),
        ("uncased_vocabulary_few_capitals", "the film was good"),
        ("vocabulary_empty_line", "the film was"),
    )
    def test_ids_name_the_lines(self, case, words, name="BertModel", rows=None):
        path = self.path("model")
        os.mkdir(path)
        lines = (_CASES / case / "vocab.txt").read_text().split("\n")[:-1]
        stored = stored_models.build(
            "encoder", tokens=lines, vocab_size=rows or len(lines)
        )
        huggingface.write_model(path, stored)
        for file in _OF_TOKENIZERS:  # Only vocab.txt is left.
            os.remove(os.path.join(path, file))
        with open(os.path.join(path, "config.json"), "r+") as file:
            config = json.load(file) | {"architectures": [name]}
            file.seek(0)
            json.dump(config, file)
            file.truncate()

        ids = bert_tf.load_tokenizer(path).tokenize(words.title())

        self.assertAllEqual(ids, [lines.index(x) for x in words.split()])

    def test_columns_may_lack_a_name(self):
        examples = classification_examples.read_examples(
            str(_CASES / "csv_unnamed_columns/train.csv"),
            classification_examples.Columns("message", labels=("kind",)),
        )
        self.assertEqual(
            [(x.text_a, x.label) for x in examples],
            [("Lunch at noon, then?", "ok"), ("Buy two and pay one", "ad")],
        )

    @parameterized.parameters(
        ("pretraining_blank_between_sentences", "empty lines inside documents"),
        ("pretraining_one_document", "The text is one document"),
    )
    def test_warns_of_unusual_texts_to_pretrain_on(self, case, advice):
        with self.assertLogs(level="WARNING") as logs:
            pretraining_data.create(
                self._config(input_file=str(_CASES / case / "text.txt"))
            )
        self.assertRegex("\n".join(logs.output), advice)


if __name__ == "__main__":
    tf.test.main()
