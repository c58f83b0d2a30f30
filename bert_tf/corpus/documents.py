"""Types shared by the steps of text extraction."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A piece of an input file that starts and ends between documents.

    Attributes:
      path: The file.
      number: Index of the chunk in its file.
      start: Offset of the payload in the decompressed file, for messages; a row
        for Parquet.
      format: One of `bert_tf.flags.corpus.INPUT_FORMATS`, not "auto".
      payload: Bytes of lines or pages; of Parquet the number of a row group and
        the first row in it and the one after the last.
      header: The XML before the first page of a dump; else "".
      language: The language given with the file, as in de=GLOB; else "".
      omitted: Characters of a document that is too large, behind the payload,
        which is only its start; 0 if the payload is whole.
    """

    path: str
    number: int
    start: int
    format: str
    payload: Any
    header: bytes = b""
    language: str = ""
    omitted: int = 0


@dataclasses.dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
      id: Identifies the document in later extractions, too: the page's number
        in Wikipedia, the --id_column of rows, else a hash of the text.
      paragraphs: Stripped lines, none empty.
    """

    id: str
    paragraphs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Dropped:
    """A dropped document or paragraph.

    Attributes:
      id: The document's.
      reason: A few words, such as "redirect".
      text: The dropped text; the title of a page that was not parsed.
      omitted: Characters of the dropped text that `text` does not have.
    """

    id: str
    reason: str
    text: str
    omitted: int = 0
