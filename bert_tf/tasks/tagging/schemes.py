"""Tagging schemes: IOB2 for models, and other schemes in files."""

import re
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Literal

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


def to_iob(
    sentences: Sequence[Sequence[str]],
) -> tuple[Sequence[Sequence[str]], str | None, tuple[int, int] | None]:
    """Converts the tags of a file to O, B-type and I-type.

    In BIOES, S-PER B-LOC E-LOC becomes B-PER B-LOC I-LOC. A bare type such as
    PER becomes I-PER, so neighbors of one type form one entity. A bare letter
    such as B gets the type ENTITY.

    Returns:
      The tags, the name of the scheme (None for IOB), and the first invalid tag
      as (sentence index, word index), or None if all tags are valid.
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
        bad = next(
            (number, place)
            for number, of_sentence in enumerate(sentences)
            for place, tag in enumerate(of_sentence)
            if tag in tags - valid
        )
        return sentences, None, bad
    letters = {tag[0] for tag in tags}
    if not tags or (pattern is _TAG and letters <= {"B", "I"}):
        return sentences, None, None
    new = {OUTSIDE: OUTSIDE}
    for tag in tags:
        letter, name = ("I", tag) if pattern is _NAME else (tag[0], tag[2:])
        new[tag] = f"{_IN_IOB.get(letter)}-{name or 'ENTITY'}"
    if pattern is _NAME:
        return [[new[tag] for tag in x] for x in sentences], "names alone", None
    names = ("BI", "IOE", "BIOES", "BILOU", "BMES")
    scheme = next((x for x in names if letters <= set(x)), "mixed")

    def convert(tag, previous):
        # In IOE, E- ends an entity, so the next I- or E- begins another entity.
        begins = previous[0] in "ELSU" and tag != OUTSIDE
        return f"B{new[tag][1:]}" if begins else new[tag]

    converted = [
        [convert(*pair) for pair in _with_previous(tags)] for tags in sentences
    ]
    return converted, scheme, None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Converts a sentence's tags to IOB2, with B- where an entity begins.

    As in conlleval, B- always begins an entity; I- begins an entity unless the
    tag before it has the same type. For example, I-PER I-PER O I-PER becomes
    B-PER I-PER O B-PER.
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
    """Returns the tagging scheme of sentences.

    In IOB1 an entity begins with I-, or with B- directly after another entity
    of its type. In IOB2 every entity begins with B-. "mixed" means that the
    tags follow neither scheme; None means that there are no entities.
    """
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
    """Yields each tag with the tag before it; the first tag follows O."""
    previous = OUTSIDE
    for tag in tags:
        yield tag, previous
        previous = tag


def from_spans(spans: Any, offsets: Any) -> tuple[list[str], int]:
    """Returns tags from spans [start, end, label], and how many spans moved.

    A span that starts or ends inside a word moves to the bounds of the word.
    With words at 0-4 and 5-9, the span [5, 8, "LOC"] gives the tags O, B-LOC.
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
