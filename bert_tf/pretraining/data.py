"""Reads model configuration, vocabulary, records and batches for pretraining.

Shapes:
  B: examples of a step, over all replicas and micro-batches.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import stored_model
from bert_tf.config import BertConfig
from bert_tf.data.generators import masks
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.data.records import manifest as manifests
from bert_tf.data.records.manifest import Manifest
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import unpad as unpadding

# Warn above this number of passes over the text, because small models overfit
# (Muennighoff et al. 2023, "Scaling data-constrained language models").
_MOST_READINGS = 50
# The share of padding is estimated from this number of batches.
_SAMPLED_BATCHES = 8
_UNKNOWN_ID = "The records hold a token id that a model with"


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """The model configuration, records and vocabulary of a run.

    Records may have no manifest, and their vocabulary may be unknown. For
    `tokenizer_settings`, see `StoredModel`.
    """

    bert_config: BertConfig
    record_files: list[str]
    manifest: Manifest | None
    vocabulary: Vocabulary | None
    tokenizer_settings: Mapping[str, Any] | None


def read_data(config: Flags) -> PretrainingData:
    """Reads model configuration, manifest and vocabulary, and checks them."""
    bert_config = read_model_config(config)
    record_files = files.expand_globs(config.input_file, "--input_file")
    manifest = manifests.find(record_files)
    vocabulary, settings = _find_vocabulary(config, manifest)
    if vocabulary is not None:
        bert_config = _with_vocab_size(config, bert_config, vocabulary)
    check_objectives(config, bert_config, manifest)
    return PretrainingData(
        bert_config, record_files, manifest, vocabulary, settings
    )


def read_model_config(config: Flags) -> BertConfig:
    """Reads the model configuration, with the flags that override it."""
    bert_config = files.read_bert_config(config.bert_config_file)
    overrides = options.set_values(config, "hidden_act", "left_to_right")
    return dataclasses.replace(bert_config, **overrides)


def _with_vocab_size(
    config: Flags, bert_config: BertConfig, vocabulary: Vocabulary
) -> BertConfig:
    """Returns the configuration with the size of the vocabulary.

    Changes only the repository's own recipes. A user's file with too small a
    vocab_size raises `UserError`.
    """
    path, size = config.bert_config_file, len(vocabulary)
    if paths.resolve_config(path) == path or size == bert_config.vocab_size:
        vocabulary.warn_of_size(bert_config.vocab_size)
        return bert_config
    logging.info(
        "The model's vocab_size is %d, the number of lines of %s; the recipe "
        "%s has %d.",
        size,
        vocabulary.source,
        path,
        bert_config.vocab_size,
    )
    return dataclasses.replace(bert_config, vocab_size=size)


def _find_vocabulary(
    config: Flags, manifest: Manifest | None
) -> tuple[Vocabulary | None, dict[str, Any] | None]:
    """Finds vocabulary and tokenizer settings, and checks them."""
    path = config.vocab_file or (manifest.vocab_file if manifest else None)
    if path is None:
        logging.warning(
            "The records have no manifest and --vocab_file is not given, so "
            "nothing about their vocabulary can be checked, and the model "
            "directory will have no vocab.txt."
        )
        return None, None
    vocabulary = Vocabulary.from_file(path)
    if manifest:
        manifest.check_vocabulary(vocabulary.hash, path)
    else:
        logging.warning(
            "The records have no manifest, so the program cannot check that "
            "they were created with %s.",
            path,
        )
    lower_case = _find_lower_case(config, vocabulary, manifest)
    strip_accents = manifest.strip_accents if manifest else None
    return vocabulary, stored_model.tokenizer_settings(
        vocabulary, lower_case, strip_accents
    )


def _find_lower_case(
    config: Flags, vocabulary: Vocabulary, manifest: Manifest | None
) -> bool:
    flag = config.do_lower_case
    if manifest is None:
        if flag is not None:
            return flag
        detected = stored_model.derive_lower_case(vocabulary)
        logging.warning(
            "--do_lower_case is not given; from the letters of the vocabulary "
            "it is %s.",
            detected,
        )
        return detected
    if flag not in (None, manifest.do_lower_case):
        raise UserError(
            f"The records were created with do_lower_case="
            f"{manifest.do_lower_case} ({manifest.source}). Received: "
            f"--do_lower_case={flag}; drop the flag or recreate the records."
        )
    return manifest.do_lower_case


def check_objectives(
    config: Flags, bert_config: BertConfig, manifest: Manifest | None
) -> None:
    """Checks that the records fit the losses and masking of the flags."""
    record_flags = manifest.flags if manifest else {}
    is_causal = record_flags.get("left_to_right", bert_config.left_to_right)
    if is_causal != bert_config.left_to_right:
        raise UserError(
            f"The records were created with --left_to_right={is_causal} "
            f"({manifest.source}). Received: a model with left_to_right="
            f"{bert_config.left_to_right}; give --left_to_right={is_causal}, "
            "or recreate the records."
        )
    if config.dynamic_masking and is_causal:
        raise UserError(
            "--dynamic_masking draws masks, but a left-to-right model predicts "
            "each token from the ones before it; drop one of the two."
        )
    if config.dynamic_masking and record_flags.get("max_ngram", 1) > 1:
        raise UserError(
            "The records were created with "
            f"--max_ngram={record_flags['max_ngram']} ({manifest.source}), but "
            "--dynamic_masking masks single words or tokens; drop it, or "
            "recreate the records."
        )
    if config.use_next_sentence and not record_flags.get(
        "next_sentence_pairs", True
    ):
        raise UserError(
            "The records were created with --nonext_sentence_pairs "
            f"({manifest.source}), so there is no next sentence to predict; "
            "give --nouse_next_sentence."
        )


def find_predictions(
    flag: int | None,
    manifest: Manifest | None,
    default: int = options.DEFAULT_PREDICTIONS,
) -> int:
    """Returns the number of predictions per record, by manifest or flag.

    Without a manifest and without the flag, it is `default`. A flag that
    contradicts the manifest raises `UserError`.
    """
    if manifest is None:
        return flag or default
    stored = manifest.max_predictions_per_seq
    if flag not in (None, stored):
        raise UserError(
            "The records were created with "
            f"--max_predictions_per_seq={stored} ({manifest.source}). "
            f"Received: --max_predictions_per_seq={flag}; drop the flag, or "
            f"give {stored}."
        )
    return stored


def _warn_of_cut(config: Flags, manifest: Manifest | None) -> None:
    """Warns if dynamic masking chooses more tokens than the records hold."""
    if manifest is None:
        return
    counts = RecordCounts.from_dict(manifest.counts)
    lengths = np.arange(len(counts.length_histogram))
    share, flag = max(
        (config.masked_lm_prob, "masked_lm_prob"),
        (config.final_masked_lm_prob or 0.0, "final_masked_lm_prob"),
    )
    predictions = masks.num_predictions(lengths, share, config.max_seq_length)
    cut = counts.describe_cut(predictions, config.max_predictions_per_seq)
    if cut:
        logging.warning("--%s=%g: %s", flag, share, cut)


def warn_of_little_text(
    config: Flags, manifest: Manifest, step: int = 0
) -> None:
    """Warns if the rest of a run reads its text too often to learn from it."""
    duplicates = manifest.flags.get("dupe_factor")
    counts = RecordCounts.from_dict(manifest.counts)
    if not duplicates or not counts.num_instances:
        return
    batch_size = config.train_batch_size * config.gradient_accumulation_steps
    num_steps = config.num_train_steps - step
    times = num_steps * batch_size * duplicates / counts.num_instances
    tokens = counts.num_pieces / duplicates
    if times > _MOST_READINGS:
        logging.warning(
            "The records hold %s tokens of text, which %d steps read %d "
            "times: the model will remember it rather than learn the "
            "language, and held-out scores will fall. Give %s tokens or more "
            "(a million is about 3.5 MB of English), or fewer "
            "--num_train_steps.",
            f"{tokens:,.0f}",
            num_steps,
            times,
            f"{tokens * times / _MOST_READINGS:,.0f}",
        )


def build_input(
    config: Flags,
    record_files: list[str],
    vocabulary: Vocabulary | None,
    manifest: Manifest | None,
) -> PretrainingInput:
    """Returns the training input, in batches of a whole step.

    With --dynamic_masking, the manifest determines whole-word masking, and the
    mask rates unless flags set them.
    """
    masking = None
    batch_size = config.train_batch_size * config.gradient_accumulation_steps
    if config.dynamic_masking:
        if vocabulary is None:
            raise UserError(
                "--dynamic_masking draws tokens from the vocabulary, which is "
                "unknown as the records have no manifest; give --vocab_file."
            )
        record_flags = manifest.flags if manifest else {}
        masking = DynamicMasking.from_vocabulary(
            vocabulary,
            config.masked_lm_prob,
            whole_words=record_flags.get("do_whole_word_mask", False),
        )
        _warn_of_cut(config, manifest)
        rates = options.set_values(config, *options.MASK_RATES) or {
            name: record_flags[name]
            for name in options.MASK_RATES
            if name in record_flags
        }
        if rates.pop("random_rate", None) == 0:
            # The three rates sum to 1, so this makes the random rate 0.
            rates["same_rate"] = 1 - rates["mask_rate"]
        masking = dataclasses.replace(
            masking,
            final_masked_lm_prob=config.final_masked_lm_prob,
            num_examples=config.num_train_steps * batch_size,
            **rates,
        )
    return PretrainingInput(
        record_files,
        config.max_seq_length,
        config.max_predictions_per_seq,
        batch_size,
        seed=config.seed,
        masking=masking,
        max_corrupt=config.max_corrupt_records,
    )


def build_evaluation_input(
    config: Flags, vocabulary_hash: str | None
) -> PretrainingInput:
    """Returns the input of --eval_input_file, by default --input_file.

    Without a manifest, these records have as many predictions as the training
    records.
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
        find_predictions(None, manifest, config.max_predictions_per_seq),
        config.eval_batch_size,
        seed=config.seed,
        max_corrupt=config.max_corrupt_records,
    )


def check_ids(dataset: tf.data.Dataset, vocab_size: int) -> tf.data.Dataset:
    """Adds an assertion that the model has all ids of a batch.

    Without the assertion, a GPU would silently use zeros for unknown ids.
    """

    def check(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ids = tf.concat([batch["input_ids"], batch["masked_lm_ids"]], axis=1)
        is_known = tf.reduce_all((ids >= 0) & (ids < vocab_size))
        check = tf.debugging.Assert(is_known, [_UNKNOWN_ID])
        with tf.control_dependencies([check]):
            return {name: tf.identity(x) for name, x in batch.items()}

    return dataset.map(check, num_parallel_calls=tf.data.AUTOTUNE)


def share_of_tokens(source: PretrainingInput, step: int) -> float:
    """Returns the share of positions in some batches that are not padding."""
    dataset = source.dataset(step * source.batch_size).take(_SAMPLED_BATCHES)
    return float(np.mean([batch[INPUT_MASK.name] for batch in dataset]))


def read_epoch(
    source: PretrainingInput, vocab_size: int
) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the batches, [B, ...] each, of the first epoch alone."""
    left = source.num_records
    for batch in check_ids(source.dataset(), vocab_size).as_numpy_iterator():
        yield {name: rows[:left] for name, rows in batch.items()}
        left -= source.batch_size
        if left <= 0:
            return


def read_batch(source: PretrainingInput, step: int) -> Mapping[str, np.ndarray]:
    """Returns the batch, [B, ...], of a step, counted from 0."""
    dataset = source.dataset(step * source.batch_size)
    return next(dataset.as_numpy_iterator())


def read_from(
    source: PretrainingInput,
    step: int,
    plan: batches_lib.StepPlan,
    devices: Devices,
    vocab_size: int,
    unpad: bool = False,
) -> Iterator[dict[str, tf.Tensor]]:
    """Returns the batches from a step on, for `TrainingStep.run`.

    All workers must call this function together, for the same step. With
    `unpad`, the batches have `token_indices` and `token_places`.
    """

    def read_rows(first_row: int, num_rows: int) -> tf.data.Dataset:
        first = step * source.batch_size
        dataset = source.dataset(first, (first_row, num_rows))
        dataset = check_ids(dataset, vocab_size)
        return batches_lib.add_dropout_seeds(dataset, source.seed)

    transform = None
    if unpad:
        transform = unpadding.token_finder(plan, [source.max_seq_length])
    return batches_lib.distribute_batches(
        devices.strategy, read_rows, plan, transform=transform
    )


@contextlib.contextmanager
def reading(
    source: PretrainingInput, devices: Devices, vocab_size: int
) -> Iterator[None]:
    """Context in which workers read records; in the end, closes `source`.

    Raises `UserError` if workers have different records, or if a record cannot
    be read or used.
    """
    agree(source, devices)
    # A process that stops early runs no finalizers, so close the input here.
    with contextlib.closing(source), explaining(source, vocab_size):
        yield


def agree(source: PretrainingInput, devices: Devices) -> None:
    """Raises a `UserError` if the workers do not have the same records."""
    devices.coordinator.agree(
        {
            f"the number of records in {path}": int(count)
            for path, count in zip(
                source.record_files, source.record_counts, strict=True
            )
        }
        | {
            f"record {record.number} of {record.path}": record.reason
            for record in source.skipped
        },
        "records, damaged ones included",
    )


@contextlib.contextmanager
def explaining(source: PretrainingInput, vocab_size: int) -> Iterator[None]:
    """Raises a `UserError` if a record of `source` cannot be read or used."""
    try:
        yield
    except tf.errors.OpError as error:
        if _UNKNOWN_ID in str(error):
            raise UserError(
                f"{_UNKNOWN_ID} vocab_size={vocab_size} does not have; use "
                "the bert_config.json that belongs to their vocabulary."
            ) from error
        if explanation := source.explain(error):
            raise explanation from error
        raise
