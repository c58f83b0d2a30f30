"""Precision, recall and F1 of entities, as conlleval and seqeval count them."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from seqeval import scheme
from seqeval.metrics import sequence_labeling


class Entity(NamedTuple):
    """An entity of a sentence: its type, its first word and the last one's."""

    type: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """How entities were found; all of them, or those of one type.

    Attributes:
      num_references: Entities that there are.
      num_predictions: Entities that were predicted.
      num_correct: Predictions with type, first and last word as they should
        be.
    """

    num_references: int
    num_predictions: int
    num_correct: int

    @property
    def precision(self) -> float:
        """Part of the predictions that is correct, 0 if there are none."""
        return self.num_correct / max(self.num_predictions, 1)

    @property
    def recall(self) -> float:
        """Part of the entities that was found, 0 if there are none."""
        return self.num_correct / max(self.num_references, 1)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.num_predictions + self.num_references
        return 2 * self.num_correct / max(total, 1)


@dataclasses.dataclass(frozen=True)
class TaggingScore:
    """The scores of a tagger.

    Attributes:
      overall: All entities together (micro average).
      by_type: Type to its score, in the order of their names; types that are
        only predicted are there too.
      accuracy: Part of the words with the right tag.
    """

    overall: EntityScore
    by_type: dict[str, EntityScore]
    accuracy: float

    def rows(self) -> list[tuple[str, EntityScore]]:
        """Returns the rows of a table: each type, and "overall" at the end."""
        return [*self.by_type.items(), ("overall", self.overall)]


def find_entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """Returns the entities that a sentence's tags make, in their order.

    Args:
      tags: IOB tags.
      strict: Whether an entity must begin with B-. Else, as for conlleval, an
        I- that follows no tag of its type begins one too.
    """
    if not strict:
        found = sequence_labeling.get_entities(list(tags))
        return [Entity(kind, start, end) for kind, start, end in found]
    (found,) = scheme.Entities([list(tags)], scheme.IOB2).entities
    # Ends of seqeval's strict entities are exclusive.
    return [Entity(x.tag, x.start, x.end - 1) for x in found]


def score(
    references: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    strict: bool = False,
) -> TaggingScore:
    """Scores predicted tags.

    Args:
      references: The tags of each sentence as they should be.
      predictions: The predicted ones.
      strict: As for `find_entities`.

    Raises:
      ValueError: If a sentence has another number of predictions.
    """
    counts = {
        name: collections.Counter()
        for name in ("references", "predictions", "correct")
    }
    num_words = num_right = 0
    for number, (wanted, received) in enumerate(
        zip(references, predictions, strict=True)
    ):
        if len(wanted) != len(received):
            raise ValueError(
                f"Expected {len(wanted)} tags for sentence {number}. Received: "
                f"{len(received)}."
            )
        num_words += len(wanted)
        num_right += sum(map(str.__eq__, wanted, received))
        there = set(find_entities(wanted, strict))
        found = set(find_entities(received, strict))
        counts["references"].update(x.type for x in there)
        counts["predictions"].update(x.type for x in found)
        counts["correct"].update(x.type for x in there & found)
    types = sorted(set(counts["references"]) | set(counts["predictions"]))
    return TaggingScore(
        EntityScore(*(counter.total() for counter in counts.values())),
        {
            name: EntityScore(*(counter[name] for counter in counts.values()))
            for name in types
        },
        num_right / max(num_words, 1),
    )
