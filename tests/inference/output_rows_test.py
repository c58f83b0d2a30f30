"""Tests for bert_tf.inference.output_rows and its flags."""

import json
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.predict import PredictConfig
from bert_tf.inference.output_rows import OutputRows
from bert_tf.tasks import inputs
from tests.support import tiny_exports

_CHOICE = {
    "label": "b",
    "probability": 0.75,
    "probabilities": {"a": 0.123456789, "b": 0.75, "c": 0.1265},
}
_LABELS = {
    "labels": ["a", "c"],
    "probabilities": {"a": 0.623456789, "b": 0.25, "c": 1.0},
}
_ANSWER = {
    "id": None,
    "answer": "in\tthe\nend",
    "start": 3,
    "end": 9,
    "score": 0.5,
    "no_answer_score": 1e-7,
}
_TAGS = {"words": ["A", "b"], "tags": ["B-x", "O"], "offsets": [[0, 1], [3, 4]]}


class OutputRowsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.input = os.path.join(self.folder, "in.jsonl")
        with open(self.input, "w") as file:
            file.write('{"id": 7, "text": "a\\nb", "label": ["x", "y"]}\n')

    def _config(self, ending, **flags):
        return PredictConfig(
            model_dir="model",
            input_file=self.input,
            output_file=f"out{ending}",
            **flags,
        )

    def _lines(self, ending, task, answer, **flags):
        rows = OutputRows(self._config(ending, **flags), task)
        (kept,) = rows.inputs() or [{}]
        return rows.header, rows.line(kept, answer)

    def test_json_lines_stay_as_they_are(self):
        for ending in (".jsonl", ".json", "", ".out"):
            header, line = self._lines(
                ending, tiny_exports.classification(), _CHOICE
            )
            self.assertIsNone(header)
            self.assertEqual(line, json.dumps(_CHOICE) + "\n")

    def test_json_lines_with_columns_and_the_best(self):
        _, line = self._lines(
            ".jsonl",
            tiny_exports.classification(),
            _CHOICE,
            keep_columns="label,id",
            top_k=2,
        )
        values = json.loads(line)
        self.assertEqual(
            list(values),
            ["input_label", "id", "label", "probability", "probabilities"],
        )
        self.assertEqual(values["input_label"], ["x", "y"])
        self.assertEqual(
            list(values["probabilities"].items()), [("b", 0.75), ("c", 0.1265)]
        )

    @parameterized.parameters(
        (
            tiny_exports.classification(),
            _CHOICE,
            {},
            "label,probability\n",
            "b,0.75\n",
        ),
        (
            tiny_exports.classification(),
            _CHOICE,
            {"keep_columns": "all", "top_k": 9},
            "id,text,input_label,label,probability,label_2,probability_2,"
            "label_3,probability_3\n",
            '7,"a\nb",x y,b,0.75,c,0.1265,a,0.12346\n',
        ),
        (
            tiny_exports.classification("multi_label"),
            _LABELS,
            {},
            "labels,probabilities\n",
            '"a,c","0.62346,1"\n',
        ),
        (
            tiny_exports.classification("multi_label"),
            _LABELS,
            {"top_k": 2},
            "labels,label_1,probability_1,label_2,probability_2\n",
            '"a,c",c,1,a,0.62346\n',
        ),
        (
            tiny_exports.classification("regression"),
            {"score": 2.123456789},
            {},
            "score\n",
            "2.1235\n",
        ),
        (tiny_exports.tagging(), _TAGS, {}, "words,tags,offsets\n", None),
    )
    def test_tables(self, task, answer, flags, header, line):
        line = line or "A b,B-x O,0-1 3-4\n"
        self.assertEqual(
            self._lines(".csv", task, answer, **flags), (header, line)
        )

    @parameterized.parameters(
        ("single_label", ["label", "probability", "probabilities"], ","),
        ("multi_label", ["labels", "probabilities"], ","),
        ("regression", ["score"], '""'),
    )
    def test_empty_texts_have_empty_answers(self, problem_type, names, cells):
        task = tiny_exports.classification(problem_type)
        best = None if problem_type == "regression" else 2
        config = self._config(".jsonl", keep_empty=True, top_k=best)
        rows = OutputRows(config, task)
        expected = {"id": 7} | dict.fromkeys(names)
        if problem_type == "multi_label":
            expected["labels"] = []
        line = rows.line({"id": 7}, rows.empty_answer())
        self.assertEqual(json.loads(line), expected)
        rows = OutputRows(self._config(".csv", keep_empty=True), task)
        self.assertEqual(rows.line({}, rows.empty_answer()), cells + "\n")

    def test_kept_columns_have_names_of_their_own(self):
        with open(self.input, "w") as file:
            file.write('{"label": 1, "input_label": 2, "probabilities": 3}\n')
        flags = {"keep_columns": "all"}
        task = tiny_exports.classification()
        _, line = self._lines(".jsonl", task, _CHOICE, **flags)
        kept = {
            "input_input_label": 1,
            "input_label": 2,
            "input_probabilities": 3,
        }
        self.assertEqual(json.loads(line), kept | _CHOICE)
        header, _ = self._lines(".csv", task, _CHOICE, **flags)
        self.assertStartsWith(
            header, "input_input_label,input_label,probabilities,label,"
        )

    def test_answers_are_numbers(self):
        nan = {"score": float("nan")}
        with self.assertRaisesRegex(ValueError, "not JSON compliant"):
            self._lines(
                ".jsonl", tiny_exports.classification("regression"), nan
            )

    def test_tab_separated_cells_have_no_tabs_and_line_ends(self):
        header, line = self._lines(
            ".TSV", tiny_exports.squad(), _ANSWER, keep_columns="text"
        )
        self.assertEqual(
            header,
            "text\tid\tanswer\tstart\tend\tscore\tno_answer_score\n",
        )
        self.assertEqual(line, "a b\t\tin the end\t3\t9\t0.5\t1e-07\n")

    @parameterized.parameters(
        ("--keep_empty is for class", "tagging", {"keep_empty": True}),
        ("--top_k is for models", "squad", {"top_k": 2}),
        ("no column 'x'.*--keep_columns", "tagging", {"keep_columns": "x"}),
    )
    def test_refuses_flags_without_effect(self, message, task, flags):
        with self.assertRaisesRegex(UserError, message):
            OutputRows(self._config("", **flags), getattr(tiny_exports, task)())

    def test_scores_have_no_best(self):
        task = tiny_exports.classification("regression")
        with self.assertRaisesRegex(UserError, "--top_k is for models"):
            OutputRows(self._config("", top_k=2), task)

    def test_tasks_of_users_have_json_lines(self):
        task = tiny_exports.tagging()
        own = type("Stars", (type(task),), {"variant": "stars"})
        task = own(**vars(task))
        header, line = self._lines(".jsonl", task, {"stars": 4})
        self.assertIsNone(header)
        self.assertEqual(json.loads(line), {"stars": 4})
        for ending, flags in ((".csv", {}), (".jsonl", {"keep_columns": "id"})):
            with self.assertRaisesRegex(UserError, "a model for stars; write"):
                OutputRows(self._config(ending, **flags), task)

    def test_refuses_other_formats_and_columns(self):
        for ending, keep in ((".xlsx", None), ("", "a,,b"), ("", "a,a")):
            with self.assertRaisesRegex(
                UserError, "must (end in|be different)"
            ):
                self._config(ending, keep_columns=keep)

    @parameterized.parameters(
        ("no column 'body'", "text\na\n", {}),
        ("line 3 has an empty text.*--keep_empty", "body,x\na,1\n,2\n", {}),
        ("no column 'y'.*--keep", "body,x\na,1\n", {"keep_columns": "x,y"}),
    )
    def test_bad_rows_are_found_without_tensorflow(self, message, text, flags):
        model = os.path.join(self.folder, "model")
        os.mkdir(model)
        task = {"kind": "classification", "columns": {"text": "body"}}
        for name, content in (
            (f"{model}/task.json", json.dumps(task)),
            (f"{self.folder}/in.csv", text),
        ):
            with open(name, "w") as file:
                file.write(content)
        config = PredictConfig(
            model_dir=model,
            input_file=f"{self.folder}/in.csv",
            output_file="x",
            **flags,
        )
        with self.assertRaisesRegex(UserError, message):
            inputs.check_prediction(config)


if __name__ == "__main__":
    tf.test.main()
