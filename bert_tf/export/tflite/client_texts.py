"""What MediaPipe and the Task Library read otherwise than a model does.

They lower-case ASCII always and strip no accents: `bert_tf.text.normalizer`.
"""

from collections.abc import Sequence
from typing import Any

from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite.build import Build
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer

# Heads that they know.
_HEADS = ("classification", "question_answering", "embeddings")
_MORE = (
    f"Fine-tuning with --normalization={ASCII_LOWER} makes both read alike; "
    "see docs/on_device.md."
)


def note(build: Build, examples: Sequence[Any] | None = None) -> str | None:
    """Returns what a user must know who gives a file to these clients.

    Args:
      build: What the file is.
      examples: Those of the dev set, as the task has them, to say how many
        of them are concerned.

    Returns:
      A paragraph; None if all texts are read alike, or the clients do not
      know such files.
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
        said = (
            "MediaPipe and the Task Library lower-case ASCII alone and strip "
            "no accents: where a text has other letters, they read other "
            "pieces than the model was trained on."
        )
    else:
        said = (
            "MediaPipe and the Task Library lower-case all ASCII, which this "
            "model was trained to read as it stands: where a text has "
            "capitals, they read other pieces."
        )
    if examples:
        count = count_changed(tokenizer, [_text(one) for one in examples])
        said += (
            f" This concerns {count:,} of the {len(examples):,} examples of "
            "--eval_file."
        )
    return f"{said} {_MORE}"


def as_clients_read(tokenizer: BertTokenizer) -> BertTokenizer:
    """Returns the tokenizer of MediaPipe and the Task Library."""
    return BertTokenizer(tokenizer.vocabulary, normalization=ASCII_LOWER)


def count_changed(tokenizer: BertTokenizer, texts: Sequence[str]) -> int:
    """Returns of how many texts these clients read other pieces.

    Args:
      tokenizer: The one that the model was trained with.
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
