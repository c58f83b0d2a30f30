"""The vocabulary: one token per line; the line number is the id.

Workers start fast, as only writing and remote files import TensorFlow.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.io.stored_files import FLAG
from bert_tf.io.stored_files import TEXT

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
# [PAD] and [MASK] are optional: id 0 can pad; only pretraining needs [MASK].
_REQUIRED = (UNK, CLS, SEP)

CONTINUATION = "##"

_TOKENIZER_FILE = "tokenizer.json"
ADDED_TOKEN_FLAGS = ("special", "normalized", "single_word", "lstrip", "rstrip")
ADDED_TOKENS = stored_files.list_of(
    stored_files.object_of(
        {"id": stored_files.integer(0), "content": TEXT}
        | dict.fromkeys(("is_wordpiece", *ADDED_TOKEN_FLAGS), FLAG)
    )
)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# TensorFlow Text rejects tokens with more bytes, not counting a prefix "##".
_MAX_TOKEN_BYTES = 256
# Most tokens match this pattern, so only few tokens need a slower check.
_PLAIN = re.compile(r"[!-~]{1,99}")


class Vocabulary:
    """The tokens of a vocabulary and their ids.

    Source: load_vocab (tokenization.py:121-133 of the original). As in the
    original, an empty line takes up an id, and a repeated token has the id of
    its last line. Texts never get the ids of earlier lines or of empty lines.
    White space at the ends of a token, which the original strips, is an error.

    Attributes:
      tokens: The lines; the index of a line is its token's id.
      token_ids: The ids of the rows that have a token, ascending.
      added_tokens: Tokens added in transformers, as `added_token` returns them.
        `tokens` has added tokens, too, or "" if a line cannot hold the token.
      source: Origin of the tokens for errors, a path or "the vocabulary".
      pad_id: The id of [PAD]; as in the original, 0 if there is no [PAD].
      unk_id: The id of [UNK]; `cls_id`, `sep_id`, `mask_id` likewise.

    Raises:
      UserError: If [UNK], [CLS] or [SEP] is missing, if a token has white
        space at its ends, or if another token has the id of an added token.
        The message counts lines from 1.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        source: str = "the vocabulary",
        added_tokens: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.tokens = tuple(tokens)
        self.source = source
        self.added_tokens = tuple(added_tokens)
        self._ids: dict[str, int] = {}
        # Look for these first: the tokens of another file are all wrong.
        stripped = set(map(str.strip, self.tokens))
        missing = [token for token in _REQUIRED if token not in stripped]
        if missing:
            raise UserError(
                f"{source} lacks {', '.join(missing)} in its "
                f"{len(self.tokens)} lines, so it is no vocabulary of a BERT, "
                f"which contains {', '.join(SPECIAL_TOKENS)}; give the "
                "model's vocab.txt."
            )
        for index, token in enumerate(self.tokens):
            if not _PLAIN.fullmatch(token):  # Checking every token is slow.
                if token.isascii() and not token.strip(" \t"):
                    continue
                _check_token(token, f"{source}, line {index + 1}")
            self._ids[token] = index
        self.token_ids = tuple(sorted(self._ids.values()))
        for token in self.added_tokens:
            there = self.tokens[token["id"] :][:1]
            if there not in (("",), (token["content"],)):
                raise UserError(
                    f"{source} has {there} at id {token['id']}, where the "
                    f"added token {token['content']!r} belongs; copy the model "
                    "again."
                )
        self.pad_id = self._ids.get(PAD, 0)
        self.unk_id = self._ids[UNK]
        self.cls_id = self._ids[CLS]
        self.sep_id = self._ids[SEP]

    @classmethod
    def from_file(cls, path: str) -> "Vocabulary":
        r"""Reads a vocabulary file; \n ends a line, but the last may lack it.

        Raises:
          UserError: If the file is missing, empty, not UTF-8, begins with a
            byte order mark, has \r\n line ends, or has tokens that
            `Vocabulary` rejects. The message has the file and the line.
        """
        lines = read_lines(path, "--vocab_file", "token")
        return cls(lines, path, _read_added_tokens(path))

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def id(self, token: str) -> int:
        """Returns the id of a token; raises `UserError` if it has none."""
        if token not in self:
            raise UserError(f"{self.source} does not contain {token!r}.")
        return self._ids[token]

    @property
    def mask_id(self) -> int:
        """The id of [MASK]; `UserError` if the vocabulary lacks it."""
        return self.id(MASK)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the file and the added tokens, in hexadecimal."""
        text = self.to_text()
        if self.added_tokens:
            text += json.dumps(self.added_tokens, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    @property
    def only_added_ids(self) -> set[int]:
        """Ids of the added tokens that are not also wordpieces."""
        return {x["id"] for x in self.added_tokens if not x["is_wordpiece"]}

    def to_text(self) -> str:
        return "\n".join(self.tokens) + "\n"

    def write(self, path: str) -> None:
        files.write_text(path, self.to_text())

    def check_size(self, vocab_size: int) -> list[str]:
        """Returns a note if a model's table has more rows than the vocabulary.

        Raises:
          UserError: If the table has too few rows for the vocabulary.
        """
        if self.token_ids[-1] >= vocab_size:
            raise UserError(
                f"{self.source} has {len(self.tokens)} lines, but `vocab_size` "
                f"of the model is {vocab_size}; use a vocabulary and a "
                "bert_config.json that belong together."
            )
        if len(self.tokens) >= vocab_size:
            return []
        return [
            f"{self.source} has {len(self.tokens)} lines, and the model's "
            f"table {vocab_size} rows; the last ones have no token."
        ]

    def warn_of_size(self, vocab_size: int) -> None:
        """Checks the size of a vocabulary that a flag names; see `check_size`.

        A table may be padded, as NVIDIA's tables are to 30528 rows, so a short
        vocabulary only logs a warning. The original does not check sizes.
        """
        for note in self.check_size(vocab_size):
            logging.warning(
                "%s That is right for a table with padding; otherwise it is "
                "the vocabulary of another model, and ids mean other tokens.",
                note,
            )


def added_token(
    id: int, is_wordpiece: bool, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a row of `Vocabulary.added_tokens`.

    Args:
      id: The token's id.
      is_wordpiece: Whether WordPiece may also produce this token.
      values: `content` and flags, as in Hugging Face's tokenizer.json. Flags
        are `special`, `normalized` (match in normalized text), `single_word`
        (no match inside words), and `lstrip` and `rstrip` (a match includes
        the white space before and after it).
    """
    row = {"id": id, "content": values["content"], "is_wordpiece": is_wordpiece}
    return row | {x: bool(values.get(x)) for x in ADDED_TOKEN_FLAGS}


def _read_added_tokens(path: str) -> Sequence[Mapping[str, Any]]:
    """Returns the added tokens in the tokenizer.json next to a vocabulary."""
    path = os.path.join(os.path.dirname(path), _TOKENIZER_FILE)
    if not stored_files.exists(path):
        return ()
    contents = files.read_small(path)
    # Ignore the tokenizer.json of another library: it has no `vocabulary_hash`.
    if b'"vocabulary_hash"' not in contents or b'"added' not in contents:
        return ()
    settings = stored_files.parse_json(contents, path)
    stored_files.check(settings, {"added_tokens": ADDED_TOKENS}, path)
    return settings["added_tokens"]


def read_lines(path: str, flag: str, what: str) -> list[str]:
    r"""Reads the lines of a text file; only \n ends a line.

    The last \n may be missing. For error messages, `flag` is the flag with the
    path, and `what` is the kind of line, such as "token".

    Raises:
      UserError: If the file is missing, empty, not UTF-8 or begins with a byte
        order mark. The message has the file and the line.
    """
    contents = files.read_small(files.require_file(path, flag))
    compression.refuse_binary(path, contents)
    if contents.startswith(_BYTE_ORDER_MARK):
        raise UserError(
            f"{path}, line 1: begins with a byte order mark (EF BB BF), "
            f"which would become part of the first {what}; save the file as "
            "UTF-8 without it."
        )
    try:
        text = contents.decode("utf-8")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 at byte {error.start} of the "
            "file; save it as UTF-8."
        ) from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path} is empty; expected one {what} per line.")
    return lines


def nothing_new(path: str, count: int) -> UserError:
    """Returns the error for a file of `count` words without a new one."""
    return UserError(
        f"{path}: the vocabulary of the model has all of its {count} words "
        "already, so there is nothing to add."
    )


def check_line(line: str, what: str, where: str) -> None:
    """Raises `UserError` for empty lines and lines that end in CR LF."""
    if not line:
        raise UserError(f"{where}: empty; every line must have one {what}.")
    if line.endswith("\r"):
        raise UserError(
            f"{where}: ends with \\r\\n (Windows), and the \\r would become "
            f"part of the {what}; convert the line ends to \\n."
        )


def is_line(token: str) -> bool:
    """Returns whether a line of the file can hold a token."""
    try:
        _check_token(token, "")
    except UserError:
        return False
    return True


def _check_token(token: str, where: str) -> None:
    """Raises `UserError` for a token that no text can match."""
    check_line(token, "token", where)
    if "\n" in token:
        raise UserError(f"{where}: {token!r} contains a line end.")
    size = len(token.removeprefix(CONTINUATION).encode("utf-8"))
    if "\0" in token or size > _MAX_TOKEN_BYTES:
        raise UserError(
            f"{where}: a token must have at most {_MAX_TOKEN_BYTES} bytes "
            f"without {CONTINUATION}, and no NUL. Received: {token[:40]!r} of "
            f"{size} bytes."
        )
    stripped = token.strip()
    if stripped == token:
        return
    # Allow a token of non-ASCII white space (U+2028 in bert-base-chinese). No
    # text matches it, but without its line all later tokens would change ids.
    visible = stripped.removeprefix(CONTINUATION)
    if visible or token.removeprefix(CONTINUATION).isascii():
        raise UserError(
            f"{where}: {token!r} has white space at its ends, so no text would "
            "match it; remove the white space."
        )
