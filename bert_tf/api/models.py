"""Keras models that train on, predict and export raw rows, such as texts.

Classes in `bert_tf.modeling` read only features; `with_text` adds methods for
raw rows. Keras expects losses, metrics and labels in the structure of a model's
outputs. The added methods apply one loss, metric or label to every output of
the head, and ignore the encoder's outputs.
"""

import functools
import types
import warnings
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.api import default_training
from bert_tf.api import raw_rows
from bert_tf.api import save
from bert_tf.api.raw_rows import is_text
from bert_tf.checkpoints.load import MODELS
from bert_tf.config import check_bools
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.inference import fill_mask
from bert_tf.modeling import task_models
from bert_tf.tasks.classification.labels import name_some
from bert_tf.tasks.embeddings.examples import require_negatives
from bert_tf.tasks.embeddings.task import TEXT_IDS

# Name of a label in question answering -> the output that the label trains.
_OUTPUT_OF_LABEL = {
    "start_positions": "start_logits",
    "end_positions": "end_logits",
}
# Keys of `_has_defaults` and `optimizer.built` in .keras files' compile config.
_HAS_DEFAULTS, _HAS_SLOTS = "bert_tf_defaults", "bert_tf_optimizer_built"
# Token heads do not train the pooler, and the masked-LM loss does not train
# the next-sentence head: hide Keras' warning about this.
warnings.filterwarnings(
    "ignore",
    r"Gradients do not exist for variables \['[^']*/pooler/dense/kernel', "
    r"'[^']*/pooler/dense/bias'(, '[^']*/seq_relationship/[^']*')*\]",
)


class TextMethods(save.FileMethods):
    """A mixin that adds methods for raw rows to models of `bert_tf.modeling`.

    Attributes:
      preprocessor: The model's `Preprocessor`; None if the constructor made the
        model, which then has no vocabulary and cannot read raw rows.
    """

    preprocessor = None
    # Names of the head's outputs that have a loss.
    _trained_outputs = ()
    # True if `compile` got no loss: the loss is then the task's objective.
    _has_task_loss = False
    # True if `fit` chose the arguments of `compile`; a new `fit` replaces them.
    _has_defaults = False

    def __call__(self, inputs, *args, **kwargs):
        """Computes the outputs for the model's inputs, or for raw rows.

        `preprocessor` converts raw rows to inputs. If the task splits long
        texts into windows, the outputs have a row for each window.

        Raises:
          UserError: If a row does not fit the task, or there is no vocabulary.
        """
        if is_text(inputs):
            inputs = self._read_rows(inputs)
        elif isinstance(inputs, Mapping) and list in map(type, inputs.values()):
            inputs = raw_rows.read_features(inputs, self.bert_config.vocab_size)
        return super().__call__(inputs, *args, **kwargs)

    def __repr__(self):
        config = getattr(self, "bert_config", None)
        if config is None:  # The constructor raised before it set `config`.
            return super().__repr__()
        size = f"{config.num_hidden_layers} layers of width"
        labels = getattr(self, "labels", None)
        words = f"; labels: {name_some(labels)}" if labels else ""
        return f"{type(self).__name__}({size} {config.hidden_size}{words})"

    def _read_rows(self, rows):
        """Returns the model's inputs for raw rows, <int32> tensors."""
        if self.preprocessor is None:
            raise UserError(
                "Only a model that bert_tf.load_model returned reads raw rows. "
                f"Received: texts for a {type(self).__name__} that its "
                "constructor made; give it a dictionary of input_ids, "
                "input_mask and segment_ids."
            )
        if any(
            keras.utils.is_keras_tensor(x)
            or (isinstance(x, tf.Tensor) and not hasattr(x, "numpy"))
            for x in tf.nest.flatten(rows)
        ):
            raise UserError(
                "Expected the model's inputs within a tf.function or a "
                "functional model: call model.preprocessor(texts) before. "
                "Received: symbolic texts."
            )
        return tf.nest.map_structure(
            tf.convert_to_tensor, self.preprocessor(rows)
        )

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        *,
        jit_compile=False,
        **kwargs,
    ):
        """Configures training, like `keras.Model.compile`.

        Args:
          optimizer: As for Keras, for instance `bert_tf.build_optimizer()`.
          loss: A loss that reads logits, or a loss's name, for all outputs of
            the head; or a dictionary of losses by output. Models of
            `bert_tf.load_model` have the task's loss by default. A
            cross-entropy given by name reads logits.
          loss_weights: As for Keras; a dictionary has names of outputs as keys.
          metrics: Metrics that read logits, for all outputs of the head; or a
            dictionary of metrics by output.
          weighted_metrics: As `metrics`, but the examples are weighted.
          jit_compile: Whether XLA compiles the steps; off by default, as XLA
            takes minutes for a large model. With "auto" Keras decides.
          **kwargs: As for Keras.

        Raises:
          UserError: If a key of a dictionary is not the name of an output.
        """
        raw_rows.check_names("compile", kwargs)
        check_bools(
            jit_compile=None if jit_compile == "auto" else jit_compile,
            run_eagerly=kwargs.get("run_eagerly"),
        )
        if self.head_outputs:
            loss = default_training.losses_of_logits(loss)
        self._trained_outputs = self.head_outputs
        is_of_first = isinstance(loss, Mapping) and (
            set(loss) == set(self.head_outputs[:1])
        )
        if self.labels_tokens and (loss is None or is_of_first):
            self._trained_outputs = self.head_outputs[:1]
        has_several = False
        if self.preprocessor is not None:
            is_open = self.preprocessor.has_open_problem
            has_several = None if is_open else self.preprocessor.is_multi_label
        with self.distribute_strategy.scope():
            optimizer = default_training.by_name("optimizers", optimizer)
            metrics, weighted_metrics = (
                self._by_output(
                    default_training.metrics_of_logits(x, loss, has_several)
                )
                for x in (metrics, weighted_metrics)
            )
        if self.labels_tokens and metrics and len(self._trained_outputs) == 1:
            # Use weights, or metrics would average over unlabeled tokens, too.
            weighted_metrics = [*metrics, *(weighted_metrics or [])]
            metrics = None
        super().compile(
            optimizer=optimizer,
            loss=self._by_output(loss),
            loss_weights=self._by_output(loss_weights),
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            jit_compile=jit_compile,
            **kwargs,
        )
        self._has_task_loss = loss is None and bool(self.head_outputs)
        self._has_defaults = False

    def get_compile_config(self):
        """Returns the arguments of `compile` for a .keras file."""
        config = super().get_compile_config()
        return config and config | {
            _HAS_DEFAULTS: self._has_defaults,
            _HAS_SLOTS: getattr(self.optimizer, "built", False),
        }

    def compile_from_config(self, config):
        """Compiles with the arguments in a .keras file."""
        # If `fit` chose the schedule, its rate is 0 now, so the next `fit` must
        # replace it.
        config = dict(config)
        has_defaults = config.pop(_HAS_DEFAULTS, False)
        # Files of earlier versions lack this key.
        has_slots = config.pop(_HAS_SLOTS, True)
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._has_defaults = has_defaults
        if self.optimizer is not None and self.built and has_slots:
            self.optimizer.build(self.trainable_variables)

    @raw_rows.restores_task
    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        few_shot=False,
        *,
        calibrate=None,
        **kwargs,
    ):
        """Trains on raw rows, or on any data of `keras.Model.fit`.

        Models of `bert_tf.load_model` need no `compile`. Without `compile`,
        each call of `fit` trains with the scripts' defaults: the task's loss,
        and BERT's Adam (for embeddings AdamW) at 5e-5, with warm-up over a
        tenth of the steps and linear decay.

        Args:
          x: Raw rows, as the task requires: a list of texts, pairs of texts,
            lists of words or dictionaries; a tuple of two lists for pairs;
            columns of texts (arrays, pandas); or a data set of strings and
            labels. The model's inputs are accepted, too, as for Keras.
          y: The labels of the rows. For classification a name or index per row,
            for several labels a list of names, for regression a number. For
            tagging a list of tags per row. For question answering a tuple of
            two lists, the answers' texts and the indices of their first
            characters. For multiple choice an index per row. For embeddings a
            score per pair of texts, or None for rows of an anchor, a positive
            and maybe a negative. A masked LM needs no labels, as each step
            draws masks from `preprocessor.mask_seed`; a next-sentence head is
            then not trained.
          batch_size: The number of rows in a step, by default 32.
          epochs: As for Keras.
          verbose: As for Keras.
          callbacks: As for Keras. With LearningRateScheduler or
            ReduceLROnPlateau the default learning rate is constant.
          validation_split: The share of rows to validate on. If `x` has raw
            rows, hashes choose this share of each label's texts, as with
            --dev_fraction. If `x` has inputs, Keras takes the last rows.
          validation_data: A tuple (x, y[, sample_weight]), or a data set.
          shuffle: As for Keras.
          class_weight: {index or name: weight} or "balanced"; not for tagging.
          sample_weight: The weight of each row.
          few_shot: Whether to train on a few texts of each label, as
            run/finetune_classifier.py --few_shot does. The encoder learns from
            pairs of texts; logistic regression on the embeddings fits the head.
            Few-shot training ignores the arguments of `compile`.
          calibrate: Whether to calibrate a classifier's probabilities on
            `validation_data` after training, as the script's --calibrate does.
            By default only few-shot training calibrates, by cross-validation;
            other training keeps the model's temperature.
          **kwargs: As for Keras; and text_column=, text_pair_column= and
            label_column=, the columns' names in a DataFrame, in a
            `datasets.Dataset` or in dictionaries, also for `validation_data`.

        Returns:
          Keras' `History`.

        Raises:
          UserError: If a row or a label does not fit the task; the message
            names the row.
        """
        check_bools(
            shuffle=None if shuffle == "batch" else shuffle,
            few_shot=few_shot,
            calibrate=calibrate,
        )
        steps_per_epoch = kwargs.get("steps_per_epoch")
        default_training.check_counts(
            batch_size=batch_size,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
        )
        default_training.check_callbacks(callbacks)
        columns = raw_rows.pop_columns("fit", kwargs)
        if isinstance(x, Mapping) and hasattr(x, "column_names"):
            # A `datasets.DatasetDict`: train on its split "train".
            if validation_data is None:
                validation_data = x.get("validation")
            x = x.get("train", x)
        x, y = self._split_table(x, y, columns)
        if few_shot:
            twin = with_text(task_models.BertForEmbeddings)
            options = batch_size, epochs, verbose, callbacks
            others = {
                "validation_split": validation_split or None,
                "validation_data": validation_data,
                "class_weight": class_weight,
                "sample_weight": sample_weight,
                **kwargs,
            }
            return default_training.fit_few_shot(
                self, twin, x, y, options, others, calibrate is not False
            )
        if getattr(self.preprocessor, "advice", ""):
            logging.warning("%s", self.preprocessor.advice)
            self.preprocessor.advice = ""
        if verbose not in (0, "0"):
            # Otherwise nothing would appear until the slow first step ends.
            text = "Reading the rows and compiling the first step."
            print(text, flush=True)  # noqa: T201
        if validation_data is not None:
            validation_split = 0.0  # As in Keras, `validation_data` wins.
        elif validation_split and self.preprocessor is not None:
            x, y, sample_weight, validation_data = self.preprocessor.split(
                x, y, sample_weight, validation_split
            )
            validation_split *= validation_data is None
        x, y, sample_weight = self._read(x, y, sample_weight, batch_size)
        if calibrate:
            default_training.check_calibrate(self.preprocessor, validation_data)
        if self.preprocessor is not None:
            if isinstance(y, Mapping) and TEXT_IDS in y:
                require_negatives("The rows", np.asarray(y[TEXT_IDS]).tolist())
            if validation_data is not None:
                validation_data = self.preprocessor.validation_data(
                    validation_data, batch_size, columns
                )
            class_weight = self.preprocessor.class_weight(class_weight, y)
            if self._has_defaults:
                options = validation_split, steps_per_epoch, epochs, callbacks
                self._compile_with_defaults(
                    default_training.count_steps(x, batch_size, *options)
                )
        if isinstance(x, tf.data.Dataset | types.GeneratorType):
            shuffle = False  # Else Keras warns that it cannot shuffle streams.
        history = super().fit(
            x,
            y,
            batch_size,
            epochs,
            verbose,
            callbacks,
            validation_split,
            validation_data,
            shuffle,
            class_weight,
            sample_weight,
            **kwargs,
        )
        if calibrate:
            self.preprocessor.calibrate(self.predict_on_batch, validation_data)
        return history

    def train_step(self, data):
        """Trains on a batch, with the dropout and masks of its step.

        Raises:
          UserError: If TF_ONEDNN_ASSUME_FROZEN_WEIGHTS is "1" or "true".
        """
        packed_weights.refuse()
        bert = getattr(self, "bert", self)
        step = self.optimizer.iterations
        # Keras does not restore `state`, so derive it from the step, unless
        # gradients accumulate: the batches of a step need different dropout.
        if not self.optimizer.gradient_accumulation_steps:
            state = bert.seed_generator.state
            now = tf.cast(tf.convert_to_tensor(step), state.dtype)
            state.assign(tf.stack([tf.convert_to_tensor(state)[0], now]))
        bert.encoder.shares_graph = not bert.encoder.fuse
        try:
            return super().train_step(self._to_compute(data, step))
        finally:  # Custom loops and exports need a graph for each layer.
            bert.encoder.shares_graph = False

    def make_train_function(self, force=False):
        """Makes the optimizer's variables, then the function that Keras calls.

        If the first step made the variables, it would be traced twice.
        """
        if self.optimizer is not None and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def test_step(self, data):
        """Scores a batch; texts without labels get equal masks in each call."""
        return super().test_step(self._to_compute(data, None))

    @raw_rows.restores_task
    def evaluate(
        self,
        x=None,
        y=None,
        batch_size=None,
        verbose="auto",
        sample_weight=None,
        **kwargs,
    ):
        """Scores raw rows, or any data of `keras.Model.evaluate`.

        The arguments are as in `fit`.

        Raises:
          UserError: If TF_ONEDNN_ASSUME_FROZEN_WEIGHTS is "1" or "true".
        """
        packed_weights.refuse()
        check_bools(return_dict=kwargs.get("return_dict"))
        default_training.check_counts(batch_size=batch_size)
        columns = raw_rows.pop_columns("evaluate", kwargs)
        x, y, sample_weight = self._read(
            x, y, sample_weight, batch_size, columns
        )
        return super().evaluate(
            x, y, batch_size, verbose, sample_weight, **kwargs
        )

    def _split_table(self, x, y, columns):
        """Splits a table into texts and labels; records the kind of loss."""
        raw_rows.require_data(x)
        if self.preprocessor is None:
            if isinstance(x, list | set) or is_text(x):
                self._read_rows(x)  # Raises, as rows need a preprocessor.
            return x, y
        loss = getattr(self, "loss", None)
        one_hot = keras.losses.CategoricalCrossentropy
        ids = keras.losses.SparseCategoricalCrossentropy
        self.preprocessor.has_one_hot_loss = isinstance(loss, one_hot)
        self.preprocessor.keeps_vectors = not isinstance(loss, ids | None)
        return raw_rows.split_table(x, y, self.preprocessor, columns)

    def _read(self, x, y, sample_weight, batch_size=None, columns=None):
        """Returns the converted data; compiles a model that is not compiled."""
        x, y = self._split_table(x, y, columns or {})
        if self.preprocessor is None:
            return x, y, sample_weight
        data = self.preprocessor.training_data(x, y, sample_weight, batch_size)
        if not self.compiled:
            self._compile_with_defaults(None)
        return data

    @raw_rows.restores_task
    def predict(
        self,
        x,
        batch_size=None,
        verbose="auto",
        steps=None,
        callbacks=None,
        **kwargs,
    ):
        """Predicts raw rows, or any input of `keras.Model.predict`.

        Args:
          x: Raw rows without labels, in any form that `fit` accepts, or one
            text; or the model's inputs, as for Keras.
          batch_size: The number of rows in a batch, by default 32.
          verbose: Whether to show a progress bar; 0 hides the bar.
          steps: As for Keras; must be None for raw rows.
          callbacks: As for Keras; must be None for raw rows.
          **kwargs: text_column= and text_pair_column=, as for `fit`.

        Returns:
          For each raw row, the JSON object that run/predict.py writes. From a
          masked LM, for each text, the best `tokens` for each [MASK] and their
          `probabilities`. From a model for embeddings <float32>[rows, size].
          Returns the model's outputs if `x` holds no raw rows, or if `x` is a
          data set and the model is a classifier or has no task.

        Raises:
          UserError: If a row does not fit, or task or vocabulary is missing.
        """
        default_training.check_counts(batch_size=batch_size)
        columns = raw_rows.pop_columns("predict", kwargs)
        x, _ = self._split_table(x, (), columns)
        if self.preprocessor is not None:
            x = self.preprocessor.prediction_data(x, batch_size)
        if isinstance(x, tf.data.Dataset) or not (
            isinstance(x, list | set) or is_text(x)
        ):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        if self.preprocessor.draws_masks:
            texts, pairs = raw_rows.to_texts(raw_rows.to_rows(x))
            if pairs:
                raise UserError("Expected texts with [MASK]. Received: a pair.")
            masks = fill_mask.FillMask(self)(texts)
            return list(map(fill_mask.to_json, masks))
        if steps is not None or callbacks is not None:
            raise UserError("Predict raw rows without steps= and callbacks=.")
        return self.preprocessor.predict(
            self, x, batch_size, verbose not in (0, "0")
        )

    def train_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        return_dict=False,
    ):
        """Trains on a batch of raw rows, or on any batch of `keras.Model`.

        The arguments are as in `fit`. A model that was not compiled gets the
        defaults of `fit`, with a constant learning rate.
        """
        check_bools(return_dict=return_dict)
        x, y, sample_weight = self._read(x, y, sample_weight)
        if self.preprocessor is not None:
            class_weight = self.preprocessor.class_weight(class_weight, y)
            if self._has_defaults and isinstance(
                self.optimizer._learning_rate,
                keras.optimizers.schedules.LearningRateSchedule,
            ):
                # The schedule of `fit` has ended at a rate of 0: replace it.
                self._compile_with_defaults(None)
        return super().train_on_batch(
            x, y, sample_weight, class_weight, return_dict
        )

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Scores a batch of raw rows, or any batch of `keras.Model`."""
        check_bools(return_dict=return_dict)
        data = self._read(x, y, sample_weight)
        return super().test_on_batch(*data, return_dict)

    def predict_on_batch(self, x):
        """Predicts raw rows as `predict`, or any batch of `keras.Model`."""
        if is_text(x):
            return self.predict(x, verbose=0)
        return super().predict_on_batch(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Computes the loss of the head's outputs, in graph."""
        if not self.head_outputs:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        y = self._labels_to_build(x, y, y_pred)
        if self._has_task_loss:
            if self.preprocessor is None:
                raise UserError(
                    "Expected a loss: compile(optimizer, loss, ...). Only "
                    "models of bert_tf.load_model have one of their own."
                )
            loss = default_training.compute_loss(
                self.preprocessor.trained_task, y_pred, x, y, sample_weight
            )
            # Keras adds up the replicas' losses, so divide by their number.
            return loss / tf.distribute.get_strategy().num_replicas_in_sync
        y, y_pred, sample_weight, mask = self._align(y, y_pred, sample_weight)
        if mask is not None:
            # Scale Keras' mean over all tokens to the mean over labeled tokens.
            mask_sum = tf.reduce_sum(mask)
            size = tf.cast(tf.size(mask), mask.dtype)
            sample_weight *= tf.math.divide_no_nan(size, mask_sum)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates the metrics of the head's outputs, and returns them all."""
        if self.head_outputs:
            y = self._labels_to_build(x, y, y_pred)
            y, y_pred, sample_weight, _ = self._align(y, y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _draws_masks(self, x, y):
        """Returns True for texts of a masked LM without labels or masks."""
        draws = self.preprocessor is not None and self.preprocessor.draws_masks
        return draws and y is None and "masked_lm_positions" not in x

    def _labels_to_build(self, x, y, y_pred):
        """Returns `y`, or arbitrary labels if masks are yet to be drawn.

        Keras needs labels to build the metrics, before masks are drawn.
        """
        if not self._draws_masks(x, y):
            return y
        return tf.argmax(y_pred["masked_lm_logits"], -1)

    def _to_compute(self, data, step):
        """Draws masks in a batch without labels, and skips padding."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self._draws_masks(x, y):
            if self._trained_outputs != ("masked_lm_logits",):
                raise UserError(
                    "Texts without labels train the masked-LM head alone: call "
                    "compile(optimizer) without a loss, or with loss="
                    '{"masked_lm_logits": ...}. Received: a loss for '
                    f"{', '.join(self._trained_outputs)}."
                )
            x, y = self.preprocessor.draw_masks(x, step)
        reader = self.preprocessor
        # XLA would compile a program for each number of tokens.
        if reader is not None and reader.unpads and not self.jit_compile:
            # Other losses and metrics may read outputs for padding.
            is_masked = self._has_task_loss and len(self._trained_outputs) == 1
            if is_masked or reader.classifies:
                x = default_training.skip_padding(x)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def _compile_with_defaults(self, num_steps):
        strategy = self._distribute_strategy  # None if loaded outside of one.
        if strategy is None and tf.distribute.has_strategy():
            raise UserError(
                "Expected a model of this strategy: load it within "
                "strategy.scope(), or call fit outside of it. Received: a "
                "model that was loaded outside."
            )
        with self.distribute_strategy.scope():
            arguments = default_training.compile_arguments(
                self.preprocessor.trained_task, num_steps
            )
            arguments["metrics"] = default_training.metrics_of_logits(
                arguments["metrics"], None, self.preprocessor.is_multi_label
            )
            self.compile(**arguments)
        self._has_defaults = True

    def _by_output(self, value):
        """Returns losses or metrics in the structure that `_align` returns."""
        names = self._trained_outputs
        if value is None or not names:
            return value
        if isinstance(value, Mapping):
            unknown = sorted(set(value) - set(names))
            if unknown:
                raise UserError(
                    f"The outputs are {', '.join(names)}. Received: "
                    f"{', '.join(map(repr, unknown))}."
                )
            return value[names[0]] if len(names) == 1 else dict(value)
        if len(names) == 1:
            return value
        if not isinstance(value, list | tuple):
            return dict.fromkeys(names, value)
        return {name: [_copy_metric(one) for one in value] for name in names}

    def _align(self, y, y_pred, sample_weight):
        """Returns labels, outputs and weights in one structure, and the mask.

        For one trained output, returns tensors, not dictionaries. The mask is
        <float32>, shaped like `y`, 1 for labeled tokens; None unless `y` has a
        label id for each token.
        """
        names = self._trained_outputs
        if len(names) > 1:
            if isinstance(y, list | tuple):
                y = dict(zip(names, y, strict=True))
            y = _rename_labels(y)
            if isinstance(sample_weight, Mapping):
                sample_weight = _rename_labels(sample_weight)
            outputs = {name: y_pred[name] for name in names if name in y}
            return y, outputs, sample_weight, None
        if isinstance(y, Mapping):
            (y,) = y.values()
        y_pred = y_pred[names[0]]
        if not self.labels_tokens or y is None:
            return y, y_pred, sample_weight, None
        y = tf.convert_to_tensor(y)  # In eager steps `y` is an array.
        if y.dtype.is_floating:
            return y, y_pred, sample_weight, None
        mask = tf.cast(tf.not_equal(y, default_training.NO_LABEL), tf.float32)
        weights = mask
        if sample_weight is not None:
            sample_weight = tf.cast(sample_weight, tf.float32)
            weights = default_training.weigh(mask, sample_weight)
        return tf.maximum(y, 0), y_pred, weights, mask


@functools.cache
def with_text(cls):
    """Returns a class of `bert_tf.modeling` with `TextMethods`.

    `.keras` files are saved and loaded with this class.
    """
    values = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    if hasattr(cls, "encoder_class"):
        values["encoder_class"] = with_text(cls.encoder_class)
    made = type(cls.__name__, (TextMethods, cls), values)
    return keras.saving.register_keras_serializable(package="bert_tf")(made)


for _cls in MODELS.values():
    # Register the class, otherwise `.keras` files load without text methods.
    with_text(_cls)


def _rename_labels(values):
    return {_OUTPUT_OF_LABEL.get(name, name): values[name] for name in values}


def _copy_metric(metric):
    """Returns a copy of a metric, with its own state."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric
