"""Every weight of BERT, one row each: its name and layout in each format.

A canonical name is a weight's name in the original's TF1 checkpoints, and also
the variable's path without the name of the outermost model. Models,
checkpoints, weight files and converters all use canonical names.
`recurrent_heads` adds the weights of BiLSTMs.
"""

import dataclasses
import re

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

# Kind of model (`kind` in task.json) -> its heads, without the pooler. If a
# model has the heads of several kinds, the first of these kinds is its kind.
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

# Stands for the number of labels in a shape, as configs lack this number.
LABELS = "labels"

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


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


def _join(path, suffix):
    return None if path is None else path + suffix


def _dense(names, rows, columns, layout="dense", bias_layout="same"):
    """Returns rows for a kernel and a bias; a format without them has None."""
    ours, huggingface, keras_hub, model_garden = names
    return [
        Row(
            f"{ours}/kernel",
            (rows, columns),
            layout,
            _join(huggingface, ".weight"),
            _join(keras_hub, "/kernel"),
            _join(model_garden, "/kernel"),
        ),
        Row(
            f"{ours}/bias",
            (columns,),
            bias_layout,
            _join(huggingface, ".bias"),
            _join(keras_hub, "/bias"),
            _join(model_garden, "/bias"),
        ),
    ]


def _layer_norm(ours, huggingface, keras_hub, model_garden):
    width = ("hidden_size",)

    def row(suffix, huggingface_suffix):
        return Row(
            f"{ours}/{suffix}",
            width,
            "same",
            f"{huggingface}.{huggingface_suffix}",
            None if keras_hub is None else f"{keras_hub}/{suffix}",
            f"{model_garden}/{suffix}",
        )

    return [row("beta", "bias"), row("gamma", "weight")]


def _head(ours, labels, huggingface, keras_hub=None, model_garden=None):
    """Returns the rows of `output_weights` and `output_bias`."""
    return [
        Row(
            f"{ours}output_weights",
            (labels, "hidden_size"),
            "output",
            f"{huggingface}.weight",
            _join(keras_hub, "/kernel"),
            _join(model_garden, "/kernel"),
        ),
        Row(
            f"{ours}output_bias",
            (labels,),
            "same",
            f"{huggingface}.bias",
            _join(keras_hub, "/bias"),
            _join(model_garden, "/bias"),
        ),
    ]


_EMBEDDINGS = [
    Row(
        "bert/embeddings/word_embeddings",
        ("vocab_size", "hidden_size"),
        "same",
        "bert.embeddings.word_embeddings.weight",
        "token_embedding/embeddings",
        "encoder/_embedding_layer/embeddings",
    ),
    Row(
        "bert/embeddings/token_type_embeddings",
        ("type_vocab_size", "hidden_size"),
        "same",
        "bert.embeddings.token_type_embeddings.weight",
        "segment_embedding/embeddings",
        "encoder/_type_embedding_layer/embeddings",
    ),
    Row(
        "bert/embeddings/position_embeddings",
        ("max_position_embeddings", "hidden_size"),
        "same",
        "bert.embeddings.position_embeddings.weight",
        "position_embedding/embeddings",
        "encoder/_position_embedding_layer/embeddings",
    ),
    *_layer_norm(
        "bert/embeddings/LayerNorm",
        "bert.embeddings.LayerNorm",
        "embeddings_layer_norm",
        "encoder/_embedding_norm_layer",
    ),
]

# Prefixes of a layer's names: canonical, Hugging Face, KerasHub, Model Garden.
_LAYER = (
    "bert/encoder/layer_{n}/",
    "bert.encoder.layer.{n}.",
    "transformer_layer_{n}/",
    "encoder/_transformer_layers/{n}/",
)


def _in_layer(*names):
    return tuple(
        prefix + name for prefix, name in zip(_LAYER, names, strict=True)
    )


def _attention_input(name):
    return _dense(
        _in_layer(
            f"attention/self/{name}",
            f"attention.self.{name}",
            f"self_attention_layer/{name}",
            f"_attention_layer/_{name}_dense",
        ),
        "hidden_size",
        "hidden_size",
        "per_head_out",
        "per_head_bias",
    )


_ENCODER_LAYER = [
    *_attention_input("query"),
    *_attention_input("key"),
    *_attention_input("value"),
    *_dense(
        _in_layer(
            "attention/output/dense",
            "attention.output.dense",
            "self_attention_layer/attention_output",
            "_attention_layer/_output_dense",
        ),
        "hidden_size",
        "hidden_size",
        "per_head_in",
    ),
    *_layer_norm(
        *_in_layer(
            "attention/output/LayerNorm",
            "attention.output.LayerNorm",
            "self_attention_layer_norm",
            "_attention_layer_norm",
        )
    ),
    *_dense(
        _in_layer(
            "intermediate/dense",
            "intermediate.dense",
            "feedforward_intermediate_dense",
            "_intermediate_dense",
        ),
        "hidden_size",
        "intermediate_size",
    ),
    *_dense(
        _in_layer(
            "output/dense",
            "output.dense",
            "feedforward_output_dense",
            "_output_dense",
        ),
        "intermediate_size",
        "hidden_size",
    ),
    *_layer_norm(
        *_in_layer(
            "output/LayerNorm",
            "output.LayerNorm",
            "feedforward_layer_norm",
            "_output_layer_norm",
        )
    ),
]

_POOLER = _dense(
    (
        "bert/pooler/dense",
        "bert.pooler.dense",
        "pooled_dense",
        "encoder/_pooler_layer",
    ),
    "hidden_size",
    "hidden_size",
)

_NEXT = "model/classification_heads/0/out_proj"
_SPANS = "model/span_labeling/layer_with_weights-0"

# KerasHub's masked-LM head computes something else, so its names are None.
_HEAD_ROWS = [
    *_dense(
        (
            "cls/predictions/transform/dense",
            "cls.predictions.transform.dense",
            None,
            "masked_lm/dense",
        ),
        "hidden_size",
        "hidden_size",
    ),
    *_layer_norm(
        "cls/predictions/transform/LayerNorm",
        "cls.predictions.transform.LayerNorm",
        None,
        "masked_lm/layer_norm",
    ),
    Row(
        "cls/predictions/output_bias",
        ("vocab_size",),
        "same",
        "cls.predictions.bias",
        None,
        # The name is "output_bias/bias"; in a path, its "/" is written ".S".
        "masked_lm/output_bias.Sbias",
    ),
    *_head("cls/seq_relationship/", 2, "cls.seq_relationship", None, _NEXT),
    *_head("", LABELS, "classifier", "logits", "model/classifier/out_proj"),
    *_head("cls/squad/", 2, "qa_outputs", None, _SPANS),
    *_head("cls/tagging/", LABELS, "classifier", None, "model/classifier"),
    *_head("cls/multiple_choice/", 1, "classifier"),
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
    return [*_EMBEDDINGS, *layers, *_POOLER, *_HEAD_ROWS]


def name_in(row: Row, weights_format: str) -> str | None:
    """Returns a row's name in a format; None if the format lacks it."""
    if weights_format in ("bert_tf", "keras", "tf1"):
        return row.name
    if weights_format == "tf_hub":  # The Model Garden wrote the SavedModel.
        return row.model_garden
    return getattr(row, weights_format)


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
    if weights_format in ("bert_tf", "keras", "tf1") or layout == "same":
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
    if weights_format in ("bert_tf", "tf1", "huggingface") or layout in (
        "same",
        "dense",
        "output",
    ):
        # Here `to_format` transposes or does nothing, so it is its own inverse.
        return to_format(value, layout, weights_format, 1)
    if layout == "per_head_out":
        return value.reshape(value.shape[0], -1)
    if layout == "per_head_in":
        return value.reshape(-1, value.shape[-1])
    return value.reshape(-1)


def shape_in(
    row: Row,
    weights_format: str,
    config: BertConfig,
    num_labels: int = 0,
) -> Shape:
    """Returns the shape of a row's weight in a format."""
    ours = np.broadcast_to(np.int8(0), shape_of(row, config, num_labels))
    heads = config.num_attention_heads
    return to_format(ours, row.layout, weights_format, heads).shape


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


def kind_of(names) -> str:
    """Returns the kind of model that has weights with these names."""
    present = {part_of(name) for name in names}
    return next(
        kind for kind, heads in HEADS.items() if present.issuperset(heads)
    )


def encoder_shapes(config: BertConfig) -> Shapes:
    """Returns name to shape of embeddings, encoder layers and pooler."""
    return _shapes(config, (ENCODER, POOLER))


def pretraining_shapes(config: BertConfig) -> Shapes:
    """Returns name to shape of the encoder and the two pretraining heads."""
    return _shapes(config, (ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE))


def _shapes(config: BertConfig, parts: tuple[str, ...]) -> Shapes:
    return {
        row.name: shape_of(row, config)
        for row in rows(config)
        if part_of(row.name) in parts
    }
