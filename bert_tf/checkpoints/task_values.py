"""Checks the values in task.json and tokenizer.json.

Imports no TensorFlow: scripts check their input before they import TensorFlow.
"""

from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import weight_map
from bert_tf.config import APPROACHES
from bert_tf.config import HEAD_TYPES
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.config import NORMALIZATIONS
from bert_tf.io import stored_files
from bert_tf.io.stored_files import FLAG
from bert_tf.io.stored_files import NUMBER
from bert_tf.io.stored_files import OBJECT
from bert_tf.io.stored_files import TEXT
from bert_tf.io.stored_files import Kind
from bert_tf.io.stored_files import choice
from bert_tf.io.stored_files import either
from bert_tf.io.stored_files import integer
from bert_tf.io.stored_files import list_of
from bert_tf.io.stored_files import names
from bert_tf.io.stored_files import object_of
from bert_tf.io.stored_files import optional
from bert_tf.text.vocabulary import ADDED_TOKENS

_TOKENIZER = {
    "lower_case": FLAG,
    "strip_accents": optional(FLAG),
    "preserve_special_tokens": FLAG,
    "vocabulary_hash": TEXT,
    "normalization": choice(*NORMALIZATIONS),
    # With limit n, a pattern repeats a character n + 1 times, and RE2 allows at
    # most 1000 repeats.
    "max_input_chars_per_word": integer(1, 999),
    "added_tokens": ADDED_TOKENS,
}
_REQUIRED_OF_TOKENIZER = ("lower_case", "preserve_special_tokens")
_TEMPERATURE = Kind(
    "a number above 0", lambda value: NUMBER.fits(value) and value > 1e-9
)
_TASK = {
    "kind": choice(*weight_map.HEADS),
    "name": TEXT,
    "variant": optional(TEXT),
    "max_seq_length": optional(integer()),
    "head": optional(choice(*HEAD_TYPES)),
    "global_step": integer(0),
    "results": OBJECT,
    "labels": optional(names()),
    # The next two values are only for embeddings, classifiers of pooled
    # vectors, and models with files of sentence-transformers.
    "pooling": optional(TEXT),
    "normalize": optional(FLAG),
}
# Kind of model -> further values in task.json.
_BY_KIND: Mapping[str, Mapping[str, Kind]] = {
    "classification": {
        "problem_type": optional(
            choice("single_label", "multi_label", "regression")
        ),
        "metrics": names(),
        "columns": optional(
            object_of(
                {"text": TEXT},
                {"text_pair": optional(TEXT), "labels": names(0)},
            )
        ),
        "label_separator": TEXT,
        "class_weights": optional(list_of(NUMBER)),
        "doc_stride": optional(integer(0)),
        "language": TEXT,
        "temperature": optional(_TEMPERATURE),
        "thresholds": optional(list_of(NUMBER)),
        "reject_below": optional(NUMBER),
        "reject_label": optional(TEXT),
    },
    "multiple_choice": {
        "columns": object_of(
            {},
            {"choices": names()}
            | dict.fromkeys(
                ("context", "start", "label", "right"), optional(TEXT)
            ),
        ),
    },
    "question_answering": {
        "doc_stride": integer(),
        "max_query_length": integer(0),
        "n_best_size": integer(),
        "max_answer_length": integer(),
        "version_2_with_negative": FLAG,
        "null_score_diff_threshold": optional(NUMBER),
    },
    "tagging": {
        "word_column": either(integer(-(2**31)), TEXT),
        "tag_column": either(integer(-(2**31)), TEXT),
        "sentence_column": either(integer(-(2**31)), TEXT),
        "comment_prefix": TEXT,
        "tag_names": names(),
        "context": choice("document", "sentence"),
        "doc_stride": optional(integer(0)),
        "approach": choice(*APPROACHES),
        "layer_combination": optional(choice(*LAYER_COMBINATIONS)),
        "lstm_size": optional(integer()),
    },
}


def only(value: Any) -> Kind:
    """Returns the kind that allows only `value` or null."""
    return Kind(repr(value), lambda received: received in (None, value))


def check_task(task: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` if a value in task.json is of the wrong kind."""
    kind = task.get("kind")
    of_kind = _BY_KIND.get(kind, {}) if isinstance(kind, str) else {}
    stored_files.check(task, _TASK | of_kind, source, ("kind",))


def check_tokenizer(settings: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` if a value in tokenizer.json is of the wrong kind."""
    stored_files.check(settings, _TOKENIZER, source, _REQUIRED_OF_TOKENIZER)
