"""Every weight of BERT, one row each: its name and layout in each format.

A canonical name is a weight's name in the original's TF1 checkpoints, and also
the variable's path without the name of the outermost model. Models,
checkpoints, weight files and converters all use canonical names.
`recurrent_heads` adds the weights of BiLSTMs.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_tf.config import BertConfig

# Suffixes of Adam's moments (optimization.py:107-118 of the original).
SLOT_SUFFIXES = ("/adam_m", "/adam_v")
GLOBAL_STEP = "global_step"

# The part that every checkpoint must have.
ENCODER = "bert"
POOLER = "bert/pooler"
MASKED_LM = "cls/predictions"
NEXT_SENTENCE = "cls/seq_relationship"
# Fine-tuned classifiers have their head in the root scope
# (run_classifier.py:600-605 of the original).
CLASSIFIER = "output"
SQUAD = "cls/squad"
# Names of this project, as the original has no such heads.
TAGGER = "cls/tagging"
MULTIPLE_CHOICE = "cls/multiple_choice"

_ROOT_HEAD = re.compile(r"output_(weights|bias)$|bilstm_\d+/")

# Maps a kind of model (`kind` in task.json) to its heads, without the pooler.
# `kind_of` returns the first kind whose heads are all in the model.
HEADS = {
    "classification": (CLASSIFIER,),
    "question_answering": (SQUAD,),
    "tagging": (TAGGER,),
    "multiple_choice": (MULTIPLE_CHOICE,),
    "pretraining": (MASKED_LM, NEXT_SENTENCE),
    "masked_lm": (MASKED_LM,),
    "next_sentence": (NEXT_SENTENCE,),
    "encoder": (),
    "embeddings": (),
}

# The kinds with a head that only fine-tuning trains.
FINE_TUNED = (
    "classification",
    "multiple_choice",
    "question_answering",
    "tagging",
)
# Kind of model -> the class of transformers with the same heads.
ARCHITECTURES = {
    "embeddings": "BertModel",
    "encoder": "BertModel",  # After "embeddings": readers keep the last kind.
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "classification": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "question_answering": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
}

# Formats that have the canonical names and layouts.
OURS = ("bert_tf", "tf1")
# Stands for the number of labels in a shape, as configs lack this number.
LABELS = "labels"

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One weight; `{n}` in a name is the number of the encoder layer.

    Attributes:
      name: The canonical name, also the name in TF1 checkpoints.
      shape: The canonical shape: names of `BertConfig`'s fields, numbers, or
        `LABELS`.
      layout: How formats rearrange the weight's numbers:
        same: no difference;
        dense: a kernel [in, out], which Hugging Face keeps as [out, in];
        per_head_out, per_head_bias, per_head_in: a kernel [in, out] or bias
          [out] of attention. KerasHub and Model Garden split one axis into
          [heads, size], so a query kernel [768, 768] becomes [768, 12, 64];
        output: [labels, in], which KerasHub and Model Garden keep as [in,
          labels].
      huggingface: The name in transformers' class with this head, or None.
      keras_hub: The path of KerasHub's variable, or None.
      model_garden: The path of the variable's object in `tf.train.Checkpoint(
        model=model, **model.checkpoint_items)`, or None.
    """

    name: str
    shape: tuple[str | int, ...]
    layout: str
    huggingface: str | None = None
    keras_hub: str | None = None
    model_garden: str | None = None

    @property
    def part(self) -> str:
        return part_of(self.name)


# Each kind of object lists its weights: the suffix of a weight's name here, in
# Hugging Face, and in KerasHub and the Model Garden; its shape; its layout.
_LAYER_NORM = (
    ("/beta", ".bias", "/beta", ("hidden_size",), "same"),
    ("/gamma", ".weight", "/gamma", ("hidden_size",), "same"),
)


def _table(rows):
    shape = (rows, "hidden_size")
    return (("", ".weight", "/embeddings", shape, "same"),)


def _dense(rows, columns, layout="dense", bias_layout="same"):
    return (
        ("/kernel", ".weight", "/kernel", (rows, columns), layout),
        ("/bias", ".bias", "/bias", (columns,), bias_layout),
    )


def _output(labels):
    shape = (labels, "hidden_size")
    return (
        ("/output_weights", ".weight", "/kernel", shape, "output"),
        ("/output_bias", ".bias", "/bias", (labels,), "same"),
    )


def _object(kind, path, keras_hub, model_garden, huggingface=None):
    """Returns the rows of an object, whose path in each format is given.

    `keras_hub` and `model_garden` are None if the format lacks the object. By
    default, `huggingface` is made from `path`, as in "bert.encoder.layer.0".
    """
    if huggingface is None:
        huggingface = path.replace("/", ".").replace("layer_", "layer.")
    return [
        Row(
            f"{path}{suffix}".removeprefix("/"),
            shape,
            layout,
            huggingface + in_huggingface,
            keras_hub and keras_hub + elsewhere,
            model_garden and model_garden + elsewhere,
        )
        for suffix, in_huggingface, elsewhere, shape, layout in kind
    ]


_EMBEDDINGS = [
    *_object(
        _table("vocab_size"),
        "bert/embeddings/word_embeddings",
        "token_embedding",
        "encoder/_embedding_layer",
    ),
    *_object(
        _table("type_vocab_size"),
        "bert/embeddings/token_type_embeddings",
        "segment_embedding",
        "encoder/_type_embedding_layer",
    ),
    *_object(
        _table("max_position_embeddings"),
        "bert/embeddings/position_embeddings",
        "position_embedding",
        "encoder/_position_embedding_layer",
    ),
    *_object(
        _LAYER_NORM,
        "bert/embeddings/LayerNorm",
        "embeddings_layer_norm",
        "encoder/_embedding_norm_layer",
    ),
]

_SQUARE = _dense("hidden_size", "hidden_size")
_PROJECTION = _dense(
    "hidden_size", "hidden_size", "per_head_out", "per_head_bias"
)
# Each object of an encoder layer has its kind, and its path below the layer's
# path here, in KerasHub and in the Model Garden.
_LAYER_OBJECTS = (
    *(
        (
            _PROJECTION,
            f"attention/self/{name}",
            f"self_attention_layer/{name}",
            f"_attention_layer/_{name}_dense",
        )
        for name in ("query", "key", "value")
    ),
    (
        _dense("hidden_size", "hidden_size", "per_head_in"),
        "attention/output/dense",
        "self_attention_layer/attention_output",
        "_attention_layer/_output_dense",
    ),
    (
        _LAYER_NORM,
        "attention/output/LayerNorm",
        "self_attention_layer_norm",
        "_attention_layer_norm",
    ),
    (
        _dense("hidden_size", "intermediate_size"),
        "intermediate/dense",
        "feedforward_intermediate_dense",
        "_intermediate_dense",
    ),
    (
        _dense("intermediate_size", "hidden_size"),
        "output/dense",
        "feedforward_output_dense",
        "_output_dense",
    ),
    (
        _LAYER_NORM,
        "output/LayerNorm",
        "feedforward_layer_norm",
        "_output_layer_norm",
    ),
)
_ENCODER_LAYER = [
    row
    for kind, path, keras_hub, model_garden in _LAYER_OBJECTS
    for row in _object(
        kind,
        f"bert/encoder/layer_{{n}}/{path}",
        f"transformer_layer_{{n}}/{keras_hub}",
        f"encoder/_transformer_layers/{{n}}/{model_garden}",
    )
]

_NEXT = "model/classification_heads/0/out_proj"
_CLASSIFIER = "model/classifier/out_proj"
_SPANS = "model/span_labeling/layer_with_weights-0"
_TRANSFORM = "cls/predictions/transform"

# KerasHub's masked-LM head computes something else, so it has no names here.
_HEAD_ROWS = [
    *_object(
        _SQUARE, "bert/pooler/dense", "pooled_dense", "encoder/_pooler_layer"
    ),
    *_object(_SQUARE, f"{_TRANSFORM}/dense", None, "masked_lm/dense"),
    *_object(
        _LAYER_NORM, f"{_TRANSFORM}/LayerNorm", None, "masked_lm/layer_norm"
    ),
    Row(
        "cls/predictions/output_bias",
        ("vocab_size",),
        "same",
        "cls.predictions.bias",
        None,
        # TensorFlow writes "/" in names as ".S": this is "output_bias/bias".
        "masked_lm/output_bias.Sbias",
    ),
    *_object(_output(2), NEXT_SENTENCE, None, _NEXT),
    *_object(_output(LABELS), "", "logits", _CLASSIFIER, "classifier"),
    *_object(_output(2), SQUAD, None, _SPANS, "qa_outputs"),
    *_object(_output(LABELS), TAGGER, None, "model/classifier", "classifier"),
    *_object(_output(1), MULTIPLE_CHOICE, None, None, "classifier"),
]


def rows(config: BertConfig) -> list[Row]:
    """Returns all rows, with the rows of an encoder layer once per layer."""

    def numbered(row, n):
        names = {
            field: getattr(row, field).replace("{n}", str(n))
            for field in ("name", "huggingface", "keras_hub", "model_garden")
        }
        return dataclasses.replace(row, **names)

    layers = [
        numbered(row, n)
        for n in range(config.num_hidden_layers)
        for row in _ENCODER_LAYER
    ]
    return [*_EMBEDDINGS, *layers, *_HEAD_ROWS]


def name_in(row: Row, weights_format: str) -> str | None:
    """Returns a row's name in a format; None if the format lacks it."""
    return row.name if weights_format in OURS else getattr(row, weights_format)


def shape_of(row: Row, config: BertConfig, num_labels: int = 0) -> Shape:
    """Returns the canonical shape of a row's weight for this config."""

    def size(symbol):
        if isinstance(symbol, int):
            return symbol
        return num_labels if symbol == LABELS else getattr(config, symbol)

    return tuple(size(symbol) for symbol in row.shape)


def to_format(
    value: np.ndarray, layout: str, weights_format: str, num_heads: int
) -> np.ndarray:
    """Rearranges a canonical weight for a format; may return a view."""
    if weights_format in OURS or layout == "same":
        return value
    if weights_format == "huggingface":
        kernels = ("dense", "per_head_out", "per_head_in")
        return value.T if layout in kernels else value
    if layout == "per_head_out":
        return value.reshape(value.shape[0], num_heads, -1)
    if layout == "per_head_bias":
        return value.reshape(num_heads, -1)
    if layout == "per_head_in":
        return value.reshape(num_heads, -1, value.shape[1])
    return value.T if layout == "output" else value


def from_format(
    value: np.ndarray, layout: str, weights_format: str
) -> np.ndarray:
    """Rearranges a weight from a format's layout to the canonical one."""
    is_own_inverse = layout in ("same", "dense", "output")
    if is_own_inverse or weights_format in (*OURS, "huggingface"):
        # Here `to_format` transposes or does nothing, so it is its own inverse.
        return to_format(value, layout, weights_format, 1)
    if layout == "per_head_out":
        return value.reshape(value.shape[0], -1)
    if layout == "per_head_in":
        return value.reshape(-1, value.shape[-1])
    return value.reshape(-1)


def shape_in(
    shape: Shape, layout: str, weights_format: str, num_heads: int
) -> Shape:
    """Returns a format's shape for a weight of this canonical shape."""
    value = np.broadcast_to(np.int8(0), shape)
    return to_format(value, layout, weights_format, num_heads).shape


def is_optimizer_state(name: str) -> bool:
    """Returns whether `name` is a slot or the step rather than a weight."""
    return name == GLOBAL_STEP or name.endswith(SLOT_SUFFIXES)


def head_of(name: str) -> str | None:
    """Returns the head that a checkpoint's weight belongs to.

    "cls/squad/output_bias" belongs to "cls/squad", the classifier's
    "output_bias" to "output", and the pooler's weights to "bert/pooler". The
    result is None for a name that belongs to no head.
    """
    if _ROOT_HEAD.match(name):
        return CLASSIFIER
    parts = name.split("/")
    if parts[0] == "cls" and len(parts) > 2:
        return "/".join(parts[:2])
    return POOLER if name.startswith(f"{POOLER}/") else None


def part_of(name: str) -> str:
    """Returns the part of a weight: its head, or "bert" for the encoder.

    A part of a model is loaded as a whole, or not at all.
    """
    return head_of(name) or name.split("/")[0]


def parts_of(names: Iterable[str]) -> set[str]:
    """Returns the parts that weights with these names belong to."""
    return set(map(part_of, names))


def kind_of(names: Iterable[str]) -> str:
    """Returns the kind of model that has weights with these names."""
    present = parts_of(names)
    return next(kind for kind, heads in HEADS.items() if present >= {*heads})


def kind_of_class(names: Any) -> str | None:
    """Returns the kind of the first known class of transformers, or None."""
    kinds = {name: kind for kind, name in ARCHITECTURES.items()}
    names = names if isinstance(names, list) else [names]
    return next((kinds[x] for x in map(str, names) if x in kinds), None)


def shapes(config: BertConfig, kind: str) -> dict[str, Shape]:
    """Returns name -> shape for the encoder, pooler and heads of a kind."""
    parts = (ENCODER, POOLER, *HEADS[kind])
    return {
        row.name: shape_of(row, config)
        for row in rows(config)
        if row.part in parts
    }
