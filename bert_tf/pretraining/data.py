"""The model's shape, records and vocabulary that pretraining works with."""

import dataclasses
import os

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import stored_model
from bert_tf.config import BertConfig
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.data.records import manifest as manifests
from bert_tf.data.records.manifest import Manifest
from bert_tf.data.records.repair import Budget
from bert_tf.errors import UserError
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.io import files
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.vocabulary import Vocabulary

_UNKNOWN_ID = "The records hold the id of a piece that a model with"


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """How the text behind the records became ids.

    Attributes:
      vocabulary: The vocabulary.
      lower_case: Whether the text was lower-cased.
      strip_accents: Whether accents were stripped.
    """

    vocabulary: Vocabulary
    lower_case: bool
    strip_accents: bool | None

    def tokenizer_settings(self) -> dict:
        """Returns what a model directory keeps of it."""
        return stored_model.tokenizer_settings(
            self.vocabulary, self.lower_case, self.strip_accents
        )


def read_model_config(config: PretrainConfig) -> BertConfig:
    """Reads the model's shape, lets flags override it, and checks lengths.

    Raises:
      UserError: If sequences are longer than the model can read.
    """
    bert_config = files.read_bert_config(config.bert_config_file)
    overrides = {
        name: getattr(config, name)
        for name in ("hidden_act", "left_to_right")
        if getattr(config, name) is not None
    }
    bert_config = dataclasses.replace(bert_config, **overrides)
    longest = bert_config.max_position_embeddings
    if config.max_seq_length > longest:
        raise UserError(
            f"--max_seq_length must be at most max_position_embeddings="
            f"{longest} of {config.bert_config_file}. Received: "
            f"{config.max_seq_length}."
        )
    return bert_config


def find_records(config: PretrainConfig) -> list[str]:
    """Returns the files of --input_file.

    Raises:
      UserError: If there is none; it names the commands that make them.
    """
    try:
        return files.expand_globs(config.input_file, "--input_file")
    except UserError as error:
        vocab_file = config.vocab_file or "vocab.txt"
        records = config.input_file.split(",")[0].replace("*", "train")
        raise UserError(
            f"{str(error).rstrip('.')}; make the records with `python "
            "run/learn_vocabulary.py --input_file=YOUR_TEXT "
            f"--output_file={vocab_file}` and `python "
            "run/create_pretraining_data.py --input_file=YOUR_TEXT "
            f"--output_file={records} --vocab_file={vocab_file} "
            f"--max_seq_length={config.max_seq_length} "
            f"--max_predictions_per_seq={config.max_predictions_per_seq}`."
        ) from error


def find_text_settings(
    config: PretrainConfig, bert_config: BertConfig, manifest: Manifest | None
) -> TextSettings | None:
    """Finds the vocabulary and checks it against records and model.

    Args:
      config: The flags.
      bert_config: The model.
      manifest: What is known of the records.

    Returns:
      None if neither a flag nor a manifest names a vocabulary.

    Raises:
      UserError: If vocabulary, records and model do not belong together.
    """
    path = config.vocab_file or (manifest.vocab_file if manifest else None)
    if path is None:
        logging.warning(
            "The records have no manifest and --vocab_file is not given, so "
            "nothing about their vocabulary can be checked, and the model "
            "directory will have no vocab.txt."
        )
        return None
    vocabulary = Vocabulary.from_file(path)
    if manifest:
        manifest.check_vocabulary(vocabulary.hash, path)
    elif config.vocab_file:
        logging.warning(
            "The records have no manifest, so it cannot be checked that they "
            "were made with %s.",
            path,
        )
    vocabulary.check_size(bert_config.vocab_size)
    lower_case = _find_lower_case(config, vocabulary, manifest)
    strip_accents = manifest.strip_accents if manifest else None
    return TextSettings(vocabulary, lower_case, strip_accents)


def _find_lower_case(
    config: PretrainConfig, vocabulary: Vocabulary, manifest: Manifest | None
) -> bool:
    asked = config.do_lower_case
    if manifest is None:
        if asked is not None:
            return asked
        found = stored_model.derive_lower_case(vocabulary)
        logging.warning(
            "--do_lower_case is not given; judging by the vocabulary's "
            "letters it is %s.",
            found,
        )
        return found
    if asked not in (None, manifest.do_lower_case):
        raise UserError(
            f"The records were made with do_lower_case="
            f"{manifest.do_lower_case} ({manifest.source}). Received: "
            f"--do_lower_case={asked}; drop the flag or make the records again."
        )
    return manifest.do_lower_case


def check_objectives(
    config: PretrainConfig, bert_config: BertConfig, manifest: Manifest | None
) -> None:
    """Compares what records are made for with what is trained on them.

    Args:
      config: The flags.
      bert_config: The model.
      manifest: What is known of the records.

    Raises:
      UserError: If a loss would be of something else than the flags say.
    """
    made_with = manifest.flags if manifest else {}
    is_causal = made_with.get("left_to_right", bert_config.left_to_right)
    if is_causal != bert_config.left_to_right:
        raise UserError(
            f"The records were made with --left_to_right={is_causal} "
            f"({manifest.source}). Received: a model with left_to_right="
            f"{bert_config.left_to_right}; give --left_to_right={is_causal}, "
            "or make the records again."
        )
    if config.dynamic_masking and is_causal:
        raise UserError(
            "--dynamic_masking draws masks, and a left-to-right model predicts "
            "each piece from those before it; drop one of the two."
        )
    if config.dynamic_masking and made_with.get("max_ngram", 1) > 1:
        raise UserError(
            f"The records were made with --max_ngram={made_with['max_ngram']} "
            f"({manifest.source}), and --dynamic_masking masks words or pieces "
            "one by one; drop it, or make the records again."
        )
    if config.use_next_sentence and not made_with.get(
        "next_sentence_pairs", True
    ):
        raise UserError(
            "The records were made with --nonext_sentence_pairs "
            f"({manifest.source}), so there is no next sentence to predict; "
            "give --nouse_next_sentence."
        )


def build_input(
    config: PretrainConfig,
    record_files: list[str],
    vocabulary: Vocabulary | None,
    manifest: Manifest | None,
    is_chief: bool = True,
) -> PretrainingInput:
    """Returns the training input, in batches of a whole step.

    Args:
      config: The flags.
      record_files: The records.
      vocabulary: That of the records, if it is known.
      manifest: What is known of them; masks are drawn as it says.
      is_chief: Whether to write the counts of records for later runs.

    Raises:
      UserError: If the records do not have the length of the flags, or masks
        are to be drawn without a vocabulary.
    """
    masking = None
    if config.dynamic_masking:
        if vocabulary is None:
            raise UserError(
                "--dynamic_masking draws pieces of the vocabulary, which is "
                "not known: the records have no manifest; give --vocab_file."
            )
        made_with = manifest.flags if manifest else {}
        masking = DynamicMasking.from_vocabulary(
            vocabulary,
            config.masked_lm_prob,
            whole_words=made_with.get("do_whole_word_mask", False),
        )
        masking = dataclasses.replace(
            masking,
            **{
                name: made_with[name]
                for name in ("mask_rate", "same_rate")
                if name in made_with
            },
        )
    return PretrainingInput(
        record_files,
        config.max_seq_length,
        config.max_predictions_per_seq,
        config.train_batch_size * config.gradient_accumulation_steps,
        seed=config.seed,
        masking=masking,
        # All workers read it, or some would find damage earlier than others.
        counts_file=os.path.join(config.output_dir, "record_counts.json"),
        keep_counts=is_chief,
        budget=Budget(config.max_corrupt_records),
    )


def build_evaluation_input(
    config: PretrainConfig, vocabulary_hash: str | None
) -> PretrainingInput:
    """Returns the input of --eval_input_file, by default --input_file.

    Raises:
      UserError: If its records were made with another vocabulary.
    """
    pattern = config.eval_input_file or config.input_file
    flag = "--eval_input_file" if config.eval_input_file else "--input_file"
    record_files = files.expand_globs(pattern, flag)
    manifest = manifests.find(record_files)
    if manifest and vocabulary_hash:
        manifest.check_vocabulary(vocabulary_hash, "the training vocabulary")
    return PretrainingInput(
        record_files,
        config.max_seq_length,
        config.max_predictions_per_seq,
        config.eval_batch_size,
        seed=config.seed,
        budget=Budget(config.max_corrupt_records),
    )


def check_ids(dataset: tf.data.Dataset, vocab_size: int) -> tf.data.Dataset:
    """Makes ids that the model does not have an error wherever it computes.

    A GPU would take zeros for them without a word.
    """

    def check(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        largest = tf.reduce_max(batch["input_ids"])
        check = tf.debugging.Assert(
            largest < vocab_size, [_UNKNOWN_ID, largest]
        )
        with tf.control_dependencies([check]):
            return {name: tf.identity(x) for name, x in batch.items()}

    return dataset.map(check, num_parallel_calls=tf.data.AUTOTUNE)


def explain_ids(error: tf.errors.OpError, vocab_size: int) -> UserError | None:
    """Returns the error to raise if it was `check_ids` that failed."""
    if _UNKNOWN_ID not in str(error):
        return None
    return UserError(
        f"{_UNKNOWN_ID} vocab_size={vocab_size} does not have; use the "
        "bert_config.json that belongs to their vocabulary."
    )
