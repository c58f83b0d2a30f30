"""Tests of raw rows, labels, tables, data sets and wrong arguments."""

import collections.abc
import tempfile
from unittest import mock

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.api import raw_rows
from bert_tf.errors import UserError
from tests.support import fit_case
from tests.support import tiny_model


class LabelsTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (fit_case.TEXTS, fit_case.LABELS),
        (np.array(fit_case.TEXTS), np.array(fit_case.IDS)),
        (
            pd.Series(fit_case.TEXTS),
            pd.Series(fit_case.LABELS, dtype="category"),
        ),
        (
            pd.DataFrame({"id": fit_case.LABELS, "text": fit_case.TEXTS}),
            np.float32(fit_case.IDS),
        ),
        (tf.constant(fit_case.TEXTS), tf.constant(fit_case.LABELS)),
    )
    def test_labels_of_any_container_become_ids(self, x, y):
        features, labels = self.new().preprocessor(x, y)
        self.assertAllEqual(labels, np.int32(fit_case.IDS))
        self.assertEqual(features["input_ids"].shape, (5, 8))
        self.assertAllEqual(features["input_mask"].sum(-1), [8, 5, 4, 3, 5])
        self.assertAllEqual(features["input_ids"][2], [2, 5, 7, 3, 0, 0, 0, 0])

    @parameterized.parameters(
        ([["a"], [], ["c", "a"]],),
        (np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]]),),
        ([{0}, set(), {"a", 2}],),
    )
    def test_several_labels_per_row_become_multi_label(self, y):
        model = self.new(labels=["a", "b", "c"])
        _, labels = model.preprocessor(fit_case.TEXTS[:3], y)
        self.assertAllEqual(labels, [[1, 0, 0], [0, 0, 0], [1, 0, 1]])
        self.assertEqual(
            model.preprocessor.task_values["problem_type"], "multi_label"
        )
        scores = fit_case.scores(model, fit_case.TEXTS[:3], y)
        logits = model(model.preprocessor(fit_case.TEXTS[:3]))["logits"].numpy()
        terms = np.logaddexp(0, logits) - labels * logits
        self.assertAllClose(scores["loss"], terms.mean(), rtol=1e-5)
        self.assertAllClose(scores["accuracy"], np.mean((logits > 0) == labels))
        self.assertIn("labels", model.predict(["cat"], verbose=0)[0])

    @parameterized.parameters(
        (np.eye(2)[fit_case.IDS],),
        (keras.utils.to_categorical(fit_case.IDS).tolist(),),
        (pd.get_dummies(fit_case.LABELS),),
        ([[x] for x in fit_case.IDS],),
    )
    def test_one_hot_rows_are_classes(self, y):
        model = self.new()
        with self.assertLogs(level="WARNING") as logs:
            features, labels = model.preprocessor(fit_case.TEXTS, y)
        self.assertIn('problem_type="multi_label"', logs.output[0])
        self.assertAllEqual(labels, fit_case.IDS)
        self.assertIn("label", model.predict("cat", verbose=0)[0])
        # Beside packed features and in data sets they must be classes, too.
        _, ids, _ = model.preprocessor.training_data(features, np.array(y))
        self.assertAllEqual(ids, fit_case.IDS)
        data = _slices((fit_case.TEXTS, np.array(y, np.float32)))
        for one in (data, data.batch(2)):
            other = self.new()
            batches, *_ = other.preprocessor.training_data(one)
            ids = np.concatenate([ids for _, ids in batches])
            self.assertAllEqual(ids, fit_case.IDS)
        with self.assertRaisesRegex(UserError, 'problem_type="multi_label"'):
            model.evaluate(["cat"], [[1, 1]])

    def test_vectors_stay_for_a_loss_that_takes_them(self):
        y = np.eye(2)[fit_case.IDS]
        model = self.new()
        model.compile("sgd", loss="binary_crossentropy")
        model.evaluate(fit_case.TEXTS, y, verbose=0)
        self.assertTrue(model.preprocessor.is_multi_label)
        soft = 0.1 + 0.8 * y
        features = model.preprocessor(fit_case.TEXTS)
        _, kept, _ = model.preprocessor.training_data(features, soft)
        self.assertAllEqual(kept, soft)

    def test_problem_type_overrides_the_labels(self):
        model = self.new(problem_type="multi_label")
        _, labels = model.preprocessor(["cat", "mat"], [[0, 1], [1, 0]])
        self.assertAllEqual(labels, [[0, 1], [1, 0]])
        self.assertIn("labels", model.predict("cat", verbose=0)[0])
        for kind, name, message in (
            ("classification", "multilabel", "did you mean multi_label"),
            ("tagging", "multi_label", "for kind='tagging'"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.new(kind, labels=["O", "X"], problem_type=name)

    def test_balanced_class_weights_invert_label_counts(self):
        model = self.new()
        _, y = model.preprocessor(fit_case.TEXTS, fit_case.LABELS)
        weights = model.preprocessor.class_weight("balanced", y)
        self.assertAllClose(weights[0], 5 / (2 * 3))
        self.assertAllClose(weights[1], 5 / (2 * 2))
        model.fit(
            fit_case.TEXTS, fit_case.LABELS, class_weight="balanced", verbose=0
        )
        for name, labels, message in (
            ("balanced", None, "beside an array"),
            ("equal", [0, 1], "Received: 'equal'"),
            ([1.0, 2.0], [0, 1], r"Received: \[1.0, 2.0\]"),
            ({2: 1.0}, [0, 1], "are bad, good. Received: 2."),
        ):
            with self.assertRaisesRegex(UserError, message):
                model.preprocessor.class_weight(name, labels)
        with self.assertRaisesRegex(UserError, "class_weight for regression"):
            self.new(num_labels=1).preprocessor.class_weight({0: 2.0})
        with self.assertRaisesRegex(UserError, "'1' is a label, and 1 the ind"):
            self.new(labels=["1", "2"]).preprocessor.class_weight({1: 2.0})

    def test_regression_loss_is_mean_squared_error(self):
        model = self.new(num_labels=1)
        y = [0.5, 1, 2.0, 3, -1]
        scores = fit_case.scores(model, fit_case.TEXTS, y)
        values = model(model.preprocessor(fit_case.TEXTS))["logits"].numpy()[
            :, 0
        ]
        self.assertAllClose(scores["loss"], np.mean((values - y) ** 2))
        self.assertAllClose(
            scores["mean_absolute_error"], np.mean(np.abs(values - y))
        )

    def test_sample_weights_multiply_losses(self):
        model = self.new()
        logits = model(model.preprocessor(fit_case.TEXTS))["logits"]
        losses = fit_case.softmax_losses(logits, np.array(fit_case.IDS))
        weights = np.float32([1, 2, 0, 4, 0.5])
        loss = model.evaluate(
            fit_case.TEXTS,
            fit_case.LABELS,
            sample_weight=weights,
            verbose=0,
            return_dict=True,
        )["loss"]
        # Keras divides by the number of rows, not by the sum of the weights.
        self.assertAllClose(loss, np.mean(losses * weights), rtol=1e-5)
        self.assertEqual(
            model.preprocessor.class_weight({"good": 2.0, 0: 1.0}),
            {1: 2.0, 0: 1.0},
        )

    def test_long_contexts_become_windows_with_answers(self):
        model = self.new("question_answering")
        features, y, weights = model.preprocessor(
            fit_case.QUESTIONS, fit_case.ANSWERS, [2.0, 3.0]
        )
        ids = features["input_ids"]
        first = [one for one in range(len(ids)) if y["start_positions"][one]]
        found = [
            ids[one, y["start_positions"][one] : y["end_positions"][one] + 1]
            for one in first
        ]
        tokenizer = model.preprocessor.tokenizer
        self.assertAllEqual(found[0], tokenizer.tokenize(["mat"]).to_list()[0])
        self.assertAllEqual(found[1], tokenizer.tokenize(["dogs"]).to_list()[0])
        self.assertGreater(len(ids), 2)
        self.assertEqual(weights.tolist(), [2.0] + [3.0] * (len(ids) - 1))
        _, none = model.preprocessor(fit_case.QUESTIONS, [("", 0), ("dogs", 2)])
        self.assertEqual(none["start_positions"][0], 0)

    def test_missing_choices_do_not_count_in_loss(self):
        model = self.new("multiple_choice")
        features, y = model.preprocessor(fit_case.CHOICES, [1, 2])
        self.assertEqual(features["input_ids"].shape, (2, 3, 8))
        self.assertAllEqual(y, [1, 2])
        loss = fit_case.scores(model, fit_case.CHOICES, [1, 2])
        logits = model(features)["logits"].numpy()
        logits[0, 2] = -1e9
        losses = fit_case.softmax_losses(logits, y)
        self.assertAllClose(loss["loss"], losses.mean(), rtol=1e-5)

    @parameterized.parameters(
        ("classification", ["cat", "dog"], ["bad", "fine"], "Row 1.*'fine'"),
        ("classification", ["cat", "dog"], [0, 2], "Row 1.*from 0 to 1.*2"),
        ("classification", ["cat", "dog"], [0], "x has 2 rows, and y has 1; "),
        ("classification", ["cat", None], [["bad"], []], "Row 1.*None"),
        ("classification", ["cat", "dog"], None, "Expected labels"),
        ("classification", [], [], "at least one row.*: none"),
        ("classification", ["cat"], np.eye(3)[:1], "Row 0.*2 labels.* 3 of th"),
        ("classification", ["cat"], [[1, 0, 0]], "Row 0.*2 labels.* 3 of them"),
        ("tagging", [["cat"], ["a", "dog"]], [["O"], ["O"]], "Row 1.*2 tags"),
        ("tagging", [["cat"]], [[0]], "as strings, as '0' .* index of 'O'"),
        (
            "question_answering",
            fit_case.QUESTIONS,
            (["mat", "東"], [19, 5]),
            "Row 1",
        ),
        (
            "question_answering",
            fit_case.QUESTIONS,
            ["mat", "dogs"],
            "Row 0.*'mat'",
        ),
        ("multiple_choice", fit_case.CHOICES, [0, 3], "Row 1.*from 0 to 2"),
    )
    def test_wrong_labels_are_refused_without_change(self, kind, x, y, message):
        options = {"labels": ["O", "0"]} if kind == "tagging" else {}
        model = self.new(kind, **options)
        _ = model.preprocessor.task  # Reading it may add values.
        values = dict(model.preprocessor.task_values)
        with self.assertRaisesRegex(UserError, message):
            model.fit(x, y)
        self.assertEqual(model.preprocessor.task_values, values)

    def test_columns_of_polars_may_be_texts(self):
        for values, expected in ((["a"], True), ([1.0], False)):
            # A polars dtype has no `kind`, so the values must be converted.
            column = mock.Mock(spec=["dtype", "to_numpy"], dtype=object())
            column.to_numpy.return_value = np.array(values)
            self.assertEqual(raw_rows.is_text(column), expected)


_MISTAKES = (
    ("m.fit(['cat'], text_col=1)", r"fit\(\) .* did you mean text_column=\?"),
    ("m.fit(['cat'], learning_rate=1)", r"'learning_rate'; .*_optimizer\("),
    ("m.evaluate(['cat'], epochs=1)", r"^evaluate\(\) .* 'epochs'\.$"),
    ("m.predict(['cat'], top_k=1)", r"predict\(\) has no argument 'top_k'\.$"),
    ("m.quantize('int8')", "export_tflite"),
    ("m.enable_lora(4)", "bert.trainable = False"),
    ("m.export('here', format='onnx')", "ids_only=True.*tf2onnx"),
    ("m.export('here', format='tflite')", "`format`.* did you mean litert"),
    ("m.compile('adm')", "keras.optimizers.*did you mean 'Adam'"),
    ("m.fit(['cat'], [0], class_weight={'best': 1})", "are bad, good.*'best'"),
    ("bert_tf.preprocess(m.preprocessor.tokenizer, ['a'], [0])", "no labels"),
    ("bert_tf.preprocess(None, ['a'])", "Received: NoneType"),
    ("m.compile('sgd', metrics=['acuracy'])", "did you mean.* 'accuracy'"),
    ("m.compile('sgd', los=None)", "did you mean loss="),
    ("m.compile('sgd', run_eagerly='no')", "run_eagerly to be True or Fal"),
    ("m.save('x.keras', overwrit=1)", r"^save\(\).*did you mean overwrite="),
    ("bert_tf.save_model('x', m)", "in save_model.model, "),
    ("bert_tf.save_model(m, 'x', overwrit=1)", "did you mean overwrite="),
    ("bert_tf.BertConfig(hiden_size=3)", "did you mean hidden_size="),
    ("bert_tf.BertModel(m.bert_config, remt=1)", "did you mean remat="),
    ("bert_tf.build_optimizer(schedule='cosine')", "must be one of linear"),
    ("bert_tf.build_optimizer(lr=1)", "did you mean learning_rate="),
    ("bert_tf.load_model('x', label=['a'])", "did you mean labels="),
    ("bert_tf.load_model('x', max_seq_len=8)", "did you mean max_seq_length="),
    ("m.predict(None)", "^Expected raw rows .* Received: None"),
    *((f"bare{call}(['cat'])", "load_model returned reads raw")
      for call in ("", ".fit", ".predict")),
    ("m.fit({'text': ['cat'], 'mood': [1]})", "Expected labels.*label_column="),
    ("m.fit(['cat'], [0], epochs=0)", "epochs=0"),
    ("m.fit(['cat'], [0], batch_size=0)", "batch_size=0"),
    ("m.evaluate(['cat'], [0], batch_size=0)", "batch_size=0"),
    ("m.predict(['cat'], batch_size=0)", "batch_size=0"),
    ("m.fit(['cat'], [0], callbacks='EarlyStopping')", "objects of .*'EarlyS"),
    ("m.fit(['cat'], [0], callbacks=[keras.callbacks.History])", "objects of"),
    ("m.fit(['cat'], [0], sample_weight=[float('nan')])", "finite sample_w"),
    ("m.predict({'input_ids': [[1, 999]]})", "ids from 1 to 999"),
    ("m.fit({'input_ids': np.int32([[-1]])}, [0])", "ids from -1 to -1"),
    ("m.predict({'input_ids': [[1], [1, 2]]})", r"one shape.*input_ids \(0,\)"),
    ("m({'input_ids': [[1], [1, 2]]})", r"one shape.*input_ids \(0,\)"),
    ("m({'input_ids': np.int32([2, 5])})", r"\[rows, .*: input_ids \(2,\)\.$"),
    ("m.compile('sgd', loss={'label': 'mse'})", "outputs are logits.*'label'"),
    ("bert_tf.load_model('x', labels=['a'])", r"two labels.*labels=\['a'\]"),
    ("bert_tf.load_model('x', num_labels='2')", "whole number.*num_labels='2'"),
    ("bert_tf.load_model('x', num_labels=0)", "whole number.*num_labels=0"),
    ("bert_tf.load_model('x', max_seq_length='8')", "max_seq_length='8'"),
    *((f"m.{call}(__file__)", "name of a file, .*table")
      for call in ("fit", "evaluate", "predict", "preprocessor")),
)  # fmt: skip


class MistakesTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    def test_mistakes_are_one_sentence(self):
        m = self.new()
        bare = bert_tf.BertForClassification(m.bert_config, labels=["a", "b"])
        csv = self.create_tempfile("x.csv", "text,label\ncat,good\n").full_path
        names = {"m": m, "bare": bare, "bert_tf": bert_tf, "__file__": csv}
        names |= {"keras": keras, "np": np}
        for call, message in _MISTAKES:
            with self.subTest(call):
                with self.assertRaisesRegex(UserError, message):
                    eval(call, names)  # noqa: S307

    def test_lists_and_boolean_masks_are_inputs(self):
        m = self.new()
        ids, mask = [[2, 5, 3, 0]], [[1, 1, 1, 0]]
        inputs = {"input_ids": ids, "input_mask": mask}
        expected = m({x: tf.constant(y) for x, y in inputs.items()})
        for one in (mask, np.array(mask, bool)):
            inputs = {"input_ids": ids, "input_mask": one}
            for found in (m(inputs), m.predict(inputs, verbose=0)):
                self.assertAllClose(found["logits"], expected["logits"])

    def test_wrong_names_of_attributes_get_one_hint(self):
        model = self.new()
        with self.assertRaisesRegex(AttributeError, "mean 'predict'") as raised:
            _ = model.prdict
        self.assertIsNone(raised.exception.obj)  # Else Python adds a hint.
        with self.assertRaisesRegex(AttributeError, "has never been called"):
            _ = model.input  # The error of a property stays.

    @parameterized.parameters(
        (["True", "False"], ["True", "False"]),
        (["true", "false"], ["true", "false"]),
        (["bad", "good"], ["good", "bad"]),
    )
    def test_booleans_are_labels_by_name_or_index(self, labels, expected):
        model = self.new(labels=labels)
        _, ids = model.preprocessor(["cat", "dog"], [True, np.False_])
        self.assertEqual([labels[x] for x in ids], expected)


class _Column(collections.abc.Sequence):
    """A column as the package datasets returns it."""

    def __init__(self, values):
        self._values = values

    def __len__(self):
        return len(self._values)

    def __getitem__(self, index):
        return self._values[index]


class _Dataset:
    """The parts of `datasets.Dataset` that are read."""

    def __init__(self, names=None, **columns):
        self.column_names = list(columns)
        self.features = dict.fromkeys(columns)
        if names is not None:
            self.features["label"] = mock.Mock(spec=["names"], names=names)
        self._columns = columns

    def __getitem__(self, name):
        return _Column(self._columns[name])


class _Splits(dict):
    column_names = {}


_IDS = fit_case.IDS


class TablesTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    def _read(self, x, y=None, kind="classification", **names):
        model = self.new(kind, **_OPTIONS.get(kind, {}))
        x, y = raw_rows.split_table(x, y, model.preprocessor, names)
        return raw_rows.to_rows(x), y

    @parameterized.parameters(
        (_Dataset(text=fit_case.TEXTS, label=_IDS), _IDS),
        (_Dataset(["good", "bad"], text=fit_case.TEXTS, label=_IDS),
         ["good" if x == 0 else "bad" for x in _IDS]),
        (_Dataset(["x", "y"], text=fit_case.TEXTS, label=_IDS), _IDS),
        (pd.DataFrame({"label": _IDS, "text": fit_case.TEXTS}), _IDS),
        (pd.DataFrame({"x": fit_case.TEXTS}), None),
        ({"text": fit_case.TEXTS, "label": _IDS}, _IDS),
        ({"label": np.array(_IDS), "text": np.array(fit_case.TEXTS)}, _IDS),
    )  # fmt: skip
    def test_finds_texts_and_labels_by_their_usual_names(self, x, expected):
        texts, labels = self._read(x)
        self.assertEqual(texts, fit_case.TEXTS)
        self.assertEqual(labels, expected)

    @parameterized.parameters(
        (_Dataset(body=fit_case.TEXTS, mood=_IDS),),
        (pd.DataFrame({"body": fit_case.TEXTS, "mood": _IDS, "z": _IDS}),),
        ({"body": fit_case.TEXTS, "mood": _IDS},),
    )  # fmt: skip
    def test_columns_are_read_by_name(self, x):
        names = {"text_column": "body", "label_column": "mood"}
        self.assertEqual(self._read(x, **names), (fit_case.TEXTS, _IDS))
        pairs, _ = self._read(x, text_column="body", text_pair_column="body")
        self.assertEqual(pairs, [(one, one) for one in fit_case.TEXTS])
        with self.assertRaisesRegex(UserError, "'bdy'.*did you mean 'body'"):
            self._read(x, text_column="bdy")

    def test_columns_of_tagging_and_questions_are_found(self):
        words = {"tokens": fit_case.SENTENCES, "ner_tags": [[0, 1, 0, 1], [0]]}
        for table in (_Dataset(**words), pd.DataFrame(words)):
            rows, tags = self._read(table, kind="tagging")
            self.assertEqual(tags, words["ner_tags"])
            self.assertEqual(rows[1], {"tokens": ["dogs"], "ner_tags": [0]})
        answers = [
            {"text": ["mat"], "answer_start": [19]},
            {"text": [], "answer_start": []},
        ]
        question, context = fit_case.QUESTIONS
        rows, found = self._read(
            _Dataset(question=question, context=context, answers=answers),
            kind="question_answering",
        )
        self.assertEqual(rows[0]["question"], "cat ?")
        self.assertEqual(found, (["mat", ""], [19, 0]))

    @pytest.mark.slow
    def test_tables_score_and_predict_as_lists(self):
        model = self.new()
        data = _Dataset(text=fit_case.TEXTS, label=_IDS)
        splits = _Splits(train=data, validation=data)
        history = model.fit(splits, verbose=0).history
        self.assertIn("val_loss", history)
        expected = model.evaluate(fit_case.TEXTS, _IDS, verbose=0)
        self.assertAllClose(model.evaluate(data, verbose=0), expected)
        frame = pd.DataFrame({"body": fit_case.TEXTS, "label": _IDS})
        names = {"text_column": "body"}
        scores = model.evaluate(frame, verbose=0, **names)
        self.assertAllClose(scores, expected)
        model.fit(frame, validation_data=frame, verbose=0, **names)
        answers = model.predict(fit_case.TEXTS, verbose=0)
        for x, options in ((data, {}), (data["text"], {}), (frame, names)):
            self.assertEqual(model.predict(x, verbose=0, **options), answers)
        for call in (model.predict, model.evaluate):
            with self.assertRaisesRegex(UserError, "the splits train, valid"):
                call(splits)
        with self.assertRaisesRegex(UserError, "text_column="):
            model.predict(frame)

    def test_models_and_their_parts_describe_themselves(self):
        model = self.new()
        self.assertRegex(
            repr(model.preprocessor), "^Preprocessor.*classification"
        )
        self.assertEqual(
            repr(model),
            "BertForClassification(1 layers of width 16; labels: 'bad', "
            "'good')",
        )
        tokenizer = model.preprocessor.tokenizer
        self.assertRegex(repr(tokenizer), r"^BertTokenizer\(\d+ tokens, lower")


_TEXTS = ["the cat sat on the mat", "dogs"]


class PreprocessTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(
            tempfile.mkdtemp(), config=tiny_model.ONE_LAYER
        )
        cls.tokenizer = bert_tf.load_tokenizer(cls.path)

    def test_calling_a_tokenizer_packs(self):
        tokens = self.tokenizer.tokenize(_TEXTS)
        second = self.tokenizer.tokenize(["cat cat", ""])
        packed = bert_tf.pack(tokens, second, 16, self.tokenizer.vocabulary)
        received = self.tokenizer(_TEXTS, ["cat cat", None])
        for name, value in packed.items():
            self.assertAllEqual(received[name], value)
        graph = tf.function(self.tokenizer.__call__)(tf.constant(_TEXTS))
        self.assertAllEqual(
            graph["input_ids"], self.tokenizer(_TEXTS)["input_ids"]
        )
        self.assertEqual(graph["input_ids"].shape, (2, 8))
        short = self.tokenizer(_TEXTS, max_seq_length=4)["input_ids"]
        self.assertAllEqual(short[0], [2, 5, 6, 3])

    def test_wrong_arguments_are_refused(self):
        for texts in (_TEXTS[0],), (_TEXTS, "cat"), (["the"], _TEXTS):
            with self.assertRaisesRegex(UserError, "list of texts.*'the"):
                self.tokenizer(*texts)


_TAGS = [["O", "X", "O", "X"], ["O"]]
_COLUMNS = {
    "context": [row["context"] for row in fit_case.CHOICES],
    "choices": tf.ragged.constant([x["choices"] for x in fit_case.CHOICES]),
}
_slices = tf.data.Dataset.from_tensor_slices


def _tagged():
    """Returns words and indices of tags, in tensors."""
    return tf.data.Dataset.from_generator(
        lambda: zip(fit_case.SENTENCES, [[0, 1, 0, 1], [0]], strict=True),
        output_signature=(
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None], tf.int32),
        ),
    )


class RowDatasetsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    def _check(self, model, x, y, *datasets):
        """Asserts that data sets have the scores and predictions of lists."""
        expected = fit_case.scores(model, x, y)
        answers = model.predict(x, verbose=0)
        for dataset in datasets:
            for one in (dataset, dataset.ragged_batch(2)):
                scores = model.evaluate(one, verbose=0, return_dict=True)
                self.assertAllClose(scores, expected)
                self.assertEqual(model.predict(one, verbose=0), answers)

    def new(self, kind, **options):
        compiled = {"optimizer": "sgd", "metrics": ["accuracy"]}
        return super().new(kind, compiled, **options)

    @pytest.mark.slow
    def test_datasets_of_questions_score_as_lists(self):
        model = self.new("question_answering")
        data = _slices((fit_case.QUESTIONS, fit_case.ANSWERS))
        self._check(model, fit_case.QUESTIONS, fit_case.ANSWERS, data)
        weights = tf.constant([2.0, 3.0])
        weighted = model.evaluate(
            fit_case.QUESTIONS,
            fit_case.ANSWERS,
            sample_weight=weights,
            verbose=0,
        )
        data = _slices((fit_case.QUESTIONS, fit_case.ANSWERS, weights))
        self.assertAllClose(model.evaluate(data, verbose=0), weighted)
        # The second question has several windows, which share its weight.
        inputs = model.preprocessor.training_data(data.batch(1))[0]
        (_, _, first), (features, labels, second) = inputs
        self.assertEqual(first.numpy().tolist(), [2.0])
        self.assertGreater(len(features["input_ids"]), 1)
        self.assertEqual(set(second.numpy()), {3.0})
        self.assertEqual(set(labels), {"start_positions", "end_positions"})
        history = model.fit(data.shuffle(2), epochs=2, verbose=0).history
        self.assertLen(history["loss"], 2)

    @pytest.mark.slow
    def test_datasets_of_words_score_as_lists(self):
        model = self.new("tagging", labels=["O", "X"])
        ragged = _slices(
            (tf.ragged.constant(fit_case.SENTENCES), tf.ragged.constant(_TAGS))
        )
        self._check(model, fit_case.SENTENCES, _TAGS, ragged, _tagged())
        padded = model.evaluate(_tagged().padded_batch(2), verbose=0)
        expected = model.evaluate(fit_case.SENTENCES, _TAGS, verbose=0)
        self.assertAllClose(padded, expected)
        texts = _slices(["the cat", "dogs"])
        self.assertEqual(
            model.predict(texts, verbose=0),
            model.predict(["the cat", "dogs"], verbose=0),
        )

    @pytest.mark.slow
    def test_datasets_of_choices_score_as_lists(self):
        model = self.new("multiple_choice")
        data = _slices((_COLUMNS, [1, 2]))
        self._check(model, fit_case.CHOICES, [1, 2], data)
        with self.assertRaisesRegex(UserError, "repeat"):
            model.predict(data.repeat(), verbose=0)
        wrong = _slices((_COLUMNS, [1, 7]))
        with self.assertRaisesRegex(UserError, "^Row 1 .* from 0 to 2"):
            model.evaluate(wrong, verbose=0)


_ROWS = fit_case.TEXTS
_ROW_LABELS = fit_case.LABELS
_STREAM_TAGS = [["X", "O", "X", "O"], ["O"]]
# Kind of model to the arguments of `fit`: rows, and labels where it has them.
_BATCHES = {
    "classification": (_ROWS, _ROW_LABELS),
    "question_answering": (fit_case.QUESTIONS, fit_case.ANSWERS),
    "tagging": (fit_case.SENTENCES, _STREAM_TAGS),
    "multiple_choice": (fit_case.CHOICES, [1, 2]),
    "masked_lm": (_ROWS,),
}
_OPTIONS = {
    "question_answering": {"max_seq_length": 10},
    "tagging": {"labels": ["O", "X"]},
}


class _Batches(keras.utils.PyDataset):
    """Batches of raw rows."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return _ROWS, _ROW_LABELS


class BatchesTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_BATCHES)
    def test_every_kind_of_model_reads_them(self, kind):
        batch = _BATCHES[kind]
        model = self.new(
            kind, compiled={"optimizer": "sgd"}, **_OPTIONS.get(kind, {})
        )
        expected = model.evaluate(*batch, verbose=0)
        data = model.preprocessor(*batch)
        data = data if isinstance(data, tuple) else (data,)
        self.assertAllClose(
            model.evaluate((data for _ in range(1)), steps=1, verbose=0),
            expected,
        )
        self.assertAllClose(model.test_on_batch(*batch), expected)
        before = [one.numpy() for one in model.trainable_weights]
        loss = model.train_on_batch(*batch, return_dict=True)["loss"]
        self.assertTrue(np.isfinite(loss))
        changes = [
            np.abs(now.numpy() - old).max()
            for now, old in zip(model.trainable_weights, before, strict=True)
        ]
        self.assertGreater(max(changes), 0)

    def test_predict_on_batch_equals_predict(self):
        model = self.new()
        expected = model.predict(_ROWS, verbose=0)
        self.assertEqual(model.predict_on_batch(_ROWS), expected)
        logits = model(_ROWS)["logits"]
        self.assertAllClose(
            tf.nn.softmax(logits)[:, 1],
            [row["probabilities"]["good"] for row in expected],
        )
        self.assertAllEqual(model(np.array(_ROWS))["logits"], logits)

    @pytest.mark.slow
    def test_batches_after_fit_have_a_constant_rate(self):
        model = self.new()
        model.fit(_ROWS, _ROW_LABELS, verbose=0)
        self.assertEqual(float(model.optimizer.learning_rate), 0)
        for step in (1, 2):
            model.train_on_batch(_ROWS, _ROW_LABELS)
            self.assertEqual(int(model.optimizer.iterations), step)
        self.assertAllClose(model.optimizer.learning_rate, 5e-5)

    def test_mistakes_are_one_sentence(self):
        model = self.new(compiled={"optimizer": "sgd"})
        for stream in (_Batches(), (batch for batch in _Batches())):
            for call in (model.fit, model.evaluate, model.predict):
                with self.assertRaisesRegex(UserError, "tf.data.Dataset of"):
                    call(stream, verbose=0)
        features = (model.preprocessor(_ROWS, _ROW_LABELS) for _ in range(1))
        model.fit(features, verbose=0)
        with self.assertRaisesRegex(UserError, "Received: symbolic texts"):
            model(keras.Input((), dtype="string"))


class TextDatasetsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    @pytest.mark.slow
    def test_data_sets_of_strings_score_as_lists(self):
        model = self.new(compiled={"optimizer": "sgd", "metrics": "accuracy"})
        data = _slices((fit_case.TEXTS, fit_case.LABELS))
        expected = fit_case.scores(model, fit_case.TEXTS, fit_case.LABELS)
        indexed = _slices((fit_case.TEXTS, fit_case.IDS)).batch(5)
        for one in (data, indexed):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected, rtol=1e-5)
        features = model.preprocessor(fit_case.TEXTS)
        for one in (data, data.map(lambda x, y: x).batch(3)):
            self.assertAllClose(
                model.predict(one, verbose=0)["logits"],
                model(features)["logits"],
                atol=1e-5,
            )
        pairs = _slices(((fit_case.TEXTS, fit_case.TEXTS), fit_case.LABELS))
        (x, _), *_ = model.preprocessor.training_data(pairs)[0]
        self.assertEqual(x["input_ids"].shape, (5, 12))
        self.assertAllGreater(tf.reduce_sum(x["segment_ids"], -1), 0)
        wrong = _slices((fit_case.TEXTS, ["x"] * 5))
        with self.assertRaisesRegex(UserError, "^Row 0 .*'bad'.*'x'"):
            model.evaluate(wrong, verbose=0)
        other = _slices({"body": fit_case.TEXTS})
        with self.assertRaisesRegex(
            UserError, "'text' or 'text' and 'text_pair'.*body"
        ):
            model.predict(other)

    @parameterized.parameters(
        (tf.ragged.constant([["a"], [], ["c", "a"]]),),
        (tf.constant([["a", ""], ["", ""], ["c", "a"]]),),
        (tf.constant([[1.0, 0, 0], [0, 0, 0], [1, 0, 1]]),),
    )
    @pytest.mark.slow
    def test_datasets_of_several_labels_score_as_lists(self, y):
        texts = fit_case.TEXTS[:3]
        compiled = {"optimizer": "sgd", "metrics": ["accuracy"]}
        labels = ["a", "b", "c"]
        model = self.new(compiled=compiled, labels=labels)
        expected = fit_case.scores(model, texts, [["a"], [], ["c", "a"]])
        model = self.new(compiled=compiled, labels=labels)
        data = _slices((texts, y))
        for one in (data, data.ragged_batch(2)):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected)
        self.assertTrue(model.preprocessor.is_multi_label)


if __name__ == "__main__":
    tf.test.main()
