"""Tests for bert_tf.tasks.squad.triviaqa, on files in the official layout."""

import json

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
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
    def test_keeps_beginnings_with_an_answer(self, name):
        self._write_documents(
            Judi_Dench="Judi Dench\n\nDame Judi, born in  York (1934), acts.",
            Skyfall="Skyfall, a film with JUDI DENCH.",
            York="York is old. Judi Dench was born there. Yes.",
        )
        path = self._write_questions(
            # The same page twice must count once.
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
        # Skyfall does not mention York, so it has no answer.
        self.assertIn("1 have no answer", logs.output[0])
        self.assertIn("and 1 are missing", logs.output[0])
        found = []
        for article in result["data"]:
            (paragraph,) = article["paragraphs"]
            (question,) = paragraph["qas"]
            (answer,) = question["answers"]
            start, text = answer["answer_start"], answer["text"]
            context = paragraph["context"]
            self.assertEqual(context[start : start + len(text)], text)
            self.assertEndsWith(question["id"], f"--{article['title']}.txt")
            name = question["id"].partition("--")[0]
            self.assertEqual(question["question"], f"What is {name}?")
            found.append((name, article["title"], context, text, start))
        beginning = "Judi Dench\n\nDame Judi, born in  York (1934"
        film = "Skyfall, a film with JUDI DENCH."
        town = "York is old. Judi Dench was born there."
        self.assertCountEqual(
            found,
            [
                ("tc_1", "Judi_Dench", beginning, "York", 32),
                ("tc_2", "Skyfall", film, "JUDI DENCH", 21),
                ("tc_2", "Judi_Dench", beginning, "Judi Dench", 0),
                ("tc_2", "York", town, "Judi Dench", 13),
            ],
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
