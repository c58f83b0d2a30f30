"""A model as it lies on disk, whatever the format."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.checkpoints import optimizer_state
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.matching import Report
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import NORMALIZATIONS
from bert_tf.config import ORIGINAL
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """What all formats have in common, in our terms.

    Attributes:
      path: Where it was read from.
      config: The shape of the model.
      weights: Canonical name to value, <float32>, read when asked for.
      vocabulary: The vocabulary, or None if nobody knows it.
      tokenizer_settings: What `BertTokenizer.settings` returned, or None.
      task: JSON values: `kind` (a key of `weight_map.HEADS`) and what belongs
        to it: `labels` (a list of names, where a head has labels),
        `problem_type` ("single_label", "multi_label" or "regression", for
        kind "classification"), `max_seq_length`, ...
      optimizer_state: Adam's moments (`<weight>/adam_m`, `<weight>/adam_v`)
        and `global_step`, <int64>[], where the format keeps them.
      report: What became of the format's tensors.
      lower_case_is_derived: Whether `derive_lower_case` had to answer, as the
        format or the files do not say how text is read.
    """

    path: str
    config: BertConfig
    weights: Tensors
    vocabulary: Vocabulary | None
    tokenizer_settings: Mapping[str, Any] | None
    task: Mapping[str, Any]
    optimizer_state: Tensors = dataclasses.field(
        default_factory=lambda: Tensors.from_arrays({})
    )
    report: Report = Report(())
    lower_case_is_derived: bool = False

    @property
    def num_labels(self) -> int | None:
        """How many labels the head has; None if it is not one for labels."""
        sizes = {self.weights.shapes[name][0] for name in self._label_weights}
        return sizes.pop() if sizes else None

    @property
    def _label_weights(self) -> list[str]:
        """The weights with a row, or a number, for each label."""
        heads = weight_map.HEADS[self.task["kind"]]
        return [
            row.name
            for row in weight_map.rows(self.config)
            if row.shape[:1] == (weight_map.LABELS,)
            and weight_map.part_of(row.name) in heads
        ]

    def with_labels(self, labels: Sequence[str]) -> "StoredModel":
        """Returns the model with its labels in another order.

        Args:
          labels: The model's labels, none of them twice.
        """
        order = [list(self.task["labels"]).index(label) for label in labels]
        moved = set(self._label_weights)

        def read(name):
            value = self.weights[name]
            return value[order] if name in moved else value

        return dataclasses.replace(
            self,
            weights=Tensors(self.weights.shapes, read),
            task={**self.task, "labels": list(labels)},
        )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of all that it computes with, in hexadecimal."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        # Each run of a grid asks for it, and large models take seconds.
        described = {
            "config": self.config.to_dict(),
            "vocabulary": self.vocabulary and self.vocabulary.hash,
            "tokenizer": self.tokenizer_settings,
            "task": self.task,
        }
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name in sorted(self.weights):
            digest.update(name.encode() + self.weights[name].tobytes())
        return digest.hexdigest()

    def build_tokenizer(
        self, preserve_special_tokens: bool | None = None
    ) -> BertTokenizer:
        """Builds the tokenizer that the model was trained with.

        Args:
          preserve_special_tokens: Overrides the stored setting.

        Raises:
          UserError: If the vocabulary is not known.
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
            strip_accents=settings["strip_accents"],
            preserve_special_tokens=preserve_special_tokens,
            normalization=self.normalization,
        )

    @property
    def normalization(self) -> str:
        """By whose rules text is read, one of `config.NORMALIZATIONS`."""
        # Model directories were the original's before there was a choice.
        return (self.tokenizer_settings or {}).get("normalization", ORIGINAL)


def check(stored: StoredModel) -> None:
    """Checks that all parts of a model fit its weights.

    Raises:
      UserError: If one of them does not.
    """
    _check_vocabulary(stored)
    kind = stored.task.get("kind")
    heads = weight_map.HEADS.get(kind) if isinstance(kind, str) else None
    if heads is None:
        raise UserError(
            f"The task of {stored.path} must be of one of the kinds "
            f"{', '.join(weight_map.HEADS)}. Received: kind={kind!r}."
        )
    present = {weight_map.part_of(name) for name in stored.weights}
    absent = [head for head in heads if head not in present]
    if absent:
        raise UserError(
            f"The model in {stored.path} says that it is of kind={kind!r}, but "
            f"its weights lack the head {' and '.join(absent)}."
        )
    recurrent_heads.check(stored.task, stored.weights, stored.path)
    optimizer_state.match(
        stored.optimizer_state.shapes,
        stored.optimizer_state.__getitem__,
        stored.weights.shapes,
        stored.path,
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
    if settings.get("vocabulary_hash") != vocabulary.hash:
        raise UserError(
            f"{stored.path}: the tokenizer settings belong to another "
            f"vocabulary: they name the hash {settings.get('vocabulary_hash')},"
            f" the vocabulary has {vocabulary.hash}."
        )
    if stored.normalization not in NORMALIZATIONS:
        raise UserError(
            f"{stored.path}: the tokenizer settings must have normalization="
            f"{' or '.join(NORMALIZATIONS)}. Received: "
            f"{stored.normalization!r}."
        )


def tokenizer_settings(
    vocabulary: Vocabulary,
    lower_case: bool,
    strip_accents: bool | None = None,
    preserve_special_tokens: bool = False,
    normalization: str = ORIGINAL,
) -> dict[str, Any]:
    """Returns what `BertTokenizer.settings` would, without building one."""
    if strip_accents is None:
        strip_accents = lower_case and normalization == ORIGINAL
    return {
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "preserve_special_tokens": preserve_special_tokens,
        "normalization": normalization,
        "vocabulary_hash": vocabulary.hash,
    }


def derive_lower_case(vocabulary: Vocabulary) -> bool:
    """Returns whether no piece of a vocabulary has an upper-case letter.

    For formats that do not say how text is read. What stands in brackets,
    such as [CLS], [unused7] and the <S> of the Chinese vocabulary, is not
    asked; nor are letters without a lower case, such as the U+211D of the
    uncased English one.
    """
    return all(
        token == token.lower() or token[0] + token[-1] in ("[]", "<>")
        for token in vocabulary.tokens
    )
