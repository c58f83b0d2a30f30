"""Tokenizes a text file line by line into a JSON lines file."""

import json
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.text.tokenizer import BertTokenizer

# Bytes to read at once; a longer line is read whole.
_BYTES_AT_ONCE = 1 << 18


def run(config: Flags) -> None:
    r"""Writes one JSON line per line of text, in bounded memory.

    A JSON line is `{"ids": [...], "tokens": [...], "offsets": [[start, end],
    ...]}`, without [CLS] and [SEP]; offsets are bytes of the line. Only \n ends
    a line; the last \n may be missing.

    Raises:
      UserError: If a file is missing, the vocabulary is invalid, or the text is
        not UTF-8.
    """
    files.require_file(config.input_file, "--input_file")
    files.require_other(config.output_file, config.input_file)
    files.require_writable(config.output_file, "--output_file")
    tokenizer = BertTokenizer.from_vocab_file(
        config.vocab_file,
        config.do_lower_case,
        config.strip_accents,
        config.preserve_special_tokens,
    )
    tokenize = tf.function(
        tokenizer.tokenize_with_offsets,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    size = tf.io.gfile.stat(config.input_file).length
    with (
        files.atomic_file(config.output_file) as temporary,
        tf.io.gfile.GFile(temporary, "w") as output,
        progress.bar(size, "tokenizing", "B") as bar,
    ):
        output.write("")  # Creates the file even if there is no line.
        number = 0
        for lines, num_bytes in _read_lines(config.input_file):
            tokens = tokenize(tf.constant(lines, tf.string))
            for row in zip(*(part.to_list() for part in tokens), strict=True):
                output.write(_to_json(row, tokenizer.vocabulary.tokens))
            number += len(lines)
            bar.update(num_bytes)
    logging.info(
        "Wrote the tokens of %d lines to %s.", number, config.output_file
    )


def _to_json(
    row: tuple[list[int], list[int], list[int]], tokens: tuple[str, ...]
) -> str:
    ids, starts, ends = row
    values = {
        "ids": ids,
        "tokens": [tokens[token_id] for token_id in ids],
        "offsets": list(zip(starts, ends, strict=True)),
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


def _read_lines(path: str) -> Iterator[tuple[list[bytes], int]]:
    r"""Yields lists of lines without their \n, and the bytes read for them.

    Raises:
      UserError: For the first byte that is not UTF-8.
    """
    number, offset = 1, 0  # Line and byte at which the next list begins.
    pending = b""
    # Not `readline`, which drops \r and so shifts the offsets.
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_BYTES_AT_ONCE):
            *lines, pending = (pending + chunk).split(b"\n")
            _check_utf8(lines, path, number, offset)
            yield lines, len(chunk)
            number += len(lines)
            offset += sum(map(len, lines)) + len(lines)
    if pending:
        _check_utf8([pending], path, number, offset)
        yield [pending], 0


def _check_utf8(
    lines: list[bytes], path: str, number: int, offset: int
) -> None:
    """Raises `UserError` with line number and offset in the file."""
    for line in lines:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8: byte {offset + error.start} of the file "
                f"(line {number}) is 0x{line[error.start]:02X}; save the file "
                "as UTF-8."
            ) from error
        number += 1
        offset += len(line) + 1
