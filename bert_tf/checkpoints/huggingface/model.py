"""Reads and writes models in Hugging Face's format.

  config.json        shape, class, labels
  model.safetensors  the weights; also read from several files, from
                     pytorch_model.bin if PyTorch is installed, and from
                     tf_model.h5
  vocab.txt, ...     see `huggingface.vocabulary`

Reads the directory of any of transformers' BERT classes, and writes the same
weights as transformers itself.
"""

import os
import re

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.huggingface import config as huggingface_config
from bert_tf.checkpoints.huggingface import tokenizer as huggingface_tokenizer
from bert_tf.checkpoints.huggingface import weights as huggingface_weights
from bert_tf.checkpoints.huggingface.config import CONFIG_FILE
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import write_safetensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files

# Tells transformers that the layout of weights is PyTorch's.
_METADATA = {"format": "pt"}
_PREFIX = "bert."
# Tensors of which each has one meaning in all classes.
_OURS = (_PREFIX, "cls.", "qa_outputs.")

_FINE_TUNED = (
    "classification",
    "multiple_choice",
    "question_answering",
    "tagging",
)

# Three of their classes call their head "classifier".
_CLASSIFIER = "classifier.weight"
_CLASSIFIERS = (
    weight_map.CLASSIFIER,
    weight_map.TAGGER,
    weight_map.MULTIPLE_CHOICE,
)


def recognizes(path: str) -> bool:
    """Returns whether `path` is a Hugging Face directory."""
    names = (os.path.join(path, n) for n in huggingface_weights.WEIGHT_FILES)
    if any(os.path.isfile(name) for name in names):
        return True
    config_file = os.path.join(path, CONFIG_FILE)
    if not os.path.isfile(config_file):
        return False
    try:
        values = files.read_json(config_file)
    except UserError:
        return False
    # A KerasHub preset has a config.json too, without these keys.
    keys = ("model_type", "architectures")
    return isinstance(values, dict) and any(key in values for key in keys)


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a directory; see `formats`."""
    config_file = os.path.join(path, CONFIG_FILE)
    if not os.path.isfile(config_file):
        raise UserError(
            f"{path} holds weights of Hugging Face's format but no "
            f"{CONFIG_FILE}; copy the whole directory."
        )
    values = files.read_json_object(config_file)
    huggingface_config.check_is_bert(values, config_file)
    config, notes = huggingface_config.to_bert_config(values, config_file)
    checkpoint = huggingface_weights.read(path)
    if checkpoint.architecture:
        # Early versions kept the class of the model that they started from.
        values = values | {"architectures": [checkpoint.architecture]}
    named_kind, unknown_class = huggingface_config.kind_of(values, config_file)
    heads = _heads(named_kind, checkpoint, config, config_file, unknown_class)
    others: list[str] = []
    if unknown_class:
        others = [x for x in checkpoint.tensors if not x.startswith(_OURS)]
        unread = f"; not read: {', '.join(others[:8])}" if others else ""
        notes.append(
            f"{config_file} names {unknown_class}, a class of its own, of "
            f"which only BERT's weights are read{unread}."
        )
    weights, report = matching.match(
        config,
        checkpoint.tensors,
        "huggingface",
        checkpoint.path,
        heads,
        allow_missing=allow_missing,
        expected_unused=lambda name: (
            name in others or checkpoint.holds_nothing_new(name)
        ),
    )
    kind = _kind(named_kind, weights, config, checkpoint.path, allow_missing)
    if checkpoint.types != ("F32",):
        notes.append(
            f"{checkpoint.path} holds numbers of type "
            f"{', '.join(checkpoint.types)}, which become float32."
        )
    num_labels = _num_labels(weights, kind)
    task = huggingface_config.to_task(values, kind, num_labels, config_file)
    vocabulary, settings, is_derived, tokenizer_notes = (
        huggingface_tokenizer.read(path, config.vocab_size)
    )
    return StoredModel(
        path=path,
        config=config,
        weights=weights,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task=task,
        report=report.with_notes(*notes, *tokenizer_notes),
        lower_case_is_derived=is_derived,
    )


def _heads(
    kind: str | None,
    checkpoint: huggingface_weights.Checkpoint,
    config: BertConfig,
    config_file: str,
    unknown_class: str,
) -> set[str]:
    """Returns the heads that the class has or the checkpoint holds."""
    if kind is None and not unknown_class and _CLASSIFIER in checkpoint.tensors:
        name = huggingface_config.ARCHITECTURES["classification"]
        raise UserError(
            f"{config_file} lacks `architectures`, without which the task of "
            f"{_CLASSIFIER} is unknown; add it, for instance "
            f'"architectures": ["{name}"].'
        )
    present = {
        weight_map.part_of(row.name)
        for row in weight_map.rows(config)
        if row.huggingface in checkpoint.tensors
    }
    present -= {weight_map.ENCODER, weight_map.POOLER, *_CLASSIFIERS}
    return present.union(weight_map.HEADS[kind] if kind else ())


def _kind(
    named: str | None,
    weights: Tensors,
    config: BertConfig,
    source: str,
    allow_missing: re.Pattern | None,
) -> str:
    """Returns the kind of the model; its class must have all its heads."""
    present = {weight_map.part_of(name) for name in weights}
    absent = huggingface_config.required_parts(named, present) - present
    lacking = [
        row.huggingface
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name) in absent
        and not (
            allow_missing
            and any(map(allow_missing.search, (row.name, row.huggingface)))
        )
    ]
    if lacking:
        owner = "the model's other heads need"
        if named:
            owner = f"{huggingface_config.ARCHITECTURES[named]} has"
        raise UserError(
            f"{source} lacks {', '.join(lacking)}, which {owner}; correct "
            f"`architectures` in {CONFIG_FILE}, or allow it with "
            "--allow_missing."
        )
    # The class names the task of a fine-tuned model; but checkpoints of
    # BertForMaskedLM may have the next-sentence head too.
    if named in _FINE_TUNED and not absent:
        return named
    return weight_map.kind_of(weights)


def _num_labels(weights: Tensors, kind: str) -> int:
    if kind not in huggingface_config.LABELLED:
        return 0
    (head,) = weight_map.HEADS[kind]
    return next(
        shape[0]
        for name, shape in weights.shapes.items()
        if weight_map.part_of(name) == head and name.endswith("output_bias")
    )


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes a model as transformers would save it; see `formats`."""
    kind = stored.task["kind"]
    weights, sentences = _select(stored)
    vocabulary = stored.vocabulary
    values, config_sentences = huggingface_config.from_bert_config(
        stored.config,
        stored.task,
        _num_labels(weights, kind),
        vocabulary.pad_id if vocabulary else 0,
    )
    sentences += config_sentences
    tensors, _ = matching.translate(weights, stored.config, "huggingface")
    if kind == "encoder":
        tensors = tensors.rename({n.removeprefix(_PREFIX): n for n in tensors})
    if vocabulary is None:
        sentences.append(
            "The vocabulary is unknown, so no tokenizer files are written."
        )
    else:
        vocabulary.check_size(stored.config.vocab_size)
        huggingface_tokenizer.write(
            directory,
            vocabulary,
            stored.tokenizer_settings,
            stored.config.max_position_embeddings,
        )
    files.write_json(os.path.join(directory, CONFIG_FILE), values)
    weights_file = os.path.join(directory, huggingface_weights.SAFETENSORS_FILE)
    write_safetensors(weights_file, tensors, _METADATA)
    return sentences


def _select(stored: StoredModel) -> tuple[Tensors, list[str]]:
    """Returns the weights that the class for the model's kind has."""
    kind = stored.task["kind"]
    architecture = huggingface_config.ARCHITECTURES[kind]
    needed = {weight_map.ENCODER, *weight_map.HEADS[kind]}
    if kind not in huggingface_config.WITHOUT_POOLER:
        needed.add(weight_map.POOLER)
    present = {weight_map.part_of(name) for name in stored.weights}
    lacking = needed - present
    sentences = []
    if lacking == {weight_map.POOLER} and kind == "encoder":
        sentences.append(
            "The model has no pooler; BertModel.from_pretrained(..., "
            "add_pooling_layer=False) loads it without a new one."
        )
    elif lacking:
        raise UserError(
            f"{stored.path} lacks {', '.join(sorted(lacking))}, which "
            f"Hugging Face's {architecture} has."
        )
    sentences += stored_model.not_carried(
        f"Hugging Face's {architecture}",
        stored,
        ("kind", "labels", "problem_type"),
        needed,
    )
    return (
        stored.weights.select(lambda name: weight_map.part_of(name) in needed),
        sentences,
    )
