"""Tagging schemes: IOB2 for models, and other schemes in files."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError

OUTSIDE = "O"
# Maps letters of BIOES, BILOU and BMES to B (begins) or I (continues).
_IN_IOB = dict(zip("BSUIMEL", "BBBIIII", strict=True))
_TAG = re.compile(r"([BSUIMEL])-(\S+)")
_LETTER = re.compile("[BSUIMEL]")
# Matches a bare entity type (PER), but no malformed tag (b-per, PER-B or o).
_NAME = re.compile(
    r"(?!(?i:[bsuimel][-_]|o$|.*[-_][bsuimel]$))[^\W\d_](?:[^\s=]*[^\s=-])?"
)


def is_tag(text: str) -> bool:
    """Returns True if a text is O or has a letter and a type, as B-PER."""
    return text == OUTSIDE or _TAG.fullmatch(text) is not None


def to_iob2(
    sentences: Sequence[Sequence[str]],
) -> tuple[list[tuple[str, ...]], tuple[int, int] | None]:
    """Converts the tags of a file to IOB2, with B- where an entity begins.

    In BIOES, S-PER B-LOC E-LOC becomes B-PER B-LOC I-LOC. A bare type such as
    PER becomes I-PER, so neighbors of one type form one entity. A bare letter
    such as B gets the type ENTITY. As in conlleval, I- begins an entity unless
    the tag before it has the same type: I-PER I-PER O I-PER becomes B-PER I-PER
    O B-PER.

    Returns the tags, and None; or no tags, and the first invalid tag as
    (sentence index, word index).
    """
    tags = {tag for tags in sentences for tag in tags} - {OUTSIDE}
    for pattern in (_TAG, _LETTER, _NAME):
        valid = {tag for tag in tags if pattern.fullmatch(tag)}
        if valid:
            break
    # More than 200 "types" are probably words of a wrong column: reject them.
    if pattern is _NAME and len(valid) > 200:
        valid = set()
    if valid != tags:
        return [], next(
            (number, place)
            for number, of_sentence in enumerate(sentences)
            for place, tag in enumerate(of_sentence)
            if tag in tags - valid
        )
    new = {OUTSIDE: OUTSIDE}
    for tag in tags:
        letter, name = ("I", tag) if pattern is _NAME else (tag[0], tag[2:])
        new[tag] = f"{_IN_IOB[letter]}-{name or 'ENTITY'}"
    ends = {tag for tag in tags if tag[0] in "ELSU" and pattern is not _NAME}

    def convert(previous: str, tag: str) -> str:
        is_same = new[previous][1:] == new[tag][1:] and previous not in ends
        return new[tag] if is_same or tag == OUTSIDE else f"B{new[tag][1:]}"

    return [
        tuple(itertools.starmap(convert, itertools.pairwise([OUTSIDE, *x])))
        for x in sentences
    ], None


def from_spans(spans: Any, offsets: Any) -> tuple[list[str], int]:
    """Returns tags from spans [start, end, label], and how many spans changed.

    A span that starts or ends inside a word moves to the bounds of the word,
    and loses words that an earlier span has. With words at 0-4 and 5-9, the
    span [5, 8, "LOC"] gives the tags O, B-LOC.
    """
    tags, num_moved = [OUTSIDE] * len(offsets), 0
    for span in spans:
        try:
            start, end, label = span
            places = [
                place
                for place, (first, last) in enumerate(offsets)
                if first < end and last > start and tags[place] == OUTSIDE
            ]
            name = "_".join(label.split())
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                "Expected spans [start, end, label] of the text. Received: "
                f"{span!r:.80}."
            ) from error
        for place in places:
            tags[place] = f"{'I' if place > places[0] else 'B'}-{name}"
        ends = [offsets[x] for x in places]
        num_moved += not ends or (ends[0][0], ends[-1][1]) != (start, end)
    return tags, num_moved
