"""Weights, slots and step of a model in training, as named tensors."""

import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError


def snapshot(model_variables, optimizer) -> dict[str, tf.Tensor]:
    """Returns the tensors of a checkpoint: weights, slots and step, as of now.

    They stay as they are when training goes on, and on a CPU nothing is
    copied: an update gives a variable whose value somebody holds new memory.

    Args:
      model_variables: What `named_variables` returns.
      optimizer: A built `BertOptimizer`.
    """
    variables = dict(model_variables)
    variables |= _slot_variables(model_variables, optimizer)
    # Off the accelerator, which has better uses for its memory.
    with tf.device("CPU:0"):
        tensors = {name: tf.identity(v.value) for name, v in variables.items()}
        step = tf.cast(tf.identity(optimizer.iterations.value), tf.int64)
    return tensors | {weight_map.GLOBAL_STEP: step}


def read(model_variables, optimizer) -> dict[str, np.ndarray]:
    """Returns the same as copies.

    Args:
      model_variables: What `named_variables` returns.
      optimizer: A built `BertOptimizer`.
    """
    tensors = snapshot(model_variables, optimizer)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def assign(
    model_variables,
    optimizer,
    tensors: Mapping[str, np.ndarray],
    source: str,
) -> None:
    """Sets weights, slots and step to those of a checkpoint, and all of them.

    Args:
      model_variables: What `named_variables` returns.
      optimizer: A built `BertOptimizer`.
      tensors: What `read` returned.
      source: What to call the checkpoint in an error.

    Raises:
      UserError: If a tensor is missing, unknown or of another shape; then
        nothing is changed.
    """
    variables = dict(model_variables)
    variables |= _slot_variables(model_variables, optimizer)
    expected = {name: tuple(v.shape) for name, v in variables.items()}
    expected[weight_map.GLOBAL_STEP] = ()
    received = {name: np.shape(value) for name, value in tensors.items()}
    _check_same(
        expected,
        received,
        source,
        "continue with the options it was made with, or give another "
        "--output_dir",
    )
    for name, variable in variables.items():
        variable.assign(tensors[name])
    optimizer.iterations.assign(int(tensors[weight_map.GLOBAL_STEP]))


def assign_optimizer(
    model_variables,
    optimizer,
    state: Mapping[str, np.ndarray],
    source: str,
) -> None:
    """Sets slots and step to those of whatever trained the model before.

    Slots of weights that are not trained here are left, and named in the log.

    Args:
      model_variables: What `named_variables` returns.
      optimizer: A built `BertOptimizer`.
      state: `StoredModel.optimizer_state`.
      source: What to call the checkpoint in an error.

    Raises:
      UserError: If there is none, or it is not that of the trained weights;
        then nothing is changed.
    """
    slots = _slot_variables(model_variables, optimizer)
    expected = {name: tuple(v.shape) for name, v in slots.items()}
    expected[weight_map.GLOBAL_STEP] = ()
    received = dict(Tensors.from_arrays(state).shapes)
    if set(received) <= {weight_map.GLOBAL_STEP}:
        raise UserError(
            f"{source} holds no optimizer state: Adam's moments "
            "(<weight>/adam_m, <weight>/adam_v) and global_step; drop "
            "--init_optimizer_state to begin with new moments at step 0."
        )
    left = {
        name: received.pop(name)
        for name in sorted(received.keys() - expected.keys())
        if _is_of_untrained(name, model_variables)
    }
    _check_same(
        expected,
        received,
        f"The optimizer state of {source}",
        "drop --init_optimizer_state, or train what it was made with",
    )
    if left:
        logging.info(
            "%s: moments of weights not trained here: %s.",
            source,
            ", ".join(left),
        )
    for name, variable in slots.items():
        variable.assign(state[name])
    optimizer.iterations.assign(int(state[weight_map.GLOBAL_STEP]))


def _is_of_untrained(name: str, model_variables) -> bool:
    """Whether a slot is that of a weight or head that is not trained."""
    weight = re.sub("/adam_[mv]$", "", name)
    if weight in model_variables:
        return True
    built = {weight_map.part_of(other) for other in model_variables}
    return weight_map.head_of(weight) not in {None, *built}


def _check_same(
    expected: Mapping[str, tuple[int, ...]],
    received: Mapping[str, tuple[int, ...]],
    source: str,
    remedy: str,
) -> None:
    """Compares names and shapes."""
    if expected == received:
        return
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
    raise UserError(
        f"{source} does not fit this run: {len(differing)} tensors differ: "
        f"{', '.join(shown)}; {remedy}."
    )


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
