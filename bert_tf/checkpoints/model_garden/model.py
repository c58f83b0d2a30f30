"""Reads and writes checkpoints of the TensorFlow Model Garden.

They are object-based checkpoints of TensorFlow 2 of models from
`official.nlp.modeling`: a `BertEncoderV2` or the older functional
`BertEncoder`, alone or in a `BertPretrainerV2`, `BertClassifier`,
`BertSpanLabeler` or `BertTokenClassifier`. `bert_config.json` and `vocab.txt`
are in the same directory, as in the Model Garden's releases.

`hidden_act` means the same there as here: "gelu" is the tanh approximation.
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator

import tensorflow as tf

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.model_garden import weights as object_weights
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files

_CONFIG_FILE = "bert_config.json"
_VOCAB_FILE = "vocab.txt"
_PREFIX = "bert_model.ckpt"
_HEADS = (
    weight_map.MASKED_LM,
    weight_map.NEXT_SENTENCE,
    weight_map.CLASSIFIER,
    weight_map.SQUAD,
    weight_map.TAGGER,
)
# Keys that the Model Garden's configuration class adds; `embedding_size` is the
# width of factorized embeddings, which BERT does not have.
_IGNORED_KEYS = ("backward_compatible", "embedding_size")
# Activation to the Model Garden's expression for it; the others have the same
# names. The name "gelu" alone means the exact form of tf_keras there.
_ACTIVATIONS = {
    "gelu": 'tf_utils.get_activation("gelu")',
    "gelu_erf": '"gelu"',
}
# bert_encoder.py: BertEncoderV2.__init__.
_LAYER_NORM_EPS = 1e-12


def recognizes(path: str) -> bool:
    """Returns whether `path` holds a Model Garden checkpoint."""
    try:
        prefix = tf1_checkpoint.find_prefix(path)
    except (UserError, OSError, tf.errors.OpError):
        return False
    names = object_weights.variable_names(prefix)
    return any(x.endswith("/_query_dense/kernel") for x in names)


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a model; see `formats`.

    Args:
      path: A directory with one checkpoint, `bert_config.json` and
        `vocab.txt`, or the prefix of the checkpoint in it.
      allow_missing: Names of weights that may be missing or unused.
    """
    prefix = tf1_checkpoint.find_prefix(path)
    checkpoint = object_weights.ObjectCheckpoint(prefix)
    found = object_weights.find(checkpoint)
    directory = os.path.dirname(prefix)
    config, notes = _read_config(prefix)
    weights, report = match(checkpoint, found, config, allow_missing)
    if weight_map.MASKED_LM not in report.absent_heads:
        notes.append(
            "The checkpoint does not contain the masked-LM head's activation; "
            "the encoder's is assumed."
        )
    if any(map(object_weights.is_optimizer_state, report.expected)):
        notes.append("The state of the Model Garden's optimizer is ignored.")
    vocabulary, settings, vocabulary_notes = stored_model.read_vocabulary(
        directory, config.vocab_size, "A Model Garden checkpoint"
    )
    return StoredModel(
        path=path,
        config=config,
        weights=weights,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task={"kind": weight_map.kind_of(weights)},
        report=report.with_notes(*notes, *vocabulary_notes, *found.notes),
        lower_case_is_derived=vocabulary is not None,
    )


def _read_config(prefix: str) -> tuple[BertConfig, list[str]]:
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
    notes = []
    if config.hidden_act == "gelu":
        notes.append(
            'hidden_act "gelu" of the Model Garden is the tanh approximation '
            "of GELU, as it is here."
        )
    return config, notes


def match(
    checkpoint: object_weights.ObjectCheckpoint,
    found: object_weights.Found,
    config: BertConfig,
    allow_missing: re.Pattern | None,
) -> tuple[Tensors, matching.Report]:
    """Matches the variables found, and reports all others as unused."""
    rows = weight_map.rows(config)
    names = {row.model_garden for row in rows} - {None}
    variables = {n: x for n, x in found.variables.items() if n in names}
    used = {*variables.values(), *found.unused}
    for variable in checkpoint.objects():
        if checkpoint.key(variable) and variable not in used:
            name = checkpoint.name(variable)
            # A weight found elsewhere may have the same name.
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
        expected_unused=object_weights.is_training_state,
    )
    unused = tuple(checkpoint.name(variable) for variable in found.unused)
    return weights, dataclasses.replace(
        report, expected=(*unused, *report.expected)
    )


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt`."""
    config = stored.config
    _check_config(config, stored.path)
    if stored.vocabulary is None:
        raise UserError(
            f"The model in {stored.path} has no vocabulary, which a Model "
            f"Garden directory holds as {_VOCAB_FILE}."
        )
    tensors, left = matching.translate(stored.weights, config, "model_garden")
    tensors, aliases, full_names = object_weights.complete(tensors)
    files.write_text(os.path.join(directory, _CONFIG_FILE), config.to_json())
    stored.vocabulary.write(os.path.join(directory, _VOCAB_FILE))
    object_weights.write(
        os.path.join(directory, _PREFIX), tensors, aliases, full_names
    )
    return list(_sentences(stored, left))


def _check_config(config: BertConfig, source: str) -> None:
    """Checks that the Model Garden supports a config."""
    if config.layer_norm_eps != _LAYER_NORM_EPS or config.left_to_right:
        raise UserError(
            "A BertEncoderV2 of the Model Garden has layer_norm_eps="
            f"{_LAYER_NORM_EPS} and left_to_right=False. Received: "
            f"layer_norm_eps={config.layer_norm_eps} and left_to_right="
            f"{config.left_to_right} in {source}; it cannot be this model."
        )


def _sentences(stored: StoredModel, left: Iterable[str]) -> Iterator[str]:
    config = stored.config
    parts = {weight_map.part_of(name) for name in stored.weights}
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
        parts - set(map(weight_map.part_of, left)),
    )
    settings = stored.tokenizer_settings
    derived = stored_model.derive_lower_case(stored.vocabulary)
    if settings and settings["lower_case"] != derived:
        yield (
            "A Model Garden directory does not say whether the model reads "
            "lower case, and the vocabulary suggests another answer: build "
            f"its tokenizer with lower_case={settings['lower_case']}."
        )
