"""Tests of run/predict.py and of the rows it writes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.api import load
from bert_tf.commands import predict as predict_command
from bert_tf.commands.predict import PredictConfig
from bert_tf.errors import UserError
from bert_tf.inference import predict
from bert_tf.inference.predict import OutputRows
from bert_tf.io import run_folder
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.multiple_choice.examples import Columns as ChoiceColumns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from tests.support import files_case
from tests.support import logical_devices
from tests.support import predictions
from tests.support import tiny_exports
from tests.support import tiny_model

logical_devices.make()

_WORDS = ("the", "cat", "dog", "sat", "on", "mats", "東", "dogs.")
# At this size the random weights predict several labels, not just one.
_CONFIG = dataclasses.replace(tiny_model.ONE_LAYER, intermediate_size=32)
_TASK = tiny_exports.classification(
    labels=("no", "maybe", "yes"), columns=Columns("body", None, ("label",))
)


def _texts(count):
    rng = np.random.default_rng(2)
    return [
        " ".join(rng.choice(_WORDS, rng.integers(1, 10))) for _ in range(count)
    ]


@contextlib.contextmanager
def _lengths_chosen():
    """Yields a list that records the lengths used to choose buckets."""
    chosen = []
    choose = task_prediction.allowed_lengths

    def spy(lengths, *args):
        chosen.append(list(lengths))
        return choose(lengths, *args)

    with mock.patch.object(task_prediction, "allowed_lengths", spy):
        yield chosen


class PredictTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_task(
            f"{self.folder}/model", _TASK, config=_CONFIG
        )
        self.output = f"{self.folder}/out/predictions.jsonl"

    def _rows(self, texts):
        return "".join(
            json.dumps({"label": 7, "body": text, "id": number}) + "\n"
            for number, text in enumerate(texts)
        )

    def _run(self, input_file, **flags):
        config = PredictConfig(
            model_dir=flags.pop("model_dir", self.model),
            input_file=input_file,
            output_file=self.output,
            **flags,
        )
        predict.run(config)
        with open(self.output, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    @contextlib.contextmanager
    def _chunks_of(self, size):
        """Sets the chunk size; yields a list of the sizes of all chunks."""
        sizes = []
        describe = predict.Predictor.describe

        def spy(predictor, examples, on_examples):
            sizes.append(len(examples))
            return describe(predictor, examples, on_examples)

        with (
            mock.patch.object(task_prediction, "EXAMPLES_PER_CHUNK", size),
            mock.patch.object(predict.Predictor, "describe", spy),
        ):
            yield sizes

    @parameterized.parameters(
        {},
        {"batch_size": 3, "num_length_buckets": 1},
        {"batch_size": 5, "num_length_buckets": 2},
        {"distribution_strategy": "mirrored", "batch_size": 3, "num_gpus": 2},
    )
    def test_rows_stay_in_order_for_any_chunk_size(self, **flags):
        texts = _texts(23)
        path = self.write("texts.jsonl", self._rows(texts))
        with mock.patch.object(task_prediction, "EXAMPLES_PER_CHUNK", 7):
            rows = self._run(path, **flags)
        self.assertLen(rows, 23)
        probabilities = np.array(
            [list(row["probabilities"].values()) for row in rows]
        )
        model = load.load_model(self.model)
        tokenizer = load.load_tokenizer(self.model)
        vocabulary = tokenizer.vocabulary
        expected = []
        for text in texts:
            (tokens,) = tokenizer.tokenize([text])
            ids = [vocabulary.cls_id, *tokens.numpy()[:10], vocabulary.sep_id]
            logits = model({"input_ids": np.array([ids])})["logits"]
            expected.append(tf.nn.softmax(logits[0]).numpy())
        self.assertAllClose(probabilities, expected, atol=1e-5)
        for row, values in zip(rows, expected, strict=True):
            self.assertEqual(
                list(row), ["label", "probability", "probabilities"]
            )
            self.assertEqual(list(row["probabilities"]), ["no", "maybe", "yes"])
            self.assertEqual(row["label"], _TASK.labels[np.argmax(values)])
            self.assertEqual(
                row["probability"], row["probabilities"][row["label"]]
            )
        self.assertGreater(len({row["label"] for row in rows}), 1)

    @parameterized.parameters(
        (
            tiny_exports.squad(),
            "questions.json",
            json.dumps({"version": "v2.0", "data": [{"paragraphs": [{
                "context": "the dog sat on the mat, the cat on dogs .",
                "qas": [
                    {"id": "x", "question": "cat ?", "answers": []},
                    {"id": "y", "question": "on"},
                ],
            }]}]}),
            [
                {
                    "id": name,
                    "question": question,
                    "context": "the dog sat on the mat, the cat on dogs .",
                }
                for name, question in (("x", "cat ?"), ("y", "on"))
            ],
            ["id", "answer", "start", "end", "score", "no_answer_score"],
        ),
        (
            tiny_exports.tagging(),
            "words.conll",
            "the DT O\ncats NN B-X\n\ndog NN O\n",
            [["the", "cats"], ["dog"]],
            ["words", "tags", "offsets"],
        ),
        (
            MultipleChoiceTask(
                name="custom",
                max_seq_length=12,
                columns=ChoiceColumns(("a", "b"), "c"),
            ),
            "choices.tsv",
            "b\ta\tlabel\tc\non a mat\tsat\t?\tthe cat\n",
            [{"c": "the cat", "a": "sat", "b": "on a mat"}],
            ["label", "index", "probability", "probabilities"],
        ),
    )  # fmt: skip
    def test_predictions_equal_model_predict(
        self, task, name, contents, rows, keys
    ):
        path = tiny_model.write_task(f"{self.folder}/{task.kind}", task)
        received = self._run(self.write(name, contents), model_dir=path)
        expected = load.load_model(path).predict(rows, verbose=0)
        predictions.assert_close(self, received, expected)
        self.assertEqual(list(received[0]), keys)

    def test_chunks_leave_documents_whole(self):
        task = tiny_exports.tagging()
        model = tiny_model.write_task(f"{self.folder}/tagger", task)
        sentences = "\n\n".join("\n".join(t.split()) for t in _texts(9))
        path = self.write(
            "words.conll", f"-DOCSTART-\n\n{sentences}\n\n-DOCSTART-\n\ncat\n"
        )
        with self._chunks_of(2) as sizes:
            rows = self._run(path, model_dir=model)
        self.assertEqual(sizes, [9, 1])
        self.assertEqual(self._run(path, model_dir=model), rows)

    def test_a_bad_row_is_found_before_anything_is_computed(self):
        path = self.write("texts.csv", "body\ncat\ndog\n \n")
        with (
            self._chunks_of(1) as sizes,
            self.assertRaisesRegex(UserError, r"texts\.csv, line 4"),
        ):
            self._run(path)
        self.assertEqual(sizes, [])
        self.assertFalse(tf.io.gfile.exists(self.output))

    def _output_files(self):
        return sorted(os.listdir(os.path.dirname(self.output)))

    def _fail_after(self, path, num_chunks, **flags):
        """Predicts in chunks of 7 rows and fails after `num_chunks` chunks."""
        describe = predict.Predictor.describe
        calls = []

        def fail(*args):
            calls.append(args)
            if len(calls) > num_chunks:
                raise OSError
            return describe(*args)

        with (
            mock.patch.object(task_prediction, "EXAMPLES_PER_CHUNK", 7),
            mock.patch.object(predict.Predictor, "describe", fail),
            self.assertRaises(OSError),
        ):
            self._run(path, **flags)

    @parameterized.parameters(0, 2)
    def test_resumes_after_a_kill(self, num_length_buckets):
        flags = {"num_length_buckets": num_length_buckets, "batch_size": 3}
        path = self.write("texts.jsonl", self._rows(_texts(23)))
        with self._chunks_of(7), _lengths_chosen() as chosen:
            self._run(path, **flags)
        whole = pathlib.Path(self.output).read_bytes()
        os.remove(self.output)

        self._fail_after(path, 2, **flags)
        # A kill during a write leaves such a file; the rerun must remove it.
        leftover = f"{self.output}.work/chunk-000002.tmp-9999999-00c0ffee"
        pathlib.Path(leftover).write_bytes(b'{"label": "no", "pro')
        with self._chunks_of(7) as sizes, _lengths_chosen() as again:
            self._run(path, **flags)

        if num_length_buckets:
            self.assertEqual(again, chosen)
        self.assertEqual(sizes, [7, 2])
        self.assertEqual(pathlib.Path(self.output).read_bytes(), whole)
        self.assertEqual(self._output_files(), ["predictions.jsonl"])

    @parameterized.parameters(".csv", ".tsv")
    def test_tables_resume_after_a_kill(self, ending):
        path = self.write("texts.jsonl", self._rows(_texts(9)))
        self.output = f"{self.folder}/out/predictions{ending}"
        config = PredictConfig(
            model_dir=self.model, input_file=path, output_file=self.output
        )
        with self._chunks_of(7):
            predict.run(config)
        whole = pathlib.Path(self.output).read_bytes()
        os.remove(self.output)
        self._fail_after(path, 1)
        with self._chunks_of(7) as sizes:
            predict.run(config)
        self.assertEqual(sizes, [2])
        self.assertEqual(pathlib.Path(self.output).read_bytes(), whole)

    @pytest.mark.slow
    def test_starts_over_after_any_change(self):
        path = self.write("texts.jsonl", self._rows(_texts(23)))

        def change_input():
            self.write("texts.jsonl", self._rows(_texts(23)[::-1]))

        def change_model():
            shutil.rmtree(self.model)
            labels = ("nein", "vielleicht", "ja")
            task = dataclasses.replace(_TASK, labels=labels)
            tiny_model.write_task(self.model, task)

        def lose_lines():
            os.remove(f"{self.output}.work/chunk-000000")

        for change in (change_input, change_model, lose_lines, None):
            self._fail_after(path, 2)
            flags = {} if change else {"batch_size": 5}
            if change:
                change()
            with self._chunks_of(7) as sizes:
                self._run(path, **flags)
            self.assertEqual(sizes, [7, 7, 7, 2])
            self.assertEqual(self._output_files(), ["predictions.jsonl"])

    def test_refuses_a_file_that_another_process_writes(self):
        path = self.write("texts.txt", "cat")
        with (
            run_folder.RunFolder(self.output, {}),
            self.assertRaisesRegex(UserError, "Another process writes .*;"),
        ):
            self._run(path)

    def test_refuses_invalid_paths(self):
        with self.assertRaisesRegex(UserError, "no column 'body'.*'text'"):
            self._run(self.write("texts.csv", "text\ncat\n"))
        self.output = self.write("same.txt", "cat")
        self.output = str(self.folder)
        with self.assertRaisesRegex(UserError, "Received a directory"):
            self._run(f"{self.folder}/same.txt")
        self.output = f"{self.folder}/pipe"
        os.mkfifo(self.output)
        with self.assertRaisesRegex(UserError, "pipe is a device or a stream"):
            self._run(f"{self.folder}/same.txt")
        before = sorted(os.listdir(self.folder))
        for path in (f"{self.folder}/same.txt/x.jsonl", "/proc/x.jsonl"):
            self.output = path
            with self.assertRaisesRegex(UserError, f"={path} cannot be writt"):
                self._run(f"{self.folder}/same.txt", model_dir="nowhere")
        self.assertEqual(sorted(os.listdir(self.folder)), before)


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


class OutputRowsTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        line = '{"id": 7, "text": "a\\nb", "label": ["x", "y"]}\n'
        self.input = self.write("in.jsonl", line)

    def _config(self, ending, **flags):
        return PredictConfig(
            model_dir="model",
            input_file=self.input,
            output_file=f"out{ending}",
            **flags,
        )

    def _lines(self, ending, task, answer, **flags):
        rows = OutputRows(self._config(ending, **flags), task)
        kept = next(rows.inputs())
        return rows.header, rows.line(kept, answer)

    def test_json_lines_stay_as_they_are(self):
        for ending in (".jsonl", ".json", "", ".out"):
            header, line = self._lines(
                ending, tiny_exports.classification(), _CHOICE
            )
            self.assertIsNone(header)
            self.assertEqual(line, json.dumps(_CHOICE) + "\n")

    def test_json_lines_have_columns_and_the_best(self):
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
            tiny_exports.classification(reject_below=0.8),
            _CHOICE | {"label": "none"},
            {"top_k": 9},
            "label,probability,label_2,probability_2,label_3,probability_3,"
            "label_4,probability_4\n",
            "none,0.75,b,0.75,c,0.1265,a,0.12346\n",
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
    def test_answers_become_table_rows(self, task, answer, flags, header, line):
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
        line = '{"label": 1, "input_label": 2, "probabilities": 3}\n'
        self.write("in.jsonl", line)
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

    def test_refuses_answers_that_are_not_numbers(self):
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
            header, "text\tid\tanswer\tstart\tend\tscore\tno_answer_score\n"
        )
        self.assertEqual(line, "a b\t\tin the end\t3\t9\t0.5\t1e-07\n")

    @parameterized.parameters(
        ("--keep_empty is for", tiny_exports.tagging(), {"keep_empty": True}),
        ("--top_k is for models", tiny_exports.squad(), {"top_k": 2}),
        ("for mod", tiny_exports.classification("regression"), {"top_k": 2}),
        ("no column 'x'.*--ke", tiny_exports.tagging(), {"keep_columns": "x"}),
    )
    def test_refuses_flags_without_effect(self, message, task, flags):
        with self.assertRaisesRegex(UserError, message):
            OutputRows(self._config("", **flags), task)

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
        for ending, keep in (
            (".xlsx", None),
            (".npz", None),
            ("", "a,,b"),
            ("", "a,a"),
        ):
            message = "(cannot end in|must be a name)|twice"
            with self.assertRaisesRegex(UserError, message):
                self._config(ending, keep_columns=keep)

    @parameterized.parameters(
        ("no column 'body'", "text\na\n", {}),
        ("line 3 has an empty text.*--keep_empty", "body,x\na,1\n,2\n", {}),
        ("no column 'y'.*--keep", "body,x\na,1\n", {"keep_columns": "x,y"}),
    )
    def test_bad_rows_are_found_without_tensorflow(self, message, text, flags):
        task = {"kind": "classification", "columns": {"text": "body"}}
        self.write("model/task.json", json.dumps(task))
        config = PredictConfig(
            model_dir=self.path("model"),
            input_file=self.write("in.csv", text),
            output_file="x",
            **flags,
        )
        with self.assertRaisesRegex(UserError, message):
            predict_command.main(config)


class EmbeddingsTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_initialized(f"{self.folder}/model")
        self.texts = _texts(9)
        self.input = self.write("texts.txt", "\n".join(self.texts))
        model = load.load_model(self.model, "embeddings")
        self.expected = model.predict(self.texts, verbose=0)

    def _run(self, name, **flags):
        output = f"{self.folder}/{name}"
        flags = {"input_file": self.input} | flags
        config = PredictConfig(
            model_dir=self.model, output_file=output, **flags
        )
        with mock.patch.object(task_prediction, "EXAMPLES_PER_CHUNK", 4):
            predict_command.main(config)
        return output

    def test_npy_holds_float32_embeddings(self):
        received = np.load(self._run("a.npy"))
        self.assertEqual(received.dtype, np.float32)
        self.assertAllClose(received, self.expected, rtol=0, atol=1e-6)

    def test_parquet_keeps_chosen_columns_with_embeddings(self):
        lines = [f"{n},{x}" for n, x in enumerate(self.texts)]
        table = self.write("a.csv", "\n".join(["id,text", *lines]))
        path = self._run("a.parquet", input_file=table, keep_columns="id")
        read = pd.read_parquet(path)
        self.assertEqual([*read.columns], ["id", "text", "embedding"])
        self.assertEqual([*read["text"]], self.texts)
        self.assertEqual([*read["id"]], [str(n) for n in range(9)])
        received = np.stack(read["embedding"])
        self.assertEqual(received.dtype, np.float32)
        self.assertAllClose(received, self.expected, rtol=0, atol=1e-6)

    def test_refuses_other_tasks_and_empty_texts(self):
        empty = self.write("b.txt", "cat\n\ndog\n")
        for message, name, flags in (
            ("has no columns to keep", "a.npy", {"keep_columns": "text"}),
            ("line 2 has an empty text", "a.npy", {"input_file": empty}),
            ("fine-tune it first", "a.jsonl", {}),
        ):
            with self.assertRaisesRegex(UserError, message):
                self._run(name, **flags)
        self.model = tiny_model.write_task(f"{self.folder}/task", _TASK)
        with self.assertRaisesRegex(UserError, "is for embeddings"):
            self._run("a.npy")


if __name__ == "__main__":
    tf.test.main()
