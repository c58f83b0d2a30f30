"""Tests of the checks of files before TensorFlow is imported."""

import contextlib
import json
import os
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distillation import inputs as distillation_inputs
from bert_tf.errors import UserError
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.flags.distill import DistillConfig
from bert_tf.flags.predict import PredictConfig
from bert_tf.flags.squad import SquadConfig
from bert_tf.flags.tagger import TaggerConfig
from bert_tf.io import files
from bert_tf.tasks import inputs
from bert_tf.tasks.classification import inputs as classification_inputs
from bert_tf.tasks.multiple_choice import inputs as multiple_choice_inputs
from bert_tf.tasks.squad import inputs as squad_inputs
from bert_tf.tasks.tagging import inputs as tagging_inputs

_MODULES = """
import sys
import bert_tf.distillation.inputs
import bert_tf.tasks.inputs
print({"tensorflow", "keras"} & set(sys.modules))
"""
_QUESTION = {"id": "1", "question": "Who?", "answers": []}
_TASKS = {
    "topics": {
        "kind": "classification",
        "columns": {"text": "body", "text_pair": None, "labels": ["topic"]},
        "labels": ["x", "y"],
    },
    "choices": {
        "kind": "multiple_choice",
        "columns": {"choices": ["a", "b"], "context": "q", "label": "right"},
    },
    "squad": {"kind": "question_answering"},
    "tagger": {
        "kind": "tagging",
        "word_column": "token",
        "tag_column": "ner",
        "labels": ["O"],
    },
}


def _squad(paragraph):
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


_FILES = {
    "text.csv": "text,topic\na,x\n",
    "body.csv": "body,topic\na,x\nb,z\n",
    "choice.csv": "q,a,right\nwhy,x,a\n",
    "tags.tsv": "token\ttag\nBerlin\tO\n",
    "raw.csv": "title\nBerlin\n",
    "cut.json": '{"data": [\n{"paragraphs": }',
    "list.json": "[1]",
    "other.json": '{"rows": []}',
    "answer.json": _squad({"context": "Ada.", "qas": [_QUESTION]}),
    "no_context.json": _squad({"qas": []}),
    "question.csv": "question,text\nWho?,Ada.\n",
}


class InputsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
        for name, values in _TASKS.items():
            # As in the output directory of a run.
            os.makedirs(f"{name}/model")
            files.write_json(f"{name}/model/task.json", values)
        for name, contents in _FILES.items():
            files.write_text(name, contents)

    def test_no_check_imports_tensorflow(self):
        finished = subprocess.run(
            [sys.executable, "-c", _MODULES],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.assertEqual(finished.stdout.strip(), "set()")

    @parameterized.parameters(
        ("cut.json", "cut.json, line 2 is not valid JSON"),
        ("list.json", "'data', a list. Received: list"),
        ("other.json", "'data', a list. Received: the keys .'rows'."),
        ("no_context.json", r"paragraphs\[0\] .* 'context'"),
        ("answer.json", "training needs an answer"),
    )
    def test_squad_files(self, name, message):
        config = SquadConfig(
            output_dir="out",
            pretrained_model_dir="squad",
            do_train=True,
            train_file=name,
        )
        with self.assertRaisesRegex(UserError, message):
            squad_inputs.check(config)

    def test_squad_files_to_predict(self):
        config = SquadConfig(
            output_dir="out", do_predict=True, predict_file="answer.json"
        )
        squad_inputs.check(config)  # All answers are unknown.
        with self.assertRaisesRegex(UserError, "not valid JSON"):
            squad_inputs.check_labeled("cut.json", False, False)
        question = dict(_QUESTION, id="2", answers=[{"text": "Ada"}])
        with open("answer.json", "w") as file:
            file.write(
                _squad({"context": "Ada.", "qas": [_QUESTION, question]})
            )
        with self.assertRaisesRegex(UserError, "--version_2_with_negative"):
            squad_inputs.check(config)

    @parameterized.parameters(
        ("[", "in SQuAD's format. Received: a file that begins with '.    "),
        ('{"data": [\n]]' + "x" * 20, "line 2 is not .* column 2"),
        ('{"data": [', None),
        ('{"data": ["', None),
        # Its middle is where the start ends.
        ('{"data": [' + " " * ((1 << 22) - 12) + "true", None),
    )
    def test_starts_of_large_squad_files(self, start, message):
        files.write_text("large.json", start + " " * (1 << 22) + "x")
        if message is None:
            squad_inputs.check_labeled("large.json", True, False)
            return
        with self.assertRaisesRegex(UserError, message):
            squad_inputs.check_labeled("large.json", True, False)

    @parameterized.parameters(
        (
            classification_inputs,
            ClassifierConfig,
            ("topics", "text.csv"),
            {"task_name": "custom"},
            "text.csv has no column 'body'",
        ),
        (
            classification_inputs,
            ClassifierConfig,
            ("topics", "body.csv"),
            {"task_name": "custom"},
            "body.csv, line 3 .*'z'",
        ),
        (
            multiple_choice_inputs,
            MultipleChoiceConfig,
            ("choices", "choice.csv"),
            {"task_name": "custom"},
            "choice.csv has no column 'b'",
        ),
        (
            tagging_inputs,
            TaggerConfig,
            ("tagger", "tags.tsv"),
            {},
            "tags.tsv has no column 'ner'",
        ),
    )
    def test_columns_of_the_model_to_evaluate(
        self, module, config_cls, names, flags, message
    ):
        model, path = names
        flags |= {"do_eval": True, "dev_file": path}
        for place in (
            {"output_dir": model},
            {"output_dir": "out", "pretrained_model_dir": f"{model}/model"},
        ):
            with self.assertRaisesRegex(UserError, message):
                module.check(config_cls(**flags, **place))
        # Of an unknown model nothing is known.
        module.check(config_cls(**flags, output_dir="out"))
        # Nor of a model of another kind.
        module.check(config_cls(**flags, output_dir="squad"))

    @parameterized.parameters(
        ("topics", "text.csv", {}, "text.csv has no column 'body'"),
        ("topics", "body.csv", {}, "body.csv, line 3 .*'z'"),
        ("topics", "text.csv", {"text_column": "title"}, "no column 'title'"),
        ("choices", "choice.csv", {}, "choice.csv has no column 'b'"),
        ("choices", "choice.csv", {"text_column": "q"}, "^--text_column"),
        ("squad", "list.json", {}, "list.json must be an object"),
        ("tagger", "tags.tsv", {}, "tags.tsv has no column 'ner'"),
    )
    def test_files_of_distillation(self, teacher, path, flags, message):
        config = DistillConfig(
            teacher_dir=teacher,
            output_dir="out",
            do_eval=True,
            dev_file=path,
            **flags,
        )
        with self.assertRaisesRegex(UserError, message):
            distillation_inputs.check(config)

    def test_unlabeled_files_of_distillation(self):
        config = DistillConfig(
            teacher_dir="topics",
            output_dir="out",
            num_hidden_layers=1,
            do_train=True,
            train_file="text.csv",
            text_column="text",
            unlabeled_file="raw.csv",
        )
        with self.assertRaisesRegex(UserError, "raw.csv has no column 'text'"):
            distillation_inputs.check(config)

    @parameterized.parameters(
        ("choices", "choice.csv", {}, "choice.csv has no column 'b'"),
        ("squad", "question.csv", {}, "question.csv has no column 'context'"),
        ("squad", "cut.json", {}, "not valid JSON"),
        ("squad", "other.json", {}, "'data', a list"),
        ("tagger", "raw.csv", {}, 'raw.csv must have a column "text"'),
        ("tagger", "text.csv", {"keep_columns": "id"}, "--keep_columns"),
        ("topics", "body.csv", {"keep_columns": "id"}, "--keep_columns"),
    )
    def test_files_to_predict(self, model, path, flags, message):
        config = PredictConfig(
            model_dir=model, input_file=path, output_file="x.csv", **flags
        )
        with self.assertRaisesRegex(UserError, message):
            inputs.check_prediction(config)


if __name__ == "__main__":
    tf.test.main()
