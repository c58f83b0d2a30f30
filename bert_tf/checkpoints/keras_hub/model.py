"""Writes KerasHub presets and builds `keras_hub.models.BertBackbone`.

KerasHub's encoder is the original's with the tanh form of GELU and an epsilon
of 1e-12 in layer normalization; it has a pooler and a single dropout rate. The
classifier is its only head that matches: its masked-LM head computes something
else.

Shapes:
  B: sentences, ten.
  S: sequence length.
  H: hidden size.
"""

import gc
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf import errors
from bert_tf.checkpoints import matching
from bert_tf.checkpoints import model_weights
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.keras_hub.preset import TOKENIZER_NOTE
from bert_tf.checkpoints.keras_hub.preset import read_model
from bert_tf.checkpoints.keras_hub.preset import recognizes
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from bert_tf.text import packing

__all__ = ["build_backbone", "read_model", "recognizes", "write_model"]

_TANH_GELU = "gelu"
_EXACT_GELU = "gelu_erf"
_LAYER_NORM_EPS = 1e-12
_INITIALIZER_RANGE = 0.02
# The classifier's dropout, as in the original (run_classifier.py:611).
_CLASSIFIER_DROPOUT = 0.1

_NOT_CARRIED = {
    weight_map.MASKED_LM: "The masked-LM head is not carried: KerasHub's own "
    "computes something else (the exact GELU, and an epsilon of 1e-5 in layer "
    "normalization).",
    weight_map.NEXT_SENTENCE: "The next-sentence head is not carried: KerasHub "
    "has none.",
    weight_map.SQUAD: "The question answering head is not carried: KerasHub "
    "has none.",
    weight_map.TAGGER: "The tagging head is not carried: KerasHub has none.",
    weight_map.MULTIPLE_CHOICE: "The multiple-choice head is not carried: "
    "KerasHub has none.",
}

SENTENCES = (
    "The ferry leaves at seven, and nobody waits for those who are late.",
    "She had read the letter twice before she understood what it asked of her.",
    "Is there a bakery near the station that opens before six?",
    "Copper conducts heat better than iron, but it costs a good deal more.",
    "He scored twice in the first half and was carried off in the second.",
    "The committee will publish its report on the flood by the end of March.",
    "Rain.",
    "Fold in the flour, then let the dough rest for an hour in the cold.",
    "In 1969 three men flew to the moon, and two of them walked on it.",
    "My grandmother kept bees, two goats and a very bad-tempered goose.",
)
_MAX_SEQ_LENGTH = 32
_OUTPUTS = ("sequence_output", "pooled_output")

_Inputs = Mapping[str, np.ndarray]
_Outputs = tuple[np.ndarray, np.ndarray]


def build_backbone(stored: StoredModel, allow_activation_change: bool = False):
    """Builds KerasHub's encoder with the weights of a stored model.

    Args:
      stored: A model of any kind that has a pooler; its heads are ignored.
      allow_activation_change: Whether a model with the exact GELU may get the
        tanh form.

    Returns:
      A `keras_hub.models.BertBackbone`.

    Raises:
      UserError: If KerasHub has no such model.
    """
    errors.require("interop")
    _check_model(stored, allow_activation_change)
    weights, _ = matching.translate(stored.weights, stored.config, "keras_hub")
    return _build_backbone(stored.config, weights)


def write_model(
    directory: str, stored: StoredModel, allow_activation_change: bool = False
) -> list[str]:
    """Writes a preset for `from_preset`; see `formats`.

    Args:
      directory: An empty directory.
      stored: The model.
      allow_activation_change: Whether a model with the exact GELU may be
        written, with the tanh form.
    """
    errors.require("interop")
    _check_model(stored, allow_activation_change)
    sentences = _describe(stored)
    if stored.vocabulary is not None:
        sentences += _check_vocabulary(stored)
    weights, _ = matching.translate(stored.weights, stored.config, "keras_hub")
    if stored.config.hidden_act == _EXACT_GELU:
        inputs = build_inputs(stored)
        exact = _compute_our_outputs(stored, inputs)
        # Frees our model first, as Keras models are in reference cycles.
        gc.collect()
        backbone = _build_backbone(stored.config, weights)
        changed = _compute_outputs(backbone, inputs)
        sentences.append(describe_difference(exact, changed, inputs))
    else:
        backbone = _build_backbone(stored.config, weights)
    preprocessor = None
    if stored.vocabulary is not None:
        preprocessor = _build_preprocessor(stored)
    if weight_map.CLASSIFIER in _heads(stored):
        classifier = _build_classifier(backbone, preprocessor, weights)
        classifier.save_to_preset(directory)
    else:
        backbone.save_to_preset(directory)
        # Without a preprocessor in the preset, tasks pack 512 tokens, which may
        # be more than there are positions.
        if preprocessor is not None:
            preprocessor.save_to_preset(directory)
    return sentences


def _check_model(stored: StoredModel, allow_activation_change: bool) -> None:
    """Raises `UserError` for a model that KerasHub's BERT cannot be."""
    config = stored.config
    if config.hidden_act == _EXACT_GELU and not allow_activation_change:
        raise UserError(
            f"{stored.path} has the exact GELU (hidden_act "
            f"{_EXACT_GELU!r}), and KerasHub's BERT only has its tanh form; "
            "convert with --allow_activation_change to get the tanh form and "
            "see how much that changes the outputs."
        )
    expected = {"layer_norm_eps": _LAYER_NORM_EPS, "left_to_right": False}
    if config.hidden_act != _EXACT_GELU:
        expected["hidden_act"] = _TANH_GELU
    for field, value in expected.items():
        if getattr(config, field) != value:
            raise UserError(
                f"KerasHub's BERT has {field}={value!r} and no other. "
                f"Received: {field}={getattr(config, field)!r} in "
                f"{stored.path}; convert it to another format."
            )
    if weight_map.POOLER not in _heads(stored):
        raise UserError(
            f"KerasHub's BERT has a pooler, and {stored.path} (kind "
            f"{stored.task['kind']}) has none; convert a model with a pooler, "
            "or to another format."
        )


def _heads(stored: StoredModel) -> list[str]:
    """Returns the heads of a model, the pooler included."""
    heads = dict.fromkeys(map(weight_map.head_of, stored.weights))
    return [head for head in heads if head]


def _check_vocabulary(stored: StoredModel) -> list[str]:
    """Checks that KerasHub can read the vocabulary file.

    Source: WordPieceTokenizer.set_vocabulary of KerasHub 0.32, which strips
    white space of any kind from the end of a line.
    """
    vocabulary = stored.vocabulary
    vocabulary.check_size(stored.config.vocab_size)
    text = io.StringIO(vocabulary.to_text(), newline=None)
    lines = [line.rstrip() for line in text]
    if len(set(lines)) != len(vocabulary):
        raise UserError(
            "KerasHub strips white space from the ends of a vocabulary's "
            f"lines, after which {vocabulary.source} would hold a wordpiece "
            "twice, so it could not read it; convert the model to another "
            "format."
        )
    changed = [
        repr(token)
        for token, line in zip(vocabulary.tokens, lines, strict=True)
        if token != line
    ]
    sentences = [TOKENIZER_NOTE]
    if changed:
        sentences.append(
            "KerasHub reads these wordpieces, which match no text, without the "
            f"white space at their end: {', '.join(changed)}."
        )
    return sentences


def _describe(stored: StoredModel) -> list[str]:
    """Returns sentences on what a preset does not keep."""
    config, task = stored.config, stored.task
    sentences = [
        _NOT_CARRIED[head] for head in _heads(stored) if head in _NOT_CARRIED
    ]
    if config.hidden_act == _TANH_GELU:
        sentences.append(
            'hidden_act "gelu" is the tanh form of GELU, as KerasHub has it.'
        )
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        sentences.append(
            "KerasHub has one dropout: hidden_dropout_prob, "
            f"{config.hidden_dropout_prob:g}, also replaces "
            "attention_probs_dropout_prob, "
            f"{config.attention_probs_dropout_prob:g}."
        )
    if config.initializer_range != _INITIALIZER_RANGE:
        sentences.append(
            f"initializer_range, {config.initializer_range:g}, is not kept."
        )
    if task.get("labels"):
        sentences.append(
            "KerasHub keeps no label names; classes are numbered in this "
            f"order: {', '.join(task['labels'])}."
        )
    sentences += stored_model.lost_settings(
        "KerasHub's format", task, ("kind", "labels", "max_seq_length", "head")
    )
    if stored.optimizer_state:
        sentences.append("The optimizer's state is not carried.")
    if stored.vocabulary is None:
        sentences.append("There is no vocabulary, so there is no tokenizer.")
    return sentences


def _build_backbone(config: BertConfig, weights: Tensors):
    import keras_hub

    def make():
        return keras_hub.models.BertBackbone(
            vocabulary_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            hidden_dim=config.hidden_size,
            intermediate_dim=config.intermediate_size,
            dropout=config.hidden_dropout_prob,
            max_sequence_length=config.max_position_embeddings,
            num_segments=config.type_vocab_size,
            dtype="float32",
            name="bert_backbone",
        )

    return model_weights.build(
        make, lambda model: {x.path: x for x in model.weights}, weights
    )


def _compute_outputs(backbone, inputs: _Inputs) -> _Outputs:
    outputs = backbone(
        {
            "token_ids": inputs["input_ids"],
            "segment_ids": inputs["segment_ids"],
            "padding_mask": inputs["input_mask"],
        },
        training=False,
    )
    return outputs["sequence_output"].numpy(), outputs["pooled_output"].numpy()


def _build_tokenizer(stored: StoredModel):
    import keras_hub

    settings = stored.tokenizer_settings
    return keras_hub.models.BertTokenizer(
        vocabulary=list(stored.vocabulary.tokens),
        lowercase=settings["lower_case"],
        strip_accents=settings["strip_accents"],
        special_tokens_in_strings=settings["preserve_special_tokens"],
        name="bert_tokenizer",
    )


def _build_preprocessor(stored: StoredModel):
    import keras_hub

    return keras_hub.models.BertTextClassifierPreprocessor(
        _build_tokenizer(stored),
        sequence_length=stored.task.get(
            "max_seq_length", stored.config.max_position_embeddings
        ),
        name="bert_text_classifier_preprocessor",
    )


def _build_classifier(backbone: Any, preprocessor: Any, weights: Tensors):
    import keras_hub

    classifier = keras_hub.models.BertTextClassifier(
        backbone,
        num_classes=weights.shapes["logits/bias"][0],
        preprocessor=preprocessor,
        dropout=_CLASSIFIER_DROPOUT,
        name="bert_text_classifier",
    )
    for variable in classifier.output_dense.weights:
        variable.assign(weights[variable.path])
    return classifier


def build_inputs(stored: StoredModel) -> _Inputs:
    """Returns the model's inputs for the ten sentences, <int32>[B, S] each.

    A model without a vocabulary gets ids spread over its table.
    """
    length = min(_MAX_SEQ_LENGTH, stored.config.max_position_embeddings)
    if stored.vocabulary is not None:
        tokens = stored.build_tokenizer().tokenize(SENTENCES)
        packed = packing.pack(tokens, None, length, stored.vocabulary)
        return {name: x.numpy() for name, x in packed.items()}
    rows, columns = np.indices((len(SENTENCES), length))
    # Multiples of a prime that does not divide the vocabulary size reach all
    # ids.
    ids = (rows * length + columns) * 7919 % stored.config.vocab_size
    mask = columns < length - rows * length // (2 * len(SENTENCES))
    return {
        "input_ids": (ids * mask).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": np.zeros_like(ids, np.int32),
    }


def _compute_our_outputs(stored: StoredModel, inputs: _Inputs) -> _Outputs:
    """Returns our <float32>[B, S, H] and [B, H] for `inputs`."""
    model = model_weights.build(
        lambda: bert_model.BertModel(stored.config, dtype="float32"),
        bert_model.named_variables,
        stored.weights,
    )
    outputs = model(inputs)
    return tuple(np.asarray(outputs[name]) for name in _OUTPUTS)


def describe_difference(
    exact: _Outputs, approximate: _Outputs, inputs: _Inputs
) -> str:
    """Returns a sentence with the largest difference of the outputs.

    Outputs for padding are ignored.

    Args:
      exact: Our model's outputs, with the exact GELU.
      approximate: KerasHub's outputs, with the tanh form.
      inputs: The inputs of both.
    """
    tokens = inputs["input_mask"].astype(bool)
    sequence = np.abs(exact[0] - approximate[0])[tokens].max()
    pooled = np.abs(exact[1] - approximate[1]).max()
    return (
        "The exact GELU became its tanh form: over ten sentences the outputs "
        f"differ by at most {sequence:.2g} (sequence_output) and {pooled:.2g} "
        "(pooled_output)."
    )
