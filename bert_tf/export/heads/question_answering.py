"""The serving head of extractive question answering (SQuAD)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Self
from typing import TypeVar

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export.heads import answer_spans
from bert_tf.export.heads import head
from bert_tf.export.heads.answer_spans import Spans
from bert_tf.export.heads.answer_spans import Windows
from bert_tf.export.heads.answer_texts import Paragraphs
from bert_tf.export.heads.answer_texts import SpanTexts
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.squad import task as squad
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text import packing

_Kept = TypeVar("_Kept", Paragraphs, Windows)

_QUESTION, _CONTEXT = "question", "context"
_IS_MAX_CONTEXT = "is_max_context"
# The texts of `_FIRST_LIMIT` * n_best_size spans are compared first; if too
# many are equal, those of `_MORE` times as many.
_FIRST_LIMIT, _MORE = 2, 4


@dataclasses.dataclass(eq=False)
class QuestionAnswering(head.ServingHead):
    """Serves SQuAD models with the predictions of `bert_tf.tasks.squad.task`.

    Shapes, in addition to those of `head`:
      n: n_best_size.

    Args, in addition to those of `ServingHead`:
      task: The settings of windows and of the choice of answers.

    Raises:
      UserError: If the lengths leave no room for the paragraph.
    """

    inputs = (_QUESTION, _CONTEXT)
    outputs = (squad.START_LOGITS, squad.END_LOGITS)
    returns_padding = True
    flags = (
        "doc_stride",
        "max_query_length",
        "n_best_size",
        "max_answer_length",
    )
    # Bounds the memory: a book has thousands of windows.
    max_rows_at_once = 32

    task: SquadTask

    def __post_init__(self) -> None:
        task, length = self.task, self.max_seq_length
        least = task.max_query_length + answer_spans.NUM_SPECIAL_TOKENS + 1
        if length < least:
            raise UserError(
                f"--max_seq_length must be at least {least}, "
                f"{least - task.max_query_length} more than --max_query_length="
                f"{task.max_query_length}, to leave room for the paragraph. "
                f"Received: {length}."
            )
        self.reads_padding = task.reads_padding

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored model; flags override its settings."""
        flags = {name: getattr(source.config, name) for name in cls.flags}
        task = dataclasses.replace(
            tasks.from_stored(source.stored),
            **{name: x for name, x in flags.items() if x is not None},
        )
        return cls(*source.parts(), task)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of windows and of the choice of answers."""
        return {name: getattr(self.task, name) for name in self.flags}

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that leave out the pooler."""
        return {"has_pooler": False}

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs questions with paragraphs, cutting long ones into windows."""
        task = self.task
        queries = self.tokenizer.tokenize(strings[_QUESTION])
        paragraphs = Paragraphs.read(strings[_CONTEXT], self.tokenizer)
        query_lengths = tf.minimum(
            tf.cast(queries.row_lengths(), tf.int32), task.max_query_length
        )
        windows = Windows.cut(
            query_lengths,
            paragraphs.piece_splits,
            self.max_seq_length,
            task.doc_stride,
        )
        length = packing.choose_length(windows.longest, self.buckets)
        is_max_context = windows.is_max_context(
            tf.size(paragraphs.piece_ids), length
        )
        return Rows(
            windows.rows(
                queries, paragraphs.piece_ids, length, self.tokenizer.vocabulary
            ),
            paragraphs._asdict()
            | windows._asdict()
            | {_IS_MAX_CONTEXT: is_max_context},
        )

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Chooses the answers that `SquadTask` predicts.

        Returns:
          `answer` <string>[B], "" for none; `start` and `end` <int32>[B], in
          characters of the context as Python counts them, -1 for none;
          `score` and `no_answer_score` <float32>[B], the probabilities of the
          answer and of "no answer" among the n best. In SQuAD 1.1, where every
          question has an answer, `no_answer_score` is 0.
        """
        task = self.task
        start_logits = tf.cast(outputs[squad.START_LOGITS], tf.float32)
        end_logits = tf.cast(outputs[squad.END_LOGITS], tf.float32)
        paragraphs = _restore(Paragraphs, rows.state)
        windows = _restore(Windows, rows.state)
        num_questions = tf.size(paragraphs.starts, tf.int64)
        spans = Spans.find(
            start_logits,
            end_logits,
            windows,
            rows.state[_IS_MAX_CONTEXT],
            num_questions,
            task.n_best_size,
            task.max_answer_length,
            task.mask_padding,
        )
        texts = SpanTexts(paragraphs, self.tokenizer)
        scores = _n_best_scores(spans, texts, task.n_best_size)
        nulls = None
        if task.version_2_with_negative:
            nulls = answer_spans.null_scores(
                start_logits, end_logits, windows, num_questions
            )
        chosen = _choose(
            spans, scores, nulls, task.null_score_diff_threshold or 0.0
        )
        return _name(chosen, spans, texts, paragraphs)

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits` <float32>[R, T]."""
        del rows
        return {
            name: tf.cast(outputs[name], tf.float32)
            for name in (squad.START_LOGITS, squad.END_LOGITS)
        }


class _Chosen(NamedTuple):
    """The choice between the best span and "no answer" for each question.

    Attributes:
      is_answered: <bool>[B], whether the best span was chosen.
      score: <float64>[B], the probability of the choice.
      no_answer_score: <float64>[B].
    """

    is_answered: tf.Tensor
    score: tf.Tensor
    no_answer_score: tf.Tensor


def _restore(kind: type[_Kept], state: Mapping[str, tf.Tensor]) -> _Kept:
    """Returns the named tuple whose fields are in a state."""
    return kind(*(state[name] for name in kind._fields))


def _n_best_scores(
    spans: Spans, texts: SpanTexts, n_best_size: int
) -> tf.Tensor:
    """Returns the scores of the best spans with distinct texts.

    They are <float64>[B, n], descending, padded with -inf.
    """
    no_scores = tf.fill(
        [tf.size(spans.counts), n_best_size],
        tf.constant(-math.inf, tf.float64),
    )

    def needs_more(limit, scores):
        return tf.reduce_any(
            (scores[:, -1] == -math.inf) & (spans.counts > limit)
        )

    def look(limit, _):
        limit = tf.maximum(limit * _MORE, _FIRST_LIMIT * n_best_size)
        indices = tf.where(spans.ranks < limit)[:, 0]
        questions = tf.gather(spans.questions, indices)
        begins, ends = texts.find(
            tf.gather(spans.first_tokens, indices),
            tf.gather(spans.last_tokens, indices),
        )
        is_new = _is_new(texts.key(begins, ends), questions)
        questions = tf.boolean_mask(questions, is_new)
        numbers = tf.range(tf.size(questions)) - tf.searchsorted(
            questions, questions
        )
        is_best = numbers < n_best_size
        places = tf.stack([questions, tf.cast(numbers, tf.int64)], 1)
        new_scores = tf.gather(spans.scores, tf.boolean_mask(indices, is_new))
        return limit, tf.tensor_scatter_nd_update(
            no_scores,
            tf.boolean_mask(places, is_best),
            tf.boolean_mask(new_scores, is_best),
        )

    _, scores = tf.while_loop(
        needs_more, look, (tf.constant(0, tf.int64), no_scores)
    )
    return scores


def _is_new(keys: tf.Tensor, questions: tf.Tensor) -> tf.Tensor:
    """Returns <bool>[n], whether a text is the first such of its question.

    Args:
      keys: <int64>[n], hashes of texts.
      questions: <int64>[n], ascending.
    """
    _, text = tf.unique(keys)
    # Both numbers are smaller than n.
    count = tf.size(keys, tf.int64)
    _, pair = tf.unique(tf.cast(text, tf.int64) + count * questions)
    index = tf.range(tf.size(pair))
    first = tf.math.unsorted_segment_min(index, pair, tf.size(pair))
    return tf.gather(first, pair) == index


def _choose(
    spans: Spans,
    scores: tf.Tensor,
    nulls: tf.Tensor | None,
    threshold: float,
) -> _Chosen:
    """Chooses between the best span and "no answer".

    Args:
      spans: The spans.
      scores: <float64>[B, n], from `_n_best_scores`.
      nulls: <float64>[B], the scores of "no answer"; None for SQuAD 1.1.
      threshold: The score difference above which "no answer" is chosen.
    """
    if nulls is None:
        has_span = spans.counts > 0
        best = tf.where(has_span, _softmax(scores)[:, 0], 0)
        return _Chosen(has_span, best, tf.zeros_like(best))
    n_best_size = scores.shape[1]
    # "No answer" ranks after equal scores; within the n best it replaces one.
    num_ahead = tf.math.count_nonzero(
        scores >= nulls[:, tf.newaxis], axis=1, dtype=tf.int32
    )
    num_kept = tf.where(num_ahead < n_best_size, n_best_size - 1, n_best_size)
    is_kept = tf.range(n_best_size) < num_kept[:, tf.newaxis]
    scores = tf.where(is_kept, scores, -math.inf)
    probs = _softmax(tf.concat([nulls[:, tf.newaxis], scores], 1))
    # The order of the additions in Python.
    has_span = scores[:, 0] > -math.inf
    best = tf.where(has_span, spans.splits[:-1], 0)
    null_odds = (
        nulls
        - _gather(spans.start_logits, best)
        - _gather(spans.end_logits, best)
    )
    is_answered = has_span & (null_odds <= threshold)
    return _Chosen(
        is_answered,
        tf.where(is_answered, probs[:, 1], probs[:, 0]),
        probs[:, 0],
    )


def _softmax(scores: tf.Tensor) -> tf.Tensor:
    """Returns probabilities <float64>[B, n]; NaN where all scores are -inf."""
    greatest = tf.reduce_max(scores, axis=1, keepdims=True)
    exponentials = tf.exp(scores - greatest)
    return exponentials / tf.reduce_sum(exponentials, axis=1, keepdims=True)


def _gather(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns `values` at `indices`, 0 past the end."""
    return tf.gather(tf.concat([values, [0]], 0), indices)


def _name(
    chosen: _Chosen, spans: Spans, texts: SpanTexts, paragraphs: Paragraphs
) -> dict[str, tf.Tensor]:
    """Returns the answers with their texts and offsets."""
    rows = tf.where(chosen.is_answered)  # [answered, 1]
    questions = rows[:, 0]
    best = tf.gather(spans.splits, questions)
    text, start, end = paragraphs.slice(
        questions,
        *texts.find(
            tf.gather(spans.first_tokens, best),
            tf.gather(spans.last_tokens, best),
        ),
    )
    size = [tf.size(chosen.is_answered)]
    nowhere = tf.fill(size, -1)
    return {
        "answer": tf.tensor_scatter_nd_update(tf.fill(size, ""), rows, text),
        "start": tf.tensor_scatter_nd_update(nowhere, rows, start),
        "end": tf.tensor_scatter_nd_update(nowhere, rows, end),
        "score": tf.cast(chosen.score, tf.float32),
        "no_answer_score": tf.cast(chosen.no_answer_score, tf.float32),
    }
