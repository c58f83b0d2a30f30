"""Reads and restores the training state: weights, optimizer slots and step."""

import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError


def snapshot(model_variables, optimizer) -> dict[str, tf.Tensor]:
    """Returns the tensors of a checkpoint: current weights, slots and step.

    The tensors do not change when training continues. On a CPU nothing is
    copied, because an update writes to new memory if the old one is in use.
    """
    variables = dict(model_variables)
    variables |= _slot_variables(model_variables, optimizer)
    with tf.device("CPU:0"):  # Copies there save the accelerator's memory.
        tensors = {name: tf.identity(v.value) for name, v in variables.items()}
        step = tf.cast(tf.identity(optimizer.iterations.value), tf.int64)
    return tensors | {weight_map.GLOBAL_STEP: step}


def read(model_variables, optimizer) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint as NumPy copies."""
    tensors = snapshot(model_variables, optimizer)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def assign(
    model_variables,
    optimizer,
    tensors: Mapping[str, np.ndarray],
    source: str,
) -> None:
    """Restores all weights, slots and the step from the result of `read`.

    If a tensor is missing, unknown or of another shape, raises `UserError`,
    which names `source`, before any change.
    """
    variables = dict(model_variables)
    _assign(
        variables | _slot_variables(model_variables, optimizer),
        optimizer,
        Tensors.from_arrays(tensors),
        source,
        "resume with the options it was written with, or give another "
        "--output_dir",
    )


def assign_optimizer(
    model_variables,
    optimizer,
    state: Mapping[str, np.ndarray],
    source: str,
) -> None:
    """Restores slots and step from `StoredModel.optimizer_state` of a model.

    Slots of weights that are not trained here are ignored and logged. If the
    state is empty or does not fit, raises `UserError`, which names `source`,
    before any change.
    """
    slots = _slot_variables(model_variables, optimizer)
    tensors = Tensors.from_arrays(state)
    if set(tensors) <= {weight_map.GLOBAL_STEP}:
        raise UserError(
            f"{source} holds no optimizer state: Adam's moments "
            "(<weight>/adam_m, <weight>/adam_v) and global_step; drop "
            "--init_optimizer_state to start with new moments at step 0."
        )
    ignored = [
        name
        for name in sorted({*tensors} - {*slots, weight_map.GLOBAL_STEP})
        if _is_of_untrained(name, model_variables)
    ]
    _assign(
        slots,
        optimizer,
        tensors.select(lambda name: name not in ignored),
        f"The optimizer state of {source}",
        "drop --init_optimizer_state, or train the weights it was made with",
    )
    if ignored:
        logging.info(
            "%s: moments of weights not trained here: %s.",
            source,
            ", ".join(ignored),
        )


def _is_of_untrained(name: str, model_variables) -> bool:
    """Returns whether a slot belongs to a weight that is not trained here."""
    weight = re.sub("/adam_[mv]$", "", name)
    if weight in model_variables:
        return True
    built = {weight_map.part_of(other) for other in model_variables}
    return weight_map.head_of(weight) not in {None, *built}


def _assign(
    variables, optimizer, tensors: Tensors, source: str, remedy: str
) -> None:
    """Assigns variables and step, if names and shapes are the expected ones."""
    expected = {name: tuple(v.shape) for name, v in variables.items()}
    expected[weight_map.GLOBAL_STEP] = ()
    received = tensors.shapes
    differing = sorted(
        name
        for name in expected.keys() | received.keys()
        if expected.get(name) != received.get(name)
    )
    shown = [
        f"{name} (expected {expected.get(name, 'nothing')}, received "
        f"{received.get(name, 'nothing')})"
        for name in differing[:20]
    ]
    if differing:
        raise UserError(
            f"{source} does not fit this run: {len(differing)} tensors differ: "
            f"{', '.join(shown)}; {remedy}."
        )
    for name, variable in variables.items():
        variable.assign(tensors[name])
    optimizer.iterations.assign(int(tensors[weight_map.GLOBAL_STEP]))


def _slot_variables(model_variables, optimizer):
    """Returns the slots of the trained variables by their TF1 names."""
    trained = {id(variable) for variable in optimizer.trained_variables}
    return {
        name + suffix: slot
        for name, variable in model_variables.items()
        if id(variable) in trained
        for suffix, slot in zip(
            weight_map.SLOT_SUFFIXES, optimizer.slots(variable), strict=True
        )
    }
