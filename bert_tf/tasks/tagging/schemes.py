"""Tagging schemes: IOB1, and IOB2, in which models learn tags."""

import re
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Literal

OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-\S+")


def is_tag(text: str) -> bool:
    """Returns True if a text is O, B-type or I-type."""
    return _TAG.fullmatch(text) is not None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Converts a sentence's tags to IOB2, with B- where an entity begins.

    As for conlleval, an entity begins with a B-, or with an I- that follows
    neither a B- nor an I- of its type.
    """
    converted = []
    for tag, previous in _with_previous(tags):
        if tag[0] == "I" and previous[1:] != tag[1:]:
            tag = f"B{tag[1:]}"
        converted.append(tag)
    return tuple(converted)


def detect_scheme(
    sentences: Iterable[Sequence[str]],
) -> Literal["IOB1", "IOB2", "mixed"] | None:
    """Returns the tagging scheme of sentences; see `examples.TaggingData`."""
    breaks_iob1 = breaks_iob2 = has_entity = False
    for tags in sentences:
        for tag, previous in _with_previous(tags):
            has_entity |= tag != OUTSIDE
            follows = previous[1:] == tag[1:]
            breaks_iob1 |= tag[0] == "B" and not follows
            breaks_iob2 |= tag[0] == "I" and not follows
    if not has_entity:
        return None
    if breaks_iob1 and breaks_iob2:
        return "mixed"
    return "IOB1" if breaks_iob2 else "IOB2"


def _with_previous(tags: Iterable[str]):
    """Yields each tag and the one before it."""
    previous = OUTSIDE
    for tag in tags:
        yield tag, previous
        previous = tag
