"""Tests for bert_tf.finetuning.experiment."""

import builtins
import collections
import contextlib
import functools
import gzip
import hashlib
import json
import os
import pathlib
import types
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_classifier
from bert_tf.commands import finetune_multiple_choice
from bert_tf.commands import finetune_squad
from bert_tf.commands import finetune_tagger
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.finetune_multiple_choice import MultipleChoiceConfig
from bert_tf.commands.finetune_squad import SquadConfig
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.errors import UserError
from bert_tf.finetuning import experiment as experiments
from bert_tf.finetuning import run as finetuning
from tests.support import tiny_model

_REVISION = "the revision of the model"
_ROWS = "text,label\nthe cat,a\non the mat,b\nthe dog,a\n"
_TAGGED = "-DOCSTART- O\n\nthe O\ncat B-PER\n\non O\nmat B-LOC\n"
_CHOICES = "".join(
    json.dumps({"context": "the cat", "choices": ["sits", "on"], "label": 1})
    + "\n"
    for _ in range(3)
)


def _squad(qas_id):
    answer = {"text": "the mat", "answer_start": 11}
    question = {"id": qas_id, "question": "Where?", "answers": [answer]}
    paragraph = {"context": "the cat on the mat", "qas": [question]}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


@contextlib.contextmanager
def _count_opened():
    """Counts how often each file is opened, by name."""
    opened = collections.Counter()

    def counting(function):
        def wrapper(path, *args, **kwargs):
            opened[os.path.basename(str(path))] += 1
            return function(path, *args, **kwargs)

        return wrapper

    with (
        mock.patch.object(builtins, "open", counting(builtins.open)),
        mock.patch.object(tf.io.gfile, "GFile", counting(tf.io.gfile.GFile)),
    ):
        yield opened


class IdentityTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"--reinit_layers": 2}, {"--reinit_layers": 2}, None),
        ({"--reinit_layers": 2}, {"--reinit_layers": 0}, "was 2 and is 0 now"),
        ({_REVISION: "@1"}, {_REVISION: "@1"}, None),
        ({_REVISION: "@1"}, {_REVISION: "@2"}, "was '@1' and is '@2'"),
        # A local copy of a model has no revision, so only hashes count.
        ({_REVISION: "@1"}, {}, None),
        ({}, {_REVISION: "@1"}, None),
    )
    def test_other_values_are_refused(self, before, now, message):
        config = TaggerConfig(output_dir="out", data_dir="data", do_eval=True)
        trial = types.SimpleNamespace(identity=now, sources={}, config=config)
        check = functools.partial(
            experiments.Experiment.check_identity, trial, before, "out"
        )
        if message is None:
            check()
            return
        with self.assertRaisesRegex(UserError, message):
            check()


class ReadingTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ("csv", _ROWS, ClassifierConfig, finetune_classifier,
         {"task_name": "custom", "class_weights": "balanced"}),
        ("csv.gz", _ROWS, ClassifierConfig, finetune_classifier,
         {"task_name": "custom"}),
        ("json", '{"text": "the", "label": "a"}\n{"text": "on", "label": "b"}',
         ClassifierConfig, finetune_classifier, {"task_name": "custom"}),
        ("conll", _TAGGED, TaggerConfig, finetune_tagger, {}),
        ("jsonl", _CHOICES, MultipleChoiceConfig, finetune_multiple_choice,
         {"task_name": "custom"}),
        ("json", _squad, SquadConfig, finetune_squad,
         {"max_query_length": 4, "doc_stride": 3}),
    )  # fmt: skip
    def test_files_are_opened_once(
        self, ending, contents, make, command, values
    ):
        folder = pathlib.Path(self.create_tempdir().full_path)
        model = str(folder / "pretrained")
        tiny_model.write(model, kind="encoder")
        dev = "predict_file" if make is SquadConfig else "dev_file"
        names = {"train_file": f"train.{ending}", dev: f"dev.{ending}"}
        for name in names.values():
            text = contents if isinstance(contents, str) else contents(name)
            data = text.encode()
            if ending.endswith(".gz"):
                data = gzip.compress(data)
            (folder / name).write_bytes(data)
        config = make(
            **{name: str(folder / path) for name, path in names.items()},
            pretrained_model_dir=model,
            output_dir=str(folder / "output"),
            max_seq_length=12,
            do_train=True,
            do_eval=True,
            **values,
        )
        with (
            mock.patch.object(finetuning, "run_experiment") as run,
            _count_opened() as opened,
        ):
            command.main(config)
            (experiment,), _ = run.call_args
            for split in ("train", "dev"):
                examples, features = experiment.reader.read(split)
                self.assertNotEmpty(examples)
                self.assertNotEmpty(features)
        for split, name in zip(("train", "dev"), names.values(), strict=True):
            self.assertEqual(opened[name], 1, name)
            digest = hashlib.sha256((folder / name).read_bytes())
            self.assertEqual(
                experiment.data_hashes(split)[split], digest.hexdigest()
            )


if __name__ == "__main__":
    tf.test.main()
