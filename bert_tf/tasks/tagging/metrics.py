"""Entity-level precision, recall and F1, as in conlleval and seqeval."""

import collections
import dataclasses
from collections.abc import Sequence

from seqeval.metrics.sequence_labeling import get_entities


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


def score(
    references: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
) -> TaggingScore:
    """Scores predicted IOB tags.

    As in conlleval, an I- that follows no tag of its type begins an entity.

    Raises:
      ValueError: If a sentence has more or fewer predictions than references.
    """
    counts = [collections.Counter() for _ in range(3)]
    is_correct: list[bool] = []
    for tags in zip(references, predictions, strict=True):
        is_correct += [x == y for x, y in zip(*tags, strict=True)]
        expected, actual = (set(get_entities(list(x))) for x in tags)
        for counter, entities in zip(
            counts, (expected, actual, expected & actual), strict=True
        ):
            counter.update(name for name, _, _ in entities)
    return TaggingScore(
        EntityScore(*(counter.total() for counter in counts)),
        {
            name: EntityScore(*(counter[name] for counter in counts))
            for name in sorted(counts[0] | counts[1])
        },
        sum(is_correct) / max(len(is_correct), 1),
    )
