"""From a model in one format to the same model in another.

Reading finds everything that is wrong from names and shapes, so nothing is
written for a model that cannot be. What is written appears at the end, whole.
"""

import dataclasses
import os
import re
import sys

import tensorflow as tf

from bert_tf.checkpoints import conversion_report
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_card
from bert_tf.checkpoints import paths
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.config import ORIGINAL
from bert_tf.errors import UserError
from bert_tf.flags.convert import ConvertCheckpointConfig
from bert_tf.io import files

# The exact GELU, in our terms; see `config.HIDDEN_ACTS`.
_EXACT_GELU = "gelu_erf"
_WRITE_ERRORS = (OSError, tf.errors.OpError)


def run(config: ConvertCheckpointConfig) -> None:
    """Converts a model and prints what became of it.

    Args:
      config: The flags.

    Raises:
      UserError: If the model cannot be read, or the format cannot hold it, or
        it cannot be written there; then nothing is.
    """
    output = paths.check(config.input, config.output, config.overwrite)
    allow_missing = _compile(config.allow_missing)
    source_format = config.source_format or formats.detect(config.input)
    stored = formats.read(config.input, source_format, allow_missing)
    check_complete(stored)
    if config.do_lower_case is not None:
        stored = with_lower_case(stored, config.do_lower_case)
    _check_activation_flag(config, stored)
    _check_normalization(config, stored)
    _say(conversion_report.describe_source(stored, source_format))
    sentences, contents = _write(output, stored, source_format, config)
    _say(
        conversion_report.describe_target(
            config.output, config.target_format, sentences, contents
        )
    )


def check_complete(stored: StoredModel) -> None:
    """Checks that there is a vocabulary and that it fits.

    Raises:
      UserError: If not; a model without its vocabulary reads no text.
    """
    if stored.vocabulary is None or stored.tokenizer_settings is None:
        raise UserError(
            f"{stored.path} has no vocabulary, without which no text can be "
            "read; put the vocab.txt that the model was trained with beside "
            "its weights."
        )
    stored.vocabulary.check_size(stored.config.vocab_size)


def with_lower_case(stored: StoredModel, lower_case: bool) -> StoredModel:
    """Returns the model with what --do_lower_case says.

    Args:
      stored: A model with a vocabulary.
      lower_case: Whether the model reads lower case.

    Raises:
      UserError: If the model's own files say something else.
    """
    settings = stored.tokenizer_settings
    if settings["lower_case"] == lower_case:
        return stored
    flag = "--do_lower_case" if lower_case else "--nodo_lower_case"
    if not stored.lower_case_is_derived:
        said = "lower case" if settings["lower_case"] else "text as it stands"
        raise UserError(
            f"{stored.path} says that its model reads {said}, which {flag} "
            "contradicts; drop the flag."
        )
    settings = stored_model.tokenizer_settings(
        stored.vocabulary,
        lower_case,
        preserve_special_tokens=settings["preserve_special_tokens"],
    )
    return dataclasses.replace(
        stored,
        tokenizer_settings=settings,
        report=stored.report.with_notes(f"{flag} says otherwise."),
    )


def _compile(pattern: str | None) -> re.Pattern | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise UserError(
            "--allow_missing must be a regular expression of Python. "
            f"Received: {pattern!r} ({error})."
        ) from error


def _check_activation_flag(
    config: ConvertCheckpointConfig, stored: StoredModel
) -> None:
    """Checks that --allow_activation_change would change something."""
    if not config.allow_activation_change:
        return
    if config.target_format != "keras_hub":
        raise UserError(
            "--allow_activation_change is of use with --to=keras_hub only. "
            f"Received: --to={config.target_format}; drop the flag."
        )
    if stored.config.hidden_act != _EXACT_GELU:
        raise UserError(
            "--allow_activation_change is of use for a model with the exact "
            f"GELU only, and {stored.path} has hidden_act="
            f"{stored.config.hidden_act!r}; drop the flag."
        )


def _check_normalization(
    config: ConvertCheckpointConfig, stored: StoredModel
) -> None:
    """Checks that the target's tokenizer can read text as the model does."""
    if stored.normalization != ORIGINAL and config.target_format != "bert_tf":
        raise UserError(
            f"The model in {stored.path} reads text by other rules than "
            f"BERT's, with normalization={stored.normalization}, which "
            f"tokenizers of --to={config.target_format} do not know; fine-tune "
            f"it with --normalization={ORIGINAL}."
        )


def _write(
    output: str,
    stored: StoredModel,
    source_format: str,
    config: ConvertCheckpointConfig,
) -> tuple[list[str], dict[str, int]]:
    """Writes the model; returns its format's sentences, and file to size."""
    write_model = formats.module_of(config.target_format).write_model
    options = {}
    if config.target_format == "bert_tf":
        options["readme"] = _card(stored, source_format, config)
    if config.allow_activation_change:
        options["allow_activation_change"] = True
    try:
        with files.atomic_directory(output) as temporary:
            sentences = write_model(temporary, stored, **options)
            contents = _sizes(temporary)
    except _WRITE_ERRORS as error:
        raise UserError(
            f"The model could not be written to {config.output} "
            f"({str(error).splitlines()[0]}); nothing of it was left there."
        ) from error
    return sentences, contents


def _card(
    stored: StoredModel, source_format: str, config: ConvertCheckpointConfig
) -> str:
    """Returns the model card of a model directory."""
    flags = {
        field.metadata["name"] or field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
    }
    kind = stored.task["kind"]
    usage = 'python run/fill_mask.py --model_dir=. --text="A [MASK] is here."'
    if kind not in ("pretraining", "masked_lm"):
        usage = 'import bert_tf\nmodel = bert_tf.load_model(".")'
    return model_card.build(
        "A converted BERT",
        f"A BERT of kind {kind}, converted from the format {source_format} by "
        "run/convert_checkpoint.py of bert_tf.",
        {
            "Flags": {k: v for k, v in flags.items() if v is not None},
            "Notes": dict(enumerate(stored.report.notes, 1)),
        },
        usage,
    )


def _sizes(directory: str) -> dict[str, int]:
    """Returns the size of each file in a directory, by its path in there."""
    return {
        os.path.relpath(os.path.join(folder, name), directory): (
            os.path.getsize(os.path.join(folder, name))
        )
        for folder, _, names in os.walk(directory)
        for name in names
    }


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
