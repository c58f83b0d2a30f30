"""Keras' losses and metrics by name, for models whose outputs are logits.

By name, Keras computes them of probabilities.
"""

import re
from collections.abc import Mapping

import keras
from absl import logging

# Keras' names for the accuracy whose kind it chooses by the labels.
_ACCURACY = ("accuracy", "acc")


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


def replace_loss(loss):
    """Returns losses with those of logits in place of names.

    Args:
      loss: What `compile` takes: a loss, its name or function, None, or a
        dictionary or list of these.
    """
    if isinstance(loss, Mapping):
        return {name: replace_loss(value) for name, value in loss.items()}
    if isinstance(loss, list | tuple):
        return [replace_loss(value) for value in loss]
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


def replace_metrics(metrics, loss, is_multi_label=False):
    """Returns a list of metrics, or a dictionary, with those of logits.

    Args:
      metrics: What `compile` takes; None stays.
      loss: The loss, as `replace_loss` returns it.
      is_multi_label: Whether the loss of the task, for `loss=None`, is for
        several labels an example. Keras' "accuracy" would compare the greatest
        logit alone.
    """
    if isinstance(metrics, Mapping):
        return {
            name: replace_metrics(value, loss, is_multi_label)
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


def copy_metric(metric):
    """Returns a metric with a state of its own."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric
