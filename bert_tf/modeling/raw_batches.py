"""Keras' calls of a model for one batch, which may be raw rows."""

import contextlib
import types
import warnings
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.errors import UserError

_POOLER_WARNING = (
    r"Gradients do not exist for variables \['[^']*/pooler/dense/kernel', "
    r"'[^']*/pooler/dense/bias'(, '[^']*/seq_relationship/[^']*')*\]"
)
_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule


def is_text(x):
    """Returns True if there is a text in `x`: rows, columns or tensors."""
    if isinstance(x, tf.data.Dataset):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        specs = [s for s in tf.nest.flatten(x) if hasattr(s, "dtype")]
        return any(spec.dtype == tf.string for spec in specs)
    for leaf in tf.nest.flatten(x):
        dtype = getattr(leaf, "dtype", None)
        kind = getattr(dtype, "kind", None)
        if kind is None and hasattr(leaf, "to_numpy"):  # Of polars.
            kind = leaf.to_numpy().dtype.kind
        is_string = dtype == tf.string or kind in ("U", "S", "O")
        if isinstance(leaf, str | bytes) or is_string:
            return True
    return hasattr(x, "columns")  # A DataFrame.


def is_stream(x):
    """Returns True for a Python generator or a `PyDataset` of batches."""
    return isinstance(x, keras.utils.PyDataset | types.GeneratorType)


@contextlib.contextmanager
def ignore_untrained_pooler():
    """Silences Keras' warning that the pooler has no gradients.

    Heads that read tokens do not train the pooler, and masks not the
    next-sentence head.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _POOLER_WARNING)
        yield


class BatchMethods:
    """The part of `KerasMethods` that takes one batch at a time."""

    def __call__(self, *args, **kwargs):
        """Computes the outputs for the model's inputs, or for raw rows.

        Raw rows become the inputs that `preprocessor` returns for them; rows
        of a task that reads long texts in windows have several rows of outputs.

        Raises:
          UserError: If a row does not fit the task, or the model has no
            vocabulary.
        """
        if args and not _is_features(args[0]) and is_text(args[0]):
            args = (self._read_rows(args[0]), *args[1:])
        return super().__call__(*args, **kwargs)

    def _read_rows(self, rows):
        """Returns the model's inputs for raw rows, <int32> tensors."""
        if self.preprocessor is None:
            raise UserError(
                "Only a model that bert_tf.load_model returned reads raw rows. "
                f"Received: texts for a {type(self).__name__} that its "
                "constructor made; give it a dictionary of input_ids, "
                "input_mask and segment_ids."
            )
        if any(_is_symbolic(leaf) for leaf in tf.nest.flatten(rows)):
            raise UserError(
                "Expected the model's inputs within a tf.function or a "
                "functional model: call model.preprocessor(texts) before. "
                "Received: symbolic texts."
            )
        return tf.nest.map_structure(
            tf.convert_to_tensor, self.preprocessor(rows)
        )

    def train_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        return_dict=False,
    ):
        """Trains on a batch of raw rows, or any of `keras.Model`.

        The arguments are those of `fit`. A model that was not compiled gets the
        defaults of `fit`, with a constant learning rate.
        """
        if self.preprocessor is not None:
            x, y, sample_weight = self._read_batch(x, y, sample_weight)
            class_weight, sample_weight = self.preprocessor.class_weight(
                class_weight, y, sample_weight
            )
            if self._has_defaults and isinstance(
                self.optimizer._learning_rate, _SCHEDULE
            ):
                # The schedule of `fit` has ended at 0.
                self._compile_with_defaults(None)
        with ignore_untrained_pooler():
            return super().train_on_batch(
                x, y, sample_weight, class_weight, return_dict
            )

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Scores a batch of raw rows, or any of `keras.Model`."""
        if self.preprocessor is not None:
            x, y, sample_weight = self._read_batch(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        """Predicts raw rows as `predict`, or any batch of `keras.Model`."""
        if not _is_features(x) and is_text(x):
            return self.predict(x, verbose=0)
        return super().predict_on_batch(x)

    def _read_batch(self, x, y, sample_weight):
        data = self.preprocessor.training_data(
            x, y, sample_weight, is_one_hot=self._has_one_hot_loss()
        )
        if not self.compiled:
            self._compile_with_defaults(None)
        return data


def _is_features(x):
    return isinstance(x, Mapping) and "input_ids" in x


def _is_symbolic(x):
    return keras.utils.is_keras_tensor(x) or (
        isinstance(x, tf.Tensor) and not hasattr(x, "numpy")
    )
