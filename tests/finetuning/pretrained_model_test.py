"""Tests for bert_tf.finetuning.pretrained_model."""

import dataclasses
import json
import os

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.distribute import devices as device_setup
from bert_tf.errors import UserError
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.flags.groups import DeviceConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import tiny_finetuning
from tests.support import tiny_model
from tests.support.shared_data import golden

_CASED = [token.replace("dog", "Dog") for token in tiny_model.TOKENS]
# More labels than a message shows, so it must shorten them.
_LABELS = tuple("abcdefgh")


class OriginalFlagsTest(files_case.FolderCase):
    """Tests --bert_config_file, --vocab_file and --init_checkpoint."""

    def _write_model(self, tokens, **settings):
        """Writes a model directory; returns its path."""
        return tiny_model.write_weights(
            self.path("model"),
            tiny_model.CONFIG,
            tiny_model.random_weights(),
            {"kind": "pretraining", "max_seq_length": 12},
            Vocabulary(tokens),
            **settings,
        )

    def _read(self, tokens, init_checkpoint=None, **flags):
        files = {
            "vocab_file": self.path("vocab.txt"),
            "bert_config_file": self.path("config.json"),
        }
        with open(files["vocab_file"], "w", encoding="utf-8") as file:
            file.write("".join(f"{token}\n" for token in tokens))
        with open(files["bert_config_file"], "w", encoding="utf-8") as file:
            json.dump(tiny_model.CONFIG.to_dict(), file)
        return pretrained_models.read(
            tiny_finetuning.config(
                self.folder,
                **files
                | {
                    "pretrained_model_dir": None,
                    "init_checkpoint": init_checkpoint,
                }
                | flags,
            )
        )

    @parameterized.parameters(
        (_CASED, None, False, 0),
        (_CASED, False, False, 0),
        (_CASED, True, True, 1),
        (tiny_model.TOKENS, None, True, 0),
        (tiny_model.TOKENS, False, False, 1),
    )
    def test_case_follows_the_vocabulary(
        self, tokens, flag, expected, num_warnings
    ):
        with self.assertLogs(level="WARNING") as logs:
            stored = self._read(tokens, do_lower_case=flag)
        self.assertEqual(stored.tokenizer_settings["lower_case"], expected)
        # The first warning is about random weights, so it always counts.
        self.assertLen(logs.output, 1 + num_warnings)
        if num_warnings:
            self.assertIn("--do_lower_case", logs.output[1])

    def test_stored_case_overrides_the_vocabulary(self):
        path = self._write_model(tiny_model.TOKENS, lower_case=False)
        stored = self._read(tiny_model.TOKENS, path)
        self.assertFalse(stored.tokenizer_settings["lower_case"])
        with self.assertRaisesRegex(UserError, "cased text, which --do_low"):
            self._read(tiny_model.TOKENS, path, do_lower_case=True)

    def test_another_vocabulary_needs_allow_changed_data(self):
        path = self._write_model(tiny_model.TOKENS)
        with self.assertRaisesRegex(
            UserError,
            "--vocab_file=.*vocab.txt .*--allow_changed_data",
        ):
            self._read(_CASED, path)
        stored = self._read(_CASED, path, allow_changed_data=True)
        self.assertEqual(stored.vocabulary.tokens, tuple(_CASED))


class NormalizationTest(tf.test.TestCase, parameterized.TestCase):
    def _adapt(self, stored, **values):
        folder = self.create_tempdir().full_path
        config = tiny_finetuning.config(folder, **values)
        return pretrained_models.with_normalization(stored, config)

    def _stored(self, kind="encoder"):
        path = os.path.join(self.create_tempdir().full_path, "model")
        return model_directory.read_model(tiny_model.write(path, kind=kind))

    def test_model_can_change_to_ascii_lower(self):
        stored = self._adapt(self._stored(), normalization="ascii_lower")
        tokenizer = stored.build_tokenizer()
        self.assertEqual(stored.tokenizer_settings, tokenizer.settings())
        self.assertAllEqual(
            tokenizer.tokens(tokenizer.tokenize("The caT CÄT")),
            [b"the", b"cat", b"[UNK]"],
        )
        same = self._adapt(stored, normalization="ascii_lower")
        self.assertIs(same, stored)

    def test_model_cannot_change_back(self):
        stored = self._adapt(self._stored(), normalization="ascii_lower")
        with self.assertRaisesRegex(
            UserError, "trained with --normalization=ascii_lower.*=original"
        ):
            self._adapt(stored, normalization="original")

    def test_flags_must_not_contradict_each_other(self):
        with self.assertRaisesRegex(UserError, "lower-cases all.*=false"):
            self._adapt(
                self._stored(),
                normalization="ascii_lower",
                do_lower_case=False,
            )

    def test_warns_of_a_cased_vocabulary(self):
        stored = self._stored()
        settings = {**stored.tokenizer_settings, "lower_case": False}
        stored = dataclasses.replace(stored, tokenizer_settings=settings)
        with self.assertLogs(level="WARNING") as logs:
            self._adapt(stored, normalization="ascii_lower")
        self.assertIn("has upper-case letters", logs.output[0])


def _task(labels=_LABELS, **values):
    return ClassificationTask(
        name="custom", labels=labels, metric_names=("accuracy",), **values
    )


def _regression():
    return _task(None, problem_type="regression")


class HasHeadTest(tf.test.TestCase, parameterized.TestCase):
    def stored(self, task, **values):
        path = f"{self.create_tempdir().full_path}/model"
        tiny_model.write_task(path, task, config=tiny_model.CONFIG)
        stored = formats.read(path)
        task = {
            n: x for n, x in (stored.task | values).items() if x is not None
        }
        return dataclasses.replace(stored, task=task)

    def assert_head(self, expected, stored, task):
        self.assertEqual(
            pretrained_models.has_head_for(stored, task), expected, stored.task
        )

    def test_head_fits_same_labels_in_any_order(self):
        stored = self.stored(_task())
        self.assert_head(True, stored, _task())
        self.assert_head(False, stored, _task((*"abcdefg", "x")))
        self.assert_head(True, stored, _task((*"abcdef", "h", "g")))
        self.assert_head(False, stored, _task(tuple("abcdefg")))

    @parameterized.parameters(
        (_task(("a", "b", "c")), _task(("c", "a", "b"))),
        (
            TaggingTask(name="tagging", labels=("O", "I-x", "B-x")),
            TaggingTask(name="tagging", labels=("B-x", "O", "I-x")),
        ),
    )
    def test_head_follows_labels_in_another_order(self, task, other):
        stored = self.stored(task)
        inputs = {
            "input_ids": np.array([[2, 5, 6, 3], [2, 9, 3, 0]], np.int32),
            "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
            "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], np.int32),
        }
        logits = [
            np.array(
                pretrained_models.build_model(
                    stored, one, device_setup.prepare(DeviceConfig())
                )(inputs)["logits"]
            )
            for one in (task, other)
        ]
        self.assertGreater(np.ptp(logits[0], axis=-1).min(), 0.01)
        self.assertAllEqual(logits[1], logits[0][..., [2, 0, 1]])

    def test_head_fits_its_own_form_only(self):
        stored = self.stored(_task())
        self.assert_head(False, stored, SquadTask())
        self.assert_head(False, stored, _task(problem_type="multi_label"))
        self.assert_head(False, stored, _task(head="bilstm"))
        self.assert_head(False, stored, _regression())
        self.assert_head(True, self.stored(SquadTask()), SquadTask())
        self.assert_head(False, self.stored(SquadTask()), _task())

    def test_refuses_a_head_for_another_task(self):
        tagging = TaggingTask(name="tagging", labels=("O", "B-x"))
        stored = self.stored(tagging)
        with self.assertRaisesRegex(
            UserError,
            r"for this task \(custom: classification\)\. Received: tagging; "
            r"2 labels: O, B-x; add --do_train",
        ):
            pretrained_models.build_model(
                stored, _task(("O", "B-x")), devices=None, keep_head=True
            )
        with self.assertRaisesRegex(
            UserError, r"\(custom: classification; 8 labels:"
        ):
            pretrained_models.build_model(
                self.stored(_task(("a", "b"))),
                _task(),
                devices=None,
                keep_head=True,
            )

    def test_regression_head_fits_regression_only(self):
        stored = self.stored(_regression())
        self.assert_head(True, stored, _regression())
        self.assert_head(False, stored, _task())
        # Hugging Face stores one label and no problem type for regression.
        stored = self.stored(
            _regression(), labels=["LABEL_0"], problem_type=None
        )
        self.assert_head(True, stored, _regression())

    def test_head_of_the_original_fits_as_many_labels(self):
        path = golden("model/classifier.ckpt.index").removesuffix(".index")
        stored = checkpoint_loading.read(path)
        self.assert_head(True, stored, _task(("no", "maybe", "yes")))
        self.assert_head(False, stored, _task(("no", "yes")))
        self.assertEqual(np.shape(stored.weights["output_bias"]), (3,))


class NewValuesTest(files_case.FolderCase):
    """Tests --reinit_layers and --head_initializer_range."""

    def _build(self, task=None, seed=1, from_task=None, **flags):
        """Returns the weights of a built model, and the stored weights."""
        path = f"{self.folder}/model"
        if not os.path.exists(path):
            tiny_model.write(path, kind="encoder")
        if from_task:
            path = f"{path}_task"
            tiny_model.write_task(path, from_task, config=tiny_model.CONFIG)
        config = tiny_finetuning.config(
            self.folder, **{"pretrained_model_dir": path} | flags
        )
        stored = pretrained_models.read(config)
        keras.utils.set_random_seed(seed)
        model = pretrained_models.build_model(
            stored,
            task or _task(),
            device_setup.prepare(DeviceConfig()),
            config,
        )
        variables = bert_model.named_variables(model)
        return {n: v.numpy() for n, v in variables.items()}, stored.weights

    def test_new_pooler_is_advised_for_a_model_for_embeddings(self):
        weights = tiny_model.random_weights()
        tiny_model.write_weights(
            f"{self.folder}/model",
            tiny_model.CONFIG,
            {n: x for n, x in weights.items() if n.startswith("bert/")},
            {"kind": "encoder", "pooling": "mean"},
        )
        with self.assertLogs("absl", "WARNING") as logs:
            self._build()
        self.assertLen(logs.output, 1)
        self.assertIn("; --new_pooler makes a new", logs.output[0])
        with self.assertNoLogs("absl", "WARNING"):
            self._build(new_pooler=True)

    def test_top_layers_and_pooler_are_new_by_the_seed(self):
        plain, stored = self._build()
        new, _ = self._build(reinit_layers=1)
        again, _ = self._build(reinit_layers=1)
        other, _ = self._build(reinit_layers=1, seed=2)
        kernels = 0
        for name, value in new.items():
            self.assertAllEqual(again[name], value, name)
            if not name.startswith(("bert/encoder/layer_1/", "bert/pooler/")):
                self.assertAllEqual(value, plain[name], name)
                continue
            self.assertAllEqual(plain[name], stored[name], name)
            self.assertNotAllClose(value, stored[name], msg=name)
            if name.endswith("kernel"):
                kernels += 1
                self.assertNotAllClose(other[name], value, msg=name)
                self.assertAllClose(value.std(), 0.02, atol=0.005)
            else:
                expected = float(name.endswith("gamma"))
                self.assertAllEqual(value, np.full_like(value, expected))
        self.assertEqual(kernels, 7)
        every, _ = self._build(reinit_layers=2)
        name = "bert/encoder/layer_0/output/dense/kernel"
        self.assertNotAllClose(every[name], stored[name])
        name = "bert/embeddings/word_embeddings"
        self.assertAllEqual(every[name], stored[name])

    @parameterized.parameters(
        (_task(), "output_weights"),
        (_task(head="bilstm"), "output_weights"),
        (SquadTask(), "cls/squad/output_weights"),
    )
    def test_head_has_another_range(self, task, name):
        plain, _ = self._build(task)
        wide, _ = self._build(task, head_initializer_range=0.5)
        for each, value in plain.items():
            factor = 25 if each == name else 1
            self.assertAllClose(wide[each], factor * value, msg=each)
        self.assertGreater(np.abs(wide[name]).max(), 0.2)

    def test_refuses_new_values_without_effect(self):
        with self.assertRaisesRegex(UserError, "at most 2, .* not frozen.*: 3"):
            self._build(reinit_layers=3)
        with self.assertRaisesRegex(UserError, "at most 1, .* not frozen.*: 2"):
            self._build(reinit_layers=2, num_frozen_layers=1)
        with self.assertRaisesRegex(UserError, "the head is from .*0.5; drop"):
            self._build(from_task=_task(), head_initializer_range=0.5)
        with self.assertRaisesRegex(UserError, "must be above 0"):
            self._build(head_initializer_range=0.0)
        tiny_model.write(
            path := f"{self.folder}/constant",
            kind="encoder",
            config=dataclasses.replace(
                tiny_model.CONFIG, initializer_range=0.0
            ),
        )
        with self.assertRaisesRegex(UserError, "above 0. Received: 0; change"):
            self._build(pretrained_model_dir=path, head_initializer_range=0.5)
        with self.assertRaisesRegex(UserError, "without --init_checkpoint"):
            self._build(
                pretrained_model_dir=None,
                vocab_file="v",
                bert_config_file="b",
                reinit_layers=1,
            )


if __name__ == "__main__":
    tf.test.main()
