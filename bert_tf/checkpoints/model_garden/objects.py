"""Finds the encoder and the heads among the objects of a checkpoint.

Variables get the names in the column `model_garden` of the weight map, wherever
they are in a checkpoint: an encoder may be a checkpoint's `encoder`, its
`model`, or deep inside another model.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping

from bert_tf.checkpoints.model_garden.checkpoint import ObjectCheckpoint
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError

# The children of a BertEncoderV2, and of a BertEncoder since 2021.
_EMBEDDINGS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)
_LAYERS = "_transformer_layers"
_POOLER = "_pooler_layer"
# An older BertEncoder numbers its layers.
_NUMBERED = "layer_with_weights-"
# Other names in checkpoints released in 2020.
_OLD_NAMES = {
    "_attention_output_dense": "_attention_layer/_output_dense",
    "_position_embeddings": "embeddings",
}

_NEXT_SENTENCE = "model/classification_heads/0"
# Name of a head's pooler in the `checkpoint_items` of a model; a key doubles
# the period.
_HEAD_POOLER = "next_sentence.pooler_dense"
_HEAD_POOLER_PATH = "next_sentence..pooler_dense"
# Head to the second names of objects in a model with that head.
_SECOND_NAMES = {
    "masked_lm": {
        "masked_lm/embedding_table": "encoder/_embedding_layer/embeddings",
        "masked_lm/bias": "masked_lm/output_bias.Sbias",
        "model/masked_lm": "masked_lm",
        "model/encoder_network": "encoder",
    },
    "model/classification_heads": {"model/encoder_network": "encoder"},
    "model/classifier": {"model/_network": "encoder"},
    "model/span_labeling": {"model/_network": "encoder"},
}

# Objects for training, below which no variable is a weight.
_TRAINING_STATE = frozenset(
    {
        ".OPTIMIZER_SLOT",
        "global_step",
        "keras_api",
        "optimizer",
        "save_counter",
    }
)


@dataclasses.dataclass(frozen=True)
class Found:
    """The variables of a BERT in a checkpoint.

    Attributes:
      variables: The weight map's name to the variable; also further variables
        below the same objects, whose names the weight map does not have.
      unused: Variables of a pooler that the computation does not use.
      notes: Sentences for the user.
    """

    variables: Mapping[str, int]
    unused: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def find(checkpoint: ObjectCheckpoint) -> Found:
    """Finds the encoder and its heads.

    Raises:
      UserError: If there is no BERT encoder, or more than one.
    """
    encoder = _find_encoder(checkpoint)
    heads = dict(_head_variables(checkpoint))
    poolers = _head_poolers(checkpoint)
    pooler = next(iter(poolers), None)
    if pooler is None:
        return Found(heads | encoder)
    own = {n: x for n, x in encoder.items() if n.split("/")[1] == _POOLER}
    pooler_variables = {
        f"encoder/{_POOLER}/{path}": variable
        for path, variable in checkpoint.variables(pooler)
    }
    return Found(
        heads | encoder | pooler_variables,
        tuple(sorted(set(own.values()) - set(pooler_variables.values()))),
        (
            "The pooler is taken from the head, as this model does not use the "
            "encoder's own.",
        ),
    )


def _find_encoder(checkpoint: ObjectCheckpoint) -> dict[str, int]:
    """Returns name to variable of the only encoder there is."""
    encoders = [
        parts
        for item in checkpoint.objects()
        if (parts := _parts_of_encoder(checkpoint, item))
    ]
    if len(encoders) != 1:
        raise UserError(
            f"{checkpoint.prefix} must hold one BertEncoderV2 or BertEncoder "
            f"of the Model Garden. Received: {len(encoders) or 'none'} of "
            "them; name a checkpoint of a BERT."
        )
    return {
        f"encoder/{part}/{path}": variable
        for part, item in encoders[0].items()
        for path, variable in _variables(checkpoint, item).items()
    }


def _parts_of_encoder(
    checkpoint: ObjectCheckpoint, item: int
) -> dict[str, int]:
    """Returns path to object of an encoder's layers; {} for other objects."""
    children = checkpoint.children(item)
    if _LAYERS in children and children.keys() >= set(_EMBEDDINGS):
        layers = checkpoint.children(children[_LAYERS])
        pooler = children.get(_POOLER)
    else:
        numbered = [
            children[f"{_NUMBERED}{n}"]
            for n in range(len(children))
            if f"{_NUMBERED}{n}" in children
        ]
        children = dict(zip(_EMBEDDINGS, numbered, strict=False))
        others = numbered[len(_EMBEDDINGS) :]
        is_layer = [_is_layer(checkpoint, x) for x in others]
        layers = {str(n): x for n, x in enumerate(others[: sum(is_layer)])}
        pooler = next(iter(others[len(layers) :]), None)
    if not layers or not all(_is_layer(checkpoint, x) for x in layers.values()):
        return {}
    parts = {name: children[name] for name in _EMBEDDINGS}
    parts |= {f"{_LAYERS}/{n}": x for n, x in layers.items()}
    return parts if pooler is None else parts | {_POOLER: pooler}


def _is_layer(checkpoint: ObjectCheckpoint, item: int) -> bool:
    attention = checkpoint.children(item).get("_attention_layer")
    return attention is not None and "_query_dense" in checkpoint.children(
        attention
    )


def _variables(checkpoint: ObjectCheckpoint, item: int) -> dict[str, int]:
    """Returns path to variable below an object, with today's names."""
    variables = {}
    for path, variable in checkpoint.variables(item):
        first, *others = path.split("/")
        variables["/".join((_OLD_NAMES.get(first, first), *others))] = variable
    return variables


def _head_variables(
    checkpoint: ObjectCheckpoint,
) -> Iterator[tuple[str, int]]:
    """Yields name and variable of all heads."""
    for prefix, item in _head_objects(checkpoint):
        for path, variable in checkpoint.variables(item):
            yield f"{prefix}/{path}", variable


def _head_objects(
    checkpoint: ObjectCheckpoint,
) -> Iterator[tuple[str, int]]:
    """Yields each head, after the prefix of its variables' names."""
    for parent in checkpoint.objects():
        children = checkpoint.children(parent)
        for name, child in children.items():
            if name == "masked_lm":
                yield name, child
            elif name in ("classifier", "span_labeling"):
                yield f"model/{name}", child
            elif name == "classification":
                # The older BertPretrainer's is a model of one layer.
                layer = checkpoint.children(child).get(f"{_NUMBERED}0")
                if layer is not None:
                    yield f"{_NEXT_SENTENCE}/out_proj", layer
            elif name == "classification_heads":
                for head in checkpoint.children(child).values():
                    if _is_next_sentence(checkpoint, head):
                        yield _NEXT_SENTENCE, head


def _is_next_sentence(checkpoint: ObjectCheckpoint, head: int) -> bool:
    full_names = [
        checkpoint.full_name(variable).split("/")
        for _, variable in checkpoint.variables(head)
    ]
    return any("next_sentence" in names for names in full_names)


def _head_poolers(checkpoint: ObjectCheckpoint) -> list[int]:
    """Returns the poolers that belong to heads; the first one counts."""
    of_heads = [
        children["dense"]
        for prefix, head in _head_objects(checkpoint)
        if prefix.startswith("model/")
        and "dense" in (children := checkpoint.children(head))
    ]
    items = [
        (name != _HEAD_POOLER, child)
        for parent in checkpoint.objects()
        for name, child in checkpoint.children(parent).items()
        if name.endswith(".pooler_dense")
    ]
    return of_heads + [child for _, child in sorted(items)]


def is_optimizer_state(name: str) -> bool:
    """Returns whether a key belongs to an optimizer."""
    return not {"optimizer", ".OPTIMIZER_SLOT"}.isdisjoint(name.split("/"))


def is_training_state(name: str) -> bool:
    """Returns whether a key belongs to a step, a counter or an optimizer."""
    return not _TRAINING_STATE.isdisjoint(name.split("/"))


def complete(
    tensors: Tensors,
) -> tuple[Tensors, dict[str, str], dict[str, str]]:
    """Adds copies and second names of weights, as Model Garden models need.

    Args:
      tensors: The weight map's name to value.

    Returns:
      The tensors and, if there is a next-sentence head, a copy of the pooler
      for it; second path to first path; and path to full name, of variables
      that are identified by it.
    """
    heads = {"/".join(name.split("/")[:2]) for name in tensors}
    aliases = {}
    for head, second_names in _SECOND_NAMES.items():
        if any(name.startswith(head) for name in heads):
            aliases |= second_names
    full_names = {
        name: name.replace(f"{_NEXT_SENTENCE}/out_proj", "next_sentence/logits")
        for name in tensors
        if name.startswith(_NEXT_SENTENCE)
    }
    if not full_names or f"encoder/{_POOLER}" not in heads:
        return tensors, aliases or {"model": "encoder"}, full_names
    aliases[f"{_NEXT_SENTENCE}/dense"] = _HEAD_POOLER_PATH
    originals = {
        f"{_HEAD_POOLER_PATH}/{name}": f"encoder/{_POOLER}/{name}"
        for name in ("kernel", "bias")
    }
    shapes = dict(tensors.shapes)
    shapes |= {copy: shapes[name] for copy, name in originals.items()}
    with_copies = Tensors(
        shapes, lambda name: tensors[originals.get(name, name)]
    )
    return with_copies, aliases, full_names
