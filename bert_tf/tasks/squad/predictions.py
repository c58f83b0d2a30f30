"""From logits to answers: the n best spans of each question, as text."""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from bert_tf.io import files
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.features import InputFeatures
from bert_tf.tasks.squad.span_texts import SpanTexts
from bert_tf.text.tokenizer import BertTokenizer

# What the original answers where it has no candidate in SQuAD 1.1.
_PLACEHOLDER = "empty"
_EXAMPLES_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class RawResult:
    """What the model says of one window.

    Attributes:
      unique_id: That of its features.
      start_logits: <float>[T] with T at least the number of pieces.
      end_logits: <float>[T].
    """

    unique_id: int
    start_logits: np.ndarray
    end_logits: np.ndarray


@dataclasses.dataclass(frozen=True)
class NbestPrediction:
    """One possible answer.

    Attributes:
      text: The answer; "" says that there is none.
      probability: Among the n best of its question.
      start_logit: None where systems are combined, as `end_logit`.
      end_logit: See above.
      start: Where it begins in the paragraph, in characters; None for "" and
        where systems are combined.
      end: Where it ends, exclusive.
    """

    text: str
    probability: float
    start_logit: float | None = None
    end_logit: float | None = None
    start: int | None = None
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class SquadPrediction:
    """The possible answers of one question.

    Attributes:
      qas_id: The question's id.
      nbest: Best first, never empty.
      null_odds: By how much "no answer" scores above the best answer; None if
        every question has an answer (SQuAD 1.1).
    """

    qas_id: str
    nbest: tuple[NbestPrediction, ...]
    null_odds: float | None = None

    @property
    def best_non_null(self) -> NbestPrediction | None:
        """The best entry that is an answer, if there is one."""
        return next((entry for entry in self.nbest if entry.text), None)

    def answer(self, null_score_diff_threshold: float = 0.0) -> str:
        """Returns the answer; "" where "no answer" is ahead by more.

        The original crashes where only "no answer" is possible.
        """
        if self.null_odds is None:
            return self.nbest[0].text
        best = self.best_non_null
        if best is None or self.null_odds > null_score_diff_threshold:
            return ""
        return best.text


def predict_answers(
    examples: Iterable[SquadExample],
    features: Iterable[InputFeatures],
    results: Mapping[int, RawResult],
    tokenizer: BertTokenizer,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
) -> Iterator[SquadPrediction]:
    """Yields the n best answers of each example.

    Source: write_predictions (run_squad.py:741-924 of the original).

    Args:
      examples: The examples.
      features: All of their windows, in order.
      results: Those of the windows, by `unique_id`.
      tokenizer: The one that made the features.
      n_best_size: How many starts and ends of each window are tried, and how
        many answers are kept.
      max_answer_length: The most pieces in an answer.
      version_2_with_negative: Whether some questions have no answer.
    """
    windows_of: dict[int, list[InputFeatures]] = {}
    for feature in features:
        windows_of.setdefault(feature.example_index, []).append(feature)
    numbered = enumerate(examples)
    while chunk := list(itertools.islice(numbered, _EXAMPLES_AT_ONCE)):
        words = (word for _, example in chunk for word in example.doc_tokens)
        texts = SpanTexts(tokenizer, words)
        for index, example in chunk:
            windows = windows_of.get(index, [])
            of_windows = [results[window.unique_id] for window in windows]
            candidates = _find_candidates(
                windows, of_windows, n_best_size, max_answer_length
            )
            null = None
            if version_2_with_negative:
                null = _find_null(of_windows)
                candidates.append(null)
            # Stable, as the original's.
            candidates.sort(key=lambda one: one.score, reverse=True)
            nbest = _keep_best(
                candidates, null, example, windows, texts, n_best_size
            )
            yield _to_prediction(example.qas_id, nbest, null)


class _Candidate(NamedTuple):
    """A span of a window; the null answer has start and end 0."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def _find_candidates(
    windows: Sequence[InputFeatures],
    results: Sequence[RawResult],
    n_best_size: int,
    max_answer_length: int,
) -> list[_Candidate]:
    """Pairs the best starts of each window with its best ends."""
    candidates = []
    for number, (window, result) in enumerate(
        zip(windows, results, strict=True)
    ):
        # Sums of float32 in float64, as Python's.
        start_logits = np.asarray(result.start_logits, np.float64)
        end_logits = np.asarray(result.end_logits, np.float64)
        offset = window.doc_offset
        stop = offset + len(window.word_indices)
        ends = _best_indices(end_logits, n_best_size)
        ends = ends[(ends >= offset) & (ends < stop)]
        for start in _best_indices(start_logits, n_best_size):
            if not offset <= start < stop:
                continue
            if not window.is_max_context[start - offset]:
                continue
            fitting = (ends >= start) & (ends < start + max_answer_length)
            for end in ends[fitting]:
                logits = float(start_logits[start]), float(end_logits[end])
                candidates.append(
                    _Candidate(number, int(start), int(end), *logits)
                )
    return candidates


def _best_indices(logits: np.ndarray, n_best_size: int) -> np.ndarray:
    """Returns where the greatest are; of equals the first comes first."""
    return np.argsort(-logits, kind="stable")[:n_best_size]


def _find_null(results: Sequence[RawResult]) -> _Candidate:
    """Returns the null answer of the window that favours it least.

    Where there is no window its logits are 0.
    """
    return min(
        (
            _Candidate(
                number,
                0,
                0,
                float(result.start_logits[0]),
                float(result.end_logits[0]),
            )
            for number, result in enumerate(results)
        ),
        key=lambda one: one.score,
        default=_Candidate(0, 0, 0, 0.0, 0.0),
    )


def _keep_best(
    candidates: Sequence[_Candidate],
    null: _Candidate | None,
    example: SquadExample,
    windows: Sequence[InputFeatures],
    texts: SpanTexts,
    n_best_size: int,
) -> list[NbestPrediction]:
    """Returns the best answers of different texts; probabilities are 0 yet."""
    nbest: dict[str, NbestPrediction] = {}
    for one in candidates:
        if len(nbest) >= n_best_size:
            break
        text, start, end = "", None, None
        if one is not null:
            text, start, end = texts.find(
                example, windows[one.window], one.start, one.end
            )
        if text not in nbest:
            nbest[text] = NbestPrediction(
                text, 0.0, one.start_logit, one.end_logit, start, end
            )
    if null is not None and "" not in nbest:
        nbest[""] = NbestPrediction("", 0.0, null.start_logit, null.end_logit)
    if not nbest:
        nbest[_PLACEHOLDER] = NbestPrediction(_PLACEHOLDER, 0.0, 0.0, 0.0)
    return list(nbest.values())


def _to_prediction(
    qas_id: str, nbest: Sequence[NbestPrediction], null: _Candidate | None
) -> SquadPrediction:
    scores = np.array(
        [entry.start_logit + entry.end_logit for entry in nbest], np.float64
    )
    exponentials = np.exp(scores - scores.max())
    probabilities = exponentials / exponentials.sum()
    prediction = SquadPrediction(
        qas_id,
        tuple(
            dataclasses.replace(entry, probability=float(probability))
            for entry, probability in zip(nbest, probabilities, strict=True)
        ),
    )
    if null is None:
        return prediction
    null_odds = null.score
    if best := prediction.best_non_null:
        null_odds = null_odds - best.start_logit - best.end_logit
    return dataclasses.replace(prediction, null_odds=null_odds)


def write_predictions(
    output_dir: str,
    predictions: Sequence[SquadPrediction],
    null_score_diff_threshold: float = 0.0,
    prefix: str = "",
) -> None:
    """Writes the original's files; written again, they are replaced.

    predictions.json has the answers, nbest_predictions.json the n best with
    their probabilities, and null_odds.json, for SQuAD 2.0, the odds.

    Args:
      output_dir: Where to.
      predictions: Those of all questions.
      null_score_diff_threshold: See `SquadPrediction.answer`.
      prefix: What the names of the files begin with.
    """
    answers = {
        one.qas_id: one.answer(null_score_diff_threshold) for one in predictions
    }
    nbest = {
        one.qas_id: [_to_json(entry) for entry in one.nbest]
        for one in predictions
    }
    null_odds = {
        one.qas_id: one.null_odds
        for one in predictions
        if one.null_odds is not None
    }
    contents = {"predictions": answers, "nbest_predictions": nbest}
    if null_odds:
        contents["null_odds"] = null_odds
    for name, values in contents.items():
        files.write_text(
            os.path.join(output_dir, f"{prefix}{name}.json"),
            json.dumps(values, indent=4) + "\n",
        )


def _to_json(entry: NbestPrediction) -> dict[str, Any]:
    names = ("text", "probability", "start_logit", "end_logit")
    values = {name: getattr(entry, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
