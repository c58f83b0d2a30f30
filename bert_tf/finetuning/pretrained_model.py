"""Reads the model that fine-tuning starts from, and builds it for a task."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import ORIGINAL
from bert_tf.config import BertConfig
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.io import terminal
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks import stored_task
from bert_tf.tasks.task import Task
from bert_tf.text.vocabulary import Vocabulary

_OVERRIDES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "left_to_right",
)

# In every head, the name of the kernel ends with this part.
_OUTPUT_WEIGHTS = "output_weights"


# === Reading a model, as the flags request ===


def read(config: FinetuneConfig) -> StoredModel:
    """Reads the model to train, or to evaluate without --do_train.

    Without --do_train and --pretrained_model_dir, this is the trained model in
    --output_dir if it exists. Otherwise, flags name the model and may override
    its configuration.
    """
    trained = os.path.join(config.output_dir, model_directory.MODEL_FOLDER)
    is_trained = not (
        config.do_train or config.pretrained_model_dir
    ) and model_directory.recognizes(trained)
    source = trained if is_trained else config.pretrained_model_dir
    if not (source or config.do_train or config.init_checkpoint):
        raise stored_task.no_trained_model(trained)
    if is_trained:
        names = ("init_checkpoint", "bert_config_file", "vocab_file")
        unused = ", ".join(f"--{x}" for x in names if getattr(config, x))
        unused = f", so {unused} are ignored" if unused else ""
        logging.info("The model is %s%s.", trained, unused)
    stored = formats.read(source) if source else _read_original(config)
    stored = check_case(stored, config.do_lower_case)
    if is_trained:
        _check_normalization(stored, config)
    else:
        stored = adapt(stored, config)
    longest = stored.config.max_position_embeddings
    options.require_length(config, longest, stored.path)
    return stored


def adapt(stored: StoredModel, config: FinetuneConfig) -> StoredModel:
    """Applies the flags that override a model's configuration."""
    stored = with_normalization(stored, config)
    overrides = options.set_values(config, *_OVERRIDES)
    stored = dataclasses.replace(
        stored, config=dataclasses.replace(stored.config, **overrides)
    )
    layers = stored.config.num_hidden_layers
    unfrozen = layers - config.num_frozen_layers
    options.require(
        unfrozen >= 0,
        f"--num_frozen_layers must be at most {layers}, the number of layers "
        f"of {stored.path}. Received: {config.num_frozen_layers}.",
    )
    options.require(
        config.reinit_layers <= unfrozen,
        f"--reinit_layers must be at most {unfrozen}, the number of layers of "
        f"{stored.path} that are not frozen. Received: {config.reinit_layers}.",
    )
    return stored


def check_case(stored: StoredModel, flag: bool | None) -> StoredModel:
    """Applies --do_lower_case if the model's format does not store the case."""
    if stored.vocabulary is None or stored.tokenizer_settings is None:
        raise UserError(
            f"The model in {stored.path} has no vocabulary, so it cannot read "
            "text; give --init_checkpoint, --bert_config_file and --vocab_file."
        )
    if flag is None:
        return stored
    changed = conversion.with_lower_case(stored, flag)
    if changed is not stored:
        logging.warning(
            "--do_lower_case=%s for %s, though %s.",
            flag,
            stored.path,
            stored_model.describe_capitals(stored.vocabulary),
        )
    return changed


def _read_original(config: FinetuneConfig) -> StoredModel:
    bert_config = files.read_bert_config(config.bert_config_file)
    vocabulary = Vocabulary.from_file(config.vocab_file)
    vocabulary.warn_of_size(bert_config.vocab_size)
    if config.init_checkpoint:
        stored = checkpoint_loading.read(config.init_checkpoint, bert_config)
        checkpoint_loading.check_vocabulary(
            stored,
            vocabulary.hash,
            f"--vocab_file={config.vocab_file}",
            config.allow_changed_data,
        )
    else:
        logging.warning(
            "Without --init_checkpoint the model starts with random weights: "
            "it has not been pretrained."
        )
        stored = StoredModel(
            path=config.bert_config_file,
            config=bert_config,
            weights=draw_weights(bert_config, config.seed),
            vocabulary=None,
            tokenizer_settings=None,
            task={"kind": "encoder"},
        )
    # Use the dropout rates of --bert_config_file, not the checkpoint's.
    stored = dataclasses.replace(
        stored, config=bert_config, vocabulary=vocabulary
    )
    if stored.tokenizer_settings is None:
        lower_case = stored_model.derive_lower_case(
            vocabulary, config.do_lower_case
        )
        settings = stored_model.tokenizer_settings(vocabulary, lower_case)
        stored = dataclasses.replace(
            stored, tokenizer_settings=settings, lower_case_is_derived=True
        )
    return stored


def draw_weights(bert_config: BertConfig, seed: int) -> Tensors:
    """Returns random initial weights of an encoder, by canonical name."""
    keras.utils.set_random_seed(seed)
    variables = bert_model.named_variables(bert_model.BertModel(bert_config))
    return Tensors.from_arrays({n: v.numpy() for n, v in variables.items()})


# === Text normalization ===


def with_normalization(
    stored: StoredModel, config: FinetuneConfig
) -> StoredModel:
    """Returns the model with the text normalization of --normalization."""
    flag = config.normalization
    if flag in (None, stored.normalization):
        return stored
    if flag == ORIGINAL:
        _check_normalization(stored, config)
    if config.do_lower_case is False:
        raise UserError(
            f"--normalization={flag} lower-cases all text. Received: "
            "--do_lower_case=false; drop one of them."
        )
    settings = stored.tokenizer_settings
    if not settings["lower_case"]:
        logging.warning(
            "The vocabulary of %s has upper-case letters, which never occur in "
            "text read with --normalization=%s; an uncased model would know "
            "more words.",
            stored.path,
            flag,
        )
    return dataclasses.replace(
        stored,
        tokenizer_settings=stored_model.tokenizer_settings(
            stored.vocabulary,
            lower_case=True,
            preserve_special_tokens=settings["preserve_special_tokens"],
            normalization=flag,
        ),
    )


def _check_normalization(stored: StoredModel, config: FinetuneConfig) -> None:
    if config.normalization not in (None, stored.normalization):
        raise UserError(
            f"The model in {stored.path} was trained with --normalization="
            f"{stored.normalization}. Received: --normalization="
            f"{config.normalization}; drop the flag."
        )


# === Building the model of a task ===


def build_model(
    stored: StoredModel,
    task: Task,
    devices: Devices,
    config: FinetuneConfig | None = None,
    keep_head: bool = False,
    **kwargs: Any,
) -> keras.Model:
    """Builds the model of a task with the weights of a stored model.

    The head is kept if the stored model was trained for a task with the same
    labels, in any order. Otherwise the head is new. In training, flags in
    `config` select parts to initialize randomly. The model's constructor gets
    `kwargs`.

    Raises:
      UserError: If `keep_head` is true and the head cannot be kept, or if
        --head_initializer_range has no effect.
    """
    num_new_layers = config.reinit_layers if config else 0
    head_range = config.head_initializer_range if config else None
    new_pooler = bool(num_new_layers) or (config and config.new_pooler)
    new_parts = ["pooler"] if new_pooler else []
    if has_head_for(stored, task):
        terminal.detail("The head is from %s.", stored.path)
        labels = task.to_json().get("labels")
        if labels and stored.task.get("labels"):
            stored = stored.with_labels(labels)
    elif keep_head:
        expected = task.to_json()
        if stored.task.get("kind") != task.kind:
            # Do not show labels: `task` may have them from this very model.
            expected |= {"labels": None}
        raise UserError(
            f"The model in {stored.path} is not fine-tuned for this task "
            f"({_describe(task.kind, expected)}). Received: "
            f"{_describe(stored.task.get('kind'), stored.task)}; add "
            "--do_train, or give a model that was trained for it."
        )
    else:
        new_parts.append("head")
    if head_range is not None and "head" not in new_parts:
        raise UserError(
            "--head_initializer_range has no effect: the head is from "
            f"{stored.path}, which was trained for this task. Received: "
            f"{head_range:g}; drop it, or give a model without this head."
        )
    if num_new_layers:
        logging.info(
            "The pooler and the top %d of %d encoder layers are initialized "
            "randomly.",
            num_new_layers,
            stored.config.num_hidden_layers,
        )
    with devices.strategy.scope():
        model = checkpoint_loading.build_model(
            stored,
            task.kind,
            new_parts=new_parts,
            num_new_layers=num_new_layers,
            fuse=devices.fuse,
            dtype=devices.precision.policy,
            **task.model_arguments() | kwargs,
        )
        if head_range is not None:
            _scale_head(model, head_range)
    advice = checkpoint_loading.advise_new_pooler(
        stored, model, new_parts, "--new_pooler"
    )
    if config and advice:
        logging.warning("%s", advice)
    return model


def _scale_head(model: keras.Model, initializer_range: float) -> None:
    """Gives a new head's weights the standard deviation `initializer_range`.

    The weights were drawn with the configuration's `initializer_range`. So
    multiply them by the ratio of the argument to the configuration's value.
    """
    config_range = model.bert_config.initializer_range
    options.require(
        bool(config_range),
        "--head_initializer_range needs a configuration whose "
        "initializer_range is above 0. Received: 0; change the configuration, "
        "or drop the flag.",
    )
    factor = initializer_range / config_range
    for name, variable in bert_model.named_variables(model).items():
        if name.rpartition("/")[2] == _OUTPUT_WEIGHTS:
            variable.assign(variable * factor)


def has_head_for(stored: StoredModel, task: Task) -> bool:
    """Returns whether a stored model has a head that was trained for a task.

    The order of the labels does not matter. If the model stores no label names,
    like checkpoints of the original, only the number of labels must match.
    """
    actual, expected = stored.task, task.to_json()
    if not weight_map.HEADS[task.kind]:
        return True  # The head has no weights, so none can be missing.
    if _form(actual.get("kind"), actual) != _form(task.kind, expected):
        return False
    if not task.is_compatible_with(actual):
        return False
    problem_type = expected.get("problem_type")
    if actual.get("problem_type") not in (None, problem_type):
        return False
    labels = expected.get("labels")
    if labels and actual.get("labels"):
        return sorted(actual["labels"]) == sorted(labels)
    is_score = problem_type == "regression"
    return stored.num_labels == (len(labels) if labels else is_score or None)


def _describe(kind: str | None, values: Mapping[str, Any]) -> str:
    """Returns the name and the head of a task, for messages."""
    name, labels = values.get("name"), values.get("labels") or ()
    problem_type = values.get("problem_type", "single_label")
    form, *others = _form(kind, values)
    parts = [form if name in (None, kind) else f"{name}: {form}"]
    if labels:
        shown = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
        parts.append(f"{len(labels)} labels: {shown}")
    if problem_type != "single_label":
        parts.append(problem_type)
    return "; ".join([*parts, *others])


def _form(kind: str | None, values: Mapping[str, Any]) -> list[str]:
    """Returns words for a head's kind and settings, except labels."""
    parts = [str(values.get("variant") or kind)]
    if values.get("head", "linear") != "linear":
        parts.append(f"head {values['head']}")
    if values.get("approach", "fine_tuning") != "fine_tuning":
        parts.append(f"{values['approach']}, {values['layer_combination']}")
    if values.get("pooling"):
        parts.append(f"pooling {values['pooling']}")
    if values.get("lstm_size"):
        parts.append(f"BiLSTM of {values['lstm_size']}")
    return parts
