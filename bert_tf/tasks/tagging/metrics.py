"""Entity-level precision, recall and F1, as in conlleval and seqeval."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from seqeval import scheme
from seqeval.metrics import sequence_labeling


class Entity(NamedTuple):
    """An entity of a sentence: its type, its first word and its last word."""

    type: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """Entity counts and scores, of all entities or of one type.

    Attributes:
      num_references: The number of reference entities.
      num_predictions: The number of predicted entities.
      num_correct: Predictions with the correct type, first and last word.
    """

    num_references: int
    num_predictions: int
    num_correct: int

    @property
    def precision(self) -> float:
        """The share of predictions that are correct, 0 if there are none."""
        return self.num_correct / max(self.num_predictions, 1)

    @property
    def recall(self) -> float:
        """The share of references that are predicted, 0 if there are none."""
        return self.num_correct / max(self.num_references, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.num_predictions + self.num_references
        return 2 * self.num_correct / max(total, 1)


@dataclasses.dataclass(frozen=True)
class TaggingScore:
    """The scores of a tagger.

    Attributes:
      overall: All entities together (micro average).
      by_type: Type to its score, sorted by name, including types that are only
        predicted.
      accuracy: The share of words with the correct tag.
    """

    overall: EntityScore
    by_type: dict[str, EntityScore]
    accuracy: float

    def rows(self) -> list[tuple[str, EntityScore]]:
        """Returns the rows of a table: each type, then "overall"."""
        return [*self.by_type.items(), ("overall", self.overall)]


def find_entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """Returns the entities in a sentence's tags, in order.

    Args:
      tags: IOB tags.
      strict: Whether an entity must begin with B-. Otherwise, as in conlleval,
        an I- that follows no tag of its type begins one too.
    """
    if not strict:
        entities = sequence_labeling.get_entities(list(tags))
        return [Entity(kind, start, end) for kind, start, end in entities]
    (entities,) = scheme.Entities([list(tags)], scheme.IOB2).entities
    # The ends of seqeval's strict entities are exclusive.
    return [Entity(x.tag, x.start, x.end - 1) for x in entities]


def score(
    references: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    strict: bool = False,
) -> TaggingScore:
    """Scores predicted tags.

    `strict` is that of `find_entities`.

    Raises:
      ValueError: If a sentence has more or fewer predictions than references.
    """
    counts = {
        name: collections.Counter()
        for name in ("references", "predictions", "correct")
    }
    num_words = num_correct = 0
    for number, (expected, actual) in enumerate(
        zip(references, predictions, strict=True)
    ):
        if len(expected) != len(actual):
            raise ValueError(
                f"Expected {len(expected)} tags for sentence {number}. "
                f"Received: {len(actual)}."
            )
        num_words += len(expected)
        num_correct += sum(map(str.__eq__, expected, actual))
        reference = set(find_entities(expected, strict))
        predicted = set(find_entities(actual, strict))
        counts["references"].update(x.type for x in reference)
        counts["predictions"].update(x.type for x in predicted)
        counts["correct"].update(x.type for x in reference & predicted)
    types = sorted(set(counts["references"]) | set(counts["predictions"]))
    return TaggingScore(
        EntityScore(*(counter.total() for counter in counts.values())),
        {
            name: EntityScore(*(counter[name] for counter in counts.values()))
            for name in types
        },
        num_correct / max(num_words, 1),
    )
