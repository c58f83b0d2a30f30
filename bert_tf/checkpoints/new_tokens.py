"""Reads and checks the file of new words for a vocabulary.

Words are normalized as text is, so that they match text; a word that no text
could match is refused.
"""

import dataclasses
from collections.abc import Sequence

from bert_tf.errors import UserError
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import Vocabulary

# Put in front of a continuation to normalize it, as it never stands alone.
_FRONT = "a"


@dataclasses.dataclass(frozen=True)
class NewToken:
    """A new entry of a vocabulary.

    Attributes:
      token: The entry.
      line: Its line in the file of new words, from 1.
      text: The line.
      old_ids: The tokens that the old vocabulary splits it into.
    """

    token: str
    line: int
    text: str
    old_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class NewTokens:
    """The new tokens in a file of words.

    Attributes:
      source: The file.
      tokens: The new tokens in the order of the file.
      existing: Line and token of words that are in the vocabulary already.
      repeated: Line and token of words that an earlier line has too.
    """

    source: str
    tokens: tuple[NewToken, ...]
    existing: tuple[tuple[int, str], ...] = ()
    repeated: tuple[tuple[int, str], ...] = ()


def read(path: str, flag: str, tokenizer: BertTokenizer) -> NewTokens:
    r"""Reads new words, one a line, and splits them with the old vocabulary.

    Each is normalized as text is. A line that starts with "##" is a token that
    continues words. Words that the vocabulary has and repeated words are left
    out and listed.

    Args:
      path: The file: UTF-8, lines end in \n.
      flag: The flag it came from, for errors.
      tokenizer: The model's.

    Raises:
      UserError: If the file is missing, empty, not UTF-8, starts with a byte
        order mark or has \r\n line ends; if a line is empty or no text could
        match it; or if the vocabulary has all words.
    """
    lines = vocabulary_lib.read_lines(path, flag, "word")
    for number, line in enumerate(lines, 1):
        vocabulary_lib.check_line(line, "word", f"{path}, line {number}")
    tokens = _normalize(lines, path, tokenizer)
    lines_of: dict[str, int] = {}
    existing, repeated = [], []
    for number, token in enumerate(tokens, 1):
        if token in tokenizer.vocabulary:
            existing.append((number, token))
        elif token in lines_of:
            repeated.append((number, token))
        else:
            lines_of[token] = number
    if not lines_of:
        raise UserError(
            f"{path}: the vocabulary of the model has all of its {len(lines)} "
            "words already, so there is nothing to add."
        )
    old_ids = _split(list(lines_of), tokenizer)
    new = [
        NewToken(token, number, lines[number - 1], ids)
        for (token, number), ids in zip(lines_of.items(), old_ids, strict=True)
    ]
    return NewTokens(path, tuple(new), tuple(existing), tuple(repeated))


def check_matched(new: NewTokens, tokenizer: BertTokenizer) -> None:
    """Raises `UserError` if the extended tokenizer splits a new word."""
    whole = [x for x in new.tokens if not x.token.startswith(CONTINUATION)]
    if not whole:
        return
    vocabulary = tokenizer.vocabulary
    split = tokenizer.tokenize([added.text for added in whole]).to_list()
    for added, ids in zip(whole, split, strict=True):
        if ids != [vocabulary.id(added.token)]:
            tokens = " ".join(vocabulary.tokens[i] for i in ids)
            raise UserError(
                f"{new.source}, line {added.line}: {added.text!r} would still "
                f"be split into {tokens}; leave it out."
            )


def _normalize(
    lines: Sequence[str], path: str, tokenizer: BertTokenizer
) -> list[str]:
    """Returns the vocabulary entries of the lines."""
    prefixes = [
        CONTINUATION if line.startswith(CONTINUATION) else "" for line in lines
    ]
    fronts = [_FRONT if prefix else "" for prefix in prefixes]
    words_of_lines = tokenizer.split_words(
        [
            front + line.removeprefix(prefix)
            for front, prefix, line in zip(fronts, prefixes, lines, strict=True)
        ]
    ).to_list()
    tokens, refused = [], {}
    for number, words in enumerate(words_of_lines, 1):
        words = [word.decode() for word in words]
        front, prefix = fronts[number - 1], prefixes[number - 1]
        longest = tokenizer.max_input_chars_per_word
        if len(words) != 1 or words[0] == front:
            refused[number] = [word for word in words if word != front]
        elif len(words[0]) > longest:
            raise UserError(
                f"{path}, line {number}: has {len(words[0]) - len(front)} "
                f"characters, but a word of more than {longest} is always "
                "[UNK]; leave it out."
            )
        else:
            tokens.append(prefix + words[0].removeprefix(front))
    if refused:
        _refuse(refused, lines, path)
    return tokens


def _refuse(
    refused: dict[int, list[str]], lines: Sequence[str], path: str
) -> None:
    number, words = next(iter(refused.items()))
    line = lines[number - 1]
    parts = " ".join(map(repr, words))
    count = len(refused) - 1
    others = f" (nor {count} other lines)" if count else ""
    if not words:
        reason = "holds nothing that the tokenizer keeps"
    elif line.startswith(CONTINUATION):
        reason = "does not continue a word"
    else:
        reason = f"is not one word but {len(words)} ({parts})"
    raise UserError(
        f"{path}, line {number}: {line!r} {reason}, as white space, "
        "punctuation and Chinese characters end a word, so no text would "
        f"match it{others}; leave it out."
    )


def _split(
    tokens: Sequence[str], tokenizer: BertTokenizer
) -> list[tuple[int, ...]]:
    """Returns the ids of the tokens that each new token is split into."""
    ids = tokenizer.tokenize(tokens).to_list()
    return [
        _split_continuation(token, tokenizer.vocabulary)
        if token.startswith(CONTINUATION)
        else tuple(token_ids)
        for token, token_ids in zip(tokens, ids, strict=True)
    ]


def _split_continuation(token: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Splits a "##" token like the rest of a word; no text is that rest.

    Source: WordpieceTokenizer (tokenization.py:308-359 of the original), from
    the second round of its loop on.
    """
    rest = token.removeprefix(CONTINUATION)
    ids = []
    while rest:
        for end in range(len(rest), 0, -1):
            if CONTINUATION + rest[:end] in vocabulary:
                break
        else:
            return (vocabulary.unk_id,)
        ids.append(vocabulary.id(CONTINUATION + rest[:end]))
        rest = rest[end:]
    return tuple(ids)
