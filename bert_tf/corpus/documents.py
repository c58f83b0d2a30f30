"""Chunks and documents of a corpus, and counts of dropped text by reason."""

import collections
import dataclasses
import hashlib
from typing import Any

NUM_SAMPLES = 10
_SAMPLE_CHARACTERS = 300


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A piece of an input file that starts and ends between documents.

    Attributes:
      start: Position of the payload for error messages, in bytes of the
        decompressed file, or in rows of a Parquet file.
      format: One of the values of --input_format, not "auto".
      payload: The bytes of the lines or pages. For Parquet, (row group, first
        row, stop row), with rows counted from the start of the row group.
      header: The XML before the first page of a dump; else b"".
    """

    path: str
    start: int
    format: str
    payload: Any
    header: bytes = b""


@dataclasses.dataclass(frozen=True)
class Document:
    """The text of a document and its id.

    Attributes:
      id: The page's number in Wikipedia, or the value in --id_column, or else a
        hash of the text, so that a later extraction gives an equal id.
      paragraphs: The lines of the text, stripped and not empty.
    """

    id: str
    paragraphs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Dropped:
    """A dropped document or paragraph.

    Attributes:
      id: Id of the document, even if only a paragraph was dropped.
      reason: A few words, such as "redirect".
      text: The dropped text, or the title of a page that was not parsed.
    """

    id: str
    reason: str
    text: str


@dataclasses.dataclass
class Reason:
    """Number, total length and samples of the texts dropped for one reason.

    `samples` has [priority, id, text] of up to `NUM_SAMPLES` texts. A priority
    is a hash, so the texts with the lowest priorities are a random sample.
    """

    count: int = 0
    characters: int = 0
    samples: list[list[Any]] = dataclasses.field(default_factory=list)


class Tally:
    """Counts and samples of dropped text: `reasons` has a `Reason` by name."""

    def __init__(self) -> None:
        self.reasons = collections.defaultdict[str, Reason](Reason)

    def add(self, dropped: Dropped) -> None:
        """Counts and samples a document or paragraph."""
        reason = self.reasons[dropped.reason]
        reason.count += 1
        reason.characters += len(dropped.text)
        self.sample(dropped)

    def sample(self, dropped: Dropped) -> None:
        """Samples a text if its priority is low, without counting it."""
        data = f"{dropped.id}\0{dropped.text}".encode("utf-8", "surrogatepass")
        priority = hashlib.blake2b(data, digest_size=8).hexdigest()
        samples = self.reasons[dropped.reason].samples
        if len(samples) < NUM_SAMPLES or priority < samples[-1][0]:
            text = dropped.text[:_SAMPLE_CHARACTERS]
            samples.append([priority, dropped.id, text])
            samples.sort()
            del samples[NUM_SAMPLES:]

    def merge(self, other: "Tally") -> None:
        """Adds the counts and samples of another tally."""
        for name, reason in other.reasons.items():
            own = self.reasons[name]
            own.count += reason.count
            own.characters += reason.characters
            own.samples = sorted([*own.samples, *reason.samples])[:NUM_SAMPLES]

    def to_json(self) -> dict[str, Any]:
        return {x: dataclasses.asdict(y) for x, y in self.reasons.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Tally":
        tally = cls()
        tally.reasons |= {x: Reason(**y) for x, y in values.items()}
        return tally
