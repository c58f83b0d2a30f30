"""SQuAD answers: the n best spans per question, of a system or an ensemble."""

import collections
import dataclasses
import json
import math
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import text_files
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.features import InputFeatures
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer

# The original's answer in SQuAD 1.1 if a question has no candidate spans.
_PLACEHOLDER = "empty"
# The fields of an entry in nbest_predictions.json.
_WRITTEN = ("text", "probability", "start_logit", "end_logit")
_SMALLEST = 1e-300  # Replaces a probability of 0, which has no logarithm.


@dataclasses.dataclass(frozen=True)
class NbestPrediction:
    """One of the n best answers of a question; "" for "no answer".

    Attributes:
      probability: The answer's probability among the n best of its question.
      start_logit: The logit of the start; None in an ensemble.
      end_logit: The logit of the end; None in an ensemble.
      start: The offset in the paragraph, in characters; None for "" and in an
        ensemble.
      end: The offset after the answer's last character; None like `start`.
    """

    text: str
    probability: float
    start_logit: float | None = None
    end_logit: float | None = None
    start: int | None = None
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class SquadPrediction:
    """The n best answers of one question.

    Attributes:
      qas_id: The question's id.
      nbest: The answers, best first; never empty.
      null_odds: The score of "no answer" minus the score of the best answer;
        None if every question has an answer (SQuAD 1.1).
    """

    qas_id: str
    nbest: tuple[NbestPrediction, ...]
    null_odds: float | None = None

    @property
    def best_non_null(self) -> NbestPrediction | None:
        """The best entry with an answer, or None if there is none."""
        return next((entry for entry in self.nbest if entry.text), None)

    def answer(self, null_score_diff_threshold: float = 0.0) -> str:
        """Returns the answer; "" if `null_odds` exceeds the threshold.

        If "no answer" is the only candidate, returns ""; the original crashes.
        """
        if self.null_odds is None:
            return self.nbest[0].text
        best = self.best_non_null
        if best is None or self.null_odds > null_score_diff_threshold:
            return ""
        return best.text


def find_text(
    example: SquadExample, window: InputFeatures, start: int, end: int
) -> tuple[str, int, int]:
    """Returns a span's text and its start and end in the paragraph.

    The arguments `start` and `end` are the positions of the span's first and
    last token in the window. The returned start and end are in characters.
    """
    start = int(window.offsets[start - window.doc_offset, 0])
    end = int(window.offsets[end - window.doc_offset, 1])
    return example.context[start:end], start, end


class OriginalTexts:
    """Finds the text of a span as the original does, by aligning words.

    In a script without spaces, a word may be a whole paragraph. If a span
    starts or ends in such a word, its text is from `find_text` instead.
    """

    def __init__(self, tokenizer: BertTokenizer, words: Iterable[str]) -> None:
        self._tokens = tokenizer.vocabulary.tokens
        # The original normalizes each span. To save time, normalize each word
        # once: the text is the same, as words do not depend on their neighbors.
        unique = list(dict.fromkeys(words))
        normalized = tokenizer.split_words(unique).to_list()
        self._normalized = {
            word: b" ".join(parts).decode("utf-8")
            for word, parts in zip(unique, normalized, strict=True)
        }

    def find(
        self, example: SquadExample, window: InputFeatures, start: int, end: int
    ) -> tuple[str, int, int]:
        """Returns text (with single spaces), start and end; see `find_text`."""
        first = int(window.word_indices[start - window.doc_offset])
        last = int(window.word_indices[end - window.doc_offset])
        if example.is_unspaced(first, last):
            return find_text(example, window, start, end)
        words = example.doc_tokens[first : last + 1]
        tok_text = " ".join(
            filter(None, [self._normalized[word] for word in words])
        )
        chars = _align(
            self._join(window.input_ids[start : end + 1].tolist()),
            tok_text,
            sum(map(len, words)),
        )
        places = [
            start + n
            for start, word in zip(
                example.doc_token_starts[first:], words, strict=False
            )
            for n in range(len(word))
        ]
        start, end = places[chars[0]], places[chars[1]] + 1
        words, *_ = squad_examples.split_words(example.context[start:end])
        return " ".join(words), start, end

    def _join(self, ids: Iterable[int]) -> str:
        text = " ".join([self._tokens[id] for id in ids])
        text = text.replace(f" {vocabulary_lib.CONTINUATION}", "")
        return " ".join(text.replace(vocabulary_lib.CONTINUATION, "").split())


def _align(pred_text: str, tok_text: str, num_chars: int) -> tuple[int, int]:
    """Finds a prediction in the raw words of its span.

    Returns the indices of the prediction's first and last character, without
    counting spaces. For "steve smith" in "Steve Smith's", these are 0 and 9. If
    the lengths of raw and normalized words differ, or the prediction is not
    found, all raw words are the answer.

    Source: get_final_text (run_squad.py:927-1020 of the original).

    Args:
      pred_text: The span's tokens, joined to words.
      tok_text: The span's words, normalized and split at punctuation.
      num_chars: The number of characters of the span's raw words.
    """
    start = tok_text.find(pred_text)
    num_tok_chars = len(tok_text) - tok_text.count(" ")
    if start < 0 or not pred_text or num_chars != num_tok_chars:
        return 0, num_chars - 1
    first = start - tok_text.count(" ", 0, start)
    return first, first + len(pred_text) - pred_text.count(" ") - 1


def predict_answers(
    examples: Sequence[SquadExample],
    features: Iterable[InputFeatures],
    logits: Iterable[tuple[np.ndarray, np.ndarray]],
    tokenizer: BertTokenizer,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
    original_texts: bool = True,
) -> Iterator[SquadPrediction]:
    """Yields the n best answers of each example.

    Source: write_predictions (run_squad.py:741-924 of the original).

    `logits` has a pair of arrays <float>[T] for each window, the logits of
    starts and of ends; T is at least the window's number of tokens. `SquadTask`
    describes the other arguments. Without `original_texts`, answers have the
    texts of `find_text`.
    """
    windows_of: dict[int, list[tuple]] = {}
    for window, pair in zip(features, logits, strict=True):
        windows = windows_of.setdefault(window.example_index, [])
        windows.append((window, *pair))
    find = find_text
    if original_texts:
        words = (word for one in examples for word in one.doc_tokens)
        find = OriginalTexts(tokenizer, words).find
    for index, example in enumerate(examples):
        windows = windows_of.get(index, [])
        candidates = _find_candidates(windows, n_best_size, max_answer_length)
        null = None
        if version_2_with_negative:
            # "No answer" gets its lowest score over all windows; without
            # windows, it gets 0.
            pairs = [(float(x[0]), float(y[0])) for _, x, y in windows]
            lowest = min(pairs, key=sum, default=(0.0, 0.0))
            null = _Candidate(None, 0, 0, *lowest)
            candidates.append(null)
        # The sort is stable, as in the original: ties keep their order.
        candidates.sort(key=lambda one: one.score, reverse=True)
        yield _predict(candidates, null, example, find, n_best_size)


class _Candidate(NamedTuple):
    """A span of a window; "no answer" has window None, start 0 and end 0."""

    window: InputFeatures | None
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def _find_candidates(
    windows: Sequence[tuple[InputFeatures, np.ndarray, np.ndarray]],
    n_best_size: int,
    max_answer_length: int,
) -> list[_Candidate]:
    """Pairs the best starts of each window with its best ends.

    A window comes with its logits of starts and ends. With a
    `max_answer_length` of 3, start 5 is paired with ends 5, 6 and 7. A start is
    skipped if another window has more context for it.
    """
    candidates = []
    for window, *logits in windows:
        # Add logits in float64, because the original adds Python's floats.
        start_logits, end_logits = (np.asarray(x, np.float64) for x in logits)
        offset = window.doc_offset
        stop = offset + len(window.word_indices)
        # Sort stably: on ties, lower positions come first.
        starts, ends = (
            np.argsort(-x, kind="stable")[:n_best_size]
            for x in (start_logits, end_logits)
        )
        ends = ends[(ends >= offset) & (ends < stop)]
        starts = starts[(starts >= offset) & (starts < stop)]
        for start in starts[window.is_max_context[starts - offset]]:
            fitting = (ends >= start) & (ends < start + max_answer_length)
            for end in ends[fitting]:
                scores = float(start_logits[start]), float(end_logits[end])
                candidates.append(
                    _Candidate(window, int(start), int(end), *scores)
                )
    return candidates


def _predict(
    candidates: Sequence[_Candidate],
    null: _Candidate | None,
    example: SquadExample,
    find: Callable[..., tuple[str, int, int]],
    n_best_size: int,
) -> SquadPrediction:
    """Returns the best distinct answers of `candidates`, which are sorted."""
    places: dict[str, tuple[Any, ...]] = {}
    for one in candidates:
        if len(places) >= n_best_size:
            break
        text, *span = "", None, None
        if one is not null:
            text, *span = find(example, one.window, one.start, one.end)
        places.setdefault(text, (one.start_logit, one.end_logit, *span))
    if null is not None:
        places.setdefault("", (null.start_logit, null.end_logit))
    if not places:
        places[_PLACEHOLDER] = (0.0, 0.0)
    scores = np.array([start + end for start, end, *_ in places.values()])
    exponentials = np.exp(scores - scores.max())
    probabilities = (exponentials / exponentials.sum()).tolist()
    prediction = SquadPrediction(
        example.qas_id,
        tuple(
            NbestPrediction(text, probability, *place)
            for (text, place), probability in zip(
                places.items(), probabilities, strict=True
            )
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
    """Writes the original's prediction files.

    predictions.json has the answers, nbest_predictions.json the n best answers
    with probabilities, and null_odds.json the null odds of SQuAD 2.0.
    """
    answers = {
        one.qas_id: one.answer(null_score_diff_threshold) for one in predictions
    }
    nbest = {
        one.qas_id: [
            {x: y for x in _WRITTEN if (y := getattr(entry, x)) is not None}
            for entry in one.nbest
        ]
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


def read_nbest(path: str) -> dict[str, dict[str, float]]:
    """Returns the probability of each answer of each question id, from a file.

    Raises:
      UserError: If the file is not a valid nbest_predictions.json.
    """
    values = text_files.read_json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold one JSON object, question id to n best. "
            f"Received: {type(values).__name__}."
        )
    return {
        qas_id: _read_entries(entries, f"{path}, question {qas_id!r}")
        for qas_id, entries in values.items()
    }


def combine(
    nbest_files: Sequence[str], version_2_with_negative: bool = False
) -> list[SquadPrediction]:
    """Combines systems by the mean probability of each answer.

    The predictions are in the order of the first file. Answers that are not
    among a system's n best have probability 0 there. Null odds are computed
    from the mean probabilities, so a single system keeps its null odds. The
    paper does not specify how it combined seven systems.

    Raises:
      UserError: If the files have different questions, or lack the empty
        answer that SQuAD 2.0 needs.
    """
    if not nbest_files:
        raise UserError("An ensemble needs the n-best file of a system.")
    systems = [read_nbest(path) for path in nbest_files]
    for path, system in zip(nbest_files, systems, strict=True):
        differing = sorted(systems[0].keys() ^ system.keys())
        if differing:
            raise UserError(
                f"{path} and {nbest_files[0]} must be about the same "
                f"questions. Received: {len(differing)} that are in only one "
                f"of them, as {differing[0]!r}."
            )
    predictions = []
    for qas_id in systems[0]:
        total: collections.Counter[str] = collections.Counter()
        for system in systems:
            total.update(system[qas_id])
        # Equally probable answers stay in the order read.
        nbest = tuple(
            NbestPrediction(text, probability / len(systems))
            for text, probability in total.most_common()
        )
        null_odds = None
        if version_2_with_negative:
            if "" not in total:
                raise UserError(
                    f"Question {qas_id!r} lacks the empty answer in the n-best "
                    "files, so they are not of SQuAD 2.0."
                )
            best = max((total[text] for text in total if text), default=0.0)
            null_odds = _log(total[""]) - _log(best)
        predictions.append(SquadPrediction(qas_id, nbest, null_odds))
    return predictions


def _read_entries(entries: Any, where: str) -> dict[str, float]:
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{where} must have a list of answers. Received: {entries!r:.40}."
        )
    probabilities = {}
    for number, entry in enumerate(entries):
        text = text_files.require_value(
            entry, "text", str, f"{where}[{number}]"
        )
        probability = entry.get("probability")
        if not isinstance(probability, int | float) or not (
            0 <= probability <= 1
        ):
            raise UserError(
                f"{where}[{number}] must have a 'probability' between 0 and 1. "
                f"Received: {probability!r:.40}."
            )
        probabilities[text] = probability
    return probabilities


def _log(probability: float) -> float:
    return math.log(max(probability, _SMALLEST))
