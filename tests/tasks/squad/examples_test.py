"""Tests for bert_tf.tasks.squad.examples; the goldens have their own."""

import json
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.squad.task import SquadTask
from tests.support import files_case

_CASES = pathlib.Path(__file__).parents[2] / "testdata/cases"
_CONTEXT = "\tIn 1895-1943\u202fhe led\u00a0them.\r\n The end. "


def _dataset(*questions, context=_CONTEXT):
    return [{"paragraphs": [{"context": context, "qas": list(questions)}]}]


def _question(id, *answers, **values):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": f"{id}?", "answers": answers, **values}


def _read(path, is_training):
    dataset = squad_examples.read_dataset(path)
    return squad_examples.build_examples(dataset, is_training)


class SquadExamplesTest(files_case.FilesCase):
    def test_references_are_all_answers_or_unknown(self):
        """Tests the references of dev files, and files without them."""
        questions = [
            _question("two", ("he", 14), ("1895", 4)),
            _question("none", is_impossible=True),
            {"id": "unknown", "question": "?"},
            {"id": "impossible", "question": "?", "is_impossible": True},
        ]
        read = squad_examples.build_examples(_dataset(*questions), False)
        self.assertEqual(
            [one.answers for one in read], [("he", "1895"), (), None, ()]
        )

    @parameterized.parameters(
        ((), (), None),
        ((), (("he", 14),), ()),
        # SQuAD 2.0 marks questions without an answer.
        ((), (), (), True),
        ((), (), (), False),
    )
    def test_only_empty_lists_mean_unknown_answers(
        self, first, second, expected, is_impossible=None
    ):
        questions = [_question("a", *first), _question("b", *second)]
        if is_impossible is not None:
            questions[1]["is_impossible"] = is_impossible
        read = squad_examples.build_examples(_dataset(*questions), False)
        self.assertEqual(read[0].answers, expected)

    def test_leaves_out_missing_answers(self):
        questions = [
            _question("elsewhere", ("1895", 14)),
            _question("good", ("he", 14)),
            _question("nowhere", ("him", 14)),
            _question("behind", ("end. Really", 33)),
            _question("before", ("The", -9)),
            _question("empty", ("", 4)),
            _question("blank", (" ", 3)),
            _question("in front", ("\tIn", 0)),
        ]
        with self.assertLogs(level="WARNING") as logs:
            read = squad_examples.build_examples(_dataset(*questions), True)
        self.assertEqual([one.qas_id for one in read], ["good"])
        self.assertIn(
            "7 of 8 questions are left out because their answer is not in the "
            "paragraph at the given offset: elsewhere, nowhere, behind, "
            "before, empty and 2 more.",
            logs.output[0],
        )

    def test_questions_without_answer_are_impossible_in_training(self):
        questions = (
            _question("said", ("he", 14), is_impossible=True),
            # Some files mark the question only by the empty list.
            _question("shown"),
            _question("null", is_impossible=None),
            _question("good", ("he", 14), is_impossible=False),
        )
        read = squad_examples.build_examples(
            _dataset(*questions), True, version_2_with_negative=True
        )
        self.assertEqual(
            [
                (
                    one.is_impossible,
                    one.orig_answer_text,
                    one.start_position,
                    one.end_position,
                )
                for one in read
            ],
            [(True, "", -1, -1)] * 3 + [(False, "he", 2, 2)],
        )
        # For prediction, all are normal questions.
        read = squad_examples.build_examples(
            _dataset(*questions), False, version_2_with_negative=True
        )
        self.assertEqual(
            [(one.is_impossible, one.orig_answer_text) for one in read],
            [(False, None)] * 4,
        )

    @parameterized.parameters(
        ([_question("q")], "needs an answer .*--version_2"),
        ([{"id": "q", "question": "?"}], "needs an answer"),
        (
            [{"id": "q", "question": "?", "answers": [{"text": "he"}]}],
            "question 'q' must be .*'answer_start', a whole number",
        ),
    )
    def test_training_needs_one_answer(self, questions, message):
        with self.assertRaisesRegex(UserError, message):
            squad_examples.build_examples(
                _dataset(*questions), True, source="train.json"
            )

    def test_the_first_of_several_answers_is_trained_on(self):
        data = _dataset(
            _question("a", ("he", 14), ("In", 1)), _question("b", ("he", 14))
        )
        with self.assertLogs(level="WARNING") as logs:
            read = squad_examples.build_examples(data, True, source="a.json")
            squad_examples.build_examples(data, True, source="a.json")
        self.assertEqual(read[0].orig_answer_text, "he")
        self.assertLen(logs.output, 1)
        self.assertIn("a.json: 1 questions have several", logs.output[0])

    def test_ids_become_strings_and_repeats_are_logged(self):
        data = _dataset(_question(7), _question("a"), _question("b"))
        data += _dataset({"id": "a", "question": "new?"})
        path = self.write("train.json", json.dumps({"data": data}))
        with self.assertLogs(level="WARNING") as logs:
            read = _read(path, False)
        self.assertIn("1 questions have the id of a later", logs.output[0])
        self.assertEqual(
            [(one.qas_id, one.question_text) for one in read][::2],
            [
                ("7", data[0]["paragraphs"][0]["qas"][0]["question"]),
                ("a", "new?"),
            ],
        )

    @parameterized.parameters(
        ("squad_integer_id", "70412"), ("squad_several_answers", "a")
    )
    def test_published_files_give_their_answer(self, case, qas_id):
        path = f"{_CASES / case}/train.json"
        (example,) = _read(path, True)
        self.assertEqual(example.qas_id, qas_id)
        self.assertEqual(example.orig_answer_text, "Ulm")
        self.assertEqual((example.start_position, example.end_position), (5, 5))

    @parameterized.parameters("dev.json", "dev.json.gz")
    def test_file_with_byte_order_mark_is_read(self, name):
        data = _dataset(_question("é"), {"id": "b", "question": "b?"})
        contents = json.dumps(
            {"version": "1.1", "data": data}, indent=1, ensure_ascii=False
        ).replace("\n", "\r\n")
        contents = b"\xef\xbb\xbf" + contents.encode()
        path = self.write(name, contents)
        self.assertEqual(squad_examples.read_dataset(path), data)
        read = _read(path, False)
        self.assertEqual([one.qas_id for one in read], ["é", "b"])

    @parameterized.parameters(
        ([], "train.json must be an object with 'data', a list.*: list"),
        ({"Data": []}, r"'data', a list. Received: the keys \['Data'\]"),
        ({"data": []}, "train.json holds no question"),
        ({"data": [{}]}, r"data\[0\] must be .*'paragraphs'.*: no keys"),
        (
            {"data": [{"paragraphs": [{"qas": []}]}]},
            r"data\[0\].paragraphs\[0\] must be .*'context', a string",
        ),
        (
            {"data": _dataset(_question("a"), _question(3.5))},
            r"qas\[1\] must be an object with 'id', a string. Received: 3.5",
        ),
        (
            {"data": _dataset({"id": "a", "question": None})},
            r"qas\[0\] must be .*'question', a string. Received: None",
        ),
        (
            {"data": _dataset(_question("a", ("he", 1), (None, 1)))},
            r"qas\[0\].answers\[1\] must be .*'text', a string",
        ),
        (
            {"data": _dataset({"id": "a", "question": "?", "answers": {}})},
            r"qas\[0\] must be .*'answers', a list. Received: {}",
        ),
        (
            {"data": _dataset(_question("a", is_impossible="False"))},
            r"qas\[0\]: 'is_impossible' must be true or false.*: 'False'",
        ),
    )
    def test_rejects_invalid_files(self, values, message):
        path = self.write("train.json", json.dumps(values))
        with self.assertRaisesRegex(UserError, message):
            squad_examples.read_dataset(path)

    def test_rejects_files_that_are_not_json(self):
        path = self.write("train.json", b'{"data":\n [1, }')
        with self.assertRaisesRegex(UserError, "train.json, line 2.* column 6"):
            squad_examples.read_dataset(path)
        path = self.write(
            "train.json", b'{"data": ["\\ud83d\\ude00 so \\ud83d!"]}'
        )
        with self.assertRaisesRegex(UserError, "train.json .*'.ud83d', .*so '"):
            squad_examples.read_dataset(path)
        path = self.write("train.json", b"[" * 100000)
        with self.assertRaisesRegex(UserError, "not readable JSON"):
            squad_examples.read_dataset(path)
        path = self.write("train.json", b'{"data": %s}' % (b"9" * 5000))
        with self.assertRaisesRegex(UserError, "not readable JSON: .*digits"):
            squad_examples.read_dataset(path)
        with self.assertRaisesRegex(UserError, "no such file: '/nowhere.json'"):
            squad_examples.read_dataset("/nowhere.json")


class SquadInputsTest(files_case.FilesCase):
    def _read(self, name, text):
        return [
            (one.qas_id, one.question_text, " ".join(one.doc_tokens))
            for one in SquadFiles().read_inputs(self.write(name, text))
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
    def test_tables_of_questions_are_read(self, name, text):
        line = 2 if name == "q.jsonl" else 3
        self.assertEqual(
            self._read(name, text),
            [("7", "Who?", "An, bo"), (f"{name}:{line}", "Why?", "B")],
        )

    @parameterized.parameters("q.json", "Q.JSON.gz")
    def test_squad_file_is_read_without_answers(self, name):
        questions = [
            {"id": "one", "question": "Who?", "answers": [{"text": "x"}]},
            # This question's labels must not be read, so they may be wrong.
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
    def test_rejects_broken_inputs(self, name, text, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(name, text)

    def test_pairs_and_mappings_become_questions(self):
        for row, id in (
            (("Who?", "An  bo"), ""),
            (["Who?", "An  bo"], ""),
            ({"context": "An  bo", "question": "Who?", "label": 3}, ""),
            ({"context": "An  bo", "question": "Who?", "id": 5}, "5"),
            ({"context": "An  bo", "question": "Who?", "id": None}, ""),
        ):
            example = SquadTask().example_from_row(row)
            self.assertEqual(example.qas_id, id)
            self.assertEqual(example.question_text, "Who?")
            self.assertEqual(example.doc_tokens, ("An", "bo"))
            self.assertEqual(example.doc_token_starts, (0, 4))
            self.assertIsNone(example.answers)

    def test_rejects_rows_without_question_and_context(self):
        for row in (
            "Who?",
            ("Who?",),
            ("Who?", " "),
            ("Who?", None),
            {"question": "Who?"},
        ):
            with self.assertRaisesRegex(
                UserError, "pair of texts|'context'|not empty"
            ):
                SquadTask().example_from_row(row)


if __name__ == "__main__":
    tf.test.main()
