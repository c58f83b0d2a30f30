"""SQuAD's official metrics, and the best "no answer" threshold.

The metrics equal the output of the official evaluators, evaluate-v1.1.py and
evaluate-v2.0.py, bit for bit.
"""

import collections
import re
import string
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import SquadPrediction

_PERCENT = 100.0
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def evaluate(
    examples: Sequence[SquadExample],
    answers: Mapping[str, str],
    version_2_with_negative: bool = False,
) -> dict[str, float]:
    """Returns the official scores, in percent.

    `answers` maps all question ids to answers, "" for "no answer". The scores
    are `exact_match` and `f1` for SQuAD 1.1, and `exact`, `f1` and `total` for
    2.0 (`version_2_with_negative`). There, the prefixes `HasAns_` and `NoAns_`
    mark the scores of questions with and without an answer.
    """
    if not version_2_with_negative:
        exact = f1 = 0
        for example in examples:
            predicted = _tokens(answers[example.qas_id])
            references = [_tokens(text) for text in example.answers]
            exact += predicted in references
            f1 += max(_f1(predicted, tokens) for tokens in references)
        return {
            "exact_match": _PERCENT * (exact / len(examples)),
            "f1": _PERCENT * (f1 / len(examples)),
        }
    scores = [_score(one, answers[one.qas_id]) for one in examples]
    pairs = [*zip(examples, scores, strict=True)]
    groups = {
        "": scores,
        "HasAns_": [score for one, score in pairs if one.answers],
        "NoAns_": [score for one, score in pairs if not one.answers],
    }
    result = {}
    for prefix, group in groups.items():
        if group:
            exact, f1 = (
                _PERCENT * sum(x) / len(group) for x in zip(*group, strict=True)
            )
            result |= {f"{prefix}exact": exact, f"{prefix}f1": f1}
            result[f"{prefix}total"] = len(group)
    return result


def find_best_threshold(
    examples: Sequence[SquadExample], predictions: Sequence[SquadPrediction]
) -> tuple[float, float]:
    """Returns the best F1, in percent, and the lowest threshold reaching it.

    Tries every threshold that changes a `SquadPrediction.answer`. For null odds
    of -2 and 1, tries -2, 1 and the number just below -2. The official search
    also separates questions with equal odds, although no threshold can do this,
    and returns 0 if answering no question is best.
    """
    null_odds, if_answered, if_not = [], [], []
    for example, prediction in zip(examples, predictions, strict=True):
        null_odds.append(prediction.null_odds)
        best = prediction.best_non_null
        if_answered.append(_score(example, best.text if best else "")[1])
        if_not.append(_score(example, "")[1])
    # Sort by odds: a threshold answers all questions with null odds up to it,
    # so its gain is the cumulative sum of their gains.
    order = np.argsort(null_odds, kind="stable")
    odds = np.array(null_odds)[order]
    unanswered = _PERCENT * np.array(if_not)
    gains = np.cumsum((_PERCENT * np.array(if_answered) - unanswered)[order])
    is_last_of_equals = np.append(odds[1:] != odds[:-1], True)
    thresholds = np.append(
        np.nextafter(odds[0], -np.inf), odds[is_last_of_equals]
    )
    scores = unanswered.sum() + np.append(0.0, gains[is_last_of_equals])
    best = np.argmax(scores)
    return float(scores[best] / len(odds)), float(thresholds[best])


def _score(example: SquadExample, answer: str) -> tuple[float, float]:
    """Returns exact match and F1 of one answer to a question of 2.0."""
    predicted = _tokens(answer)
    references = [_tokens(text) for text in example.answers]
    # Drop references without words. If no reference is left, "" is correct.
    references = [tokens for tokens in references if tokens] or [[]]
    if not predicted:
        f1 = int([] in references)
    else:
        f1 = max(_f1(predicted, tokens) for tokens in references)
    return int(predicted in references), f1


def _tokens(text: str) -> list[str]:
    """Returns the words in lower case, without punctuation and articles."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def _f1(predicted: Sequence[str], reference: Sequence[str]) -> float:
    both = collections.Counter(predicted) & collections.Counter(reference)
    if not both:
        return 0
    precision = 1.0 * both.total() / len(predicted)
    recall = 1.0 * both.total() / len(reference)
    return (2 * precision * recall) / (precision + recall)
