"""Keras' `compile`, `fit`, `evaluate` and `predict` for raw rows and for heads.

A model with a head may return several outputs, and Keras wants losses, metrics
and labels in the same structure. Here a bare loss, metric or label stands for
each output of the head, and the encoder's outputs need none. Losses and metrics
by name are those of logits, where Keras would compute them of probabilities.
"""

import numbers
import re
import types
from collections.abc import Mapping

import keras
import tensorflow as tf
from absl import logging

from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.modeling import raw_batches
from bert_tf.modeling.raw_batches import is_text

# Labels of question answering by the names of its training data.
_OUTPUT_OF_LABEL = {
    "start_positions": "start_logits",
    "end_positions": "end_logits",
}
# A key among the arguments of `compile` in a .keras file.
_HAS_DEFAULTS = "bert_tf_defaults"
# Batches in their order.
_IN_BATCHES = (tf.data.Dataset, types.GeneratorType)
# Marks tokens without a label.
NO_LABEL = -1

# Keras' names for the accuracy whose kind it chooses by the labels.
_ACCURACY = ("accuracy", "acc")


class KerasMethods(raw_batches.BatchMethods):
    """A mixin for models whose training and prediction also take raw rows.

    List it before `keras.Model` among the bases.

    Attributes:
      preprocessor: The text side of the model, set by the loader that has the
        tokenizer: `bert_tf.api.preprocessor.Preprocessor`. None for a
        model that its constructor made.
      head_outputs: The names of the outputs of the head; () without a head.
      labels_tokens: True if the labels of the first output are for tokens; -1
        then means none.
    """

    preprocessor = None
    head_outputs = ()
    labels_tokens = False
    # Those of `head_outputs` that `compile` gave a loss.
    _trained_outputs = ()
    # Whether `compile` left the loss to the task.
    _has_task_loss = False
    # Whether `fit` chose the arguments of `compile`.
    _has_defaults = False

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
        """Configures training, as `keras.Model.compile`.

        Args:
          optimizer: As for Keras, for instance `bert_tf.build_optimizer()`.
          loss: A loss of logits or its name, for each output of the head or
            in a dictionary by output; by default the loss of the task, for
            models of `bert_tf.load_model`. Names of cross-entropies mean
            those of logits.
          loss_weights: As for Keras, by output.
          metrics: Metrics of logits, for each output of the head or in a
            dictionary by output.
          weighted_metrics: As `metrics`, weighted as the loss.
          jit_compile: Whether XLA compiles the steps; by default not, as that
            takes minutes for a large model. Keras chooses with "auto".
          **kwargs: As for Keras.

        Raises:
          UserError: If a dictionary names something that is no output.
        """
        if self.head_outputs:
            loss = _replace_loss(loss)
        self._trained_outputs = self._choose_outputs(loss)
        is_multi_label = (
            loss is None
            and self.preprocessor is not None
            and self.preprocessor.is_multi_label
        )
        metrics, weighted_metrics = (
            self._by_output(_replace_metrics(x, loss, is_multi_label))
            for x in (metrics, weighted_metrics)
        )
        if self.labels_tokens and metrics and len(self._trained_outputs) == 1:
            # Tokens without a label have no weight.
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
        """Returns what a .keras file has about `compile`."""
        config = super().get_compile_config()
        return config and config | {_HAS_DEFAULTS: self._has_defaults}

    def compile_from_config(self, config):
        """Compiles with the arguments in a .keras file."""
        # The learning rate that `fit` chose has ended at 0; the next call
        # chooses a new one.
        has_defaults = config.get(_HAS_DEFAULTS, False)
        config = {k: v for k, v in config.items() if k != _HAS_DEFAULTS}
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._has_defaults = has_defaults
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

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
        initial_epoch=0,
        steps_per_epoch=None,
        **kwargs,
    ):
        """Trains on raw rows, or on any data of `keras.Model.fit`.

        Models of `bert_tf.load_model` need no `compile`: then each call is a
        training run with BERT's defaults, AdamW at 5e-5 with warm-up over a
        tenth of the steps and linear decay, and with the loss of the task.

        Args:
          x: Raw rows: a list of texts, pairs of texts, lists of words or
            dictionaries, as the task has them; two lists in a tuple, for
            pairs; columns of texts (arrays, pandas); a data set of strings
            and labels; a generator or a `keras.utils.PyDataset` of batches of
            such rows and their labels. Or the model's inputs, as for Keras.
          y: The labels of the rows. Classification: names or indices; a list
            of names each for several labels; numbers for regression. Tagging:
            a list of tags each. Question answering: two lists in a tuple, the
            answers' texts and their first characters. Multiple choice: an
            index each. Models with a masked-LM head: None; masks are drawn
            in each step, from `preprocessor.mask_seed`, and the masked-LM
            head alone is trained, not the next-sentence head.
          batch_size: Rows in a step, by default 32.
          epochs: As for Keras.
          verbose: As for Keras.
          callbacks: As for Keras. With LearningRateScheduler or
            ReduceLROnPlateau the default learning rate has no schedule.
          validation_split: As for Keras.
          validation_data: (x, y), (x, y, sample_weight), or a data set.
          shuffle: As for Keras.
          class_weight: Label, by name or index, to weight. Beside row weights,
            and for tagging, it also weights the rows of `validation_split`.
          sample_weight: The weight of each row.
          initial_epoch: As for Keras.
          steps_per_epoch: As for Keras.
          **kwargs: As for Keras.

        Returns:
          Keras' `History`.

        Raises:
          UserError: If a row or a label does not fit the task; it names the
            row.
        """
        check_arguments(
            x, batch_size, epochs, steps_per_epoch, validation_split
        )
        if validation_data is not None:
            validation_split = 0.0  # Keras ignores it.
        if self.preprocessor is not None:
            options = (batch_size, self._has_one_hot_loss())
            x, y, sample_weight = self.preprocessor.training_data(
                x, y, sample_weight, *options
            )
            if validation_data is not None:
                validation_data = self.preprocessor.validation_data(
                    validation_data, *options
                )
            class_weight, sample_weight = self.preprocessor.class_weight(
                class_weight, y, sample_weight
            )
            if self._has_defaults or not self.compiled:
                self._compile_with_defaults(
                    self.preprocessor.count_steps(
                        x,
                        batch_size,
                        validation_split,
                        steps_per_epoch,
                        epochs,
                        callbacks,
                    )
                )
        with raw_batches.ignore_untrained_pooler():
            return super().fit(
                x=x,
                y=y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                # Keras warns that it does not shuffle these.
                shuffle=shuffle and not isinstance(x, _IN_BATCHES),
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                **kwargs,
            )

    def train_step(self, data):
        """Trains on a batch, with the dropout of the optimizer's step.

        Raises:
          UserError: If TensorFlow is to ignore updates of weights.
        """
        packed_weights.refuse()
        # With accumulation the optimizer does not count each batch.
        if not self.optimizer.gradient_accumulation_steps:
            encoder = getattr(self, "bert", self)
            encoder.set_dropout_step(self.optimizer.iterations)
        return super().train_step(data)

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

        The arguments are those of `fit`.

        Raises:
          UserError: If TensorFlow is to ignore updates of weights.
        """
        packed_weights.refuse()
        check_arguments(x, batch_size)
        if self.preprocessor is not None:
            x, y, sample_weight = self.preprocessor.training_data(
                x, y, sample_weight, batch_size, self._has_one_hot_loss()
            )
            if not self.compiled:
                self._compile_with_defaults(None)
        return super().evaluate(
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=verbose,
            sample_weight=sample_weight,
            **kwargs,
        )

    def predict(
        self, x, batch_size=None, verbose="auto", steps=None, callbacks=None
    ):
        """Predicts raw rows, or any input of `keras.Model.predict`.

        Args:
          x: For models of `bert_tf.load_model` raw rows: a list of texts,
            pairs of texts, or dictionaries with the columns of the task; two
            lists in a tuple, for pairs; or columns of texts: an array, a
            pandas Series or DataFrame. Or the model's inputs as arrays, or a
            data set, generator or `PyDataset`, also of strings.
          batch_size: Rows computed at once, by default 32.
          verbose: Whether to show progress; 0 means no.
          steps: As for Keras; not for raw rows.
          callbacks: As for Keras; not for raw rows.

        Returns:
          For raw rows, the object that run/predict.py writes for each, also
          for a data set of them for question answering, tagging or multiple
          choice; for other inputs and data sets, the model's outputs.

        Raises:
          UserError: If a row does not fit the task, or the model has no task
            or no vocabulary.
        """
        check_arguments(x, batch_size)
        if self.preprocessor is not None:
            x = self.preprocessor.prediction_stream(x)
        is_dataset = isinstance(x, tf.data.Dataset)
        if is_dataset and self.preprocessor is not None:
            is_dataset = self.preprocessor.reads_texts or not is_text(x)
        if is_dataset and self.preprocessor is not None:
            x, _, _ = self.preprocessor.training_data(x, batch_size=batch_size)
        if is_dataset or not (isinstance(x, list) or is_text(x)):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        if self.preprocessor is None or not self.preprocessor.has_task:
            raise UserError(
                "Only a model that bert_tf.load_model returned, with the head "
                "of a task, predicts lists of raw rows. Received: a list for "
                f"{type(self).__name__}; give the model's inputs as a "
                "dictionary of arrays."
            )
        if steps is not None or callbacks is not None:
            raise UserError(
                "Raw rows are predicted without steps= and callbacks=."
            )
        return self.preprocessor.predict(
            self, x, batch_size, verbose not in (0, "0")
        )

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Computes the loss of the head's outputs, in graph."""
        if not self.head_outputs:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        if self._has_task_loss:
            if self.preprocessor is None:
                raise UserError(
                    "Expected a loss: compile(optimizer, loss, ...). Only "
                    "models of bert_tf.load_model have one of their own."
                )
            loss = self.preprocessor.compute_loss(y_pred, x, y, sample_weight)
            # Keras adds up the losses of the replicas.
            return loss / tf.distribute.get_strategy().num_replicas_in_sync
        y, y_pred, sample_weight, mask = self._align(y, y_pred, sample_weight)
        if mask is not None:
            # Keras divides by the number of all tokens.
            mask_sum = tf.reduce_sum(mask)
            size = tf.cast(tf.size(mask), mask.dtype)
            sample_weight *= tf.math.divide_no_nan(size, mask_sum)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates the metrics of the head's outputs, and returns them all."""
        if self.head_outputs:
            y, y_pred, sample_weight, _ = self._align(y, y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _has_one_hot_loss(self):
        loss = getattr(self, "loss", None)
        return isinstance(loss, keras.losses.CategoricalCrossentropy) or (
            loss == "categorical_crossentropy"
        )

    def _compile_with_defaults(self, num_steps):
        strategy = self._distribute_strategy  # As Keras calls it.
        if strategy is None and tf.distribute.has_strategy():
            raise UserError(
                "Expected a model of this strategy: load it within "
                "strategy.scope(), or call fit outside of it. Received: a "
                "model that was loaded outside."
            )
        with self.distribute_strategy.scope():
            self.compile(**self.preprocessor.compile_arguments(num_steps))
        self._has_defaults = True

    def _choose_outputs(self, loss):
        """Returns the names of the outputs that have the loss."""
        names = self.head_outputs
        is_of_first = isinstance(loss, Mapping) and set(loss) == set(names[:1])
        if self.labels_tokens and (loss is None or is_of_first):
            return names[:1]
        return names

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

        A single output is bare. The mask is <float32>[B, S], 1 for tokens with
        a label, or None if labels are not for tokens.
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
        y = tf.convert_to_tensor(y)  # An array in eager steps on a batch.
        if y.dtype.is_floating:
            return y, y_pred, sample_weight, None
        mask = tf.cast(tf.not_equal(y, NO_LABEL), tf.float32)
        weights = mask
        if sample_weight is not None:
            sample_weight = tf.cast(sample_weight, tf.float32)
            if sample_weight.shape.rank == 1:
                sample_weight = sample_weight[:, tf.newaxis]
            weights = mask * sample_weight
        return tf.maximum(y, 0), y_pred, weights, mask


def _rename_labels(values):
    return {_OUTPUT_OF_LABEL.get(name, name): values[name] for name in values}


def check_arguments(
    x, batch_size, epochs=1, steps_per_epoch=None, validation_split=0.0
):
    """Checks arguments that Keras would misread, or refuse in other words.

    Raises:
      UserError: If a number is not a whole one from 1, or rows of `x` cannot
        be held out.
    """
    counts = {
        "batch_size": batch_size,
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
    }
    for name, value in counts.items():
        if value is None and name != "epochs":
            continue
        is_whole = isinstance(value, numbers.Integral)
        if not is_whole or isinstance(value, bool) or value < 1:
            raise UserError(
                f"Expected {name} to be a whole number, at least 1. Received: "
                f"{name}={value!r}."
            )
    is_number = isinstance(validation_split, numbers.Real)
    if not is_number or not 0 <= validation_split < 1:
        raise UserError(
            "Expected validation_split to be the part of the rows to hold out, "
            f"from 0 to less than 1. Received: {validation_split!r}."
        )
    is_read_once = raw_batches.is_stream(x) or isinstance(x, tf.data.Dataset)
    if validation_split and is_read_once:
        raise UserError(
            "validation_split holds out rows of lists and arrays; give "
            f"validation_data beside data that is read in batches. Received: "
            f"validation_split={validation_split} and a {type(x).__name__}."
        )


def _by_name(*classes):
    """Returns classes by both of Keras' names for each.

    No instance is asked, since that of a metric starts TensorFlow's runtime.
    """
    return {
        name: cls
        for cls in classes
        for name in (
            cls.__name__,
            re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower(),
        )
    }


_LOSSES = _by_name(
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)
_METRICS = _by_name(
    keras.metrics.BinaryCrossentropy,
    keras.metrics.CategoricalCrossentropy,
    keras.metrics.SparseCategoricalCrossentropy,
)


def _replace_loss(loss):
    """Returns losses with those of logits in place of names.

    Args:
      loss: What `compile` takes: a loss, its name or function, None, or a
        dictionary or list of these.
    """
    if isinstance(loss, Mapping):
        return {name: _replace_loss(value) for name, value in loss.items()}
    if isinstance(loss, list | tuple):
        return [_replace_loss(value) for value in loss]
    for name, cls in _LOSSES.items():
        if loss == name or loss is getattr(keras.losses, name, None):
            return cls(from_logits=True)
    if getattr(loss, "from_logits", True) is False:
        logging.warning(
            "The model's outputs are logits, and the loss takes them for "
            "probabilities; give %s(from_logits=True).",
            type(loss).__name__,
        )
    return loss


def _replace_metrics(metrics, loss, is_multi_label=False):
    """Returns a list of metrics, or a dictionary, with those of logits.

    Args:
      metrics: What `compile` takes; None stays.
      loss: The loss, as `_replace_loss` returns it.
      is_multi_label: Whether the loss of the task, for `loss=None`, is for
        several labels an example. Keras' "accuracy" would compare the greatest
        logit alone.
    """
    if isinstance(metrics, Mapping):
        return {
            name: _replace_metrics(value, loss, is_multi_label)
            for name, value in metrics.items()
        }
    if metrics is None:
        return None
    metrics = metrics if isinstance(metrics, list | tuple) else [metrics]
    if isinstance(loss, Mapping) and len(loss) == 1:
        (loss,) = loss.values()
    is_binary = isinstance(loss, keras.losses.BinaryCrossentropy)
    if loss is None:
        is_binary = is_multi_label
    threshold = 0.0 if getattr(loss, "from_logits", True) else 0.5

    def replace(metric):
        if not isinstance(metric, str):
            return metric
        if metric in ("binary_accuracy", "BinaryAccuracy") or (
            is_binary and metric in _ACCURACY
        ):
            name = metric if metric in _ACCURACY else "binary_accuracy"
            return keras.metrics.BinaryAccuracy(name, threshold=threshold)
        if metric in _METRICS:
            return _METRICS[metric](from_logits=True)
        return metric

    return [replace(metric) for metric in metrics]


def _copy_metric(metric):
    """Returns a metric with a state of its own."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric
