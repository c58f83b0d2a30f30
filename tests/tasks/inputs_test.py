"""Tests of reading files before TensorFlow is imported."""

import contextlib
import json
import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_classifier
from bert_tf.commands import finetune_multiple_choice
from bert_tf.commands import finetune_squad
from bert_tf.commands import finetune_tagger
from bert_tf.commands import predict
from bert_tf.commands.distill import DistillConfig
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from bert_tf.commands.finetune_squad import SquadConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.commands.predict import PredictConfig
from bert_tf.distillation import inputs as distillation_inputs
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment
from bert_tf.finetuning import run as finetuning
from bert_tf.io import files

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

    @parameterized.parameters(
        ("a\na", "vocab.txt lacks .UNK"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]", "must be at most 12"),
    )
    def test_models(self, vocabulary, message):
        shape = {"vocab_size": 9, "max_position_embeddings": 12}
        files.write_json("topics/model/bert_config.json", shape)
        files.write_text("topics/model/vocab.txt", vocabulary)
        config = ClassifierConfig(
            task_name="custom",
            output_dir="topics",
            do_eval=True,
            dev_file="body.csv",
            max_seq_length=13,
        )
        with self.assertRaisesRegex(UserError, message):
            finetune_classifier.main(config)

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
            finetune_squad.read(config)

    def test_squad_files_to_predict(self):
        config = SquadConfig(
            output_dir="out", do_predict=True, predict_file="answer.json"
        )
        finetune_squad.read(config)  # All answers are unknown.
        question = dict(_QUESTION, id="2", answers=[{"text": "Ada"}])
        with open("answer.json", "w") as file:
            file.write(
                _squad({"context": "Ada.", "qas": [_QUESTION, question]})
            )
        with self.assertRaisesRegex(UserError, "--version_2_with_negative"):
            finetune_squad.read(config)

    @parameterized.parameters(
        (
            finetune_classifier,
            ClassifierConfig,
            ("topics", "text.csv"),
            {"task_name": "custom"},
            "text.csv has no column 'body'",
        ),
        (
            finetune_classifier,
            ClassifierConfig,
            ("topics", "body.csv"),
            {"task_name": "custom"},
            "body.csv, line 3 .*'z'",
        ),
        (
            finetune_multiple_choice,
            MultipleChoiceConfig,
            ("choices", "choice.csv"),
            {"task_name": "custom"},
            "choice.csv has no column 'b'",
        ),
        (
            finetune_tagger,
            TaggerConfig,
            ("tagger", "tags.tsv"),
            {},
            "tags.tsv has no column 'ner'",
        ),
    )
    def test_columns_of_the_model_to_evaluate(
        self, command, config_cls, names, flags, message
    ):
        model, path = names
        flags |= {"do_eval": True, "dev_file": path}
        for place in (
            {"output_dir": model},
            {"output_dir": "out", "pretrained_model_dir": f"{model}/model"},
        ):
            with self.assertRaisesRegex(UserError, message):
                command.main(config_cls(**flags, **place))
        # The columns of unknown models, and of other kinds, are not known.
        for output_dir in ("out", "squad"):
            with (
                mock.patch.object(finetuning, "run"),
                mock.patch.object(experiment, "prepared") as prepared,
            ):
                command.main(config_cls(**flags, output_dir=output_dir))
            (_, build), _ = prepared.call_args
            self.assertIsNone(build.keywords["task_files"])

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
            distillation_inputs.read(config)

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
            distillation_inputs.read(config)

    @parameterized.parameters(
        ("choices", "choice.csv", {}, "choice.csv has no column 'b'"),
        ("squad", "question.csv", {}, "question.csv has no column 'context'"),
        ("tagger", "raw.csv", {}, 'raw.csv must have a column "text"'),
        ("tagger", "text.csv", {"keep_columns": "id"}, "--keep_columns"),
    )
    def test_files_to_predict(self, model, path, flags, message):
        config = PredictConfig(
            model_dir=model, input_file=path, output_file="x.csv", **flags
        )
        with self.assertRaisesRegex(UserError, message):
            predict.main(config)


if __name__ == "__main__":
    tf.test.main()
