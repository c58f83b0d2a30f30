"""Reads and writes checkpoints of the TensorFlow Model Garden.

These are TensorFlow 2's object-based checkpoints. The model, a class of
`official.nlp.modeling`, is a `BertEncoderV2` or the older functional
`BertEncoder`, alone or in a `BertPretrainerV2`, `BertClassifier`,
`BertSpanLabeler` or `BertTokenClassifier`. `bert_config.json` and `vocab.txt`
are in the same directory, as in the Model Garden's releases.

An object-based checkpoint stores a graph of objects. An object has children
with local names, mostly the attributes of a Python object; some objects are
variables. A variable's value is stored under one of the paths to the variable.
An encoder may be the checkpoint's `encoder`, its `model`, or deep inside
another model, but its variables always get the names in `Row.model_garden`.

As in the original, "gelu" as `hidden_act` means the tanh approximation.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Shape
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import damaged
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.checkpoints.tf1.checkpoint import OBJECT_GRAPH_KEY
from bert_tf.checkpoints.tf1.checkpoint import READ_ERRORS
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files

_HEADS = (
    weight_map.MASKED_LM,
    weight_map.NEXT_SENTENCE,
    weight_map.CLASSIFIER,
    weight_map.SQUAD,
    weight_map.TAGGER,
)
# Keys to ignore: `backward_compatible` affects only shapes of variables, and
# `_read_config` itself checks `embedding_size`.
_IGNORED_KEYS = ("backward_compatible", "embedding_size")
# `hidden_act` here -> code for the same activation in the Model Garden, where
# the string "gelu" is the exact form, as in tf_keras.
_ACTIVATIONS = {
    "gelu": 'tf_utils.get_activation("gelu")',
    "gelu_erf": '"gelu"',
}
# The epsilon of layer normalization in BertEncoderV2 (bert_encoder.py).
_LAYER_NORM_EPS = 1e-12

_VALUE = "VARIABLE_VALUE"
_VALUE_SUFFIX = f"/.ATTRIBUTES/{_VALUE}"
_ESCAPED = re.compile(r"\.([.S])")

# Names of the children of a BertEncoderV2, and of a BertEncoder since 2021.
_EMBEDDINGS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)
_LAYERS = "_transformer_layers"
_POOLER = "_pooler_layer"
# Names of layers in an older BertEncoder are this prefix and a number.
_NUMBERED = "layer_with_weights-"
# Names in checkpoints of 2020 -> names in later checkpoints.
_OLD_NAMES = {
    "_attention_output_dense": "_attention_layer/_output_dense",
    "_position_embeddings": "embeddings",
}

_NEXT_SENTENCE = "model/classification_heads/0"
# The next-sentence head's pooler has this name among the `checkpoint_items` of
# a `BertPretrainerV2`. Paths in a checkpoint double every period.
_HEAD_POOLER = "next_sentence.pooler_dense"
_HEAD_POOLER_PATH = "next_sentence..pooler_dense"
# Head -> (alias -> path). The Model Garden reaches an object by several paths.
# The object is stored under one path; the other paths are aliases.
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

# Names of objects for training; variables below such objects are not weights.
_TRAINING_STATE = frozenset(
    {
        ".OPTIMIZER_SLOT",
        "global_step",
        "keras_api",
        "optimizer",
        "save_counter",
    }
)


def recognizes(path: str) -> bool:
    """Returns whether `path` holds a Model Garden checkpoint."""
    try:
        # Read only the index: `read_model` will report damaged data.
        reader = tf.train.load_checkpoint(tf1_checkpoint.find_prefix(path))
        names = reader.get_variable_to_shape_map()
    except (UserError, *READ_ERRORS):
        return False
    kernel = f"/_query_dense/kernel{_VALUE_SUFFIX}"
    return any(name.endswith(kernel) for name in names)


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads the checkpoint of a prefix or a directory; see `formats`."""
    prefix = tf1_checkpoint.find_prefix(path)
    checkpoint = ObjectCheckpoint(prefix)
    found = find(checkpoint)
    config = _read_config(prefix)
    weights, report = match(checkpoint, found, config, allow_missing)
    notes = []
    if config.hidden_act == "gelu":
        notes.append(
            'hidden_act "gelu" of the Model Garden is the tanh approximation '
            "of GELU, as it is here."
        )
    if weight_map.MASKED_LM not in report.absent_heads:
        notes.append(
            "The checkpoint does not contain the masked-LM head's activation; "
            "the encoder's is assumed."
        )
    parts = {part for name in report.expected for part in name.split("/")}
    if not parts.isdisjoint({"optimizer", ".OPTIMIZER_SLOT"}):
        notes.append("The state of the Model Garden's optimizer is ignored.")
    return StoredModel(
        path=path,
        config=config,
        weights=weights,
        task={"kind": weight_map.kind_of(weights)},
        report=report.with_notes(*notes, *found.notes),
    ).with_vocabulary(os.path.dirname(prefix), "A Model Garden checkpoint")


def _read_config(prefix: str) -> BertConfig:
    path = tf1_checkpoint.config_beside(prefix)
    values = files.read_json_object(path)
    width = values.get("embedding_size")
    if width not in (None, values.get("hidden_size")):
        raise UserError(
            f"{path}: `embedding_size` must be `hidden_size` or null, as BERT "
            f"has no factorized embeddings. Received: embedding_size={width!r}."
        )
    kept = {key: values[key] for key in values if key not in _IGNORED_KEYS}
    config = BertConfig.from_dict(kept, path)
    _check_config(config, path)
    return config


def match(
    checkpoint: "ObjectCheckpoint",
    found: "Found",
    config: BertConfig,
    allow_missing: re.Pattern | None,
) -> tuple[Tensors, matching.Report]:
    """Matches `found.variables` with the weights of a BERT.

    Raises `UserError` for other variables, unless `allow_missing` permits them.
    Training state and `found.unused` are only reported, as expected.
    """
    rows = weight_map.rows(config)
    names = {row.model_garden for row in rows} - {None}
    variables = {n: x for n, x in found.variables.items() if n in names}
    used = {*variables.values(), *found.unused}
    for variable in checkpoint.objects():
        if checkpoint.key(variable) and variable not in used:
            name = checkpoint.name(variable)
            # Names may repeat: add the object's number to make them unique.
            taken = name in variables
            label = f"{name} (object {variable})" if taken else name
            variables[label] = variable
    shapes = {name: checkpoint.shape(x) for name, x in variables.items()}
    weights, report = matching.match(
        config,
        Tensors(
            {n: shape for n, shape in shapes.items() if shape is not None},
            lambda name: checkpoint.read(variables[name]),
        ),
        "model_garden",
        checkpoint.prefix,
        _HEADS,
        allow_missing=allow_missing,
        expected_unused=is_training_state,
    )
    unused = tuple(checkpoint.name(variable) for variable in found.unused)
    return weights, dataclasses.replace(
        report, expected=(*unused, *report.expected)
    )


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt`."""
    _check_config(stored.config, stored.path)
    tensors = matching.translate(stored.weights, stored.config, "model_garden")
    tensors, aliases, full_names = complete(tensors)
    prefix = tf1_checkpoint.write_texts(directory, stored)
    write_checkpoint(prefix, tensors, aliases, full_names)
    return list(_sentences(stored))


def _check_config(config: BertConfig, source: str) -> None:
    if config.layer_norm_eps != _LAYER_NORM_EPS or config.left_to_right:
        raise UserError(
            "A BertEncoderV2 of the Model Garden has layer_norm_eps="
            f"{_LAYER_NORM_EPS} and left_to_right=False. Received: "
            f"layer_norm_eps={config.layer_norm_eps} and left_to_right="
            f"{config.left_to_right} in {source}; it cannot be this model."
        )


def _sentences(stored: StoredModel) -> Iterator[str]:
    config = stored.config
    parts = weight_map.parts_of(stored.weights)
    activation = _ACTIVATIONS.get(config.hidden_act, f'"{config.hidden_act}"')
    if config.hidden_act == "gelu_erf":
        yield (
            'hidden_act "gelu_erf" has no name in the Model Garden; build its '
            f"encoder with inner_activation={activation}, which is the exact "
            "(erf) GELU there."
        )
    if weight_map.MASKED_LM in parts:
        yield (
            f"Build BertPretrainerV2 with mlm_activation={activation}, as it "
            "has no activation by default."
        )
    if weight_map.POOLER not in parts:
        yield (
            "There is no pooler, so the pooler of the Model Garden's encoder "
            "keeps its initial values: load with expect_partial()."
        )
    yield from stored_model.not_carried(
        "A Model Garden directory",
        stored,
        ("kind", "head"),
        (weight_map.ENCODER, weight_map.POOLER, *_HEADS),
    )
    settings = stored.tokenizer_settings
    derived = stored_model.derive_lower_case(stored.vocabulary)
    if settings["lower_case"] != derived:
        yield (
            "A Model Garden directory does not say whether the model reads "
            "lower case, and the vocabulary suggests another answer: build "
            f"its tokenizer with lower_case={settings['lower_case']}."
        )


# === Object-based checkpoints ===


class ObjectCheckpoint:
    """A checkpoint open for reading; objects are numbers, and 0 is the root.

    Raises:
      UserError: If the checkpoint is damaged or name-based.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._tensors = tf1_checkpoint.open_tensors(prefix, object_based=True)
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(self._tensors[OBJECT_GRAPH_KEY].tobytes())
        self._nodes = graph.nodes

    def objects(self) -> range:
        """Returns all objects; objects near the root come first."""
        return range(len(self._nodes))

    def children(self, parent: int) -> dict[str, int]:
        """Returns the children of an object by local name."""
        return {x.local_name: x.node_id for x in self._nodes[parent].children}

    def variables(self, start: int) -> Iterator[tuple[str, int]]:
        """Yields path and object of each variable at and below an object.

        Slashes separate the escaped names in a path. A variable with several
        paths is yielded once for each path.
        """
        yield from self._walk((start,), ())

    def _walk(self, objects, names):
        if self.key(objects[-1]):
            yield "/".join(names), objects[-1]
        for name, child in self.children(objects[-1]).items():
            # Objects may refer to their ancestors, so do not walk in circles.
            if child not in objects:
                yield from self._walk(
                    (*objects, child),
                    (*names, name.replace(".", "..").replace("/", ".S")),
                )

    def key(self, variable: int) -> str | None:
        """Returns the key of an object's value; None if it has no value."""
        for attribute in self._nodes[variable].attributes:
            if attribute.name == _VALUE:
                return attribute.checkpoint_key
        return None

    def name(self, variable: int) -> str:
        """Returns a variable's key without the suffix that all keys have."""
        return self.key(variable).removesuffix(_VALUE_SUFFIX)

    def full_name(self, variable: int) -> str:
        """Returns the name that the variable had when it was saved."""
        names = [x.full_name for x in self._nodes[variable].attributes]
        return names[0] if names else ""

    def shape(self, variable: int) -> Shape | None:
        """Returns a variable's shape, None if it has no value."""
        return self._tensors.shapes.get(self.key(variable))

    def read(self, variable: int) -> np.ndarray:
        """Returns a variable's value; raises `UserError` if it is damaged."""
        key = self.key(variable)
        if key not in self._tensors:
            raise damaged(f"The checkpoint {self.prefix}", f"it lacks {key}")
        return self._tensors[key]


def _unescape(name: str) -> str:
    return _ESCAPED.sub(lambda x: "/" if x[1] == "S" else ".", name)


def write_checkpoint(
    prefix: str,
    tensors: Tensors,
    aliases: Mapping[str, str],
    full_names: Mapping[str, str],
) -> None:
    """Writes a checkpoint in which plain modules hold the variables.

    Args:
      prefix: The path of the checkpoint, without suffixes such as ".index".
      tensors: Path -> value; all values are in memory at once.
      aliases: Additional path of an object -> the object's path in `tensors`.
      full_names: Path -> the variable's own name, if it differs from the path.
    """
    root = tf.train.Checkpoint()
    # Use the CPU, or else the variables would take an accelerator's memory.
    with tf.device("CPU:0"):
        for path, value in tensors.items():
            variable = tf.Variable(value, name=full_names.get(path, path))
            _attach(root, path, variable)
        for path, target in aliases.items():
            _attach(root, path, _follow(root, target.split("/")))
        root.write(prefix)


def _attach(
    root: tf.train.Checkpoint, path: str, item: tf.Module | tf.Variable
) -> None:
    *folders, name = path.split("/")
    setattr(_follow(root, folders), _unescape(name), item)


def _follow(
    item: tf.train.Checkpoint | tf.Module, names: list[str]
) -> tf.train.Checkpoint | tf.Module | tf.Variable:
    """Returns the object at a path; creates missing objects on the way."""
    for name in map(_unescape, names):
        if name not in vars(item):
            setattr(item, name, tf.Module())
        item = getattr(item, name)
    return item


@dataclasses.dataclass(frozen=True)
class Found:
    """The variables of a BERT in a checkpoint.

    Attributes:
      variables: Name in the weight map -> variable. Other variables of the
        encoder and the heads are included; the weight map lacks their names.
      unused: The variables of the encoder's pooler, if a head has its own.
      notes: Notes for the user, one sentence each.
    """

    variables: Mapping[str, int]
    unused: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def find(checkpoint: ObjectCheckpoint) -> Found:
    """Finds the encoder and its heads; there must be exactly one encoder."""
    encoder = _find_encoder(checkpoint)
    heads = {
        f"{prefix}/{path}": variable
        for prefix, item in _head_objects(checkpoint)
        for path, variable in checkpoint.variables(item)
    }
    pooler = next(_head_poolers(checkpoint), None)
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
    """Returns an encoder's layers by path; {} for other objects."""
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
    """Returns the variables below an object by path; renames old paths."""
    variables = {}
    for path, variable in checkpoint.variables(item):
        first, *others = path.split("/")
        variables["/".join((_OLD_NAMES.get(first, first), *others))] = variable
    return variables


def _head_objects(checkpoint: ObjectCheckpoint) -> Iterator[tuple[str, int]]:
    """Yields each head, as (the prefix of its variables' names, the object)."""
    for parent in checkpoint.objects():
        children = checkpoint.children(parent)
        for name, child in children.items():
            if name == "masked_lm":
                yield name, child
            elif name in ("classifier", "span_labeling"):
                yield f"model/{name}", child
            elif name == "classification":
                # In an old BertPretrainer, layer 0 of the head has the weights.
                layer = checkpoint.children(child).get(f"{_NUMBERED}0")
                if layer is not None:
                    yield f"{_NEXT_SENTENCE}/out_proj", layer
            elif name == "classification_heads":
                for head in checkpoint.children(child).values():
                    if _is_next_sentence(checkpoint, head):
                        yield _NEXT_SENTENCE, head


def _is_next_sentence(checkpoint: ObjectCheckpoint, head: int) -> bool:
    return any(
        "next_sentence" in checkpoint.full_name(variable).split("/")
        for _, variable in checkpoint.variables(head)
    )


def _head_poolers(checkpoint: ObjectCheckpoint) -> Iterator[int]:
    """Yields the poolers that belong to heads, the one in use first."""
    for prefix, head in _head_objects(checkpoint):
        dense = checkpoint.children(head).get("dense")
        if prefix.startswith("model/") and dense is not None:
            yield dense
    items = [
        (name != _HEAD_POOLER, child)
        for parent in checkpoint.objects()
        for name, child in checkpoint.children(parent).items()
        if name.endswith(".pooler_dense")
    ]
    yield from (child for _, child in sorted(items))


def is_training_state(name: str) -> bool:
    """Returns whether a key belongs to a step, a counter or an optimizer."""
    return not _TRAINING_STATE.isdisjoint(name.split("/"))


def complete(
    tensors: Tensors,
) -> tuple[Tensors, dict[str, str], dict[str, str]]:
    """Adds the copies and aliases of weights that Model Garden models need.

    Args:
      tensors: Name in `Row.model_garden` -> value.

    Returns:
      The tensors, with a copy of the pooler for a next-sentence head; and the
      `aliases` and `full_names` for `write_checkpoint`.
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
    copies = {
        f"{_HEAD_POOLER_PATH}/{name}": f"encoder/{_POOLER}/{name}"
        for name in ("kernel", "bias")
    }
    names = {name: name for name in tensors} | copies
    return tensors.rename(names), aliases, full_names
