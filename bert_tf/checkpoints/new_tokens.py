"""Pieces that a vocabulary is to get: read from a file of words, checked.

A word is taken as the tokenizer will see it, so what the file says and what a
text says meet; whatever no text could ever match is refused.
"""

import dataclasses
from collections.abc import Sequence

from bert_tf.errors import UserError
from bert_tf.text import tokenizer as tokenizer_lib
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import CONTINUATION
from bert_tf.text.vocabulary import Vocabulary

# A continuation is looked at behind this letter, as it never stands alone.
_FRONT = "a"


@dataclasses.dataclass(frozen=True)
class NewPiece:
    """One piece that is to come.

    Attributes:
      token: The piece as it will stand in the vocabulary.
      line: The line of the file, from 1, that asks for it.
      text: What that line says.
      old_ids: The pieces that the tokenizer splits it into today.
    """

    token: str
    line: int
    text: str
    old_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class NewPieces:
    """What a file of new words comes to.

    Attributes:
      source: The file.
      pieces: In the order of the file.
      known: Line and token of words that are in the vocabulary already.
      repeated: Line and token of words that an earlier line asks for.
    """

    source: str
    pieces: tuple[NewPiece, ...]
    known: tuple[tuple[int, str], ...] = ()
    repeated: tuple[tuple[int, str], ...] = ()


def read(path: str, flag: str, tokenizer: BertTokenizer) -> NewPieces:
    r"""Reads new words, one a line, and splits them as is done today.

    Each is normalized as text is. A line that begins with "##" asks for a
    piece that continues words. Words of the vocabulary and words that stand
    there twice are left out and listed.

    Args:
      path: The file: UTF-8, lines end in \n.
      flag: The flag it came from, for errors.
      tokenizer: The model's.

    Raises:
      UserError: If the file is missing, empty, not UTF-8, begins with a byte
        order mark or has \r\n line ends; if a line is empty or never matched
        by a tokenizer; or if the vocabulary has all words.
    """
    lines = vocabulary_lib.read_lines(path, flag, "word")
    for number, line in enumerate(lines, 1):
        vocabulary_lib.check_line(line, "word", f"{path}, line {number}")
    tokens = _normalize(lines, path, tokenizer)
    lines_of: dict[str, int] = {}
    known, repeated = [], []
    for number, token in enumerate(tokens, 1):
        if token in tokenizer.vocabulary:
            known.append((number, token))
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
    pieces = [
        NewPiece(token, number, lines[number - 1], ids)
        for (token, number), ids in zip(lines_of.items(), old_ids, strict=True)
    ]
    return NewPieces(path, tuple(pieces), tuple(known), tuple(repeated))


def check_matched(new: NewPieces, tokenizer: BertTokenizer) -> None:
    """Checks that what the lines say gets the id of the new piece.

    Args:
      new: The new pieces.
      tokenizer: That of the vocabulary that has them.

    Raises:
      UserError: If a text is not read as the piece it asked for.
    """
    whole = [x for x in new.pieces if not x.token.startswith(CONTINUATION)]
    if not whole:
        return
    found = tokenizer.tokenize([piece.text for piece in whole]).to_list()
    for piece, ids in zip(whole, found, strict=True):
        if ids != [tokenizer.vocabulary.id(piece.token)]:
            raise UserError(
                f"{new.source}, line {piece.line}: {piece.text!r} would still "
                f"be read as {' '.join(_tokens(tokenizer.vocabulary, ids))}; "
                "leave it out."
            )


def _normalize(
    lines: Sequence[str], path: str, tokenizer: BertTokenizer
) -> list[str]:
    """Returns what the vocabulary has to hold for the lines' words."""
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
        longest = tokenizer_lib.MAX_CHARS_PER_WORD
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
    """Raises an error that names the first line and counts the others."""
    number, words = next(iter(refused.items()))
    line = lines[number - 1]
    parts = " ".join(repr(word) for word in words)
    others = (
        f" (nor {len(refused) - 1} other lines)" if len(refused) > 1 else ""
    )
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
    """Returns the ids that the tokenizer gives for each piece."""
    ids = tokenizer.tokenize(tokens).to_list()
    return [
        _split_continuation(token, tokenizer.vocabulary)
        if token.startswith(CONTINUATION)
        else tuple(found)
        for token, found in zip(tokens, ids, strict=True)
    ]


def _split_continuation(token: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Splits a piece as the rest of a word, which no text can be.

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


def _tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    return [vocabulary.tokens[number] for number in ids]
