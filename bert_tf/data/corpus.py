"""Readers of text files: lines, documents and sentences.

TensorFlow is imported only for remote paths, so processes that read local files
start at once and stay small.
"""

import hashlib
import itertools
import operator
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import sentencex

from bert_tf.errors import UserError
from bert_tf.io import compression

# Captures a quotation without its marks. An apostrophe before a letter does not
# end a quotation in single marks.
_QUOTATION = re.compile(
    r"“([^”]+)|\"([^\"]+)|«([^»]+)|„([^“”]+)|‘((?:[^’]|’(?=\w))+)"
)
_QUOTATION_MARKS = re.compile('[“"«„‘]')
# Quotations nested more deeply are not split, which bounds the recursion.
_MAX_NESTING = 3
# Text is cut into stretches of up to 20,000 characters, at a space if possible,
# because sentencex takes quadratic time for unpaired marks.
_STRETCH = re.compile(r"(?s).{1,20000}(?:(?<=\s)|\Z)|.{20000}")

# A hash of a document's first characters decides if the document is sampled.
_HASHED_CHARS = 1 << 16


def read_documents(files: Sequence[str], **options: Any) -> Iterator[list[str]]:
    """Yields each document as a list of lines; see `read_numbered_lines`."""
    return map(list, group_lines(read_numbered_lines(files, **options)))


def group_lines(
    numbered: Iterable[tuple[int, str]],
) -> Iterator[Iterator[str]]:
    """Yields an iterator over the lines of each document, read on demand."""
    for _, document in itertools.groupby(numbered, operator.itemgetter(0)):
        yield (line for _, line in document)


def read_numbered_lines(
    files: Sequence[str],
    one_document_per_file: bool = False,
    replace_invalid_utf8: bool = False,
    *,
    as_original: bool = False,
    may_be_empty: bool = False,
    sample: float = 1.0,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, str]]:
    r"""Yields each line with the number of its document, counted from 0.

    Lines are stripped; blank lines are left out. A document ends at a blank
    line or at the end of its file. A line ends only at \n, so U+2028 or a form
    feed does not split a paragraph. Memory holds one line, or a document's
    start if `sample` < 1.

    Args:
      files: Paths, local or remote; .gz, .bz2, .xz and .zst files are
        decompressed.
      one_document_per_file: Whether to ignore blank lines.
      replace_invalid_utf8: Whether bytes that are not UTF-8 become U+FFFD.
      as_original: Whether to follow create_pretraining_data.py:186-203 of the
        original, where a document continues in the next file unless a blank
        line ends it, and every \r is dropped (as by `GFile.readline`).
      may_be_empty: Whether files without text are allowed.
      sample: Share of the documents to read, chosen by a hash of the start of
        their text (65,536 characters). Skipped documents get no number.
      on_bytes: Called with the number of bytes read since the previous call,
        for a progress bar. In a compressed file, compressed bytes count.

    Raises:
      UserError: If a file cannot be read, is not UTF-8, is damaged or
        truncated, or if the files contain no document.
    """

    def read() -> Iterator[tuple[int, str]]:
        number, in_document = 0, False
        for path in files:
            for line in _read_lines(path, replace_invalid_utf8, on_bytes):
                if as_original:
                    line = line.replace("\r", "")
                line = line.strip()
                if line:
                    in_document = True
                    yield number, line
                elif in_document and not one_document_per_file:
                    number, in_document = number + 1, False
            if in_document and not as_original:
                number, in_document = number + 1, False

    lines = _sample_documents(read(), sample) if sample < 1 else read()
    first = next(lines, None)
    if first is not None:
        yield first
        yield from lines
    elif not may_be_empty:
        raise empty_corpus_error(files, sample)


def _sample_documents(
    numbered: Iterable[tuple[int, str]], sample: float
) -> Iterator[tuple[int, str]]:
    """Yields the lines of a share of the documents, renumbered from 0."""
    number = 0
    for document in group_lines(numbered):
        start: list[str] = []
        size = 0
        for line in document:
            start.append(line)
            size += len(line)
            # A document may be larger than memory, so hash only its start.
            if size >= _HASHED_CHARS:
                break
        digest = hashlib.blake2b("\n".join(start).encode(), digest_size=8)
        if int.from_bytes(digest.digest()) < sample * (1 << 64):
            for line in itertools.chain(start, document):
                yield number, line
            number += 1


def empty_corpus_error(
    files: Sequence[str], sample: float = 1.0, unit: str = "line of text"
) -> UserError:
    """Returns the error for files without any `unit`."""
    of = f" in the documents of --sample={sample}" if sample < 1 else ""
    return UserError(
        f"The corpus is empty: no {unit}{of} in "
        f"{', '.join(files[:3])}{', ...' if len(files) > 3 else ''}."
    )


def count_bytes(files: Sequence[str]) -> int:
    """Returns the size of all files, to which `on_bytes` arguments add up."""
    return sum(map(compression.stored_size, files))


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into stripped, non-empty sentences.

    The library sentencex does not split quotations. In novels, a quotation may
    have hundreds of words, so this function splits quotations, too.
    """
    sentences = (
        sentence.strip()
        for stretch in _STRETCH.findall(paragraph)
        for sentence in _segment(stretch, _MAX_NESTING)
    )
    return [sentence for sentence in sentences if sentence]


def _segment(text: str, nesting: int) -> list[str]:
    """Cuts text into sentences without dropping a character."""
    sentences = []
    for sentence in sentencex.segment("en", text):
        if nesting and _QUOTATION_MARKS.search(sentence):
            sentences += _segment_quotations(sentence, nesting)
        else:
            sentences.append(sentence)
    return sentences


def _segment_quotations(sentence: str, nesting: int) -> list[str]:
    """Cuts a sentence that contains a quotation of several sentences.

    The text before the quotation stays with the first sentence, and the text
    after it with the last: `He said "Go. Now!" to me.` gives `He said "Go. `
    and `Now!" to me.`
    """
    cuts = [0]
    for quotation in _QUOTATION.finditer(sentence):
        position = quotation.start(quotation.lastindex)
        for inner in _segment(quotation[quotation.lastindex], nesting - 1)[:-1]:
            position += len(inner)
            cuts.append(position)
    return [
        sentence[start:end]
        for start, end in zip(cuts, [*cuts[1:], None], strict=True)
    ]


def _read_lines(
    path: str, replace: bool, on_bytes: Callable[[int], None] | None
) -> Iterator[str]:
    """Yields the decoded lines of one file, with their line ends."""
    offset = 0
    on_block = on_bytes and (lambda block: on_bytes(len(block)))
    with compression.open_decompressed(path, on_block) as file:
        for line in file:
            try:
                yield line.decode("utf-8", "replace" if replace else "strict")
            except UnicodeDecodeError as error:
                is_stored = not compression.ending(path)
                place = "" if is_stored else " of the decompressed text"
                raise UserError(
                    f"{path} is not UTF-8 at byte {offset + error.start}{place}"
                    f" (0x{line[error.start]:02x}); convert it, or set "
                    "--replace_invalid_utf8 to read such bytes as U+FFFD."
                ) from error
            offset += len(line)
