"""Trainable variables and their learning rates: freezing and layer decay."""

import re
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.training.losses import Objective

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_EMBEDDINGS = "bert/embeddings/"


def layer_number(name: str) -> int | None:
    """Returns the depth of a variable, given its canonical name.

    It is 0 for the embeddings, n + 1 for layer_n, None for pooler and heads.
    """
    match = _LAYER.match(name)
    if match:
        return int(match[1]) + 1
    return 0 if name.startswith(_EMBEDDINGS) else None


def choose(
    variables: Mapping[str, keras.Variable],
    num_frozen_layers: int,
    is_reached: Mapping[str, bool],
) -> dict[str, keras.Variable]:
    """Returns the variables to train, and logs the others.

    Args:
      variables: All variables, by canonical name.
      num_frozen_layers: Encoder layers that keep their weights; from 1 on the
        embeddings keep theirs, too.
      is_reached: Whether the loss depends on a variable. Like the original,
        training skips variables that it does not depend on, such as the pooler
        of a question answering model.
    """
    frozen, trained = [], {}
    for name, variable in variables.items():
        number = layer_number(name)
        if num_frozen_layers and number is not None:
            if number <= num_frozen_layers:
                frozen.append(name)
                continue
        if is_reached[name]:
            trained[name] = variable
    unreached = [name for name, reached in is_reached.items() if not reached]
    for names, why in (
        (frozen, "frozen"),
        (unreached, "not reached by the loss"),
    ):
        if names:
            logging.info(
                "%d variables are not trained, as they are %s: %s%s.",
                len(names),
                why,
                ", ".join(names[:4]),
                ", ..." if len(names) > 4 else "",
            )
    return trained


def find_reached(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    objective: Objective,
    variables: Mapping[str, keras.Variable],
    batch: Mapping[str, np.ndarray],
) -> dict[str, bool]:
    """Returns for each variable whether the loss depends on it.

    Traces the graph of a step without running it.
    """
    reached: dict[str, bool] = {}

    def step(rows: dict[str, tf.Tensor]) -> None:
        rows = objective.add_targets(rows)
        with tf.GradientTape() as tape:
            outputs = model(
                {name: rows[name] for name in objective.inputs}, training=True
            )
            sums = objective.compute_sums(outputs, rows)
            loss = objective.normalize(sums, objective.count(rows))["loss"]
        gradients = tape.gradient(loss, [v.value for v in variables.values()])
        for name, gradient in zip(variables, gradients, strict=True):
            reached[name] = gradient is not None

    rows = {name: tf.constant(value) for name, value in batch.items()}
    tf.function(
        lambda: strategy.run(step, (rows,)), autograph=False
    ).get_concrete_function()
    return reached


def rate_factor(path: str, num_layers: int, layer_decay: float) -> float:
    """Returns the factor of a variable's learning rate (--layer_decay).

    `layer_decay` is the factor from each layer to the one below it. Pooler and
    heads learn at the full rate, the topmost layer at `layer_decay`. `path` is
    the name of the model and a canonical name.
    """
    _, _, name = path.partition("/")
    number = layer_number(name)
    if number is None:
        return 1.0
    return layer_decay ** (num_layers + 1 - number)
