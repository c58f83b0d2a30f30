"""Tests for bert_tf.inference.glue_submission."""

import os
import pathlib
import shutil
import tempfile
import zipfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.api import load
from bert_tf.commands.glue_submission import GlueSubmissionConfig
from bert_tf.errors import UserError
from bert_tf.inference import glue_submission
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.predict import Predictor
from tests.support import tiny_exports
from tests.support import tiny_model

_SINGLE = "index\tsentence\n0\tthe cat\n1\tdogs sat on the mat .\n2\ta mat\n"
_PAIRS = "index\tsentence1\tsentence2\n0\tthe cat\ta dog\n1\ton\tthe mats\n"
# Folder to file to contents, in the layout of GLUE's own archives.
_FILES = {
    "CoLA": {"test.tsv": _SINGLE},
    "SST-2": {"test.tsv": _SINGLE},
    "MRPC": {
        "test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        "0\t7\t8\tthe cat\ta dog\n"
    },
    "STS-B": {"test.tsv": _PAIRS},
    "QQP": {"test.tsv": "id\tquestion1\tquestion2\n0\tcat\tdog\n1\t\tdog\n"},
    "MNLI": {
        "test_matched.tsv": _PAIRS,
        "test_mismatched.tsv": _PAIRS + "2\tdogs\tcats\n",
    },
    "QNLI": {"test.tsv": "index\tquestion\tsentence\n0\tcat\ta cat\n"},
    "RTE": {"test.tsv": _PAIRS},
    "WNLI": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel\n"
        "0\ta\tb\t0\n1\ta\tb\t1\n2\ta\tb\t1\n",
        "test.tsv": _PAIRS,
    },
    "diagnostic": {"diagnostic.tsv": _PAIRS},
}
_NAMES = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI".split()
_MODELS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte")


class GlueSubmissionTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = pathlib.Path(
            cls.enterClassContext(tempfile.TemporaryDirectory())
        )
        cls.data, cls.models = folder / "glue", folder / "models"
        for title, contents in _FILES.items():
            for name, text in contents.items():
                path = cls.data / title / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        for name in _MODELS:
            tiny_model.write_task(
                str(cls.models / name / "model"), tiny_exports.official(name)
            )

    def setUp(self):
        super().setUp()
        self.output = os.path.join(self.create_tempdir().full_path, "a.zip")

    def _some(self, *names):
        return {
            "model_dirs": ",".join(f"{self.models}/{n}/model" for n in names),
            "allow_missing_tasks": True,
        }

    def _run(self, **flags):
        values = {
            "model_dirs": f"{self.models}/*/model",
            "glue_dir": str(self.data),
            "output_file": self.output,
        }
        glue_submission.run(GlueSubmissionConfig(**values | flags))
        with zipfile.ZipFile(self.output) as archive:
            return {
                name: archive.read(name).decode("utf-8").splitlines()
                for name in archive.namelist()
            }

    @pytest.mark.slow
    def test_writes_all_files_with_a_line_for_each_row(self):
        with self.assertLogs("absl", "WARNING") as logs:
            files = self._run()
        self.assertEqual(list(files), [f"{name}.tsv" for name in _NAMES])
        counts = {
            name.removesuffix(".tsv"): len(x) for name, x in files.items()
        }
        expected = (3, 4, 3, 4, 2, 2, 3, 3, 4, 3, 3)
        self.assertEqual(counts, dict(zip(_NAMES, expected, strict=True)))
        for name, lines in files.items():
            self.assertEqual(lines[0], "index\tprediction", name)
            indices, answers = zip(
                *(line.split("\t") for line in lines[1:]), strict=True
            )
            self.assertEqual(indices, tuple(map(str, range(len(answers)))))
            task = glue_tasks.get_task(
                name.removesuffix(".tsv").removesuffix("-mm").removesuffix("-m")
            )
            if task.labels is None:
                for answer in answers:
                    self.assertRegex(answer, r"[0-5]\.\d{3}")
            else:
                self.assertContainsSubset(answers, task.labels)
        self.assertEqual(files["WNLI.tsv"][1:], ["0\t1", "1\t1"])
        warnings = "\n".join(logs.output)
        self.assertIn("has 2 rows instead of the official 146", warnings)
        self.assertEqual(warnings.count("the leaderboard will reject"), 11)

    def test_each_task_is_predicted_by_its_model(self):
        files = self._run(**self._some("rte", "mnli"))
        pairs = [("the cat", "a dog"), ("on", "the mats")]
        for title, name in (("AX", "mnli"), ("MNLI-m", "mnli"), ("RTE", "rte")):
            model = load.load_model(str(self.models / name / "model"))
            tokenizer = load.load_tokenizer(str(self.models / name / "model"))
            vocabulary = tokenizer.vocabulary
            for index, pair in enumerate(pairs):
                first, second = (x.numpy() for x in tokenizer.tokenize(pair))
                sep = [vocabulary.sep_id]
                ids = [vocabulary.cls_id, *first, *sep, *second, *sep]
                segments = [0] * (2 + len(first)) + [1] * (1 + len(second))
                logits = model(
                    {
                        "input_ids": np.array([ids]),
                        "segment_ids": np.array([segments]),
                    }
                )["logits"]
                label = glue_tasks.get_task(name).labels[np.argmax(logits)]
                self.assertEqual(
                    files[f"{title}.tsv"][index + 1], f"{index}\t{label}"
                )

    def test_equal_predictions_make_equal_files(self):
        flags = self._some("cola")
        self._run(**flags)
        first = pathlib.Path(self.output).read_bytes()
        self._run(batch_size=1, **flags)
        self.assertEqual(pathlib.Path(self.output).read_bytes(), first)

    def test_missing_models_are_refused_unless_allowed(self):
        flags = self._some("cola", "rte")
        with self.assertRaisesRegex(UserError, "MRPC, .*--allow_missing_tasks"):
            self._run(**flags | {"allow_missing_tasks": False})
        self.assertFalse(tf.io.gfile.exists(self.output))
        with self.assertLogs("absl", "WARNING") as logs:
            files = self._run(**flags)
        self.assertIn("a model for SST-2", "\n".join(logs.output))
        self.assertEqual(list(files), ["CoLA.tsv", "RTE.tsv", "WNLI.tsv"])

    def test_names_missing_folders_and_files(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        with self.assertRaisesRegex(UserError, "Missing: the folder CoLA in"):
            self._run(glue_dir=str(folder))
        (folder / "cola").mkdir()
        with self.assertRaisesRegex(UserError, "no file test.tsv .* of CoLA"):
            self._run(glue_dir=str(folder))
        shutil.copy(
            self.data / "diagnostic" / "diagnostic.tsv", folder / "AX.tsv"
        )
        files = self._run(glue_dir=str(folder), **self._some("mnli"))
        self.assertEqual(list(files), ["AX.tsv"])
        with self.assertRaisesRegex(UserError, "the folder CoLA in .*nothing"):
            self._run(glue_dir=str(folder / "nothing"))

    def test_refuses_models_that_do_not_fit(self):
        with self.assertRaisesRegex(UserError, "--model_dirs(:| matches) no"):
            self._run(model_dirs=f"{self.models}/nothing")
        rte = f"{self.models}/rte/model"
        with self.assertRaisesRegex(UserError, "two for rte"):
            self._run(model_dirs=f"{rte},{rte}")
        folder = self.create_tempdir().full_path
        own = tiny_model.write_task(
            f"{folder}/own",
            tiny_exports.official("rte", name="custom", official=None),
        )
        encoder = tiny_model.write(f"{folder}/encoder", kind="encoder")
        # Models without a GLUE task are skipped, so none is left for CoLA.
        for path in (own, encoder):
            with (
                self.assertLogs(level="WARNING") as logs,
                self.assertRaisesRegex(UserError, "a model for CoLA"),
            ):
                self._run(model_dirs=path)
            self.assertIn(f"{path} is skipped", "".join(logs.output))

    def test_checks_all_files_before_the_first_prediction(self):
        folder = pathlib.Path(self.create_tempdir().full_path) / "glue"
        shutil.copytree(self.data, folder)
        (folder / "RTE" / "test.tsv").write_text(f"{_PAIRS}2\tA\n")
        answer = mock.patch.object(
            Predictor, "predict", side_effect=AssertionError
        )
        with answer, self.assertRaisesRegex(UserError, "line 4 must have 3"):
            self._run(glue_dir=str(folder))
        with (
            answer,
            self.assertRaisesRegex(UserError, "must name a file. .*glue"),
        ):
            self._run(output_file=str(folder))


if __name__ == "__main__":
    tf.test.main()
