"""Tests for bert_tf.tasks.squad.triviaqa, on files in the official layout."""

import json

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import triviaqa
from tests.support import files_case


def _question(id, value, aliases, pages, **changes):
    """Returns a question with the keys of wikipedia-train.json."""
    return {
        "Answer": {
            "Aliases": aliases,
            "MatchedWikiEntityName": value,
            "NormalizedAliases": [alias.lower() for alias in aliases],
            "NormalizedMatchedWikiEntityName": value.lower(),
            "NormalizedValue": value.lower(),
            "Type": "WikipediaEntity",
            "Value": value,
        },
        "EntityPages": [
            {
                "DocSource": "TagMe",
                "Filename": page,
                "Title": page.removesuffix(".txt").replace("_", " "),
            }
            for page in pages
        ],
        "Question": f"What is {id}?",
        "QuestionId": id,
        "QuestionSource": "http://www.triviacountry.com/",
        "SearchResults": [],
        **changes,
    }


class TriviaQaTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self._evidence = self.folder / "evidence" / "wikipedia"
        self._evidence.mkdir(parents=True)

    def _write_questions(self, *questions, name="wikipedia-train.json"):
        values = {
            "Data": list(questions),
            "Domain": "Wikipedia",
            "VerifiedEval": False,
            "Version": 1.0,
        }
        return self.write(name, json.dumps(values))

    def _write_documents(self, **texts):
        for name, text in texts.items():
            path = self._evidence / f"{name}.txt"
            path.write_text(text, encoding="utf-8")

    def _convert(self, path, **options):
        return triviaqa.convert_to_squad(path, str(self._evidence), **options)

    @parameterized.parameters("wikipedia-train.json", "train.json.gz")
    def test_beginnings_with_an_answer(self, name):
        self._write_documents(
            Judi_Dench="Judi Dench\n\nDame Judi, born in  York (1934), acts.",
            Skyfall="Skyfall, a film with JUDI DENCH.",
            York="York is old. Judi Dench was born there. Yes.",
        )
        path = self._write_questions(
            # The same page twice counts once.
            _question(
                "tc_1",
                "York",
                ["Jorvik"],
                ["Judi_Dench.txt", "Skyfall.txt", "Judi_Dench.txt"],
            ),
            _question(
                "tc_2",
                "Dame J. Dench",
                ["Judi Dench"],
                ["Skyfall.txt", "Judi_Dench.txt", "York.txt", "Gone.txt"],
            ),
            name=name,
        )
        with self.assertLogs(level="INFO") as logs:
            result = self._convert(path, max_tokens=10)
        self.assertIn("2 questions with 6 documents", logs.output[0])
        # Skyfall does not mention York.
        self.assertIn("1 have no answer", logs.output[0])
        self.assertIn("and 1 are missing", logs.output[0])
        found = {}
        for article in result["data"]:
            (paragraph,) = article["paragraphs"]
            (question,) = paragraph["qas"]
            (answer,) = question["answers"]
            start = answer["answer_start"]
            self.assertEqual(
                paragraph["context"][start : start + len(answer["text"])],
                answer["text"],
            )
            found[question["id"]] = (
                article["title"],
                question["question"],
                paragraph["context"],
                answer["text"],
                start,
            )
        beginning = "Judi Dench\n\nDame Judi, born in  York (1934"
        self.assertEqual(
            found,
            {
                "tc_1--Judi_Dench.txt": (
                    "Judi_Dench",
                    "What is tc_1?",
                    beginning,
                    "York",
                    32,
                ),
                "tc_2--Skyfall.txt": (
                    "Skyfall",
                    "What is tc_2?",
                    "Skyfall, a film with JUDI DENCH.",
                    "JUDI DENCH",
                    21,
                ),
                "tc_2--Judi_Dench.txt": (
                    "Judi_Dench",
                    "What is tc_2?",
                    beginning,
                    "Judi Dench",
                    0,
                ),
                "tc_2--York.txt": (
                    "York",
                    "What is tc_2?",
                    "York is old. Judi Dench was born there.",
                    "Judi Dench",
                    13,
                ),
            },
        )

    def test_answers_begin_and_end_with_words(self):
        self._write_documents(
            A="Russia borders no US state; us. The U.S. does.",
            B="Park Grove, (1895) the ship",
        )
        path = self._write_questions(
            _question("q1", "US", [], ["A.txt"]),
            _question("q2", "?", ["u s"], ["A.txt"]),
            _question("q3", "Park Grove (1895)", ["ship"], ["B.txt"]),
        )
        texts = [
            article["paragraphs"][0]["qas"][0]["answers"][0]
            for article in self._convert(path)["data"]
        ]
        self.assertEqual(
            texts,
            [
                {"text": "US", "answer_start": 18},
                {"text": "U.S", "answer_start": 36},
                {"text": "Park Grove, (1895", "answer_start": 0},
            ],
        )

    def test_result_is_read_as_squad(self):
        self._write_documents(A="One two  three\r\nfour", B="four\n\n one")
        path = self._write_questions(
            _question("q1", "Three Four", [], ["A.txt", "B.txt"]),
            _question("q2", "four one", [], ["A.txt", "B.txt"]),
        )
        written = str(self.folder / "squad.json")
        files.write_json(written, self._convert(path))
        read = squad_examples.read_squad_examples(written, is_training=True)
        self.assertEqual(
            [
                (
                    one.qas_id,
                    one.doc_tokens[one.start_position : one.end_position + 1],
                )
                for one in read
            ],
            [
                ("q1--A.txt", ("three", "four")),
                ("q2--B.txt", ("four", "one")),
            ],
        )

    def test_rejects_documents_without_answers(self):
        self._write_documents(A="nothing of it")
        path = self._write_questions(
            _question("q1", "York", [], ["A.txt", "B.txt"])
        )
        with self.assertRaisesRegex(UserError, "1 of 2 documents are not in"):
            self._convert(path)

    @parameterized.parameters(
        ({"Question": None}, r"Data\[0\] must be .*'Question', a string"),
        ({"EntityPages": {}}, r"Data\[0\] must be .*'EntityPages', a list"),
        ({"EntityPages": ["A"]}, r"EntityPages\[0\] must be .*Received: str"),
        ({"Answer": {"Aliases": []}}, r"Answer must be .*'Value', a string"),
        ({"Answer": None}, "Answer must be an object.*Received: NoneType"),
        (
            {"Answer": {"Value": "", "Aliases": [3], "NormalizedAliases": []}},
            "aliases must be strings. Received: 3",
        ),
    )
    def test_rejects_other_layouts(self, changes, message):
        path = self._write_questions(
            _question("q1", "York", [], ["A.txt"], **changes)
        )
        with self.assertRaisesRegex(UserError, message):
            self._convert(path)

    def test_rejects_documents_that_are_not_utf8(self):
        (self._evidence / "A.txt").write_bytes(b"good\nYork \xff")
        path = self._write_questions(_question("q1", "York", [], ["A.txt"]))
        with self.assertRaisesRegex(UserError, "A.txt, line 2 is not UTF-8"):
            self._convert(path)


if __name__ == "__main__":
    tf.test.main()
