"""Reads SavedModels of BERT, as TF Hub and Kaggle have them.

The Model Garden's `export_tfhub_lib` writes an encoder, maybe a masked-LM head,
the vocabulary in `assets/` and the variable `do_lower_case`. A classifier
that consists of a `hub.KerasLayer` with such a SavedModel and a dense layer can
be read, too. Each file provides these values.

  saved_model.pb       objects, functions and assets   -> activation, vocabulary
  keras_metadata.pb    the layers of a Keras model     -> head
  variables/           an object-based checkpoint      -> weights, sizes, case

All files are read as data: no graph is imported and no function is run.
"""

import dataclasses
import json
import os
import re
from typing import Any

import tensorflow as tf
from google.protobuf import empty_pb2
from google.protobuf import message
from google.protobuf import unknown_fields
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import model_garden
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.model_garden import Found
from bert_tf.checkpoints.model_garden import ObjectCheckpoint
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import damaged
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files

_FILE = "saved_model.pb"
_METADATA_FILE = "keras_metadata.pb"
_PREFIX = "variables/variables"
# Operators in encoder layers -> activation. The pooler is outside these layers,
# so the pooler's Tanh is ignored.
_ACTIVATIONS = {
    frozenset({"Erf"}): "gelu_erf",
    frozenset({"Erfc"}): "gelu_erf",
    frozenset({"Pow", "Tanh"}): "gelu",
    frozenset({"Relu"}): "relu",
}
_IN_LAYER = re.compile(r"(^|/)layer_\d+/")
_HEAD = "model/classifier/out_proj"


def recognizes(path: str) -> bool:
    """Returns whether `path` is a directory with a SavedModel."""
    try:
        return tf.io.gfile.exists(os.path.join(path, _FILE))
    except tf.errors.OpError:
        return False


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a SavedModel; see `formats`.

    If `allow_missing` matches the variables of a head, the head is not read.
    """
    graph = _read_graph(os.path.join(path, _FILE))
    prefix = os.path.join(path, _PREFIX)
    stored_files.require(f"{prefix}.index")
    checkpoint = ObjectCheckpoint(prefix)
    hidden_act, notes = _read_activation(graph.graph_def)
    try:
        found = model_garden.find(checkpoint)
        config = _read_config(checkpoint, found, hidden_act)
    except (TypeError, UserError, ValueError) as error:
        raise UserError(
            f"{path} is a SavedModel without one encoder of BERT as TF Hub has "
            "it; other architectures, such as ALBERT or a small ELECTRA, "
            "cannot be read, and instead of an export of this project, name "
            "the model directory that it was made from."
        ) from error
    items = map(checkpoint.children, checkpoint.objects())
    named = (x["do_lower_case"] for x in items if "do_lower_case" in x)
    lower_case = next(filter(checkpoint.key, named), None)
    if lower_case is not None:
        unused = (*found.unused, lower_case)
        found = dataclasses.replace(found, unused=unused)
    taken = {*found.variables.values(), *found.unused}
    others = {
        name: item
        for item in checkpoint.objects()
        if checkpoint.key(item)
        and item not in taken
        and not model_garden.is_training_state(name := checkpoint.name(item))
        and not matching.is_allowed(allow_missing, name)
    }
    task = {}
    if others:
        head, task = _read_head(path, graph, checkpoint, others)
        found = dataclasses.replace(found, variables=found.variables | head)
        notes.append(
            "The Dense layer on the pooled output is the classifier "
            f"({task['problem_type']}); its labels have no names."
        )
        if task["problem_type"] == "regression":
            notes.append(
                "No loss of a classifier is stored; if it is a binary one, the "
                "score's sigmoid is the probability."
            )
    weights, report = model_garden.match(
        checkpoint, found, config, allow_missing
    )
    return StoredModel(
        path=path,
        config=config,
        weights=weights,
        task={"kind": weight_map.kind_of(weights), **task},
        report=report.with_notes(*notes),
    ).with_vocabulary(
        os.path.join(path, "assets"),
        "The SavedModel",
        _vocabulary_file(graph, path),
        None if lower_case is None else bool(checkpoint.read(lower_case)),
    )


def _read_graph(path: str) -> meta_graph_pb2.MetaGraphDef:
    stored_files.require(path)
    try:
        saved = saved_model_pb2.SavedModel.FromString(files.read_small(path))
    except message.DecodeError as error:
        raise damaged(path, error) from error
    graphs = saved.meta_graphs
    if len(graphs) != 1 or not graphs[0].object_graph_def.nodes:
        raise UserError(
            f"{path} must hold one graph and its objects, as TensorFlow 2 "
            f"writes them. Received: {len(graphs)} graphs; take the model's "
            "version for TensorFlow 2."
        )
    return graphs[0]


def _read_activation(graph) -> tuple[str, list[str]]:
    """Returns the activation of the encoder's layers, and notes."""
    known = frozenset().union(*_ACTIVATIONS)
    operators = frozenset(
        node.op
        for function in graph.library.function
        for node in function.node_def
        if node.op in known and _IN_LAYER.search(node.name)
    )
    if operators in _ACTIVATIONS:
        return _ACTIVATIONS[operators], []
    return "gelu", [
        "The SavedModel's functions do not tell the activation; hidden_act "
        '"gelu", the tanh approximation of released BERTs, is assumed.'
    ]


def _read_config(
    checkpoint: ObjectCheckpoint, found: Found, hidden_act: str
) -> BertConfig:
    """Returns the config that the shapes of the variables describe.

    Raises:
      TypeError, ValueError: If the variables do not form a BERT.
    """
    rows = weight_map.rows(BertConfig(1, num_hidden_layers=1))
    names = {row.name: row.model_garden for row in rows}
    shapes = {n: checkpoint.shape(x) for n, x in found.variables.items()}
    pattern = re.compile(r"encoder/_transformer_layers/(\d+)/")
    layers = {x[1] for x in map(pattern.match, shapes) if x}

    def shape(name):
        return shapes.get(names[f"bert/{name}"])

    vocab_size, width = shape("embeddings/word_embeddings")
    positions, _ = shape("embeddings/position_embeddings")
    types, _ = shape("embeddings/token_type_embeddings")
    hidden, heads, _ = shape("encoder/layer_0/attention/self/query/kernel")
    _, inner = shape("encoder/layer_0/intermediate/dense/kernel")
    if width != hidden:
        raise ValueError("The embeddings are factorized.")
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=len(layers),
        num_attention_heads=heads,
        intermediate_size=inner,
        hidden_act=hidden_act,
        max_position_embeddings=positions,
        type_vocab_size=types,
    )


def _vocabulary_file(graph: meta_graph_pb2.MetaGraphDef, path: str) -> str:
    nodes = graph.object_graph_def.nodes
    children = [x for node in nodes for x in node.children]
    name = "vocab.txt"
    try:
        for item in (
            nodes[x.node_id] for x in children if x.local_name == "vocab_file"
        ):
            if item.HasField("asset"):
                index = item.asset.asset_file_def_index
                name = graph.asset_file_def[index].filename
    except IndexError as error:
        raise damaged(path, error) from error
    if not stored_files.is_base_name(name):
        raise damaged(path, f"the asset {name!r} is no file name")
    return name


# === The head of a Keras model ===


def _read_head(
    path: str,
    graph: meta_graph_pb2.MetaGraphDef,
    checkpoint: ObjectCheckpoint,
    others: dict[str, int],
) -> tuple[dict[str, int], dict[str, str]]:
    """Returns the variables of a classifier by name, and its task."""
    metadata = _read_metadata(path, graph)
    if not metadata:
        raise UserError(
            f"{path} has a head, {', '.join(others)}, and no {_METADATA_FILE} "
            "that describes it; copy the whole directory, or convert the "
            "encoder alone with --allow_missing and a pattern for these names."
        )
    try:
        dense = _dense_on_pooled_output(metadata, graph)
        task = {"problem_type": _problem_type(dense, metadata)}
        # A head with variables besides kernel and bias is refused below.
        named = {checkpoint.full_name(x): x for x in others.values()}
        head = {
            f"{_HEAD}/{name}": named.pop(f"{dense['name']}/{name}")
            for name in ("kernel", "bias")
        }
    # These errors mean unexpected metadata: the head is refused below.
    except (AttributeError, LookupError, TypeError, ValueError):
        named = others
    if named:
        raise UserError(
            f"{path} has a head that is not one Dense layer on pooled_output, "
            "without an activation or with softmax or sigmoid, in a functional "
            f"Keras model: {', '.join(others)}; convert the encoder alone with "
            "--allow_missing and a pattern for these names, and train a new "
            "head."
        )
    return head, task


def _read_metadata(
    path: str, graph: meta_graph_pb2.MetaGraphDef
) -> dict[str, Any]:
    """Returns Keras' metadata of the root object; {} if Keras wrote none.

    TensorFlow 2.5 and later write the metadata to a separate file.
    """
    file = os.path.join(path, _METADATA_FILE)
    if not stored_files.exists(file):
        text = graph.object_graph_def.nodes[0].user_object.metadata
        return stored_files.parse_json(text or "{}", path)
    # Read fields by number, as no installed package has the classes of this
    # protocol buffer: in a `SavedObject`, 3 is node_path and 5 is metadata.
    try:
        for node in _fields(files.read_small(file)):
            values = {x.field_number: x.data for x in _fields(node.data)}
            if values.get(3) == b"root":
                return stored_files.parse_json(values.get(5, b"{}"), file)
    except (message.DecodeError, TypeError) as error:
        raise damaged(file, error) from error
    return {}


def _fields(contents: bytes) -> unknown_fields.UnknownFieldSet:
    parsed = empty_pb2.Empty.FromString(contents)
    return unknown_fields.UnknownFieldSet(parsed)


def _dense_on_pooled_output(
    metadata: dict[str, Any], graph: meta_graph_pb2.MetaGraphDef
) -> dict[str, Any]:
    """Returns the output layer's config; raises for other heads.

    Dropout between the pooled output and the output layer is allowed.
    """
    layers = {layer["name"]: layer for layer in metadata["config"]["layers"]}
    ((output, _, _),) = metadata["config"]["output_layers"]
    (tensor,) = graph.signature_def["serving_default"].outputs.values()
    dense = layer = layers[output]
    for _ in layers:
        (((source, *_),),) = layer["inbound_nodes"]
        layer = layers[source]
        if layer["class_name"] != "Dropout":
            break
    classes = [dense["class_name"], layer["class_name"]]
    # An output of rank 2 shows that Dense reads the pooled output, not tokens.
    if classes != ["Dense", "KerasLayer"] or len(tensor.tensor_shape.dim) != 2:
        raise ValueError
    return dense["config"]


def _problem_type(dense: dict[str, Any], metadata: dict[str, Any]) -> str:
    activation = dense["activation"]
    loss = json.dumps(metadata.get("training_config", {}).get("loss"))
    if activation == "linear" and "binary" in loss.lower():
        return "multi_label"
    if activation == "linear":
        return "single_label" if dense["units"] > 1 else "regression"
    return {"sigmoid": "multi_label", "softmax": "single_label"}[activation]
