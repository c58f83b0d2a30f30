"""BERT as KerasHub has it: `keras_hub.models.BertBackbone` and presets.

KerasHub's encoder is the original's with the tanh form of GELU and 1e-12 in
its layer normalisations; it has a pooler and one dropout rate. Of the heads it
has the classifier alone: its masked-LM head computes something else.
"""

import gc
import io
from typing import Any

from bert_tf.checkpoints import building
from bert_tf.checkpoints import conversion_report
from bert_tf.checkpoints import translation
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.keras_hub import activation_change
from bert_tf.checkpoints.keras_hub.preset import TOKENIZER_NOTE
from bert_tf.checkpoints.keras_hub.preset import read_model
from bert_tf.checkpoints.keras_hub.preset import recognizes
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError

__all__ = ["build_backbone", "read_model", "recognizes", "write_model"]

_TANH_GELU = "gelu"
_EXACT_GELU = "gelu_erf"
_LAYER_NORM_EPS = 1e-12
_INITIALIZER_RANGE = 0.02
# Of a classifier; in the original too (run_classifier.py:611).
_CLASSIFIER_DROPOUT = 0.1

_LEFT = {
    weight_map.MASKED_LM: "The masked-LM head stays behind: KerasHub's own "
    "computes something else (the exact GELU, and 1e-5 in its layer "
    "normalisation).",
    weight_map.NEXT_SENTENCE: "The next-sentence head stays behind: KerasHub "
    "has none.",
    weight_map.SQUAD: "The question answering head stays behind: KerasHub has "
    "none.",
    weight_map.TAGGER: "The tagging head stays behind: KerasHub has none.",
    weight_map.MULTIPLE_CHOICE: "The multiple-choice head stays behind: "
    "KerasHub has none.",
}


def build_backbone(stored: StoredModel, allow_activation_change: bool = False):
    """Builds KerasHub's model with the weights of ours.

    Args:
      stored: A model of any kind that has a pooler; its heads are left.
      allow_activation_change: Whether a model with the exact GELU may get the
        tanh form.

    Returns:
      A `keras_hub.models.BertBackbone`.

    Raises:
      UserError: If KerasHub has no such model.
    """
    _check_config(stored, allow_activation_change)
    _check_pooler(stored)
    return _build_backbone(stored.config, _translate(stored))


def write_model(
    directory: str, stored: StoredModel, allow_activation_change: bool = False
) -> list[str]:
    """Writes a preset for `from_preset`.

    Args:
      directory: An empty directory.
      stored: The model.
      allow_activation_change: Whether a model with the exact GELU may be
        written, with the tanh form.

    Returns:
      Sentences about what was translated or is not carried.

    Raises:
      UserError: If KerasHub has no such model; then nothing is written.
    """
    _check_config(stored, allow_activation_change)
    _check_pooler(stored)
    sentences = _describe(stored)
    if stored.vocabulary is not None:
        sentences += _check_vocabulary(stored)
    weights = _translate(stored)
    if stored.config.hidden_act == _EXACT_GELU:
        inputs = activation_change.build_inputs(stored)
        exact = activation_change.compute_outputs(stored, inputs)
        # Memory is to hold one model, and Keras's are in cycles.
        gc.collect()
        backbone = _build_backbone(stored.config, weights)
        changed = _compute_outputs(backbone, inputs)
        sentences.append(
            activation_change.describe_difference(exact, changed, inputs)
        )
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
        # Tasks that are built on a preset without one pack 512 pieces, which
        # may be more than there are positions.
        if preprocessor is not None:
            preprocessor.save_to_preset(directory)
    return sentences


def _check_config(stored: StoredModel, allow_activation_change: bool) -> None:
    """Raises `UserError` for a config that KerasHub's BERT cannot have."""
    config = stored.config
    if config.hidden_act == _EXACT_GELU and not allow_activation_change:
        raise UserError(
            f"{stored.path} has the exact GELU (hidden_act "
            f"{_EXACT_GELU!r}), and KerasHub's BERT only has its tanh form; "
            "convert with --allow_activation_change to get the tanh form and "
            "see how far that moves the outputs."
        )
    wanted = {"layer_norm_eps": _LAYER_NORM_EPS, "left_to_right": False}
    if config.hidden_act != _EXACT_GELU:
        wanted["hidden_act"] = _TANH_GELU
    for field, value in wanted.items():
        if getattr(config, field) != value:
            raise UserError(
                f"KerasHub's BERT has {field}={value!r} and no other. "
                f"Received: {field}={getattr(config, field)!r} in "
                f"{stored.path}; convert it to another format."
            )


def _heads(stored: StoredModel) -> list[str]:
    """Returns the heads of a model, the pooler included."""
    heads = dict.fromkeys(map(weight_map.head_of, stored.weights))
    return [head for head in heads if head]


def _check_pooler(stored: StoredModel) -> None:
    if weight_map.POOLER not in _heads(stored):
        raise UserError(
            f"KerasHub's BERT has a pooler, and {stored.path} (kind "
            f"{stored.task['kind']}) has none; convert a model with a pooler, "
            "or to another format."
        )


def _check_vocabulary(stored: StoredModel) -> list[str]:
    """Checks that KerasHub reads the vocabulary as it will be written.

    Source: WordPieceTokenizer.set_vocabulary of KerasHub 0.32, which takes
    white space of any kind from the end of a line.
    """
    vocabulary = stored.vocabulary
    vocabulary.check_size(stored.config.vocab_size)
    text = io.StringIO(vocabulary.to_text(), newline=None)
    lines = [line.rstrip() for line in text]
    if len(set(lines)) != len(vocabulary):
        raise UserError(
            "KerasHub takes white space from the ends of a vocabulary's lines, "
            f"after which {vocabulary.source} would hold a piece twice, so it "
            "could not read it; convert the model to another format."
        )
    changed = [
        repr(token)
        for token, line in zip(vocabulary.tokens, lines, strict=True)
        if token != line
    ]
    sentences = [TOKENIZER_NOTE]
    if changed:
        sentences.append(
            "KerasHub reads these pieces, which match no text, without the "
            f"white space at their end: {', '.join(changed)}."
        )
    return sentences


def _describe(stored: StoredModel) -> list[str]:
    """Returns sentences about what a preset does not keep."""
    config, task = stored.config, stored.task
    sentences = [_LEFT[head] for head in _heads(stored) if head in _LEFT]
    if config.hidden_act == _TANH_GELU:
        sentences.append(
            'hidden_act "gelu" is the tanh form of GELU, as KerasHub has it.'
        )
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        sentences.append(
            "KerasHub has one dropout: hidden_dropout_prob, "
            f"{config.hidden_dropout_prob:g}, also takes the place of "
            "attention_probs_dropout_prob, "
            f"{config.attention_probs_dropout_prob:g}."
        )
    if config.initializer_range != _INITIALIZER_RANGE:
        sentences.append(
            f"initializer_range, {config.initializer_range:g}, is not kept."
        )
    if task.get("labels"):
        sentences.append(
            "KerasHub keeps no names of classes: they are numbered in this "
            f"order: {', '.join(task['labels'])}."
        )
    sentences += conversion_report.lost_settings(
        "KerasHub's format", task, ("kind", "labels", "max_seq_length", "head")
    )
    if stored.optimizer_state:
        sentences.append("The optimizer's state stays behind.")
    if stored.vocabulary is None:
        sentences.append("There is no vocabulary, so there is no tokenizer.")
    return sentences


def _translate(stored: StoredModel) -> Tensors:
    """Returns the weights by KerasHub's paths."""
    weights, _ = translation.translate(
        stored.weights, stored.config, "keras_hub"
    )
    return weights


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

    return building.build(
        make, lambda model: {x.path: x for x in model.weights}, weights
    )


def _compute_outputs(
    backbone, inputs: activation_change.Inputs
) -> activation_change.Outputs:
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
    """Returns the tokenizer, and how long a sequence it packs."""
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
