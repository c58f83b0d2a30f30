"""`StoredModel`: a model on disk, in any format."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import task_values
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.matching import Report
from bert_tf.checkpoints.matching import match_optimizer_state
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import ASCII_LOWER
from bert_tf.config import ORIGINAL
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import stored_files
from bert_tf.text.tokenizer import MAX_CHARS_PER_WORD
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import tokenizer_settings
from bert_tf.text.vocabulary import Vocabulary

# A model is lower-case if less than 5% of its vocabulary entries have capitals.
# From 5% to 10%, `derive_lower_case` warns.
_FEW_CAPITALS, _MANY_CAPITALS = 0.05, 0.10


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """Config, weights, vocabulary and task of a stored model, in any format.

    Attributes:
      path: The path that the model was read from.
      config: The shape of the model.
      weights: Canonical name -> value, <float32>, read on access.
      task: JSON values: `kind` (a key of `weight_map.HEADS`) and settings such
        as `labels` (a list of names, if the head has labels), `problem_type`
        ("single_label", "multi_label" or "regression", for kind
        "classification"), `max_seq_length`, ...
      vocabulary: The vocabulary, or None if unknown.
      tokenizer_settings: The tokenizer's `settings`; None if `vocabulary` is.
      optimizer_state: Adam's moments (`<weight>/adam_m`, `<weight>/adam_v`)
        and `global_step`, <int64>[], if the format has them.
      report: The tensors that were loaded, missing or unused.
      lower_case_is_derived: Whether `derive_lower_case` determined the case,
        because no file states it.
      origin: The name of the model in reports if `path` is temporary.
      revision: Name and revision of a downloaded model, else None.
    """

    path: str
    config: BertConfig
    weights: Tensors
    task: Mapping[str, Any]
    vocabulary: Vocabulary | None = None
    tokenizer_settings: Mapping[str, Any] | None = None
    optimizer_state: Tensors = dataclasses.field(
        default_factory=lambda: Tensors.from_arrays({})
    )
    report: Report = Report(())
    lower_case_is_derived: bool = False
    origin: str | None = None
    revision: str | None = None

    @property
    def source(self) -> str:
        """The model's name in reports: its origin, else revision, else path."""
        return self.origin or self.revision or self.path

    @property
    def num_labels(self) -> int | None:
        """Number of labels of the head; None if it has no labels."""
        return num_labels(self.task["kind"], self.config, self.weights)

    def with_vocabulary(
        self,
        directory: str,
        source: str,
        name: str = "vocab.txt",
        lower_case: bool | None = None,
    ) -> "StoredModel":
        """Returns the model with the vocabulary beside its checkpoint.

        Args:
          directory: The directory; without the file, the model is unchanged.
          source: Subject of the note that the case is not stored, such as "A
            TF1 checkpoint".
          name: The name of the file.
          lower_case: Whether the model reads lower case; None to derive it from
            the vocabulary.

        Raises:
          UserError: If the file is damaged, or its ids exceed `vocab_size`.
        """
        path = os.path.join(directory, name)
        if not stored_files.exists(path):
            return self
        vocabulary = Vocabulary.from_file(path)
        notes = vocabulary.check_size(self.config.vocab_size)
        is_derived = lower_case is None
        if is_derived:
            lower_case = note_lower_case(vocabulary, source, notes)
        return dataclasses.replace(
            self,
            vocabulary=vocabulary,
            tokenizer_settings=tokenizer_settings(vocabulary, lower_case),
            report=self.report.with_notes(*notes),
            lower_case_is_derived=is_derived,
        )

    def with_labels(self, labels: Sequence[str]) -> "StoredModel":
        """Returns the model with all its labels in the order of `labels`."""
        order = [list(self.task["labels"]).index(label) for label in labels]
        task = {**self.task, "labels": list(labels)}
        if thresholds := self.task.get("thresholds"):
            task["thresholds"] = [thresholds[index] for index in order]
        return self._with_head(lambda value: value[order], task)

    def with_folded_temperature(self) -> "StoredModel":
        """Returns the model with head weights divided by the temperature."""
        task = dict(self.task)
        divisor = np.float32(task.pop("temperature", None) or 1.0)
        return self._with_head(lambda value: value / divisor, task)

    def _with_head(
        self, change: Callable[[np.ndarray], np.ndarray], task: Mapping
    ) -> "StoredModel":
        changed = _label_weights(self.task["kind"], self.config)

        def read(name):
            value = self.weights[name]
            return change(value) if name in changed else value

        return dataclasses.replace(
            self, weights=Tensors(self.weights.shapes, read), task=task
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of config, vocabulary, tokenizer, task and weights."""
        # Cache the hash: every trial of a grid search needs the hash, and
        # hashing a large model takes seconds.
        description = {
            "config": self.config.to_dict(),
            "vocabulary": self.vocabulary and self.vocabulary.hash,
            "tokenizer": self.tokenizer_settings,
            "task": self.task,
        }
        digest = hashlib.sha256(
            json.dumps(description, sort_keys=True).encode()
        )
        for name in sorted(self.weights):
            digest.update(name.encode() + self.weights[name].tobytes())
        return digest.hexdigest()

    def build_tokenizer(
        self, preserve_special_tokens: bool | None = None
    ) -> BertTokenizer:
        """Builds the tokenizer that the model was trained with.

        If not None, `preserve_special_tokens` replaces the stored setting.
        Raises `UserError` if the vocabulary is unknown.
        """
        if self.vocabulary is None or self.tokenizer_settings is None:
            raise UserError(
                f"The model in {self.path} has no vocab.txt, because the "
                "vocabulary of its training data was not known, so it cannot "
                "read text; train it with --vocab_file and --do_lower_case to "
                "get one that can."
            )
        settings = self.tokenizer_settings
        if preserve_special_tokens is None:
            preserve_special_tokens = settings["preserve_special_tokens"]
        return BertTokenizer(
            self.vocabulary,
            lower_case=settings["lower_case"],
            strip_accents=settings.get("strip_accents"),
            preserve_special_tokens=preserve_special_tokens,
            normalization=self.normalization,
            max_input_chars_per_word=self.max_input_chars_per_word,
        )

    @property
    def normalization(self) -> str:
        """The text normalization, one of `config.NORMALIZATIONS`."""
        # Models without this key are older and use the original's rules.
        return (self.tokenizer_settings or {}).get("normalization", ORIGINAL)

    @property
    def max_input_chars_per_word(self) -> int:
        """The longest word that the tokenizer splits, in characters."""
        return (self.tokenizer_settings or {}).get(
            "max_input_chars_per_word", MAX_CHARS_PER_WORD
        )


def num_labels(kind: str, config: BertConfig, weights: Tensors) -> int | None:
    """Returns a head's number of labels; None if it is missing or has none."""
    names = filter(weights.__contains__, _label_weights(kind, config))
    return next((weights.shapes[name][0] for name in names), None)


def _label_weights(kind: str, config: BertConfig) -> list[str]:
    """Returns the names of the weights with labels as the first axis."""
    heads = weight_map.HEADS[kind]
    return [
        row.name
        for row in weight_map.rows(config)
        if row.shape[:1] == (weight_map.LABELS,) and row.part in heads
    ]


def check(stored: StoredModel) -> None:
    """Raises `UserError` if a part of the model does not fit the weights."""
    _check_vocabulary(stored)
    task_values.check_task(stored.task, f"The task of {stored.path}")
    kind = stored.task["kind"]
    heads = weight_map.HEADS[kind]
    present = weight_map.parts_of(stored.weights)
    if absent := [head for head in heads if head not in present]:
        raise UserError(
            f"The model in {stored.path} is of kind={kind!r}, but its weights "
            f"lack the head {' and '.join(absent)}."
        )
    recurrent_heads.check(stored.task, stored.weights, stored.path)
    match_optimizer_state(
        stored.optimizer_state, stored.weights.shapes, stored.path
    )
    labels = stored.task.get("labels")
    if None not in (labels, stored.num_labels) and (
        len(labels) != stored.num_labels
    ):
        raise UserError(
            f"The model in {stored.path} names {len(labels)} labels, but its "
            f"head {' and '.join(heads)} has {stored.num_labels}."
        )


def _check_vocabulary(stored: StoredModel) -> None:
    vocabulary, settings = stored.vocabulary, stored.tokenizer_settings
    if (vocabulary is None) != (settings is None):
        raise UserError(
            f"{stored.path} must have both a vocabulary and tokenizer "
            "settings, or neither. Received one of the two."
        )
    if vocabulary is None:
        return
    vocabulary.check_size(stored.config.vocab_size)
    task_values.check_tokenizer(
        settings, f"The tokenizer settings of {stored.path}"
    )
    if settings.get("vocabulary_hash") != vocabulary.hash:
        raise UserError(
            f"{stored.path}: the tokenizer settings belong to another "
            f"vocabulary: they name the hash "
            f"{stored_files.shown(settings.get('vocabulary_hash'))}, the "
            f"vocabulary has {vocabulary.hash!r}."
        )
    if stored.normalization == ASCII_LOWER and (
        settings.get("strip_accents") or not settings["lower_case"]
    ):
        raise UserError(
            f"{stored.path}: the tokenizer settings must have lower_case=true "
            f"and strip_accents=false for normalization={ASCII_LOWER}."
        )


def not_carried(
    format_name: str,
    stored: StoredModel,
    settings: Collection[str],
    parts: Collection[str] | None = None,
    has_optimizer: bool = False,
) -> Iterator[str]:
    """Yields a sentence on what a format cannot store; none if it stores all.

    Args:
      format_name: The start of the sentence, such as "A TF1 checkpoint".
      stored: The model to write.
      settings: Keys of the task that the format keeps.
      parts: The parts of the weights that the format keeps; by default all.
      has_optimizer: Whether the format keeps the optimizer's state.
    """
    present = dict.fromkeys(map(weight_map.part_of, stored.weights))
    lost = [x for x in present if parts is not None and x not in parts]
    lost += sorted(
        name
        for name, value in stored.task.items()
        if value is not None and name not in settings
    )
    if stored.optimizer_state and not has_optimizer:
        lost.append("the optimizer's state")
    if lost:
        yield f"{format_name} has no place for {', '.join(lost)}; not carried."


def note_lower_case(
    vocabulary: Vocabulary, source: str, notes: list[str]
) -> bool:
    """Returns the result of `derive_lower_case`, and adds a note about it."""
    lower_case = derive_lower_case(vocabulary)
    notes.append(
        f"{source} does not say whether the model reads lower case; "
        f"lower_case={lower_case}, as {describe_capitals(vocabulary)}."
    )
    return lower_case


def derive_lower_case(vocabulary: Vocabulary, flag: bool | None = None) -> bool:
    """Returns whether a model with this vocabulary reads lower case.

    This rule is for formats that do not store the case. Text is lower-cased if
    less than 5% of the entries have capitals (about 1% do in an uncased model
    with added words, at least 16% in released cased models). If 5% to 10% have
    capitals, a warning is logged, unless `flag` gives --do_lower_case.
    """
    share = _capital_share(vocabulary)
    if flag is None and _FEW_CAPITALS <= share <= _MANY_CAPITALS:
        logging.warning(
            "%s may be cased or not: %s. Text keeps its case; set "
            "--do_lower_case to read it in lower case.",
            vocabulary.source,
            describe_capitals(vocabulary),
        )
    return share < _FEW_CAPITALS


def describe_capitals(vocabulary: Vocabulary) -> str:
    """Returns a clause on the share of entries with capital letters."""
    share = _capital_share(vocabulary)
    return (
        f"{share:.1%} of the vocabulary's entries in scripts with capital "
        "letters have some"
    )


def _capital_share(vocabulary: Vocabulary) -> float:
    """Returns the share of entries with capitals, without [CLS], <S>, ...

    Entries without cased letters are ignored: otherwise a cased Korean
    vocabulary would seem uncased.
    """
    words = [
        token
        for token in vocabulary.tokens
        if token.lower() != token.upper()
        and token[0] + token[-1] not in ("[]", "<>")
    ]
    # Testing letters by isupper() would count U+211D, which has no lower case.
    return sum(word != word.lower() for word in words) / max(1, len(words))
