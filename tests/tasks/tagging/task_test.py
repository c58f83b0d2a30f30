"""Tests of the tagging task and its flags."""

import dataclasses
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands import finetune_tagger
from bert_tf.commands.finetune_tagger import TaggerConfig
from bert_tf.errors import NotFiniteError
from bert_tf.errors import UserError
from bert_tf.tasks import registry
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.tasks.tagging.task import TaggingTask
from tests.support import files_case
from tests.support import tiny_model

_LABELS = ("O", "B-x", "I-x")
_TOKENIZER = tiny_model.tokenizer()
_EXAMPLES = (
    TaggingExample(("the", "matting", "cat"), ("O", "B-x", "I-x"), 0),
    TaggingExample(("dog", "sat"), ("B-x", "O"), 0),
    TaggingExample(("mat",), ("B-y",), 1),
)


def _task(**kwargs):
    kwargs = {
        "name": "tagging",
        "labels": _LABELS,
        "max_seq_length": 8,
    } | kwargs
    return TaggingTask(**kwargs)


class TaggingTaskTest(files_case.FilesCase):
    def _read(self, text, split="train", **kwargs):
        path = self.write("file.conll", text)
        return _task(files={split: path}, **kwargs).read(split)

    def test_a_test_set_may_lack_tags(self):
        for text, columns in (
            ("a\nb\n", {}),
            ("w\na\nb\n", {"word_column": "w", "tag_column": "t"}),
            ("1 a\n2 b\n", {"word_column": 1, "tag_column": 2}),
        ):
            examples = self._read(text, "test", **columns)
            self.assertEqual([x.words for x in examples], [("a", "b")])
            self.assertFalse(_task().is_labeled(examples))
            with self.assertRaises(UserError):
                self._read(text, "dev", **columns)
        self.assertTrue(_task().is_labeled(self._read("a O\nb O\n", "test")))

    @parameterized.parameters(
        # The first document has six tokens, which fit in a window.
        ("document", None, [8, 3]),
        ("document", None, [7, 5, 3], 7),
        ("sentence", None, [6, 4, 3]),
        ("document", 0, [7, 3], 7),
        ("document", 5, [5, 5, 3], 5),
    )
    def test_rows_end_at_max_seq_length(
        self, context, doc_stride, lengths, max_seq_length=8
    ):
        task = _task(
            context=context,
            doc_stride=doc_stride,
            max_seq_length=max_seq_length,
        )
        features = task.featurize(_EXAMPLES, _TOKENIZER)
        self.assertEqual(features.lengths.tolist(), lengths)

    @parameterized.parameters((90, 13), (1000, 144), (1, 1))
    def test_rows_per_step_hold_a_batch_of_sentences(self, rows, expected):
        self.assertEqual(_task().rows_per_step(32, 222, rows), expected)

    def test_losses_are_of_first_tokens_with_a_known_tag(self):
        task = _task(context="sentence")
        features = task.featurize(_EXAMPLES, _TOKENIZER)
        batch = features.batch(np.arange(3), 6)
        logits = np.random.default_rng(0).normal(size=(3, 6, 3))
        losses = task.losses({"logits": tf.constant(logits)}, batch)
        weights = task.loss_weights(batch)
        # "matting" has two tokens; only the first one has a loss.
        expected = np.zeros([3, 6])
        for row, place, label in (
            (0, 1, 0),
            (0, 2, 1),
            (0, 4, 2),
            (1, 1, 1),
            (1, 2, 0),
        ):
            values = logits[row, place]
            expected[row, place] = np.log(np.exp(values).sum()) - values[label]
        self.assertAllClose(losses * weights, expected)
        self.assertEqual(float(tf.reduce_sum(weights)), 5)

    def test_predictions_have_a_tag_for_each_word(self):
        task = _task(context="sentence")
        features = task.featurize(_EXAMPLES, _TOKENIZER)
        ids = np.array(
            [[9, 0, 1, 9, 2, 9], [9, 1, 0, 9, 9, 9], [9, 2, 9, 9, 9, 9]]
        )
        outputs = task.select_outputs({"logits": tf.one_hot(ids % 9, 3)})
        predictions = task.predict(
            _EXAMPLES,
            features,
            {name: list(x.numpy()) for name, x in outputs.items()},
            _TOKENIZER,
        )
        self.assertEqual(
            predictions, [("O", "B-x", "I-x"), ("B-x", "O"), ("I-x",)]
        )
        self.assertEqual(
            task.score(_EXAMPLES, predictions),
            {
                "f1": 2 * 2 / (3 + 3),
                "precision": 2 / 3,
                "recall": 2 / 3,
                "accuracy": 5 / 6,
            },
        )

    def test_rejects_outputs_that_are_not_finite(self):
        task = _task(context="sentence")
        features = task.featurize(_EXAMPLES, _TOKENIZER)
        logits = np.zeros([3, 6, 3], np.float32)
        logits[1, 2, 0] = np.nan
        outputs = task.select_outputs({"logits": tf.constant(logits)})
        rows = {name: list(x.numpy()) for name, x in outputs.items()}
        with self.assertRaisesRegex(NotFiniteError, "not finite"):
            task.predict(_EXAMPLES, features, rows, _TOKENIZER)

    def test_texts_without_words_have_no_rows(self):
        task = _task()
        examples = [task.example_from_row(""), task.example_from_row("\u200b")]
        features = task.featurize(examples, _TOKENIZER)
        self.assertEmpty(features)
        predictions = task.predict(examples, features, {}, _TOKENIZER)
        self.assertEqual(predictions, [(), ("O",)])
        self.assertEqual(
            task.prediction_to_json(examples[0], predictions[0]),
            {"words": [], "tags": [], "offsets": []},
        )

    def test_json_has_words_tags_and_offsets(self):
        task = _task()
        example = task.example_from_row("cat, 東")
        self.assertEqual(
            task.prediction_to_json(example, ("B-x", "O", "O")),
            {
                "words": ["cat", ",", "東"],
                "tags": ["B-x", "O", "O"],
                "offsets": [[0, 3], [3, 4], [5, 6]],
            },
        )
        described = task.prediction_to_json(_EXAMPLES[2], ("O",))
        self.assertIsNone(described["offsets"])

    def test_python_values_share_no_context(self):
        task = _task()
        rows = [["the", "cat"], ["dog"]]
        features = task.featurize(
            [task.example_from_row(x) for x in rows], _TOKENIZER
        )
        self.assertEqual(features.lengths.tolist(), [4, 3])
        first, second = (task.example_from_row(x) for x in rows)
        self.assertFalse(task.must_share_chunk(first, second))
        self.assertTrue(task.must_share_chunk(*_EXAMPLES[:2]))
        self.assertFalse(task.must_share_chunk(*_EXAMPLES[1:]))
        alone = _task(context="sentence")
        self.assertFalse(alone.must_share_chunk(*_EXAMPLES[:2]))

    def test_report_writes_scores_and_predictions(self):
        folder = self.folder
        predictions = [("O", "B-x", "I-x"), ("B-x", "O"), ("I-x",)]
        task = _task()
        task.write_report(str(folder), "dev", _EXAMPLES, predictions)
        text = (folder / "entity_scores.txt").read_text()
        self.assertRegex(text, r"\nx +66\.67 +100\.00 +80\.00 +2 +3 +2\n")
        self.assertRegex(text, r"\noverall +66\.67 +66\.67 +66\.67 +3 +3 +2")
        self.assertTrue((folder / "entity_scores.png").exists())
        self.assertEqual(
            (folder / "dev_predictions.conll").read_text().splitlines()[:5],
            [
                "the\tO\tO",
                "matting\tB-x\tB-x",
                "cat\tI-x\tI-x",
                "",
                "dog\tB-x\tB-x",
            ],
        )
        bare = [dataclasses.replace(x, tags=None) for x in _EXAMPLES]
        task.write_report(str(folder), "test", bare, predictions)
        self.assertFalse((folder / "test_entity_scores.txt").exists())
        text = (folder / "test_predictions.conll").read_text()
        self.assertStartsWith(text, "the\tO\nmatting\tB-x\n")

    def test_table_has_the_numbers_of_the_plot(self):
        folder = self.folder
        task = _task(labels=("O", "B-人", "B-x"))
        example = TaggingExample(("a", "b"), ("B-人", "B-x"))
        task.write_report(str(folder), "dev", [example], [("B-人", "O")])
        text = (folder / "entity_scores.txt").read_text(encoding="utf-8")
        self.assertRegex(text, r"\n\[0\] \w +.*\n\[1\] \w +.*\noverall ")

    def test_task_json_restores_the_task(self):
        task = _task(
            word_column="token",
            tag_column="ner",
            context="sentence",
            doc_stride=3,
            approach="feature_based",
            layer_combination="embeddings",
            lstm_size=5,
        )
        values = {"kind": "tagging"} | task.to_json()
        self.assertEqual(registry.build_task(values, 3, 512), task)


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
    def test_wrong_flags_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            _config(**flags)

    def test_learning_rate_depends_on_the_approach(self):
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
    def test_files_of_folders_are_found(self, *names):
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

    def test_keeps_the_head_of_a_stored_model(self):
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

        # Models of other programs store no such values, so defaults apply.
        task = finetune_tagger.build_task(_config(), _STORED)
        values = tuple(getattr(task, name) for name in names)
        self.assertEqual(values, (0, -1, "document", None))

        config = _config(tag_column="pos", doc_stride=0)
        with self.assertLogs(level="WARNING") as logs:
            task = finetune_tagger.build_task(config, stored)
        values = tuple(getattr(task, name) for name in names)
        self.assertEqual(values, ("token", "pos", "sentence", 0))
        for line, words in zip(
            logs.output,
            ("tag_column=ner .* with pos", "doc_stride=32 .* with 0"),
            strict=True,
        ):
            self.assertRegex(line, words)
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
