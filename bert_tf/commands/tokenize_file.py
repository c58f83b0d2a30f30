r"""Tokenizes a text file: one line of text in, one line of JSON out.

  python run/tokenize_file.py --vocab_file=data/vocab.txt \
      --input_file=text.txt --output_file=tokens.jsonl

Each line of the output is a JSON object with the lists "ids", "tokens" and
"offsets". A token's offsets are [start, end], in bytes from the line's start.
"""

import dataclasses
import json
from collections.abc import Iterator

from bert_tf.flags import options
from bert_tf.flags.groups import NormalizationConfig

# Characters to tokenize at once, which bounds memory; lines are never split.
_CHARACTERS_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True)
class TokenizeFileConfig(NormalizationConfig):
    """Flags of run/tokenize_file.py."""

    vocab_file: str = options.data(
        "Vocabulary, one token a line.", options.REQUIRED, reads="file"
    )
    input_file: str = options.data(
        "UTF-8 text file; only \\n ends a line.", options.REQUIRED, reads="file"
    )
    output_file: str = options.output(
        "JSON lines to write: ids, tokens and byte offsets of each line.",
        options.REQUIRED,
        endings=".jsonl",
    )
    preserve_special_tokens: bool = options.data(
        "Keep special tokens such as [MASK] whole where the text contains "
        "them.",
        False,
    )


def main(config: TokenizeFileConfig) -> None:
    r"""Writes one JSON line per line of text, in bounded memory.

    Only \n ends a line; the last \n may be missing. Adds no [CLS] and [SEP].
    """
    from bert_tf.io import files
    from bert_tf.io import text_files
    from bert_tf.text.vocabulary import Vocabulary

    files.require_writable(config.output_file, "--output_file")
    vocabulary = Vocabulary.from_file(config.vocab_file)
    text_files.check_starts(config.input_file)

    import tensorflow as tf
    from absl import logging

    from bert_tf.io import progress
    from bert_tf.text.tokenizer import BertTokenizer

    tokenizer = BertTokenizer(
        vocabulary,
        config.do_lower_case,
        config.strip_accents,
        config.preserve_special_tokens,
    )
    tokenize = tf.function(
        tokenizer.tokenize_with_offsets,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    with (
        files.atomic_file(config.output_file) as temporary,
        files.open_binary(temporary, "wb") as output,
        progress.bar(None, "tokenizing", "line") as bar,
    ):
        output.write(b"")  # Creates a remote file even if there is no line.
        for lines in _read_parts(config.input_file):
            tokens = tokenize(tf.constant(lines, tf.string))
            for ids, starts, ends in zip(
                *(part.to_list() for part in tokens), strict=True
            ):
                row = {
                    "ids": ids,
                    "tokens": [vocabulary.tokens[x] for x in ids],
                    "offsets": list(zip(starts, ends, strict=True)),
                }
                text = json.dumps(row, ensure_ascii=False)
                output.write(f"{text}\n".encode())
            bar.update(len(lines))
    logging.info(
        "Wrote the tokens of %d lines to %s.", bar.n, config.output_file
    )


def _read_parts(path: str) -> Iterator[list[str]]:
    """Yields lists of lines, each of about `_CHARACTERS_AT_ONCE` characters."""
    from bert_tf.io import text_files

    lines, size = [], 0
    for _, line in text_files.read_lines(path):
        lines.append(line)
        size += len(line)
        if size >= _CHARACTERS_AT_ONCE:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines
