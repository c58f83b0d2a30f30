"""Warns about texts that MediaPipe and the Task Library tokenize differently.

They always lower-case ASCII and strip no accents: `bert_tf.text.normalizer`.
"""

from collections.abc import Sequence
from typing import Any

from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite.build import Build
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer

# The heads that they support.
_HEADS = ("classification", "question_answering", "embeddings")
_MORE = (
    f"Fine-tune with --normalization={ASCII_LOWER} to tokenize as they do; see "
    "docs/on_device.md."
)


def note(build: Build, examples: Sequence[Any] | None = None) -> str | None:
    """Returns a note for users who run a file with these clients.

    Args:
      build: The build of the file.
      examples: The examples of the dev set, to count the affected ones.

    Returns:
      A paragraph; None if all texts are tokenized alike, or the clients do not
      support such files.
    """
    tokenizer = build.head.tokenizer
    if (
        build.config.input != "ids"
        or build.name not in _HEADS
        or getattr(build.head, "pair", False)
        or tokenizer.normalization == ASCII_LOWER
    ):
        return None
    if tokenizer.lower_case:
        text = (
            "MediaPipe and the Task Library lower-case only ASCII and strip no "
            "accents: they tokenize texts with other letters differently from "
            "the training data."
        )
    else:
        text = (
            "MediaPipe and the Task Library lower-case all ASCII, but this "
            "model was trained on cased text: they tokenize texts with "
            "capitals differently from the training data."
        )
    if examples:
        count = count_changed(tokenizer, [_text(one) for one in examples])
        text += (
            f" This affects {count:,} of the {len(examples):,} examples of "
            "--eval_file."
        )
    return f"{text} {_MORE}"


def as_clients_read(tokenizer: BertTokenizer) -> BertTokenizer:
    """Returns the tokenizer of MediaPipe and the Task Library."""
    return BertTokenizer(tokenizer.vocabulary, normalization=ASCII_LOWER)


def count_changed(tokenizer: BertTokenizer, texts: Sequence[str]) -> int:
    """Counts the texts that these clients tokenize differently.

    Args:
      tokenizer: The tokenizer of the model.
      texts: The texts.
    """
    theirs = as_clients_read(tokenizer).tokenize(texts).to_list()
    ours = tokenizer.tokenize(texts).to_list()
    return sum(a != b for a, b in zip(ours, theirs, strict=True))


def _text(example: Any) -> str:
    """Returns all text of an example of classification or of SQuAD."""
    if isinstance(example, SquadExample):
        return " ".join((example.question_text, *example.doc_tokens))
    return " ".join(filter(None, (example.text_a, example.text_b)))
