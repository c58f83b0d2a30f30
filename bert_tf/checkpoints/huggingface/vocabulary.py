"""The files of a Hugging Face tokenizer, and the vocabulary in them.

vocab.txt                one piece a line
tokenizer.json           the same and all rules; version 5 saves this alone
tokenizer_config.json    class, lower case, accents
special_tokens_map.json  the names of the special tokens
added_tokens.json        pieces beyond the vocabulary, of older versions
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text.vocabulary import Vocabulary

VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The parsed JSON files of a directory; empty where one is not there."""

    directory: str
    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    special_tokens: Mapping[str, Any]
    added_tokens: Mapping[str, Any]

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def normalizer(self) -> Mapping[str, Any]:
        return self.tokenizer.get("normalizer") or {}


def read_files(directory: str) -> TokenizerFiles:
    """Parses the JSON files that are there."""

    def parse(name):
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            return {}
        values = files.read_json(path)
        if not isinstance(values, dict):
            raise UserError(f"{path} must hold one JSON object.")
        return values

    return TokenizerFiles(
        directory,
        parse(TOKENIZER_CONFIG_FILE),
        parse(TOKENIZER_FILE),
        parse(SPECIAL_TOKENS_FILE),
        parse(ADDED_TOKENS_FILE),
    )


def read_vocabulary(
    parsed: TokenizerFiles, vocab_size: int
) -> tuple[Vocabulary, list[str]]:
    """Returns the vocabulary, and what a user should know.

    Args:
      parsed: What `read_files` returned.
      vocab_size: Rows of the model's word embeddings.

    Raises:
      UserError: If there is none, the files differ, or its size is another.
    """
    found = {}
    path = parsed.path(VOCAB_FILE)
    if os.path.exists(path):
        found[path] = list(Vocabulary.from_file(path).tokens)
    if parsed.tokenizer:
        path = parsed.path(TOKENIZER_FILE)
        found[path] = _in_order(parsed.tokenizer["model"].get("vocab"), path)
    if not found:
        raise UserError(
            f"{parsed.directory} has no vocabulary of BERT: expected "
            f"{VOCAB_FILE} or {TOKENIZER_FILE} in it."
        )
    added = _added_tokens(parsed)
    complete = [_append(list(x), added, path) for path, x in found.items()]
    _check_equal(complete, parsed.directory)
    source, tokens = next(iter(found.items()))
    notes = []
    if len(complete[0]) > len(tokens):
        notes.append(
            f"Added tokens follow the pieces of {source}: "
            f"{', '.join(complete[0][len(tokens) :][:8])}; here they are "
            "pieces like any other, found after the text was normalized."
        )
    vocabulary = Vocabulary(complete[0], source=source)
    _check_size(vocabulary, vocab_size)
    return vocabulary, notes


def _in_order(pieces: Any, path: str) -> list[str]:
    """Returns the keys of tokenizer.json's vocabulary in the order of ids."""
    by_id = {}
    if isinstance(pieces, dict):
        by_id = {str(index): piece for piece, index in pieces.items()}
    ids = [str(index) for index in range(len(by_id))]
    if not by_id or set(by_id) != set(ids) or len(by_id) < len(pieces):
        raise UserError(
            f"{path} must hold a vocabulary whose ids are the numbers from 0 "
            "on, each once."
        )
    return [by_id[index] for index in ids]


def _added_tokens(parsed: TokenizerFiles) -> dict[int, str]:
    """Returns id to piece of what the three files say was added."""
    decoder = parsed.config.get("added_tokens_decoder") or {}
    try:
        pairs = [(int(i), piece) for piece, i in parsed.added_tokens.items()]
        pairs += [(int(i), x["content"]) for i, x in decoder.items()]
        pairs += [
            (int(x["id"]), x["content"])
            for x in parsed.tokenizer.get("added_tokens") or []
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The added tokens in {parsed.directory} must each have an id and "
            f"a content ({type(error).__name__}: {error})."
        ) from error
    added = {}
    for index, piece in sorted(pairs):
        if added.setdefault(index, piece) != piece:
            raise UserError(
                f"Two added tokens in {parsed.directory} have the id {index}: "
                f"{added[index]!r} and {piece!r}."
            )
    return added


def _append(
    tokens: list[str], added: Mapping[int, str], path: str
) -> list[str]:
    for index, piece in added.items():
        if index == len(tokens):
            tokens.append(piece)
        elif index > len(tokens) or tokens[index] != piece:
            there = f"{tokens[index]!r}" if index < len(tokens) else "nothing"
            raise UserError(
                f"{path} has {there} at id {index}, where the added token "
                f"{piece!r} belongs; added tokens must be pieces of the "
                "vocabulary or follow it without a gap."
            )
    return tokens


def _check_equal(vocabularies: list[list[str]], directory: str) -> None:
    first, last = vocabularies[0], vocabularies[-1]
    if first != last:
        pairs = zip(first, last, strict=False)
        shorter = min(len(first), len(last))
        index = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
        raise UserError(
            f"{VOCAB_FILE} and {TOKENIZER_FILE} in {directory} hold different "
            f"vocabularies, first at id {index}; remove the one that does not "
            "belong to the model."
        )


def _check_size(vocabulary: Vocabulary, vocab_size: int) -> None:
    excess = vocab_size - len(vocabulary)
    if excess > 0:
        raise UserError(
            f"{vocabulary.source} has {len(vocabulary)} pieces, but the model "
            f"has {vocab_size} rows for them; if its table is padded, add "
            f"{excess} lines such as [padding0] to {VOCAB_FILE} (and remove "
            f"{TOKENIZER_FILE})."
        )
    vocabulary.check_size(vocab_size)
