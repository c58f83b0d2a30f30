"""Translates between Hugging Face's config.json and `BertConfig` with task.

GELUs have other names than in the original: "gelu" is the exact one there and
the tanh form here.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import weight_map
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import stored_files

CONFIG_FILE = "config.json"


# Kind of model to the class that has its heads.
ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "classification": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "question_answering": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
}
WITHOUT_POOLER = ("masked_lm", "tagging", "question_answering")
# The kinds whose head has labels.
LABELLED = ("classification", "tagging")

# Their name to ours. All of their tanh forms equal the original's up to
# rounding.
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
# Every version of transformers has "gelu_new".
_THEIR_HIDDEN_ACTS = {"gelu": "gelu_new", "gelu_erf": "gelu"}
_GELUS = {"gelu": "the tanh approximation", "gelu_erf": "the exact (erf) GELU"}

_PROBLEM_TYPES = {
    "regression": "regression",
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
}

# Their default values that differ from those of our config.
_DEFAULTS = {"vocab_size": 30522, "hidden_act": "gelu", "type_vocab_size": 2}

# Keys that can change the computation, and their values that do not.
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
# Keys that are read elsewhere, and keys without influence on the model.
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


def check_is_bert(values: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` if a config.json is another architecture's."""
    model_type = values.get("model_type", "bert")
    if model_type != "bert":
        raise UserError(
            f"{source} belongs to another architecture: expected model_type "
            f"'bert', received {model_type!r}."
        )


def to_bert_config(
    values: Mapping[str, Any], source: str
) -> tuple[BertConfig, list[str]]:
    """Translates the contents of a config.json, checked with `check_is_bert`.

    Returns:
      Our config, and notes for the user.

    Raises:
      UserError: If our model cannot compute what this model does.
    """
    _refuse_active(values, source)
    values = _DEFAULTS | values
    theirs = values["hidden_act"]
    if not isinstance(theirs, str) or theirs not in _HIDDEN_ACTS:
        raise UserError(
            f"{source}: `hidden_act` must be one of "
            f"{', '.join(_HIDDEN_ACTS)}. Received: {theirs!r}."
        )
    ours = _HIDDEN_ACTS[theirs]
    fields = {field.name for field in dataclasses.fields(BertConfig)}
    # Not one of their keys: decoders are refused above.
    fields.remove("left_to_right")
    kept = {key: values[key] for key in values if key in fields}
    config = BertConfig.from_dict(kept | {"hidden_act": ours}, source)
    notes = []
    if ours in _GELUS:
        notes.append(
            f'hidden_act "{theirs}" of Hugging Face is {_GELUS[ours]}, '
            f'"{ours}" here.'
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
    # A BERT with another width of embeddings projects them to `hidden_size`.
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


def kind_of(values: Mapping[str, Any], source: str) -> tuple[str | None, str]:
    """Returns the kind of `architectures`, and the names of unknown classes.

    Raises:
      UserError: If there is no kind, and no model_type.
    """
    names = values.get("architectures") or []
    names = names if isinstance(names, list) else [names]
    kinds = {name: kind for kind, name in ARCHITECTURES.items()}
    kind = next((kinds[x] for x in map(str, names) if x in kinds), None)
    if kind is None and names and "model_type" not in values:
        raise UserError(
            f"{source}: `architectures` must name one of {', '.join(kinds)}. "
            f"Received: {names!r}."
        )
    return kind, ", ".join(map(str, names)) if kind is None else ""


def to_task(
    values: Mapping[str, Any], kind: str, num_labels: int, source: str
) -> dict[str, Any]:
    """Returns the task of a model, in our terms.

    Args:
      values: The contents of a config.json.
      kind: The kind of the model.
      num_labels: The rows of its classifier; 0 if it has none.
      source: The file's path.

    Raises:
      UserError: If labels or problem type do not fit.
    """
    task = {"kind": kind}
    if kind not in LABELLED:
        return task
    names = values.get("id2label")
    if names is None:
        task["labels"] = default_labels(num_labels)
    else:
        task["labels"] = labels = _in_order(names, source)
        if len(labels) != num_labels:
            raise UserError(
                f"{source}: `id2label` must name as many labels as the "
                f"classifier has rows, {num_labels}. Received: {len(labels)}."
            )
    problem_type = values.get("problem_type")
    if kind == "classification" and problem_type is not None:
        # A list cannot be hashed.
        if str(problem_type) not in _PROBLEM_TYPES:
            raise UserError(
                f"{source}: `problem_type` must be one of "
                f"{', '.join(_PROBLEM_TYPES)}. Received: {problem_type!r}."
            )
        task["problem_type"] = _PROBLEM_TYPES[problem_type]
    return task


def default_labels(num_labels: int) -> list[str]:
    """Returns Hugging Face's default names of labels."""
    return [f"LABEL_{index}" for index in range(num_labels)]


def _in_order(names: Any, source: str) -> list[str]:
    """Returns the values of `id2label` by their keys, which are numbers."""
    ids = []
    if isinstance(names, dict):
        ids = [str(index) for index in range(len(names))]
    if not ids or set(names) != set(ids):
        raise UserError(
            f"{source}: the keys of `id2label` must be the numbers from 0 on. "
            f"Received: {stored_files.shown(names)}."
        )
    labels = [names[index] for index in ids]
    if not all(isinstance(label, str | int) for label in labels):
        raise UserError(
            f"{source}: the values of `id2label` must be texts. Received: "
            f"{stored_files.shown(names)}."
        )
    labels = [str(label) for label in labels]
    stored_files.check(
        {"id2label": labels}, {"id2label": stored_files.names()}, source
    )
    return labels


def from_bert_config(
    config: BertConfig,
    task: Mapping[str, Any],
    num_labels: int,
    pad_id: int,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the contents of a config.json, and notes for the user.

    Args:
      config: Our config.
      task: Our task.
      num_labels: The rows of the classifier; 0 if there is none.
      pad_id: The id of [PAD].

    Raises:
      UserError: If Hugging Face's BERT cannot compute this.
    """
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
        "pad_token_id": pad_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "use_cache": True,
    }
    if task["kind"] in LABELLED:
        values |= _labels(task, num_labels)
    sentences = []
    if config.hidden_act in _GELUS:
        sentences.append(
            f'hidden_act "{config.hidden_act}", {_GELUS[config.hidden_act]}, '
            f'is "{values["hidden_act"]}" in Hugging Face\'s config.json.'
        )
    return dict(sorted(values.items())), sentences


def _labels(task: Mapping[str, Any], num_labels: int) -> dict[str, Any]:
    labels = task.get("labels") or default_labels(num_labels)
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise UserError(
            "The labels of the task must be as many different names as the "
            f"classifier has rows, {num_labels}. Received: {list(labels)!r}."
        )
    theirs = {ours: theirs for theirs, ours in _PROBLEM_TYPES.items()}
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": theirs.get(task.get("problem_type")),
    }


def required_parts(kind: str | None, present: Collection[str]) -> set[str]:
    """Returns the heads that a kind, and the heads `present`, need."""
    heads = set(weight_map.HEADS[kind] if kind else ())
    pooled = {
        weight_map.NEXT_SENTENCE,
        weight_map.CLASSIFIER,
        weight_map.MULTIPLE_CHOICE,
    }
    return heads | (
        {weight_map.POOLER} if pooled & {*heads, *present} else set()
    )
