"""Tests for bert_tf.tasks.classification.examples and gather_labels."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from tests.support import files_case

_COLUMNS = Columns("text", labels=("label",))


class ReadExamplesTest(files_case.FilesCase):
    def read(self, name, contents, columns=_COLUMNS, *args, **options):
        return classification_examples.read_examples(
            self.write(name, contents), columns, *args, **options
        )

    def labels(self, *args, **options):
        return [example.label for example in self.read(*args, **options)]

    def assert_refused(self, message, *args, **options):
        with self.assertRaisesRegex(UserError, message) as caught:
            self.read(*args, **options)
        self.assertNotIn("\n", str(caught.exception))

    def test_single_texts_and_pairs(self):
        contents = 'id,b,label,a\r\n7, "B ,y ,"A, a "\r\n8,D,n,C\r\n'
        self.assertEqual(
            self.read("a.csv", contents, Columns("a", "b", ("label",))),
            [
                InputExample("a.csv:2", "A, a ", ' "B ', "y"),
                InputExample("a.csv:3", "C", "D", "n"),
            ],
        )
        self.assertEqual(
            self.read("a.csv", contents, Columns("a", labels=("label",)))[1],
            InputExample("a.csv:3", "C", None, "n"),
        )

    def test_labels_of_json_are_strings(self):
        contents = "\n".join(
            f'{{"text": "x", "label": {label}}}'
            for label in ("1", '"1"', "true", "0.5", '" b "')
        )
        self.assertEqual(
            self.labels("a.jsonl", contents), ["1", "1", "true", "0.5", "b"]
        )

    def test_multi_label(self):
        self.assertEqual(
            self.labels(
                "a.tsv",
                "text\tlabel\nx\tb, a,b,\nx\t\nx\tc\n",
                problem_type="multi_label",
            ),
            [("b", "a"), (), ("c",)],
        )
        self.assertEqual(
            self.labels(
                "a.tsv",
                "text\tlabel\nx\tb, c|a\n",
                problem_type="multi_label",
                label_separator="|",
            ),
            [("b, c", "a")],
        )
        self.assertEqual(
            self.labels(
                "a.jsonl",
                '{"text": "x", "label": ["b, c", 3]}\n'
                '{"text": "x", "label": []}\n{"text": "x", "label": 3}',
                problem_type="multi_label",
            ),
            [("b, c", "3"), (), ("3",)],
        )

    @parameterized.parameters(
        ("a.csv", "text,label\nx,a\ny,\"['a', 'b']\"\n", "lists are for"),
        ("a.tsv", 'text\tlabel\nx\ta\ny\t["a"]\n', "lists are for"),
        ("a.csv", "text,label\nx,a\ny, []\n", "lists are for"),
        (
            "a.jsonl",
            '{"text": "x", "label": ["a"]}\n{"text": "y", "label": ["b",null]}',
            "must have one label. Received: null",
        ),
    )
    def test_rejects_lists_in_text_cells(self, name, contents, message):
        self.assert_refused(
            f"{name}, line [23] must have .*{message}"
            if "csv" in name or "tsv" in name
            else f"line 2 {message}",
            name,
            contents,
            problem_type="multi_label",
        )

    def test_one_column_per_label(self):
        columns = Columns("text", labels=("toxic", "rude"))
        contents = "rude,text,toxic\n1,x,1\n0,x,0\n1.0,x,False\n"
        self.assertEqual(
            self.labels("a.csv", contents, columns, "multi_label"),
            [("toxic", "rude"), (), ("rude",)],
        )
        self.assert_refused(
            "a.csv, line 3 must have 0 or 1 in column 'rude'.*'2'",
            "a.csv",
            "rude,text,toxic\n1,x,1\n2,x,1\n",
            columns,
            "multi_label",
        )
        self.assert_refused(
            "line 2 must have 0 or 1 in column 'rude'",
            "a.csv",
            "rude,text,toxic\n,x,1\n",
            columns,
            "multi_label",
        )
        self.assert_refused(
            "multi_label.*toxic, rude", "a.csv", contents, columns
        )

    @parameterized.parameters(
        *[
            ("a.tsv", f"text\tlabel\nx\t1\nx\t{score}\n")
            for score in "1,5 nan inf high true 1e39 -1e39 1_000".split()
        ],
        *[
            ("a.jsonl", f'\n\n{{"text": "x", "label": {score}}}')
            for score in ("9" * 400, "true", "[1]")
        ],
    )
    def test_rejects_other_scores(self, name, contents):
        self.assert_refused(
            f"{name}, line 3 must have a number as its label",
            name,
            contents,
            problem_type="regression",
        )

    @parameterized.parameters(
        ("a.csv, line 3 has no label in column 'label'", "x,1\ny, \n"),
        ("a.csv, line 3 has an empty text in column 'text'", "x,1\n,2\n"),
        ("line 2 has an empty text", '" \n\t",1\n'),
        ("line 3 must have 2 columns", "x,1\ny\n"),
    )
    def test_rejects_broken_rows(self, message, contents):
        self.assert_refused(message, "a.csv", "text,label\n" + contents)

    @parameterized.parameters(
        ("string in column 'text'. Received: nothing", '{"label": 2}'),
        ("Received: null", '{"text": null, "label": 2}'),
        (r'Received: \["é"\]', '{"text": ["é"], "label": 2}'),
        ("line 2 has no label", '{"text": "x", "label": null}'),
        ("line 2 has no label", '{"text": "x"}'),
        ("line 2 has no label", '{"text": "x", "label": NaN}'),
        (r'must have one label. Received: \["a"\]',
         '{"text": "x", "label": ["a"]}'),
    )  # fmt: skip
    def test_rejects_broken_objects(self, message, line):
        first = '{"text": "x", "label": 1}\n'
        self.assert_refused(message, "a.jsonl", first + line)

    def test_unknown_labels(self):
        known = [f"l{i:02}" for i in range(12)]
        contents = "text,label\nx,l03\nx,l12\n"
        self.assert_refused(
            "'l12', .* the 12 .*'l09' and 2", "a.csv", contents, labels=known
        )
        self.assert_refused(
            "line 3 has the label 'l12', which is not among the 1 .*: 'l03'.",
            "a.csv",
            "text,label\nx,l03\nx,'l03,l12'\n".replace("'", '"'),
            problem_type="multi_label",
            labels=["l03"],
        )
        self.assertEqual(
            self.labels("a.csv", contents, labels=[*known, "l12"]),
            ["l03", "l12"],
        )

    def test_files_without_labels(self):
        for contents in ("text\nx\ny\n", "text,label\nx,\ny,\n"):
            self.assertEqual(
                self.labels("a.csv", contents, may_lack_labels=True),
                [None, None],
            )
        contents = "text,label\nx,1\ny,\nz,\n"
        self.assert_refused(
            "2 of 3 .*a.csv:3", "a.csv", contents, may_lack_labels=True
        )
        # Each JSON object has its own keys.
        self.assert_refused(
            "1 of 2 have none, the first of which is a.jsonl:1",
            "a.jsonl",
            '{"text": "x"}\n{"text": "y", "label": 1}\n',
            may_lack_labels=True,
        )

    def test_empty_multi_label_column_means_no_labels(self):
        options = {"problem_type": "multi_label", "may_lack_labels": True}
        self.assertEqual(
            self.labels("a.csv", "text,label\nx,\ny,\n", **options), [None] * 2
        )
        self.assertEqual(
            self.labels("a.csv", "text,label\nx,\ny,a\n", **options),
            [(), ("a",)],
        )

    @parameterized.parameters(
        (None, '{"text": "A"}\n{"text": "B", "text_pair": "C"}'),
        ("C", '{"text": "A", "text_pair": "C"}\n{"text": "B", "id": 3}'),
    )
    def test_rejects_pairs_in_some_rows(self, pair, contents):
        path = self.write("a.jsonl", contents)
        texts = classification_examples.read_texts(path)
        self.assertEqual(next(texts), InputExample("a.jsonl:1", "A", pair))
        with self.assertRaisesRegex(UserError, "a.jsonl, line 2 .*'text_pair'"):
            next(texts)

    def test_lines_of_text(self):
        columns = Columns("sentence", labels=("label",))
        path = self.write("a.txt", "A b\r\nC\n")
        expected = [
            InputExample("a.txt:1", "A b"),
            InputExample("a.txt:2", "C"),
        ]
        self.assertEqual(
            list(classification_examples.read_texts(path, [columns])), expected
        )
        self.assertEqual(
            self.read("a.txt", "A b\nC\n", columns, may_lack_labels=True),
            expected,
        )
        self.assert_refused("no column 'label'", "a.txt", "A\n", columns)
        self.assert_refused(
            "but pairs .* and 'b'", "a.txt", "A\n", Columns("sentence", "b")
        )
        self.assert_refused(
            "line 2 has an empty text",
            "a.txt",
            "A\n\nB\n",
            columns,
            may_lack_labels=True,
        )

    def test_gather_labels(self):
        def gather(*labels):
            return classification_examples.gather_labels(
                [InputExample("", "x", None, label) for label in labels]
            )

        self.assertEqual(gather("b", "a", "b", "C"), ("C", "a", "b"))
        self.assertEqual(gather("10", "9", "-1"), ("-1", "9", "10"))
        self.assertEqual(gather("10", "9", "x"), ("10", "9", "x"))
        self.assertEqual(gather(("b", "a"), (), ("c",)), ("a", "b", "c"))
        self.assertEqual(gather(("b",), ()), ("b",))
        with self.assertLogs(level="WARNING") as logs:
            gather("1", "0", "1.0", "x", "Y", "y", "X z", "nan")
        first, second = logs.output
        self.assertIn("the labels '1' and '1.0', which are learned", first)
        self.assertIn("the labels 'Y' and 'y', which are learned", second)
        with self.assertNoLogs(level="WARNING"):
            gather("1", "0", "x", "y z")
        for labels, message in (
            (["b", "b"], "least 2 different labels to learn. Received: 'b'"),
            ([(), ()], "least 1 different label to learn. Received: none"),
        ):
            with self.assertRaisesRegex(UserError, message):
                gather(*labels)


if __name__ == "__main__":
    tf.test.main()
