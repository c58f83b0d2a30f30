"""The model that fine-tuning begins with, from the flags."""

import dataclasses

import keras
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.finetuning import normalization
from bert_tf.flags.finetune import FinetuneConfig
from bert_tf.io import files
from bert_tf.modeling import bert
from bert_tf.text.vocabulary import Vocabulary

_OVERRIDES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "left_to_right",
)


def read(config: FinetuneConfig) -> StoredModel:
    """Reads the model of --pretrained_model_dir or of the original's flags.

    Its configuration is that of the run: flags that override it do so here.

    Raises:
      UserError: If there is no model, it has no vocabulary, or it cannot read
        sequences of --max_seq_length.
    """
    if config.pretrained_model_dir:
        stored = formats.read(config.pretrained_model_dir)
        stored = check_case(stored, config.do_lower_case)
    else:
        stored = _read_trio(config)
    return adapt(stored, config)


def read_trained(path: str, config: FinetuneConfig) -> StoredModel:
    """Reads the model of an --output_dir, which takes the place of others.

    Raises:
      UserError: If the flags say otherwise what it was trained with.
    """
    stored = check_case(formats.read(path), config.do_lower_case)
    not_read = [
        f"--{name}"
        for name in ("init_checkpoint", "bert_config_file", "vocab_file")
        if getattr(config, name)
    ]
    logging.info(
        "The model is %s%s.",
        path,
        f", so {', '.join(not_read)} are not read" if not_read else "",
    )
    check_length(stored, config)
    normalization.require_agreement(stored, config)
    return stored


def adapt(stored: StoredModel, config: FinetuneConfig) -> StoredModel:
    """Returns a model with the flags that override its configuration.

    Raises:
      UserError: If the model is not one for the flags.
    """
    stored = dataclasses.replace(
        stored, config=_override(stored.config, config)
    )
    stored = normalization.choose(stored, config)
    check_length(stored, config)
    layers = stored.config.num_hidden_layers
    if config.num_frozen_layers > layers:
        raise UserError(
            f"--num_frozen_layers must be at most {layers}, the number of "
            f"layers of {stored.path}. Received: {config.num_frozen_layers}."
        )
    return stored


def check_length(stored: StoredModel, config: FinetuneConfig) -> None:
    """Raises `UserError` if a model cannot read --max_seq_length pieces."""
    longest = stored.config.max_position_embeddings
    if config.max_seq_length > longest:
        raise UserError(
            f"--max_seq_length must be at most {longest}, which is the longest "
            f"that the model in {stored.path} can read. Received: "
            f"{config.max_seq_length}."
        )


def check_case(stored: StoredModel, asked: bool | None) -> StoredModel:
    """Lets --do_lower_case answer where the model's format cannot.

    Raises:
      UserError: If the model knows otherwise, or has no vocabulary.
    """
    if stored.vocabulary is None or stored.tokenizer_settings is None:
        raise UserError(
            f"The model in {stored.path} has no vocabulary, so it cannot read "
            "text; give --init_checkpoint, --bert_config_file and --vocab_file."
        )
    known = stored.tokenizer_settings["lower_case"]
    if asked is None or asked == known:
        return stored
    if not stored.lower_case_is_derived:
        raise UserError(
            f"The model in {stored.path} was trained on text with "
            f"do_lower_case={known}. Received: --do_lower_case={asked}; drop "
            "the flag."
        )
    logging.warning(
        "--do_lower_case=%s, though the vocabulary of %s has %s.",
        asked,
        stored.path,
        "upper-case letters" if asked else "no upper-case letter",
    )
    return dataclasses.replace(
        stored,
        tokenizer_settings=stored_model.tokenizer_settings(
            stored.vocabulary, asked
        ),
    )


def _read_trio(config: FinetuneConfig) -> StoredModel:
    """Reads --init_checkpoint, --bert_config_file and --vocab_file."""
    bert_config = files.read_bert_config(config.bert_config_file)
    vocabulary = Vocabulary.from_file(config.vocab_file)
    vocabulary.check_size(bert_config.vocab_size)
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
            "Without --init_checkpoint the model begins with random weights: "
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
    # The flag's dropout counts: weights do not depend on it.
    stored = dataclasses.replace(
        stored, config=bert_config, vocabulary=vocabulary
    )
    if stored.tokenizer_settings is None:
        stored = dataclasses.replace(
            stored,
            tokenizer_settings=stored_model.tokenizer_settings(
                vocabulary, stored_model.derive_lower_case(vocabulary)
            ),
            lower_case_is_derived=True,
        )
    return check_case(stored, config.do_lower_case)


def draw_weights(bert_config: BertConfig, seed: int) -> Tensors:
    """Returns an encoder's initial weights, by canonical name."""
    keras.utils.set_random_seed(seed)
    variables = bert.named_variables(bert.BertModel(bert_config))
    return Tensors.from_arrays({n: v.numpy() for n, v in variables.items()})


def _override(bert_config: BertConfig, config: FinetuneConfig) -> BertConfig:
    overrides = {
        name: getattr(config, name)
        for name in _OVERRIDES
        if getattr(config, name) is not None
    }
    return dataclasses.replace(bert_config, **overrides)
