"""The metric "accuracy" of models with several labels an example."""

from collections.abc import Mapping
from typing import Any

import keras

# What Keras calls the accuracy of labels that it finds out itself.
_ACCURACY = ("accuracy", "acc")


def copy(metric: Any) -> Any:
    """Returns a metric with a state of its own."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric


def replace(metrics: Any, loss: Any, preprocessor: Any) -> Any:
    """Returns metrics with "accuracy" for several labels an example.

    Keras would compare the greatest logit.
    """
    if isinstance(metrics, Mapping):
        return {
            name: replace(value, loss, preprocessor)
            for name, value in metrics.items()
        }
    if metrics is None:
        return None
    metrics = metrics if isinstance(metrics, list | tuple) else [metrics]
    if isinstance(loss, Mapping) and len(loss) == 1:
        (loss,) = loss.values()
    is_binary = isinstance(loss, keras.losses.BinaryCrossentropy)
    if loss is None and preprocessor is not None:
        is_binary = preprocessor.is_multi_label
    if not is_binary:
        return list(metrics)
    from_logits = loss is None or loss.from_logits
    return [
        keras.metrics.BinaryAccuracy(
            name, threshold=0.0 if from_logits else 0.5
        )
        if isinstance(name, str) and name in _ACCURACY
        else name
        for name in metrics
    ]
