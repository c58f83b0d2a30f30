"""Tests of the examples of classification: own and official files."""

import collections
import pathlib
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task_files import ClassificationFiles
from tests.support import files_case
from tests.support.glue_layouts import LAYOUTS
from tests.support.glue_layouts import XNLI_HEADER
from tests.support.shared_data import data

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

    def test_columns_become_single_texts_or_pairs(self):
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

    def test_multi_label_cells_are_split(self):
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

    def test_label_columns_must_hold_0_or_1(self):
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
    def test_rejects_scores_that_are_not_numbers(self, name, contents):
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

    def test_labels_with_line_breaks_are_refused(self):
        message = r"line \d+ must have its label in one line. .*'a\\nb'"
        self.assert_refused(message, "a.csv", 'text,label\nx,"a\nb"\n')
        several = {"problem_type": "multi_label"}
        contents = '{"text": "x", "label": ["c", "a\\nb"]}\n'
        self.assert_refused(message, "a.jsonl", contents, **several)
        columns = Columns("text", labels=("a\nb", "c"))
        contents = 'text,"a\nb",c\nx,1,0\n'
        self.assert_refused(message, "a.csv", contents, columns, **several)

    def test_unknown_labels_are_refused(self):
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

    def test_files_may_lack_all_labels_but_not_some(self):
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

    def test_lines_of_text_become_examples(self):
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

    def test_gathered_labels_are_sorted(self):
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
        gather(*(str(x) for x in range(11)))  # Numbers of classes.
        gather(*(str(x / 8) for x in range(11)), *["0.5"] * 11)
        for labels, message in (
            (["b", "b"], "least 2 different labels to learn. Received: 'b'"),
            ([(), ()], "least 1 different label to learn. Received: none"),
            ([str(x / 8) for x in range(11)], "11 .*11 rows.*=regression"),
        ):
            with self.assertRaisesRegex(UserError, message):
                gather(*labels)


class GlueTest(files_case.FilesCase):
    def read(self, name, split, **options):
        task = glue_tasks.get_task(name)
        path = task.find_file(str(self.folder), split)
        with mock.patch.object(
            classification_examples.logging, "warning"
        ) as warn:
            examples = classification_examples.read_official(
                task, path, split, **options
            )
        self.counts = {x.args[3]: x.args[2] for x in warn.call_args_list}
        return examples

    @parameterized.parameters(*LAYOUTS)
    def test_every_layout_of_a_task_is_read(
        self, name, split, file, header, texts, label
    ):
        task = glue_tasks.get_task(name)
        labels = task.labels or (0.0, 2.75, 5.0)
        width = len(header) if header else 4
        lines = ["\t".join(header)] if header else []
        for i, right in enumerate(labels):
            # Quotation marks are unbalanced, and all fields differ.
            fields = [f'"{i} {j}, é' for j in range(width)]
            if label is not None:
                fields[label] = str(right)
            if header and "language" in header:
                fields[0] = "zh"
            lines.append("\t".join(fields))
        # MRPC's files have a byte order mark and CRLF, so all have here.
        self.write(file, "\ufeff" + "\r\n".join(lines) + "\r\n")
        read = self.read(name, split)
        self.assertEqual(
            [(example.text_a, example.text_b) for example in read],
            [
                (*(f'"{i} {j}, é' for j in texts), None)[:2]
                for i in range(len(labels))
            ],
        )
        self.assertEqual(
            [example.label for example in read],
            [None if label is None else right for right in labels],
        )
        first = len(lines) - len(labels) + 1
        self.assertEqual(
            [example.guid for example in read],
            [
                f"{pathlib.Path(file).name}:{first + i}"
                for i in range(len(labels))
            ],
        )
        self.assertEqual(task.is_pair, len(texts) == 2)

    def test_every_task_has_a_layout(self):
        covered = {layout[0] for layout in LAYOUTS}
        self.assertEqual(covered, set(glue_tasks.TASKS))

    @parameterized.parameters(
        ("mnli", "dev_matched", "entailment"),
        ("rte", "train", "entailment"),
        ("rte", "train", "0"),
        ("snli", "dev", "0"),
    )
    def test_json_labels_may_be_names_or_numbers(self, name, split, label):
        label = label if label.isdecimal() else f'"{label}"'
        self.write(
            f"{split}.jsonl",
            f'{{"premise": "A", "hypothesis": "B", "label": {label}}}',
        )
        (example,) = self.read(name, split)
        self.assertEqual(
            (example.text_a, example.text_b, example.label),
            ("A", "B", "entailment"),
        )

    @parameterized.parameters("test_matched", "test_mismatched")
    def test_reads_unlabeled_tests_of_multinli(self, split):
        self.write(
            f"multinli_0.9_{split}_unlabeled.jsonl",
            '{"gold_label": "hidden", "sentence1": "A", "sentence2": "B"}',
        )
        (example,) = self.read("mnli", split)
        self.assertEqual((example.text_b, example.label), ("B", None))

    def test_label_ids_equal_the_originals(self):
        for name, labels in {
            "cola": ("0", "1"),
            "mrpc": ("0", "1"),
            "mnli": ("contradiction", "entailment", "neutral"),
            "xnli": ("contradiction", "entailment", "neutral"),
        }.items():
            self.assertEqual(glue_tasks.get_task(name).labels, labels)

    def test_tasks_have_their_official_metrics(self):
        expected = {
            "cola": {"matthews_correlation"},
            "mrpc": {"f1", "accuracy"},
            "qqp": {"f1", "accuracy"},
            "sts-b": {"pearson", "spearmanr"},
            "ax": {"matthews_correlation", "accuracy"},
        }
        for name, task in glue_tasks.TASKS.items():
            self.assertEqual(
                set(task.metrics), expected.get(name, {"accuracy"})
            )

    def test_snli_takes_the_gold_label_after_those_of_annotators(self):
        (header,) = (x[3] for x in LAYOUTS if x[:2] == ("snli", "train"))
        lines = [header, ["0"] * 9 + ["neutral", "neutral"]]
        labels = ["entailment", "neutral", "neutral", "contradiction", "-"]
        lines.append(["1"] * 7 + ["A", "B", *labels, "contradiction"])
        self.write("train.tsv", "\n".join(map("\t".join, lines)))
        first, second = self.read("snli", "train")
        self.assertEqual((first.text_a, first.label), ("0", "neutral"))
        self.assertEqual(
            (second.text_a, second.text_b, second.label),
            ("A", "B", "contradiction"),
        )

    @parameterized.parameters("dev", "test")
    def test_rows_without_agreement_are_left_out_and_counted(self, split):
        self.write(
            f"{split}.tsv",
            "sentence1\tsentence2\tgold_label\nA\tB\t-\nC\tD\tneutral\n"
            "E\tF\t-1\n",
        )
        read = self.read("snli", split)
        self.assertEqual(self.counts, {"rows without gold label, left out": 2})
        self.assertEqual([e.text_a for e in read], ["C"])

    def test_hidden_labels_of_a_test_are_read_as_none(self):
        for name, split, columns, value in (
            ("mnli", "test_matched", "sentence1\tsentence2\tlabel", "-1"),
            ("mnli", "test_matched", "sentence1\tsentence2\tlabel", "hidden"),
            ("sts-b", "test", "sentence1\tsentence2\tscore", "-1.0"),
            ("rte", "test", "sentence1\tsentence2\tlabel", ""),
        ):
            self.write(
                f"{split}.tsv", f"{columns}\nA\tB\t{value}\nC\tD\t{value}\n"
            )
            read = self.read(name, split)
            self.assertEqual([e.label for e in read], [None, None])
            self.assertEqual(self.counts, {})

    def test_xnli_is_read_in_one_language(self):
        lines = [
            "\t".join(
                [language, "neutral", *"p" * 4, f"{language} A", "B", *"r" * 11]
            )
            for language in ("en", "zh", "de", "zh")
        ]
        self.write("xnli.dev.tsv", "\n".join(["\t".join(XNLI_HEADER), *lines]))
        self.write(
            "multinli/multinli.train.de.tsv",
            "premise\thypo\tlabel\nA\tB\tcontradictory\n",
        )
        read = self.read("xnli", "dev")
        self.assertEqual([e.text_a for e in read], ["zh A", "zh A"])
        read = self.read("xnli", "dev", language="de")
        self.assertEqual([e.guid for e in read], ["xnli.dev.tsv:4"])
        task = glue_tasks.get_task("xnli")
        path = task.find_file(str(self.folder), "train", "de")
        (example,) = classification_examples.read_official(task, path, "train")
        self.assertEqual(example.label, "contradiction")
        with self.assertRaisesRegex(UserError, "no row to use .* in 'fr'"):
            self.read("xnli", "dev", language="fr")

    def test_empty_texts_are_kept_and_counted(self):
        self.write("train.tsv", "sentence\tlabel\nA\t0\n \t1\nB\t1\n")
        read = self.read("sst-2", "train")
        self.assertEqual([e.text_a for e in read], ["A", " ", "B"])
        self.assertEqual(self.counts, {"examples with an empty text, kept": 1})
        path = self.path("train.tsv")
        task = ClassificationFiles(official=glue_tasks.get_task("sst-2"))
        texts = task.read_inputs(path)
        self.assertEqual([e.text_a for e in texts], ["A", " ", "B"])

    @parameterized.parameters(
        ("mnli", "snli", True),
        ("ax", "mnli", True),
        ("qqp", "mrpc", True),
        ("cola", "sst-2", False),
        ("mnli", "rte", False),
        ("qnli", "rte", False),
        ("cola", "cola", True),
        ("cola", "custom", True),
        ("cola", None, True),
        ("custom", "stars", True),
    )
    def test_similar_tasks_are_alike(self, name, other, expected):
        self.assertEqual(glue_tasks.are_alike(name, other), expected)

    def test_language_is_ignored_for_other_tasks(self):
        self.write(
            "train.jsonl",
            '{"sentence": "A", "label": 1, "language": "en"}\n'
            '{"sentence": "B", "label": 0, "language": "zh"}\n',
        )
        read = self.read("sst-2", "train")
        self.assertEqual([e.text_a for e in read], ["A", "B"])

    @parameterized.parameters("mnli", "snli", "rte", "ax")
    def test_reads_texts_of_the_diagnostic_set(self, task):
        # Models of MNLI predict this file, whose columns are not MNLI's.
        path = self.write(
            "diagnostic-full.tsv",
            "Domain\tPremise\tHypothesis\tLabel\nNews\tA\tB\tneutral\n",
        )
        task = ClassificationFiles(official=glue_tasks.get_task(task))
        (example,) = task.read_inputs(path)
        self.assertEqual((example.text_a, example.text_b), ("A", "B"))

    def test_broken_rows_of_qqp_are_counted(self):
        header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        rows = "1\t2\t3\tA\tB\t0\n4\t5\t6\tbroken\nhere\t1\n7\t8\t9\tC\t\t1\n"
        self.write("train.tsv", f"{header}\n{rows}")
        read = self.read("qqp", "train")
        self.assertEqual([e.text_a for e in read], ["A", "C"])
        self.assertEqual(list(self.counts.values()), [2, 1])
        # The leaderboard numbers the rows of a test, so none may be lost.
        self.write("test.tsv", "id\tquestion1\tquestion2\n0\tA\tB\n1\tA\n")
        with self.assertRaisesRegex(UserError, "line 3 must have 3 columns"):
            self.read("qqp", "test")

    @parameterized.parameters(
        ("test.tsv, line 2 must have 2",
         "cola", "test", "index\tsentence\n0\n"),
        ("line 2 must have 4 columns", "cola", "dev", "s\t0\t\tt\ns\t1\tt\n"),
        ("line 2 has no label", "sst-2", "dev", "sentence\tlabel\nA\t\n"),
        ("line 2 has the label 'good', which is not among the 2.*'0', '1'",
         "sst-2", "dev", "sentence\tlabel\nA\tgood\n"),
        ("line 3 must have a number",
         "sts-b", "dev", "sentence1\tsentence2\tscore\nA\tB\t1\nA\tB\tx\n"),
        ("no column 'sentence'", "sst-2", "dev", "text\tlabel\nA\t0\n"),
        ("no column 'Quality'", "mrpc", "dev", "#1 String\t#2 String\nA\tB\n"),
        ("1 of 2 have none", "rte", "test",
         "sentence1\tsentence2\tlabel\nA\tB\tentailment\nA\tB\t\n"),
    )  # fmt: skip
    def test_rejects_broken_files(self, message, name, split, contents):
        self.write(f"{split}.tsv", contents)
        with self.assertRaisesRegex(UserError, message):
            self.read(name, split)

    @parameterized.parameters(
        ("rte", "dev", "val.jsonl"),
        ("snli", "dev", "validation.csv"),
        ("mnli", "dev_mismatched", "validation_mismatched.jsonl"),
    )
    def test_dev_files_may_have_other_names(self, name, split, file):
        path = self.write(file, "")
        task = glue_tasks.get_task(name)
        self.assertEqual(task.find_file(str(self.folder), split), path)
        official = self.write(f"{split}.txt.gz", "")
        self.assertEqual(task.find_file(str(self.folder), split), official)

    @parameterized.parameters("SST-2", "sst2", "SST_2", "sst-2")
    def test_spellings_of_a_name_find_its_task(self, name):
        self.assertEqual(glue_tasks.get_task(name).title, "SST-2")

    def test_submissions_have_the_official_form(self):
        self.assertEqual(
            classification_examples.submission_text(
                glue_tasks.get_task("rte"), ["entailment", "not_entailment"]
            ),
            "index\tprediction\n0\tentailment\n1\tnot_entailment\n",
        )
        self.assertEqual(
            classification_examples.submission_text(
                glue_tasks.get_task("sts-b"), [3.14159, -0.5, 5.25]
            ),
            "index\tprediction\n0\t3.142\n1\t0.000\n2\t5.000\n",
        )
        with self.assertRaisesRegex(UserError, "CoLA .*0, 1.*'2' for row 1"):
            classification_examples.submission_text(
                glue_tasks.get_task("cola"), ["0", "2"]
            )

    @parameterized.parameters(
        ("mnli", "train", "mnli/train3000.jsonl.gz", 3000, 0),
        ("mnli", "dev_matched", "mnli/dev_matched.jsonl.gz", 9815, 0),
        ("snli", "dev", "snli/dev.tsv.gz", 9842, 0),
        ("snli", "test", "snli/test.tsv.gz", 9824, 0),
        ("qnli", "train", "qnli/train_part.tsv.gz", 10010, 0),
        ("qnli", "dev", "qnli/dev.tsv.gz", 5463, 0),
        ("qnli", "test", "qnli/test.tsv.gz", 5463, None),
        ("wnli", "train", "wnli/train.tsv", 635, 0),
        ("wnli", "dev", "wnli/dev.tsv", 71, 0),
        ("wnli", "test", "wnli/test.tsv", 146, None),
    )  # fmt: skip
    def test_real_files_have_their_number_of_examples(
        self, name, split, file, num_examples, unlabeled
    ):
        task = glue_tasks.get_task(name)
        read = classification_examples.read_official(task, data(file), split)
        self.assertLen(read, num_examples)
        counts = collections.Counter(e.label for e in read)
        expected = {None} if unlabeled is None else set(task.labels)
        self.assertEqual(set(counts), expected)


if __name__ == "__main__":
    tf.test.main()
