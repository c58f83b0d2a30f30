"""Tests for bert_tf.tasks.tagging.flags and the flags themselves."""

import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_tagger
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.errors import UserError

_TRAIN = "a\tO\nb\tI-PER\n\nc\tB-LOC\n"
_STORED = {
    "kind": "tagging",
    "labels": ["O", "B-x"],
    "approach": "feature_based",
    "layer_combination": "embeddings",
    "lstm_size": 5,
    "head": "linear",
}


def _config(**flags):
    flags = {
        "output_dir": "out",
        "pretrained_model_dir": "model",
        "do_eval": True,
        "dev_file": "dev.conll",
    } | flags
    return TaggerConfig(**{k: x for k, x in flags.items() if x is not None})


class TaggerConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"do_train": True}, "--do_train needs --train_file, or --data_dir"),
        ({"dev_file": None}, "--do_eval needs --dev_file"),
        ({"data_dir": "x"}, "--data_dir cannot be used with --dev_file"),
        (
            {"word_column": "w", "do_train": True, "train_file": "x"},
            ": w and -1",
        ),
        ({"word_column": "1", "tag_column": "1"}, "numbers.*: 1 and 1"),
        ({"doc_stride": 127}, "at most --max_seq_length - 2.*127 with"),
        ({"doc_stride": -1}, "doc_stride"),
        ({"max_seq_length": 2}, "at least 3"),
        ({"lstm_size": 5}, "--lstm_size needs"),
        ({"lstm_size": 0, "head": "bilstm"}, "lstm_size"),
        ({"layer_combination": "embeddings"}, "needs --approach=feature"),
        ({"new_pooler": True}, "--new_pooler has no effect on this task"),
        ({"approach": "feature_based", "head": "bilstm"}, "--head cannot"),
        ({"approach": "feature_based", "num_frozen_layers": 2}, "frozen"),
        ({"approach": "feature_based", "layer_decay": 0.9}, "--layer_decay"),
        ({"head_dropout_prob": 1.0}, "below 1"),
        (
            {"approach": "feature_based", "layer_combination": "embeddings,x"},
            "one of embeddings, second_to_last_hidden, .*'embeddings,x'",
        ),
        (
            {
                "approach": "feature_based",
                "layer_combination": "last_hidden,last_hidden",
            },
            "names a value twice",
        ),
    )
    def test_rejects_flags(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            _config(**flags)

    def test_learning_rate(self):
        for approach, given, rate in (
            ("fine_tuning", None, 5e-5),
            ("feature_based", None, 1e-3),
            ("feature_based", "2e-3", 2e-3),
        ):
            config = _config(approach=approach, learning_rate=given)
            self.assertEqual(config.trials()[0].learning_rate, rate)

    def test_layer_combinations_are_trials(self):
        flags = {"approach": "feature_based", "do_train": True, "do_eval": True}
        flags |= {"train_file": "a", "dev_file": "b", "num_restarts": 2}
        names = ("last_hidden", "embeddings")
        config = _config(layer_combination=",".join(names), **flags)
        trials = config.trials()
        self.assertEqual(
            [(x.layer_combination, x.seed) for x in trials],
            [(name, seed) for name in names for seed in (12345, 12346)],
        )
        self.assertEqual(
            trials[3].name,
            "rate_0.001_batch_32_epochs_3_layers_embeddings_seed_12346",
        )
        (one, _) = _config(layer_combination=names[0], **flags).trials()
        self.assertEqual(one.name, "rate_0.001_batch_32_epochs_3_seed_12345")
        self.assertEqual(one.layer_combination, "last_hidden")

    def test_only_training_has_defaults(self):
        names = ("word_column", "tag_column", "context", "doc_stride")
        for flags, expected in (
            ({"do_train": True}, ("0", "-1", "document", None)),
            ({}, (None, None, None, None)),
        ):
            config = _config(train_file="train.conll", **flags)
            self.assertEqual(
                tuple(getattr(config, name) for name in names), expected
            )


class BuildTaskTest(tf.test.TestCase, parameterized.TestCase):
    def _folder(self, *names):
        folder = pathlib.Path(self.create_tempdir().full_path)
        for name in names:
            (folder / name).write_text(_TRAIN)
        return folder

    @parameterized.parameters(
        ("eng.train", "eng.testa", "eng.testb"),
        ("train.txt", "valid.txt", "test.txt"),
        ("train.conll", "dev.conll", "test.conll"),
        ("train.tsv", "devel.tsv", "test.tsv"),
    )
    def test_folders(self, *names):
        folder = self._folder(*names)
        config = _config(
            data_dir=str(folder), dev_file=None, do_train=True, do_predict=True
        )
        task = finetune_tagger.build_task(config, None)
        self.assertEqual(
            task.files,
            {
                split: str(folder / name)
                for split, name in zip(
                    ("train", "dev", "test"), names, strict=True
                )
            },
        )
        self.assertEqual(task.labels, ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"))

    @parameterized.parameters(
        ((), "Received: none of them in"),
        (("dev.txt", "valid.txt"), r"Received: \S*dev.txt, \S*valid.txt in"),
    )
    def test_rejects_no_file_and_several_files(self, names, message):
        config = _config(data_dir=str(self._folder(*names)), dev_file=None)
        with self.assertRaisesRegex(UserError, message):
            finetune_tagger.build_task(config, _STORED)

    def test_default_layer_combination(self):
        path = str(self._folder("eng.train") / "eng.train")
        for flags, expected in (
            ({"approach": "feature_based"}, "concat_last_four_hidden"),
            (
                {
                    "approach": "feature_based",
                    "layer_combination": "embeddings",
                },
                "embeddings",
            ),
            ({}, None),
        ):
            config = _config(do_train=True, train_file=path, **flags)
            task = finetune_tagger.build_task(config, None)
            self.assertEqual(task.to_json()["layer_combination"], expected)

    def test_head_of_a_stored_model(self):
        task = finetune_tagger.build_task(_config(), _STORED)
        self.assertEqual(task.labels, ("O", "B-x"))
        arguments = task.model_arguments()
        for name in ("approach", "layer_combination", "lstm_size", "head"):
            self.assertEqual(arguments[name], _STORED[name])
        self.assertEqual(task.files, {"dev": "dev.conll"})

    def test_reading_defaults_to_the_stored_model(self):
        stored = _STORED | {
            "max_seq_length": 128,
            "word_column": "token",
            "tag_column": "ner",
            "context": "sentence",
            "doc_stride": 32,
        }
        names = ("word_column", "tag_column", "context", "doc_stride")
        with self.assertNoLogs(level="WARNING"):
            task = finetune_tagger.build_task(_config(), stored)
        for name in names:
            self.assertEqual(getattr(task, name), stored[name])

        # Models of other programs do not have it.
        task = finetune_tagger.build_task(_config(), _STORED)
        values = tuple(getattr(task, name) for name in names)
        self.assertEqual(values, (0, -1, "document", None))

        config = _config(tag_column="pos", doc_stride=0)
        with self.assertLogs(level="WARNING") as logs:
            task = finetune_tagger.build_task(config, stored)
        values = tuple(getattr(task, name) for name in names)
        self.assertEqual(values, ("token", "pos", "sentence", 0))
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                "The model was trained with --tag_column=ner and is used with "
                "pos.",
                "The model was trained with --doc_stride=32 and is used with "
                "0.",
            ],
        )
        with self.assertRaisesRegex(UserError, "Received: 0 and ner"):
            finetune_tagger.build_task(_config(word_column="0"), stored)

    @parameterized.parameters(
        ({"kind": "encoder"},), ({"kind": "tagging", "labels": None},)
    )
    def test_rejects_models_that_are_not_taggers(self, stored):
        with self.assertRaisesRegex(UserError, "must be a tagger"):
            finetune_tagger.build_task(_config(), stored)


if __name__ == "__main__":
    tf.test.main()
