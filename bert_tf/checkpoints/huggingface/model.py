"""Reads and writes models in Hugging Face's format.

  config.json        shape, class, labels
  model.safetensors  the weights; also read from several files, from
                     pytorch_model.bin if PyTorch is installed, and from
                     tf_model.h5
  vocab.txt, ...     see `huggingface.tokenizer`
  modules.json, ...  sentence-transformers: pooling, normalization, length

Reads a directory saved by any BERT class of transformers, and writes the same
weights as transformers. In transformers "gelu" is the exact form of GELU, but
here, as in the original, the tanh form.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.huggingface import tokenizer as huggingface_tokenizer
from bert_tf.checkpoints.huggingface import weights as huggingface_weights
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import write_safetensors
from bert_tf.checkpoints.weight_map import ARCHITECTURES
from bert_tf.checkpoints.weight_map import FINE_TUNED
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files

CONFIG_FILE = "config.json"
# transformers needs this metadata to read weights in PyTorch's layout.
_METADATA = {"format": "pt"}
_PREFIX = "bert."
# Tensors with these prefixes mean the same in every class of transformers: they
# are read even if the class is unknown.
_OURS = (_PREFIX, "cls.", "qa_outputs.")

# Heads of three classes have this name, so only config.json gives the class.
_CLASSIFIER = "classifier.weight"
_CLASSIFIERS = (
    weight_map.CLASSIFIER,
    weight_map.TAGGER,
    weight_map.MULTIPLE_CHOICE,
)

# Heads that read the pooler's output: a model with such a head needs a pooler.
_POOLED = {
    weight_map.NEXT_SENTENCE,
    weight_map.CLASSIFIER,
    weight_map.MULTIPLE_CHOICE,
}

# Supported modules of sentence-transformers; other modules are refused.
_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
_ENCODERS = ("encoder", "embeddings")  # The kinds without a head.
WITHOUT_POOLER = ("masked_lm", "tagging", "question_answering")
LABELLED = ("classification", "tagging")  # The kinds with labels in the head.

# Activation in transformers -> activation here. All tanh forms of GELU in
# transformers equal the original's up to rounding.
_HIDDEN_ACTS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_accurate": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
# Write the tanh form as "gelu_new", which every version of transformers has.
_THEIR_HIDDEN_ACTS = {"gelu": "gelu_new", "gelu_erf": "gelu"}
_GELUS = {"gelu": "the tanh approximation", "gelu_erf": "the exact (erf) GELU"}

_PROBLEM_TYPES = {
    "regression": "regression",
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
}


def _is_labels(values: Any) -> bool:
    """Returns True for a dict from "0", "1", ... to different labels."""
    if not isinstance(values, dict) or not values:
        return False
    labels = list(values.values())
    return (
        set(values) == {str(index) for index in range(len(labels))}
        and all(isinstance(label, str | int) for label in labels)
        and stored_files.names().fits([str(label) for label in labels])
    )


_LABEL_KEYS = {
    "id2label": stored_files.optional(
        stored_files.Kind("texts by the numbers from 0 on", _is_labels)
    ),
    "problem_type": stored_files.optional(stored_files.choice(*_PROBLEM_TYPES)),
}

# Defaults of transformers that differ from the defaults of `BertConfig`.
_DEFAULTS = {"vocab_size": 30522, "hidden_act": "gelu", "type_vocab_size": 2}

# Keys that can change the computation -> values that do not change it.
_INACTIVE = {
    "add_cross_attention": (False,),
    "auto_map": ({},),
    "cross_attention_hidden_size": (),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "position_embedding_type": ("absolute",),
    "pruned_heads": ({},),
    "quantization_config": ({},),
    "tie_encoder_decoder": (False,),
}
# Keys that are unused or read elsewhere, so no note reports them as dropped.
_SILENT = frozenset(
    """
    _attn_implementation_autoset _name_or_path _num_labels architectures
    bos_token_id chunk_size_feed_forward directionality dtype
    embedding_size eos_token_id finetuning_task gradient_checkpointing
    id2label label2id model_type num_labels output_attentions
    output_hidden_states output_past pad_token_id pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type problem_type return_dict tie_word_embeddings torch_dtype
    torchscript transformers_version use_bfloat16 use_cache
    """.split()
)


def recognizes(path: str) -> bool:
    """Returns whether `path` is a Hugging Face directory."""
    if huggingface_weights.find(path):
        return True
    if not os.path.isdir(path):
        return False
    # A KerasHub preset has a config.json, too, but without these keys.
    values = stored_files.peek_object(os.path.join(path, CONFIG_FILE))
    return not {"model_type", "architectures"}.isdisjoint(values)


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a directory; see `formats`."""
    config_file = os.path.join(path, CONFIG_FILE)
    values = stored_files.read_object(config_file)
    model_type = values.get("model_type", "bert")
    if model_type != "bert":
        raise UserError(
            f"{config_file} belongs to another architecture: expected "
            f"model_type 'bert', received {model_type!r}."
        )
    config, notes = to_bert_config(values, config_file)
    checkpoint = huggingface_weights.read(path)
    classes = {f"tf{x.lower()}": x for x in ARCHITECTURES.values()}
    if checkpoint.keras_class in classes:
        # An early config.json may name a base class: use the weights' class.
        name = classes[checkpoint.keras_class]
        values = values | {"architectures": [name]}
    named_kind, unknown_class = _kind_of(values, config_file)
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
            name in others or checkpoint.is_redundant(name)
        ),
    )
    kind = _kind(named_kind, weights, config, checkpoint.path, allow_missing)
    if checkpoint.types != ("F32",):
        notes.append(
            f"{checkpoint.path} holds numbers of type "
            f"{', '.join(checkpoint.types)}, which become float32."
        )
    num_labels = stored_model.num_labels(kind, config, weights) or 0
    task = _to_task(values, kind, num_labels, config_file)
    vocabulary, settings, is_derived, tokenizer_notes = (
        huggingface_tokenizer.read(path, config.vocab_size)
    )
    if kind not in FINE_TUNED:
        longest = config.max_position_embeddings
        task |= _read_modules(path, longest, settings["lower_case"])
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
        name = ARCHITECTURES["classification"]
        raise UserError(
            f"{config_file} lacks `architectures`, without which the task of "
            f"{_CLASSIFIER} is unknown; add it, for instance "
            f'"architectures": ["{name}"].'
        )
    present = {
        row.part
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
    """Returns the kind of the model; refuses a class with a missing head."""
    present = weight_map.parts_of(weights)
    needed = set(weight_map.HEADS[named] if named else ())
    if _POOLED & (needed | present):
        needed.add(weight_map.POOLER)
    absent = needed - present
    lacking = [
        row.huggingface
        for row in weight_map.rows(config)
        if row.part in absent
        and not matching.is_allowed(allow_missing, row.name, row.huggingface)
    ]
    if lacking:
        owner = "the model's other heads need"
        if named:
            owner = f"{ARCHITECTURES[named]} has"
        raise UserError(
            f"{source} lacks {', '.join(lacking)}, which {owner}; correct "
            f"`architectures` in {CONFIG_FILE}, or allow it with "
            "--allow_missing."
        )
    # A fine-tuned model's class decides its kind. For other models, the stored
    # heads decide: a BertForMaskedLM may also have a next-sentence head.
    if named in FINE_TUNED and not absent:
        return named
    return weight_map.kind_of(weights)


def _read_modules(path: str, longest: int, lower_case: bool) -> dict[str, Any]:
    """Returns the settings of embeddings in sentence-transformers' files.

    Keys are `pooling`, `normalize` and `max_seq_length`. Unsupported settings
    are added to `pooling`, as in "mean+Dense", which `check_pooling` refuses.
    """

    def read(*names):
        file = os.path.join(path, *names)
        return stored_files.read_object(file) if os.path.exists(file) else {}

    file = os.path.join(path, "modules.json")
    if not stored_files.exists(file):
        return {}
    try:
        modules = {
            module["type"].split(".")[-1]: module["path"]
            for module in files.read_json(file)
        }
    except (AttributeError, LookupError, TypeError) as error:
        raise UserError(
            f"{file} must be a list of modules, as sentence-transformers "
            "writes it; copy the model again."
        ) from error
    folder = modules.get("Pooling")
    parts = []
    if stored_files.is_inside(folder):
        file = os.path.join(path, folder, CONFIG_FILE)
        parts += _poolings(stored_files.read_object(file))
    parts += [x for x in modules if x not in _MODULES]
    settings = read("sentence_bert_config.json")
    if settings.get("do_lower_case") and not lower_case:
        parts.append("do_lower_case")
    if read("config_sentence_transformers.json").get("default_prompt_name"):
        parts.append("default_prompt_name")
    longest_of_tokenizer = read("tokenizer_config.json").get("model_max_length")
    lengths = settings.get("max_seq_length"), longest_of_tokenizer, longest
    length = next(x for x in lengths if isinstance(x, int) and x > 2)
    return {
        "pooling": "+".join(parts),
        "normalize": "Normalize" in modules,
        "max_seq_length": min(length, longest),
    }


def _poolings(values: Mapping[str, Any]) -> list[str]:
    """Returns the poolings of a module of sentence-transformers, in order."""
    modes = values.get("pooling_mode")
    if not modes:  # Earlier versions wrote a flag for each pooling.
        flags = [x for x, y in values.items() if y is True]
        modes = [x for x in flags if x.startswith("pooling_mode_")] or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    names = [re.sub("pooling_mode_|_tokens?$", "", str(x)) for x in modes]
    return names if "pooling_mode" in values else sorted(names)


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes a model as transformers would save it; see `formats`."""
    kind = stored.task["kind"]
    weights, sentences = _select(stored)
    values, config_sentences = _from_bert_config(stored)
    tensors = matching.translate(weights, stored.config, "huggingface")
    if kind in _ENCODERS:
        tensors = tensors.rename({n.removeprefix(_PREFIX): n for n in tensors})
    huggingface_tokenizer.write(directory, stored)
    files.write_json(os.path.join(directory, CONFIG_FILE), values)
    weights_file = os.path.join(directory, huggingface_weights.SAFETENSORS_FILE)
    write_safetensors(weights_file, tensors, _METADATA)
    return sentences + config_sentences


def _select(stored: StoredModel) -> tuple[Tensors, list[str]]:
    """Returns the weights that transformers' class has, and notes."""
    kind = stored.task["kind"]
    architecture = ARCHITECTURES[kind]
    needed = {weight_map.ENCODER, *weight_map.HEADS[kind]}
    if kind not in WITHOUT_POOLER:
        needed.add(weight_map.POOLER)
    lacking = needed - weight_map.parts_of(stored.weights)
    sentences = []
    if lacking == {weight_map.POOLER} and kind in _ENCODERS:
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


# === config.json ===


def to_bert_config(
    values: Mapping[str, Any], source: str
) -> tuple[BertConfig, list[str]]:
    """Translates the contents of a BERT's config.json.

    Returns:
      The config, and notes for the user.

    Raises:
      UserError: If the file describes a model that bert_tf cannot compute.
    """
    _refuse_active(values, source)
    values = _DEFAULTS | values
    known = {"hidden_act": stored_files.choice(*_HIDDEN_ACTS)}
    stored_files.check(values, known, source)
    hidden_act = values["hidden_act"]
    activation = _HIDDEN_ACTS[hidden_act]
    fields = {field.name for field in dataclasses.fields(BertConfig)}
    # transformers ignores a key left_to_right, so ignore it here, too.
    fields.remove("left_to_right")
    kept = {key: values[key] for key in values if key in fields}
    config = BertConfig.from_dict(kept | {"hidden_act": activation}, source)
    notes = []
    if activation in _GELUS:
        notes.append(
            f'hidden_act "{hidden_act}" of Hugging Face is '
            f'{_GELUS[activation]}, "{activation}" here.'
        )
    dropout = values.get("classifier_dropout")
    if dropout not in (None, config.hidden_dropout_prob):
        notes.append(
            f"{source}: classifier_dropout={dropout} is not carried; dropout "
            f"before a classifier is {config.hidden_dropout_prob} here."
        )
    others = set(values) - fields - _SILENT - set(_INACTIVE)
    others = sorted(others - {"classifier_dropout"})
    if others:
        notes.append(f"{source}: not carried: {', '.join(others)}.")
    return config, notes


def _refuse_active(values: Mapping[str, Any], source: str) -> None:
    inactive = dict(_INACTIVE)
    # Without a projection, embeddings must be as wide as layers.
    inactive["embedding_size"] = (values.get("hidden_size", 768),)
    for key, harmless in inactive.items():
        value = values.get(key)
        if value is None or value in harmless:
            continue
        hint = f", expected {harmless[0]!r}" if harmless else ""
        raise UserError(
            f"{source} describes a model that computes something else than "
            f"BERT: {key}={value!r}{hint}."
        )


def _kind_of(values: Mapping[str, Any], source: str) -> tuple[str | None, str]:
    """Returns (kind of the class in `architectures`, "") or (None, names)."""
    names = values.get("architectures") or []
    names = names if isinstance(names, list) else [names]
    kind = weight_map.kind_of_class(names)
    if kind is None and names and "model_type" not in values:
        known = ", ".join(dict.fromkeys(ARCHITECTURES.values()))
        raise UserError(
            f"{source}: `architectures` must name one of {known}. Received: "
            f"{names!r}."
        )
    return kind, ", ".join(map(str, names)) if kind is None else ""


def _to_task(
    values: Mapping[str, Any], kind: str, num_labels: int, source: str
) -> dict[str, Any]:
    task = {"kind": kind}
    if kind not in LABELLED:
        return task
    stored_files.check(values, _LABEL_KEYS, source)
    names = values.get("id2label")
    labels = _default_labels(num_labels)
    if names is not None:
        labels = [str(names[str(index)]) for index in range(len(names))]
    if len(labels) != num_labels:
        raise UserError(
            f"{source}: `id2label` must name as many labels as the "
            f"classifier has rows, {num_labels}. Received: {len(labels)}."
        )
    task["labels"] = labels
    problem_type = values.get("problem_type")
    if kind == "classification" and problem_type is not None:
        task["problem_type"] = _PROBLEM_TYPES[problem_type]
    return task


def _default_labels(num_labels: int) -> list[str]:
    return [f"LABEL_{index}" for index in range(num_labels)]


def _from_bert_config(stored: StoredModel) -> tuple[dict[str, Any], list[str]]:
    config, task = stored.config, stored.task
    if config.left_to_right:
        raise UserError(
            "Hugging Face's BERT is bidirectional, so a model with "
            "left_to_right=true cannot become one; convert it to bert_tf or "
            "tf1."
        )
    values = dataclasses.asdict(config)
    del values["left_to_right"]
    values["hidden_act"] = _THEIR_HIDDEN_ACTS.get(
        config.hidden_act, config.hidden_act
    )
    values |= {
        "add_cross_attention": False,
        "architectures": [ARCHITECTURES[task["kind"]]],
        "classifier_dropout": None,
        "dtype": "float32",
        "is_decoder": False,
        "model_type": "bert",
        "pad_token_id": stored.vocabulary.pad_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "use_cache": True,
    }
    if task["kind"] in LABELLED:
        labels = task.get("labels") or _default_labels(stored.num_labels)
        problem_types = {new: old for old, new in _PROBLEM_TYPES.items()}
        values |= {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
            "problem_type": problem_types.get(task.get("problem_type")),
        }
    sentences = []
    if config.hidden_act in _GELUS:
        sentences.append(
            f'hidden_act "{config.hidden_act}", {_GELUS[config.hidden_act]}, '
            f'is "{values["hidden_act"]}" in Hugging Face\'s config.json.'
        )
    return dict(sorted(values.items())), sentences
