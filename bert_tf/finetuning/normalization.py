"""By whose rules a fine-tuned model reads text, from the flags."""

import dataclasses

from absl import logging

from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.config import ORIGINAL
from bert_tf.errors import UserError
from bert_tf.flags.finetune import FinetuneConfig


def choose(stored: StoredModel, config: FinetuneConfig) -> StoredModel:
    """Returns the model with the rules that --normalization names.

    Args:
      stored: The model to begin with, with a vocabulary.
      config: The flags.

    Raises:
      UserError: If the model was trained by other rules, of which it is not
        known any more what they were, or another flag says something else.
    """
    asked = config.normalization
    if asked in (None, stored.normalization):
        return stored
    if asked == ORIGINAL:
        require_agreement(stored, config)
    if config.do_lower_case is False:
        raise UserError(
            f"--normalization={asked} lower-cases all text. Received: "
            "--do_lower_case=false; drop one of them."
        )
    settings = stored.tokenizer_settings
    if not settings["lower_case"]:
        logging.warning(
            "The vocabulary of %s has upper-case letters, which "
            "--normalization=%s never finds in a text; an uncased model would "
            "know more words.",
            stored.path,
            asked,
        )
    return dataclasses.replace(
        stored,
        tokenizer_settings=stored_model.tokenizer_settings(
            stored.vocabulary,
            lower_case=True,
            preserve_special_tokens=settings["preserve_special_tokens"],
            normalization=asked,
        ),
    )


def require_agreement(stored: StoredModel, config: FinetuneConfig) -> None:
    """Raises `UserError` unless a trained model reads text as asked."""
    if config.normalization not in (None, stored.normalization):
        raise UserError(
            f"The model in {stored.path} was trained with --normalization="
            f"{stored.normalization}. Received: --normalization="
            f"{config.normalization}; drop the flag."
        )
