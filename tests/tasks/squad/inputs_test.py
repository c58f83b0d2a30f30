"""Tests for bert_tf.tasks.squad.inputs."""

import gzip
import json
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.squad import inputs as squad_inputs


class SquadInputsTest(tf.test.TestCase, parameterized.TestCase):
    def _write(self, name, text):
        path = pathlib.Path(self.create_tempdir().full_path) / name
        contents = text.encode("utf-8")
        path.write_bytes(
            gzip.compress(contents) if name.endswith(".gz") else contents
        )
        return str(path)

    def _read(self, name, text):
        return [
            (one.qas_id, one.question_text, " ".join(one.doc_tokens))
            for one in squad_inputs.read_questions(self._write(name, text))
        ]

    @parameterized.parameters(
        (
            "q.csv",
            '\ufeffcontext,question,id\r\n"An, bo",Who?,7\r\nB,Why?,\r\n',
        ),
        ("q.csv.gz", 'context,question,id\n"An, bo",Who?,7\nB,Why?,\n'),
        ("q.tsv", "question\tcontext\tid\nWho?\tAn, bo\t7\nWhy?\tB\t\n"),
        (
            "q.jsonl",
            '{"question": "Who?", "context": "An, bo", "id": 7}\n'
            '{"question": "Why?", "context": "B", "answers": "?"}\n',
        ),
        (
            "q.json",
            '\n{"question": "Who?", "context": "An, bo", "id": 7}\n'
            '{"question": "Why?", "context": "B"}\n',
        ),
        (
            "q.json",
            '\ufeff\n[{"question": "Who?", "context": "An, bo", "id": 7},\n'
            '{"question": "Why?", "context": "B"}]',
        ),
    )
    def test_tables(self, name, text):
        line = 2 if name == "q.jsonl" else 3
        self.assertEqual(
            self._read(name, text),
            [("7", "Who?", "An, bo"), (f"{name}:{line}", "Why?", "B")],
        )

    @parameterized.parameters("q.json", "Q.JSON.gz")
    def test_squad_file(self, name):
        questions = [
            {"id": "one", "question": "Who?", "answers": [{"text": "x"}]},
            # Nobody asks what these are.
            {"id": "two", "question": "Y?", "answers": 3, "is_impossible": 2},
        ]
        paragraph = {"context": " A  b\n", "qas": questions}
        text = json.dumps({"data": [{"paragraphs": [paragraph]}]})
        self.assertEqual(
            self._read(name, text),
            [("one", "Who?", "A b"), ("two", "Y?", "A b")],
        )

    @parameterized.parameters(
        ("q.csv", "question,text\nWho?,A\n", "q.csv has no column 'context'"),
        ("q.csv", "question,context\nWho?, \n", "q.csv, line 2 .*'context'"),
        ("q.jsonl", '{"question": 1, "context": "a"}', "line 1 .*'question'"),
        ("q.json", "{}", "q.json must be an object with 'data'"),
        ("q.json", "[]", "q.json has no rows"),
        ("q.txt", "Who?\n", "q.txt has no column 'question'"),
    )
    def test_refused_files(self, name, text, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(name, text)

    def test_values_of_programs(self):
        for row, id in (
            (("Who?", "An  bo"), ""),
            (["Who?", "An  bo"], ""),
            ({"context": "An  bo", "question": "Who?", "label": 3}, ""),
            ({"context": "An  bo", "question": "Who?", "id": 5}, "5"),
            ({"context": "An  bo", "question": "Who?", "id": None}, ""),
        ):
            example = squad_inputs.parse_question(row)
            self.assertEqual(example.qas_id, id)
            self.assertEqual(example.question_text, "Who?")
            self.assertEqual(example.doc_tokens, ("An", "bo"))
            self.assertEqual(example.doc_token_starts, (0, 4))
            self.assertIsNone(example.answers)

    def test_refused_values(self):
        for row in (
            "Who?",
            ("Who?",),
            ("Who?", " "),
            ("Who?", None),
            {"question": "Who?"},
        ):
            with self.assertRaisesRegex(
                UserError, r"pair \(question, context\)"
            ):
                squad_inputs.parse_question(row)


if __name__ == "__main__":
    tf.test.main()
