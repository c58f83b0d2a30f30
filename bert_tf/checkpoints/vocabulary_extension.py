"""From a model to one with more words or positions: extend_vocabulary."""

import sys

import tensorflow as tf

from bert_tf.checkpoints import convert as conversion
from bert_tf.checkpoints import extend_vocabulary as vocabulary_extender
from bert_tf.checkpoints import extension_report
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import paths
from bert_tf.errors import UserError
from bert_tf.flags.convert import ExtendVocabularyConfig
from bert_tf.io import files

_WRITE_ERRORS = (OSError, tf.errors.OpError)


def run(config: ExtendVocabularyConfig) -> None:
    """Extends a model and prints what was added.

    Args:
      config: The flags.

    Raises:
      UserError: If the model or the words cannot be read, no text could match
        a word, or the output cannot be written; then nothing is.
    """
    output = paths.check(config.input, config.output, config.overwrite)
    source_format = formats.detect(config.input)
    source = formats.read(config.input, source_format)
    if config.do_lower_case is not None:
        conversion.check_complete(source)
        source = conversion.with_lower_case(source, config.do_lower_case)
    _say(extension_report.describe_source(source, source_format))
    extension = vocabulary_extender.extend(
        source,
        config.new_words_file
        and vocabulary_extender.read_new_pieces(
            config.new_words_file, "--new_words_file", source
        ),
        config.use_unused,
        config.max_position_embeddings,
    )
    _say(extension_report.describe(extension))
    card = extension_report.card(config, extension)
    try:
        with files.atomic_directory(output) as temporary:
            model_directory.write_model(temporary, extension.model, readme=card)
    except _WRITE_ERRORS as error:
        raise UserError(
            f"The model could not be written to {config.output} "
            f"({str(error).splitlines()[0]}); nothing of it was left there."
        ) from error
    _say(f"Wrote {config.output}.\n")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
