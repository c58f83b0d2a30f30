"""The initial student of distillation: an existing model or a new one.

New ones have the shapes of the paper's size family: L layers of width H with A
heads (Turc et al., 2019, https://arxiv.org/abs/1908.08962).
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.finetuning import pretrained_model as pretrained_models
from bert_tf.flags.distill import DistillConfig

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_NOT_OF_WIDTH = "bert/encoder/"
# Tokenizer settings that must agree for ids to mean the same tokens.
_SAME_TEXT = {
    "vocabulary_hash": "a vocabulary of the hash",
    "lower_case": "lower case",
}
# Layers can share weights if these are equal.
_LAYER_SHAPE = ("hidden_size", "num_attention_heads", "intermediate_size")


def read(config: DistillConfig, teacher: StoredModel) -> StoredModel:
    """Returns the student that training starts from."""
    if config.has_student:
        student = pretrained_models.read(config)
        _check_text(student, teacher)
        choose_layers(
            config,
            student.config.num_hidden_layers,
            teacher.config.num_hidden_layers,
        )
    else:
        student = pretrained_models.adapt(_make(config, teacher), config)
    if config.attention_weight:
        _check_attention(student.config, teacher.config)
    return student


def choose_layers(
    config: DistillConfig, num_layers: int, num_teacher_layers: int
) -> tuple[int, ...]:
    """Returns the teacher's layer for each student layer, counted from 1.

    By default g(m) = m x N / M, rounded up: every second, third, ... layer
    (Jiao et al., 2020, section 4.1), ending with the teacher's last layer.
    """
    chosen = config.layers_of_flag()
    if chosen is None:
        return tuple(
            -(-number * num_teacher_layers // num_layers)
            for number in range(1, num_layers + 1)
        )
    if len(chosen) != num_layers or max(chosen) > num_teacher_layers:
        raise UserError(
            f"--teacher_layers must name {num_layers} layers, one for each of "
            f"the student's, from 1 to {num_teacher_layers}, the teacher's "
            f"last. Received: {config.teacher_layers}."
        )
    return chosen


def _make(config: DistillConfig, teacher: StoredModel) -> StoredModel:
    """Returns a new student with the teacher's tokenizer."""
    theirs = teacher.config
    mine = dataclasses.replace(
        theirs,
        **config.shape(
            theirs.hidden_size,
            theirs.num_attention_heads,
            theirs.intermediate_size,
        ),
    )
    layers = choose_layers(
        config, mine.num_hidden_layers, theirs.num_hidden_layers
    )
    student = StoredModel(
        path=f"the new student of {teacher.path}",
        config=mine,
        weights=pretrained_models.draw_weights(mine, config.seed),
        vocabulary=teacher.vocabulary,
        tokenizer_settings=teacher.tokenizer_settings,
        task={"kind": "encoder"},
    )
    is_as_wide = mine.hidden_size == theirs.hidden_size
    if not (is_as_wide and config.initialize_from_teacher):
        logging.info(
            "The student of %s starts with random weights%s.",
            _describe(mine),
            ""
            if is_as_wide
            else f": the teacher's width of {theirs.hidden_size} does not fit",
        )
        return student
    return _copy_teacher(student, teacher, layers)


def _copy_teacher(
    student: StoredModel, teacher: StoredModel, layers: Sequence[int]
) -> StoredModel:
    """Returns a student with the weights of a teacher of the same width."""
    sources = {
        name: name
        for name in teacher.weights
        if not name.startswith(_NOT_OF_WIDTH)
    }
    has_layers = all(
        getattr(student.config, name) == getattr(teacher.config, name)
        for name in _LAYER_SHAPE
    )
    if has_layers:
        for name in student.weights:
            match = _LAYER.match(name)
            if match:
                number = layers[int(match[1])] - 1
                sources[name] = _LAYER.sub(
                    f"bert/encoder/layer_{number}/", name
                )
    drawn = student.weights

    def read_weight(name: str) -> np.ndarray:
        source = sources.get(name)
        return drawn[name] if source is None else teacher.weights[source]

    shapes = dict(drawn.shapes) | {
        name: teacher.weights.shapes[source] for name, source in sources.items()
    }
    logging.info(
        "The student of %s starts with the teacher's %s.",
        _describe(student.config),
        f"layers {', '.join(map(str, layers))}, embeddings, pooler and head"
        if has_layers
        else "embeddings, pooler and head; its layers have another shape and "
        "start with random weights",
    )
    return dataclasses.replace(
        student, weights=Tensors(shapes, read_weight), task=teacher.task
    )


def _check_text(student: StoredModel, teacher: StoredModel) -> None:
    """Raises `UserError` if an id is not the same token in both models.

    Their text normalization may differ (--normalization): the teacher gets the
    student's tokens.
    """
    mine, theirs = student.tokenizer_settings, teacher.tokenizer_settings
    differing = [name for name in _SAME_TEXT if mine[name] != theirs[name]]
    if not differing:
        return
    received = "; ".join(
        f"{_SAME_TEXT[name]} {mine[name]} of the student, {theirs[name]} of "
        "the teacher"
        for name in differing
    )
    raise UserError(
        f"The student {student.path} must have the vocabulary of its teacher "
        f"{teacher.path}, as they get the same tokens. Received: {received}; "
        "choose another student, or a new one with --num_hidden_layers."
    )


def _check_attention(mine: BertConfig, theirs: BertConfig) -> None:
    """Raises `UserError` if the attention of the two cannot be compared."""
    if mine.num_attention_heads != theirs.num_attention_heads:
        raise UserError(
            "--attention_weight compares pairs of heads, so the student must "
            f"have as many as its teacher, {theirs.num_attention_heads}. "
            f"Received: {mine.num_attention_heads}; add "
            f"--num_attention_heads={theirs.num_attention_heads}, or drop "
            "--attention_weight."
        )
    if mine.attention_probs_dropout_prob:
        raise UserError(
            "--attention_weight compares probabilities, which attention "
            "dropout would change; add --attention_probs_dropout_prob=0."
        )


def _describe(config: BertConfig) -> str:
    return (
        f"L={config.num_hidden_layers}, H={config.hidden_size}, "
        f"A={config.num_attention_heads}"
    )
