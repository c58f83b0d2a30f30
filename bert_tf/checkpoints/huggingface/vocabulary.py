"""Reads the vocabulary from the files of a Hugging Face tokenizer.

vocab.txt                one wordpiece a line
tokenizer.json           vocabulary and all rules; version 5 saves only this
tokenizer_config.json    class, lower case, accents
special_tokens_map.json  the names of the special tokens
added_tokens.json        tokens beyond the vocabulary, in older versions
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
    """The parsed JSON files of a directory; missing files are empty."""

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
    """Parses the JSON files of a directory."""

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
    """Returns the vocabulary and notes for the user.

    Args:
      parsed: The files, from `read_files`.
      vocab_size: Rows of the model's word embeddings.

    Raises:
      UserError: If there is no vocabulary, the files differ, or the model has
        another size.
    """
    stored = {}
    path = parsed.path(VOCAB_FILE)
    if os.path.exists(path):
        stored[path] = list(Vocabulary.from_file(path).tokens)
    if parsed.tokenizer:
        path = parsed.path(TOKENIZER_FILE)
        stored[path] = _in_order(parsed.tokenizer["model"].get("vocab"), path)
    if not stored:
        raise UserError(
            f"{parsed.directory} has no vocabulary of BERT: expected "
            f"{VOCAB_FILE} or {TOKENIZER_FILE} in it."
        )
    added = _added_tokens(parsed)
    complete = [_append(list(x), added, path) for path, x in stored.items()]
    _check_equal(complete, parsed.directory)
    source, tokens = next(iter(stored.items()))
    notes = []
    if len(complete[0]) > len(tokens):
        notes.append(
            f"Added tokens follow the vocabulary of {source}: "
            f"{', '.join(complete[0][len(tokens) :][:8])}; here they are "
            "ordinary wordpieces, matched after the text is normalized."
        )
    vocabulary = Vocabulary(complete[0], source=source)
    _check_size(vocabulary, vocab_size)
    return vocabulary, notes


def _in_order(ids_of: Any, path: str) -> list[str]:
    """Returns the keys of tokenizer.json's vocabulary in the order of ids."""
    by_id = {}
    if isinstance(ids_of, dict):
        by_id = {str(index): token for token, index in ids_of.items()}
    ids = [str(index) for index in range(len(by_id))]
    if not by_id or set(by_id) != set(ids) or len(by_id) < len(ids_of):
        raise UserError(
            f"{path} must hold a vocabulary whose ids are the numbers from 0 "
            "on, each once."
        )
    return [by_id[index] for index in ids]


def _added_tokens(parsed: TokenizerFiles) -> dict[int, str]:
    """Returns id to token of the added tokens in the three files."""
    decoder = parsed.config.get("added_tokens_decoder") or {}
    try:
        pairs = [(int(i), token) for token, i in parsed.added_tokens.items()]
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
    for index, token in sorted(pairs):
        if added.setdefault(index, token) != token:
            raise UserError(
                f"Two added tokens in {parsed.directory} have the id {index}: "
                f"{added[index]!r} and {token!r}."
            )
    return added


def _append(
    tokens: list[str], added: Mapping[int, str], path: str
) -> list[str]:
    for index, token in added.items():
        if index == len(tokens):
            tokens.append(token)
        elif index > len(tokens) or tokens[index] != token:
            there = f"{tokens[index]!r}" if index < len(tokens) else "nothing"
            raise UserError(
                f"{path} has {there} at id {index}, where the added token "
                f"{token!r} belongs; added tokens must be in the vocabulary or "
                "follow it without a gap."
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
            f"{vocabulary.source} has {len(vocabulary)} wordpieces, but the "
            f"model has {vocab_size} rows; if its table is padded, add "
            f"{excess} lines such as [padding0] to {VOCAB_FILE} (and remove "
            f"{TOKENIZER_FILE})."
        )
    vocabulary.check_size(vocab_size)
