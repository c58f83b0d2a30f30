"""Converts raw rows to a model's inputs, and predictions to JSON values."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.api import default_training
from bert_tf.api import raw_rows
from bert_tf.api.default_training import BATCH_SIZE
from bert_tf.api.default_training import NO_LABEL
from bert_tf.api.raw_rows import is_text
from bert_tf.checkpoints import weight_map
from bert_tf.config import BertConfig
from bert_tf.data import length_buckets
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean
from bert_tf.io import progress
from bert_tf.modeling import inference
from bert_tf.tasks import dev_split
from bert_tf.tasks import packed_rows
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.classification.task import convert_labels
from bert_tf.tasks.embeddings.task import EmbeddingsTask
from bert_tf.tasks.embeddings.task import PairsTask
from bert_tf.tasks.metrics import METRICS_OF_PROBLEM
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.features import LABEL_WEIGHTS
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import SplitKey
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.training import unpad as unpadding

# The first rows are predicted eagerly, as compiling takes as long.
_EAGER_ROWS = 8
# The maximum number of tokens in a row if task.json has none.
_MAX_SEQ_LENGTH = 128


class Preprocessor:
    """A model's tokenizer and task, which convert rows and predictions.

    `bert_tf.load_model` stores the instance in `model.preprocessor`. The
    tokenizer and the task are built on first use.

    Args:
      task_values: The contents of the model's task.json; `kind` is required.
      build_tokenizer: Returns the tokenizer that the model was trained with.
      config: The model's configuration.
      num_labels: The number of labels of the model's head, or None.
      max_seq_length: The maximum number of tokens in a row; by default the
        value in `task_values`, else the task's default.

    Attributes:
      mask_seed: The seed of the masks that `fit` and `evaluate` of a masked
        language model draw; may be set at any time.
      embedding_values: The contents of task.json of the model for embeddings
        that `fit(few_shot=True)` trains.
      advice: A hint that the next `fit` logs, or "".
      has_one_hot_loss: Whether the loss reads one-hot labels <float>[N, L],
        with a single 1 in each row.
      keeps_vectors: Whether the loss reads labels <float>[N, L] unchanged. For
        the task's loss and sparse cross-entropy, one-hot labels become ids.
      row_error: The last error about a row of a data set, or None.

    Raises:
      UserError: If `max_seq_length` is below 3, or too long for the model.

    Example:
      >>> model = bert_tf.load_model("output/sst-2/model")
      >>> features = model.preprocessor(["A fine film."])
      >>> model(features)["logits"].shape
      TensorShape([1, 2])
    """

    def __init__(
        self,
        task_values: Mapping[str, Any],
        build_tokenizer: Callable[[], BertTokenizer],
        config: BertConfig,
        num_labels: int | None = None,
        max_seq_length: int | None = None,
    ) -> None:
        self.task_values = dict(task_values)
        self._build_tokenizer = build_tokenizer
        self._longest = config.max_position_embeddings
        self._vocab_size = config.vocab_size
        self._num_labels = num_labels
        if max_seq_length is not None:
            if not 3 <= max_seq_length <= self._longest:
                raise UserError(
                    "Expected max_seq_length to be from 3 to "
                    f"{self._longest}, the tokens that the model can read. "
                    f"Received: {max_seq_length}."
                )
            self.task_values["max_seq_length"] = int(max_seq_length)
        self.has_one_hot_loss = False
        self.embedding_values = {"kind": "embeddings"}
        self.advice = ""
        self.keeps_vectors = False
        self.row_error: UserError | None = None
        # Cache: the model of the last `predict`, and its copy for inference.
        self._prepared: tuple[keras.Model, keras.Model] | None = None
        # Cache: (`id` of the task, batch size) -> the copied model's predictor.
        self._predictors: dict[tuple[int, int], Predictor] = {}
        self._num_predicted = 0
        # A compiled step would ignore changes of a number, so use a variable.
        self._mask_seed = tf.Variable(0, False, dtype=tf.int64)

    def __repr__(self) -> str:
        return f"Preprocessor({self.task_values})"

    @property
    def mask_seed(self) -> int:
        return int(self._mask_seed)

    @mask_seed.setter
    def mask_seed(self, seed: int) -> None:
        self._mask_seed.assign(seed)

    @functools.cached_property
    def tokenizer(self) -> BertTokenizer:
        """The tokenizer that the model was trained with.

        Raises:
          UserError: If the model has no vocabulary.
        """
        return self._build_tokenizer()

    @property
    def has_task(self) -> bool:
        """True if the model has the head of a task."""
        values = self.task_values
        return (values.get("variant") or values["kind"]) in registry.TASKS

    @functools.cached_property
    def task(self) -> Task:
        """The task of `task_values`, with the labels of the model.

        Raises:
          UserError: If the model has no task, or `task_values` are wrong.
        """
        if not self.has_task:
            raise UserError(
                "Expected a model with the head of a task, one of "
                f"{', '.join(registry.TASKS)}. Received: a model of "
                f"kind={self.task_values['kind']!r}; load it as one of these, "
                "or call model(texts)."
            )
        task = registry.build_task(
            self.task_values, self._num_labels, self._longest
        )
        if (
            isinstance(task, SquadTask)
            and task.max_query_length + 4 > task.max_seq_length
        ):
            # Shorten questions, otherwise a paragraph would have no room.
            most = task.max_seq_length // 2
            self.task_values["max_query_length"] = most
            task = dataclasses.replace(task, max_query_length=most)
        return task

    @property
    def trained_task(self) -> Task | None:
        """The task that `fit` trains; None for masked language models."""
        if self.draws_masks:
            return None
        if isinstance(self.task, EmbeddingsTask):
            return PairsTask(**self.task.arguments())
        return self.task

    @property
    def unpads(self) -> bool:
        """True if --unpad=auto would leave padding out on this machine."""
        kinds = ("TPU", "GPU", "CPU")
        kind = next(filter(tf.config.list_logical_devices, kinds))
        reads_padding = self.has_task and self.task.reads_padding
        return unpadding.choose(
            "auto", kind, lambda: True, reads_padding=reads_padding
        )

    def _for_training(self) -> "Preprocessor":
        """Returns a copy with the task that `fit` trains."""
        copied = copy.copy(self)
        copied.task = self.trained_task
        return copied

    @property
    def draws_masks(self) -> bool:
        """True for masked language models, which are trained without labels."""
        heads = weight_map.HEADS.get(self.task_values["kind"], ())
        return weight_map.MASKED_LM in heads

    @property
    def max_seq_length(self) -> int:
        if self.has_task:
            return self.task.max_seq_length
        stored = self.task_values.get("max_seq_length") or _MAX_SEQ_LENGTH
        return min(stored, self._longest)

    @property
    def reads_texts(self) -> bool:
        """True if a row is a text or a pair and becomes one row of inputs."""
        return not self.has_task or self.classifies

    @property
    def classifies(self) -> bool:
        return self.has_task and isinstance(self.task, ClassificationTask)

    @property
    def is_multi_label(self) -> bool:
        """True if an example may have several labels."""
        task = self.task if self.has_task else None
        return getattr(task, "problem_type", None) == "multi_label"

    @property
    def has_open_problem(self) -> bool:
        """True if the labels in `fit` may still make the task multi-label."""
        values = self.task_values
        return values["kind"] == "classification" and (
            "problem_type" not in values
        )

    @property
    def is_one_hot(self) -> bool:
        """True if the loss takes one-hot labels of single-label texts."""
        is_text = self.task_values["kind"] == "classification"
        return self.has_one_hot_loss and is_text and not self.is_multi_label

    @raw_rows.restores_task
    def __call__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        length: int | None = None,
    ) -> Any:
        """Tokenizes and packs raw rows, padded to one length.

        All rows are padded to the length of the longest row, rounded up to a
        multiple of 8, but at most `max_seq_length`. If the task splits long
        texts into windows, each window is one row of the result.

        Args:
          x: Raw rows, in any form that `raw_rows.to_rows` accepts.
          y: The labels of the rows, as for `fit`, or None.
          sample_weight: The weight of each row, or None.
          length: The length to pad to, if given, for instance `max_seq_length`.

        Returns:
          The features: `input_ids`, `input_mask` and `segment_ids`, each
          <int32>[N, S]; for multiple choice [N, C, S]. With labels, returns the
          tuple (features, labels); with weights <float32>[N], too, returns
          (features, labels, weights). The labels are <int32>[N]; for several
          labels <float32>[N, L]; for regression <float32>[N]; for tagging
          <int32>[N, S], -1 for tokens without label; for question answering a
          dictionary of `start_positions` and `end_positions` <int32>[N].

        Raises:
          UserError: If rows or labels do not fit the task, or the model has no
            vocabulary.
        """
        x, _ = raw_rows.split_table(x, (), self, {})
        rows = raw_rows.to_rows(x)
        if not self.has_task:
            if y is not None:
                raise UserError(
                    "Expected texts without labels, as the model has no task: "
                    f"kind={self.task_values['kind']!r}. Received: labels."
                )
            features: Features = packed_rows.pack_texts(
                *raw_rows.to_texts(rows), self.tokenizer, self.max_seq_length
            )
        else:
            if y is not None:
                y = raw_rows.to_labels(y, len(rows))
                self.adapt_to_labels(y)
            examples = self.examples(rows, y)
            features = self.task.featurize(
                examples, self.tokenizer, y is not None
            )
        if length is None:
            longest = int(max(features.lengths, default=1))
            lengths = length_buckets.every_multiple(self.max_seq_length)
            length = next(one for one in lengths if one >= longest)
        batch = features.batch(np.arange(len(features)), length)
        inputs = {name: batch.pop(name) for name in MODEL_INPUTS}
        if y is None:
            return inputs
        labels = batch
        if set(batch) == {LABEL_IDS, LABEL_WEIGHTS}:
            is_labeled = batch[LABEL_WEIGHTS] > 0
            labels = np.where(is_labeled, batch[LABEL_IDS], NO_LABEL)
        elif set(batch) == {LABEL_IDS}:
            labels = batch[LABEL_IDS]
        if sample_weight is None:
            return inputs, labels
        weights = np.asarray(
            raw_rows.to_labels(sample_weight, len(rows), "sample_weight")
        )
        weights = weights[_example_of_row(features, len(rows))]
        weights = weights.astype(np.float32)
        if not np.isfinite(weights).all():
            raise UserError("Expected finite sample_weight. Received: NaN.")
        return inputs, labels, weights

    def adapt_to_labels(self, labels: Sequence[Any]) -> None:
        """Makes the task multi-label if the labels of rows are lists.

        If each list is one-hot or has one name, the task becomes single-label,
        unless `keeps_vectors`. Nothing changes if task.json has a problem type,
        or if the loss is one-hot.
        """
        if not self.has_open_problem or self.has_one_hot_loss:
            return
        has_lists = len(labels) > 0 and isinstance(
            labels[0], list | tuple | set | frozenset | np.ndarray
        )
        count = self._num_labels
        if has_lists and count != 1:
            problem = "multi_label"
            is_class = (
                np.shape(x) == (1,) or label_values.is_one_hot(x, count)
                for x in labels
            )
            if not self.keeps_vectors and all(is_class):
                problem = "single_label"
                logging.warning(
                    "The labels are classes, as each row has a single 1 or "
                    'name; load the model with problem_type="multi_label" for '
                    "several."
                )
            self.change_task(
                problem_type=problem, metrics=list(METRICS_OF_PROBLEM[problem])
            )

    def change_task(self, **values: Any) -> None:
        """Changes values of task.json."""
        self.task_values |= values
        self.__dict__.pop("task", None)  # The next access builds a new task.
        self._prepared = None

    def calibrate(self, compute: Callable[[Any], Any], data: Any) -> None:
        """Fits the probabilities of the task on validation data.

        `compute` returns the model's outputs for a batch of features; `data`
        is a result of `validation_data`.
        """
        if not isinstance(data, tf.data.Dataset):
            data = tf.data.Dataset.from_tensor_slices(tuple(data[:2]))
            data = data.batch(BATCH_SIZE)
        pairs = [(compute(x)["logits"], np.asarray(y)) for x, y, *_ in data]
        logits, labels = map(np.concatenate, zip(*pairs, strict=True))
        if not self.is_multi_label:
            labels = labels.argmax(-1) if self.is_one_hot else labels.ravel()
        self.fit_confidence(logits, labels)

    def fit_confidence(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Fits the probabilities to texts that were not used in training.

        `logits` are <float>[N, L]. `labels` are <int>[N]; for a multi-label
        task, <int>[N, L].
        """
        outputs = {"logits": tf.constant(logits, tf.float64)}
        blank = InputExample("", "any text")
        if labels.ndim == 1:  # Use one-hot: an id may be another label's name.
            labels = labels[:, None] == np.arange(len(self.task.labels))
        tuned = dataclasses.replace(self.task, calibrates=True)
        tuned = tuned.select_threshold(
            [self.task.add_label(blank, label) for label in labels],
            lambda task: task.decode(outputs)["probabilities"],
        )
        self.change_task(**tuned.confidence())

    def examples(
        self, rows: Sequence[Any], labels: Sequence[Any] | None = None
    ) -> list[Any]:
        """Converts rows to the task's examples; errors name the row."""
        examples, task = [], self.task
        for number, row in enumerate(rows):
            with raw_rows.naming_row(number):
                example = task.example_from_row(row)
                if labels is not None:
                    example = task.add_label(example, labels[number])
            examples.append(example)
        return examples

    def predict(
        self,
        model: keras.Model,
        rows: Any,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> list[dict[str, Any]] | np.ndarray:
        """Returns, for each row, the JSON object that run/predict.py writes.

        For a model for embeddings, returns the embeddings <float32>[N, size].
        The rows may have any form that `raw_rows.to_rows` accepts.

        Raises:
          UserError: If a row does not fit the task, the model has no
            vocabulary, its task.json does not describe a task, or
            TF_ONEDNN_ASSUME_FROZEN_WEIGHTS is set.
        """
        # Check the rows before the slow copying and compiling of the model.
        examples = self.examples(raw_rows.to_rows(rows))
        arguments = self.task, self.tokenizer, batch_size or BATCH_SIZE
        self._num_predicted += len(examples)
        is_few = self._num_predicted <= _EAGER_ROWS
        if is_few and not packed_weights.are_assumed():
            predictor = Predictor(model, *arguments, compiles=False)
        else:
            predictor = self._compiled_predictor(model, *arguments)
        is_vector = isinstance(self.task, EmbeddingsTask)
        compute = predictor.predict if is_vector else predictor.describe
        chunks = task_prediction.chunks(self.task, examples)
        with contextlib.ExitStack() as stack:
            on_examples = None
            if show_progress:
                bar = progress.bar(len(examples), "predicting", "example")
                on_examples = stack.enter_context(bar).update
            results = [
                result
                for chunk in chunks
                for result in compute(chunk, on_examples)
            ]
        if is_vector:
            shape = [len(results), model.embedding_size]
            return np.reshape(results, shape).astype(np.float32)
        return results

    def _compiled_predictor(
        self, model: keras.Model, *arguments: Any
    ) -> Predictor:
        if self._prepared is None or self._prepared[0] is not model:
            copy = inference.prepare(
                model, model.compute_dtype, shares_weights=True
            )
            copy.bert.encoder.shares_graph = True
            self._prepared, self._predictors = (model, copy), {}
        else:
            packed_weights.refuse()
            inference.copy_weights(*self._prepared, shares_weights=True)
        key = (id(self.task), arguments[-1])
        if key not in self._predictors:
            self._predictors[key] = Predictor(
                self._prepared[1], *arguments, unpad=self.unpads
            )
        return self._predictors[key]

    def training_data(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
    ) -> tuple[Any, Any, Any]:
        """Returns the arguments of Keras' `fit` with raw rows converted.

        Lists are converted here; data sets of strings are converted when read.
        """
        if isinstance(x, default_training.STREAMS):
            return raw_rows.check_stream(x), y, sample_weight
        is_raw = _holds_rows(x)
        if is_raw and self.has_task and isinstance(self.task, EmbeddingsTask):
            if y is None:  # Anchors with positives need no score.
                y = [None] * len(raw_rows.to_rows(x))
            return self._for_training().convert_rows(x, y, sample_weight)
        if isinstance(x, tf.data.Dataset):
            if is_text(x):
                x = self._convert_dataset(x, batch_size)
                has_labels = not isinstance(x.element_spec, Mapping)
                default_training.require_labels(has_labels or not self.has_task)
            return x, y, sample_weight
        if is_raw:
            default_training.require_labels(y is not None or not self.has_task)
            return self.convert_rows(x, y, sample_weight)
        x = raw_rows.read_features(x, self._vocab_size)
        if isinstance(y, list) and y and isinstance(y[0], int | float):
            y = np.asarray(y)  # Keras refuses a list if `x` has arrays.
        if y is not None and self.has_task:
            is_matrix = getattr(y, "ndim", 1) == 2 and self._num_labels != 1
            is_matrix &= self.task_values["kind"] == "classification"
            keeps_vectors = self.has_one_hot_loss or self.keeps_vectors
            if is_matrix:
                self.adapt_to_labels(y)
                is_matrix = not (keeps_vectors or self.is_multi_label)
            if is_text(y) or is_matrix:
                y = raw_rows.to_labels(y)
                self.adapt_to_labels(y)
                if not isinstance(self.task, ClassificationTask):
                    raise UserError(
                        "Expected numbers as the labels of packed features, or "
                        "raw rows with their labels. Received: texts."
                    )
                example = InputExample("", "any text")
                y = convert_labels(
                    [self.task.add_label(example, name) for name in y],
                    self.task.labels,
                    self.task.problem_type,
                )
        return x, y, sample_weight

    def split(
        self, x: Any, y: Any, sample_weight: Any, fraction: float
    ) -> tuple[Any, Any, Any, tuple[Any, Any, Any] | None]:
        """Splits rows, labels and weights into a training and a held-out part.

        Data that is not raw rows stays unchanged; its held-out part is None.
        """
        if isinstance(x, default_training.IN_BATCHES) or not _holds_rows(x):
            return x, y, sample_weight, None
        rows = raw_rows.to_rows(x)
        keys = [SplitKey(row) for row in rows]
        labels = None if y is None else self._row_labels(y, len(rows))
        weights = sample_weight
        if weights is not None:
            weights = raw_rows.to_labels(weights, len(rows))
        if self.has_task:
            self.adapt_to_labels(labels or ())
            trained = self._for_training()
            keys = trained.task.split_keys(trained.examples(rows, labels))
        is_dev = dev_split.choose(keys, fraction)

        def part(is_held_out: bool) -> tuple[Any, Any, Any]:
            chosen = [i for i, x in enumerate(is_dev) if x == is_held_out]
            return tuple(
                None if values is None else [values[i] for i in chosen]
                for values in (rows, labels, weights)
            )

        return *part(False), part(True)

    def _row_labels(self, y: Any, count: int | None = None) -> list[Any]:
        """Returns labels of rows; for a one-hot loss, makes vectors one-hot."""
        y = raw_rows.to_labels(y, count)
        if not self.is_one_hot:
            return y
        return [np.eye(len(x))[np.argmax(x)] if np.ndim(x) else x for x in y]

    def prediction_data(self, x: Any, batch_size: int | None) -> Any:
        """Returns the argument `x` of `predict`, without labels.

        A data set of raw rows becomes a data set of features if `reads_texts`,
        otherwise a list of rows.
        """
        if isinstance(x, default_training.STREAMS):
            return raw_rows.check_stream(x)
        if not isinstance(x, tf.data.Dataset) or not is_text(x):
            if not _holds_rows(x):
                x = raw_rows.read_features(x, self._vocab_size)
            return x
        if not self.reads_texts:
            return raw_rows.read_rows(x, self.task)
        return self._convert_dataset(x, batch_size)

    def convert_rows(
        self, x: Any, y: Any, sample_weight: Any, length: int | None = None
    ) -> tuple[Any, Any, Any]:
        """Returns features, labels and weights; labels and weights may be None.

        The arguments are as in `__call__`. For a one-hot loss, the returned
        labels are one-hot.
        """
        if y is None and sample_weight is not None:
            raise UserError(  # Keras would silently ignore the weights.
                "Expected labels beside sample_weight. Received: none."
            )
        if y is not None and self.is_one_hot:
            y = self._row_labels(y)
        converted = self(x, y, sample_weight, length)
        inputs, *rest = (converted,) if y is None else converted
        if not len(next(iter(inputs.values()))):
            raise UserError("Expected at least one row. Received: none.")
        if rest and self.is_one_hot:
            rest[0] = keras.utils.to_categorical(rest[0], self._num_labels)
        return inputs, *rest, *[None] * (2 - len(rest))

    def _convert_dataset(
        self, dataset: tf.data.Dataset, batch_size: int | None
    ) -> tf.data.Dataset:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        if self.has_task and self.reads_texts:
            if isinstance(x, Mapping):
                classification_examples.choose_columns(
                    x, self.task.text_choices
                )
            if self.has_open_problem and raw_rows.has_several_labels(dataset):
                self.adapt_to_labels(raw_rows.first_labels(dataset, self.task))
        size = batch_size or BATCH_SIZE
        return raw_rows.convert_dataset(dataset, self, size)

    def validation_data(
        self,
        data: Any,
        batch_size: int | None,
        names: Mapping[str, str] | None = None,
    ) -> Any:
        """Returns `validation_data` for Keras' `fit`, with rows converted."""
        if isinstance(data, default_training.IN_BATCHES):
            return self.training_data(data, batch_size=batch_size)[0]
        if isinstance(data, list) and all(isinstance(x, str) for x in data):
            data = (data,)  # Else texts would be read as (x, y, weight).
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        x, y = raw_rows.split_table(x, y, self, names or {})
        x, y, weight = self.training_data(x, y, weight, batch_size)
        return (x, y) if weight is None else (x, y, weight)

    def class_weight(
        self, weights: Mapping | str | None, y: Any = None
    ) -> dict | None:
        """Returns `class_weight` for Keras' `fit`, by index, not by name.

        "balanced" gives each label id in `y` the same total weight: for the ids
        0, 0, 0, 1 the weights are 2/3 and 2.
        """
        if weights is None:
            return None
        kind = getattr(self.task, "problem_type", self.task.kind)
        if kind in ("tagging", "regression"):
            raise UserError(
                "class_weight needs a label for each row; give sample_weight "
                f"(tags: [rows, tokens]). Received: class_weight for {kind}."
            )
        names = list(getattr(self.task, "labels", None) or ())
        if not isinstance(weights, Mapping):
            is_known = str(weights) == label_values.BALANCED and y is not None
            if not (is_known and names) or self.is_multi_label:
                raise UserError(
                    'Expected class_weight={label: weight, ...}, or "balanced" '
                    "beside an array or list of one label for each row. "
                    f"Received: {weights!r:.80}."
                )
            ids = np.argmax(y, -1) if np.ndim(y) == 2 else np.ravel(y)
            ids, counts = np.unique(ids, return_counts=True)
            each = counts.sum() / (len(ids) * counts)  # scikit-learn's formula.
            return dict(zip(ids.tolist(), each.tolist(), strict=True))
        ids = range(self._num_labels or 1 << 31)
        unknown = [x for x in weights if x not in names and x not in ids]
        if unknown:
            raise UserError(
                "Expected class_weight by label or by index; the labels are "
                f"{', '.join(names or ['none'])}. Received: "
                f"{', '.join(map(repr, unknown))}"
                f"{did_you_mean(str(unknown[0]), names, '{!r}')}"
            )
        parse = label_values.parse_label
        return {
            names.index(parse(x, names, "single_label")) if names else x: weight
            for x, weight in weights.items()
        }

    def draw_masks(
        self, features: Mapping[str, tf.Tensor], step: Any
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Masks a batch of packed texts; the step is None in evaluation."""
        return default_training.draw_masks(
            features,
            self.tokenizer.vocabulary,
            self._mask_seed,
            -1 if step is None else step,
        )


def _holds_rows(x: Any) -> bool:
    """Returns True for a list, and for other data with texts."""
    return isinstance(x, list) or (x is not None and is_text(x))


def _example_of_row(features: Features, num_examples: int) -> np.ndarray:
    """Returns <int64>[N], the index of the example of each row of features."""
    examples = getattr(features, "examples", None)
    if examples is not None:
        return examples
    if len(features) == num_examples:
        return np.arange(num_examples)
    raise UserError(
        "Expected rows that fit in max_seq_length, as they have a "
        f"sample_weight. Received: {num_examples} rows, which make "
        f"{len(features)} windows."
    )
