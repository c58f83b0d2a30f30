"""The serving head of extractive question answering (SQuAD).

Shapes, in addition to the shapes of `head`:
  B: number of questions.
  R: number of windows; a paragraph without tokens has none.
  n: n_best_size.
  k: number of candidate starts and ends of a window.
  S: number of spans of all questions.
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple
from typing import Self

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.errors import UserError
from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.export.heads.head import Source
from bert_tf.features import INPUT_MASK
from bert_tf.tasks import registry
from bert_tf.tasks.squad import task as squad
from bert_tf.tasks.squad.features import TRAILING
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import TensorMap
from bert_tf.text import packing

_QUESTION, _CONTEXT = "question", "context"
# A row is [CLS] question [SEP] paragraph [SEP], so it has three special tokens.
_NUM_SPECIAL_TOKENS = 3
# Separates words in the same way as `bert_tf.tasks.squad.examples`.
_WHITE_SPACE = "[ \t\r\n\u202f]+"
_NOWHERE = -1
# Longer spans are compared by their offsets, not by their texts: if a word has
# megabytes, copying it for each of hundreds of spans would need gigabytes.
_MAX_BYTES_COMPARED = 1024


@dataclasses.dataclass(eq=False)
class QuestionAnswering(head.ServingHead):
    """Serves SQuAD models; predicts the answers that `SquadTask` predicts.

    Args, in addition to the arguments of `ServingHead`:
      task: The task, which chooses answers and has the settings of windows.

    Raises:
      UserError: If `max_seq_length` leaves no room for the paragraph.
    """

    inputs = (_QUESTION, _CONTEXT)
    outputs = (squad.START_LOGITS, squad.END_LOGITS)
    model_values = {"has_pooler": False}
    returns_padding = True
    flags = (
        "doc_stride",
        "max_query_length",
        "n_best_size",
        "max_answer_length",
    )
    # Maximum windows per call, to save memory: a book has thousands of windows.
    max_rows_at_once = 32

    task: SquadTask

    def __post_init__(self) -> None:
        task, length = self.task, self.max_seq_length
        least = task.max_query_length + _NUM_SPECIAL_TOKENS + 1
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
            registry.from_stored(source.stored),
            **{name: x for name, x in flags.items() if x is not None},
        )
        return cls(*source.parts(), task)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of windows and of the choice of answers."""
        return {name: getattr(self.task, name) for name in self.flags}

    def pack(self, strings: TensorMap) -> Rows:
        """Packs questions with paragraphs, cutting long ones into windows.

        Windows start `doc_stride` tokens apart. Source: run_squad.py:371-390
        of the original.

        Returns:
          The rows, [CLS] question [SEP] window of the paragraph [SEP]. The
          state has `contexts` <string>[B], without invalid UTF-8; `questions`
          <int32>[R], the index of each window's question, ascending; and
          `is_max_context` <bool>[R, T]. The state's `starts` and `ends`
          <int32>[R, T] are each token's byte offsets in the context, or -1.
        """
        task = self.task
        contexts = tf.strings.unicode_transcode(
            strings[_CONTEXT], "UTF-8", "UTF-8", errors="ignore"
        )
        queries = self.tokenizer.tokenize(strings[_QUESTION])
        tokens, starts, ends = self._tokenize_words(contexts)
        segments, num_tokens = packing.find_segments([queries, tokens])
        (query_starts, query_lengths), (doc_starts, doc_lengths) = segments
        query_lengths = tf.minimum(query_lengths, task.max_query_length)
        room = self.max_seq_length - _NUM_SPECIAL_TOKENS - query_lengths
        stride = tf.minimum(room, task.doc_stride)
        # Begin a window every `stride` tokens until one has the last token.
        steps = -((room - doc_lengths) // stride)
        counts = tf.where(doc_lengths > 0, 1 + tf.maximum(steps, 0), 0)
        questions = tf.repeat(tf.range(tf.size(counts)), counts)
        numbers = tf.range(tf.size(questions)) - tf.gather(
            tf.cumsum(counts, exclusive=True), questions
        )

        def of_window(values):
            return tf.gather(values, questions)

        skipped = numbers * of_window(stride)
        left = of_window(doc_lengths) - skipped
        layout = packing.lay_out(
            [
                (of_window(query_starts), of_window(query_lengths)),
                (
                    of_window(doc_starts) + skipped,
                    tf.minimum(of_window(room), left),
                ),
            ],
            num_tokens,
            self.buckets,
            lambda lengths, _: lengths,
        )
        nowhere = tf.fill([tf.size(queries.flat_values)], _NOWHERE)
        ids = tf.concat([queries.flat_values, tokens.flat_values], 0)

        def place(values):
            values = tf.concat([nowhere, values], 0)
            return layout.place(values, _NOWHERE, _NOWHERE, _NOWHERE)

        return Rows(
            layout.inputs(ids, self.tokenizer.vocabulary),
            {
                "contexts": contexts,
                "questions": questions,
                "starts": place(starts),
                "ends": place(ends),
                "is_max_context": _is_max_context(
                    place(tf.range(tf.size(starts))), tf.size(starts)
                ),
            },
        )

    def _tokenize_words(
        self, text: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Tokenizes each word by itself, as `tasks.squad.features` does.

        Returns:
          Token ids, ragged <int32>[B, None], and the byte offsets of the
          tokens' starts and ends in the text, <int32>[tokens] each.
        """
        # Replace each NUL, at which `regex_split_with_offsets` would stop.
        without_nul = tf.strings.regex_replace(text, r"\x00", "-")
        _, *places = tf_text.regex_split_with_offsets(without_nul, _WHITE_SPACE)
        word_starts, word_ends = (tf.cast(x, tf.int32) for x in places)
        words = tf_text.ByteSplitter().split_by_offsets(
            text, word_starts, word_ends
        )
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(
            words.flat_values
        )
        pieces = (
            tf_text.ByteSplitter()
            .split_by_offsets(words.flat_values, starts, ends)
            .flat_values
        )
        pieces = tf.strings.regex_replace(pieces, TRAILING, r"\1")
        ends = starts.flat_values + tf.strings.length(pieces)
        shift = tf.gather(word_starts.flat_values, ids.value_rowids())
        return (
            tf.RaggedTensor.from_row_splits(
                ids.flat_values,
                tf.gather(ids.row_splits, words.row_splits),
                validate=False,
            ),
            starts.flat_values + shift,
            ends + shift,
        )

    def answer(self, outputs: TensorMap, rows: Rows) -> dict[str, tf.Tensor]:
        """Chooses the answers that `SquadTask` predicts.

        Returns:
          `answer` <string>[B], "" for none. `start` and `end` <int32>[B], in
          characters, so that `context[start:end]` is the answer in Python; -1
          for no answer. `score` and `no_answer_score` <float32>[B], the
          probabilities of the answer and of "no answer" among the n best. In
          SQuAD 1.1, where every question has an answer, `no_answer_score` is 0.
        """
        task = self.task
        start_logits, end_logits = task.select_outputs(outputs).values()
        contexts = rows.state["contexts"]
        spans = _find_spans(start_logits, end_logits, rows, task)
        nulls = None
        if task.version_2_with_negative:
            nulls = _null_scores(
                start_logits,
                end_logits,
                rows.state["questions"],
                tf.size(contexts),
            )
        is_answered, score, no_answer_score = _choose(
            spans,
            _n_best_scores(spans, contexts, task.n_best_size),
            nulls,
            task.null_score_diff_threshold or 0.0,
        )
        start, end = (
            tf.where(is_answered, _gather(values, spans.best), 0)
            for values in (spans.starts, spans.ends)
        )

        def to_characters(place):
            before = tf.strings.substr(contexts, tf.zeros_like(place), place)
            count = tf.strings.length(before, "UTF8_CHAR")
            return tf.where(is_answered, count, _NOWHERE)

        return {
            "answer": tf.strings.substr(contexts, start, end - start),
            "start": to_characters(start),
            "end": to_characters(end),
            "score": tf.cast(score, tf.float32),
            "no_answer_score": tf.cast(no_answer_score, tf.float32),
        }

    def answer_ids(
        self, outputs: TensorMap, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits` <float32>[R, T]."""
        del rows
        return self.task.select_outputs(outputs)


def _is_max_context(tokens: tf.Tensor, num_tokens: tf.Tensor) -> tf.Tensor:
    """Marks each token in the window in which the token has the most context.

    The context of a token is its distance to the nearer end of the window, plus
    0.01 times the window's length. In a tie, the first window wins. `tokens`
    <int32>[R, T] are indices into the `num_tokens` tokens of all paragraphs;
    for -1, the result <bool>[R, T] is False.

    Source: _check_is_max_context (run_squad.py:513-547 of the original).
    """
    is_token = tokens >= 0
    left = tf.cumsum(tf.cast(is_token, tf.int32), axis=1, exclusive=True)
    count = tf.math.count_nonzero(is_token, 1, keepdims=True, dtype=tf.int32)
    # Use float64, as `tasks.squad.features` does, or rounding may break a tie.
    context = tf.cast(tf.minimum(left, count - 1 - left), tf.float64)
    score = context + 0.01 * tf.cast(count, tf.float64)
    # `unsorted_segment_max` ignores the index -1, so padding has no effect.
    best = tf.math.unsorted_segment_max(score, tokens, num_tokens)
    is_best = is_token & (score == _gather(best, tokens))
    window = tf.range(tf.shape(tokens)[0])[:, tf.newaxis]
    first = tf.math.unsorted_segment_min(
        tf.broadcast_to(window, tf.shape(tokens)),
        tf.where(is_best, tokens, _NOWHERE),
        num_tokens,
    )
    return is_best & (window == _gather(first, tokens))


class _Spans(NamedTuple):
    """Candidate answers, grouped by question, the best first."""

    questions: tf.Tensor  # <int32>[S], ascending.
    starts: tf.Tensor  # <int32>[S], in bytes of the context, as `ends`.
    ends: tf.Tensor
    start_logits: tf.Tensor  # <float64>[S], as `end_logits`.
    end_logits: tf.Tensor
    # <int64>[B + 1]; question b has spans splits[b]:splits[b + 1].
    splits: tf.Tensor

    @property
    def best(self) -> tf.Tensor:
        """<int64>[B], the index of each question's best span, if it has one."""
        return self.splits[:-1]


def _find_spans(
    start_logits: tf.Tensor, end_logits: tf.Tensor, rows: Rows, task: SquadTask
) -> _Spans:
    """Pairs the best starts of each window with its best ends.

    Spans with equal scores are ordered as in the original BERT code. The logits
    are <float32>[R, T], padding included.
    """
    state = rows.state
    if task.mask_padding:
        in_row = rows.inputs[INPUT_MASK.name] > 0
        start_logits, end_logits = (
            tf.where(in_row, logits, logits.dtype.min)
            for logits in (start_logits, end_logits)
        )
    count = tf.minimum(task.n_best_size, tf.shape(start_logits)[1])
    start_logits, starts = tf.math.top_k(start_logits, count)
    end_logits, ends = tf.math.top_k(end_logits, count)
    may_start = tf.gather(state["is_max_context"], starts, batch_dims=1)
    first_bytes = tf.gather(state["starts"], starts, batch_dims=1)
    last_bytes = tf.gather(state["ends"], ends, batch_dims=1)
    # The lengths of all pairs of a start and an end, <int32>[R, k, k].
    length = 1 + ends[:, tf.newaxis] - starts[..., tf.newaxis]
    is_span = (
        may_start[..., tf.newaxis]
        & (last_bytes[:, tf.newaxis] >= 0)
        & (length >= 1)
        & (length <= task.max_answer_length)
    )
    row, start, end = tf.unstack(tf.where(is_span), num=3, axis=1)
    start, end = tf.stack([row, start], 1), tf.stack([row, end], 1)
    questions = tf.gather(state["questions"], row)
    # Add the logits in float64, as `SquadTask` does, or ranks could differ.
    start_logits = tf.cast(tf.gather_nd(start_logits, start), tf.float64)
    end_logits = tf.cast(tf.gather_nd(end_logits, end), tf.float64)
    order = tf.argsort(
        start_logits + end_logits, direction="DESCENDING", stable=True
    )
    order = tf.gather(
        order, tf.argsort(tf.gather(questions, order), stable=True)
    )
    questions, *values = (
        tf.gather(values, order)
        for values in (
            questions,
            tf.gather_nd(first_bytes, start),
            tf.gather_nd(last_bytes, end),
            start_logits,
            end_logits,
        )
    )
    num_questions = tf.size(state["contexts"])
    splits = tf.searchsorted(
        questions, tf.range(num_questions + 1), out_type=tf.int64
    )
    return _Spans(questions, *values, splits)


def _null_scores(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    questions: tf.Tensor,
    num_questions: tf.Tensor,
) -> tf.Tensor:
    """Returns the "no answer" score of each question, <float64>[B].

    The score is the minimum over the question's windows; 0 without a window.
    """
    scores = tf.math.unsorted_segment_min(
        tf.cast(start_logits[:, 0], tf.float64)
        + tf.cast(end_logits[:, 0], tf.float64),
        questions,
        num_questions,
    )
    has_window = tf.math.unsorted_segment_max(
        tf.ones_like(questions), questions, num_questions
    )
    return tf.where(has_window > 0, scores, 0)


def _n_best_scores(
    spans: _Spans, contexts: tf.Tensor, n_best_size: int
) -> tf.Tensor:
    """Returns the scores of the best spans with distinct texts.

    The scores are <float64>[B, n], descending, padded with -inf. Texts longer
    than `_MAX_BYTES_COMPARED` count as distinct if their offsets differ.
    """
    starts, ends = spans.starts, spans.ends
    is_long = ends - starts > _MAX_BYTES_COMPARED
    places = (
        tf.RaggedTensor.from_row_splits(x, spans.splits, validate=False)
        for x in (starts, tf.where(is_long, starts, ends))
    )
    texts = tf_text.ByteSplitter().split_by_offsets(contexts, *places)
    question, start, end = map(
        tf.strings.as_string, (spans.questions, starts, ends)
    )
    place = tf.where(is_long, tf.strings.join([start, end], "-"), "")
    distinct, index = tf.unique(
        tf.strings.join([question, place, texts.flat_values], " ")
    )
    first = tf.math.unsorted_segment_min(
        tf.range(tf.size(index)), index, tf.size(distinct)
    )
    return tf.RaggedTensor.from_value_rowids(
        tf.gather(spans.start_logits + spans.end_logits, first),
        tf.gather(spans.questions, first),
        tf.size(contexts),
        validate=False,
    ).to_tensor(-math.inf, shape=[None, n_best_size])


def _choose(
    spans: _Spans,
    scores: tf.Tensor,
    nulls: tf.Tensor | None,
    threshold: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Chooses between the best span and "no answer" for each question.

    `scores` are the result of `_n_best_scores`, `nulls` <float64>[B] the scores
    of "no answer", None for SQuAD 1.1. "No answer" is chosen if its score
    exceeds the best span's score by more than `threshold`.

    Returns:
      <bool>[B], true where the best span was chosen; then the probabilities of
      the chosen answer and of "no answer", <float64>[B] each.
    """
    if nulls is None:
        has_span = spans.splits[1:] > spans.splits[:-1]
        best = tf.where(has_span, tf.nn.softmax(scores)[:, 0], 0)
        return has_span, best, tf.zeros_like(best)
    n_best_size = scores.shape[1]
    # If "no answer" is among the n best answers, it replaces the worst span.
    num_ahead = tf.math.count_nonzero(
        scores >= nulls[:, tf.newaxis], axis=1, dtype=tf.int32
    )
    num_kept = tf.where(num_ahead < n_best_size, n_best_size - 1, n_best_size)
    is_kept = tf.range(n_best_size) < num_kept[:, tf.newaxis]
    scores = tf.where(is_kept, scores, -math.inf)
    probs = tf.nn.softmax(tf.concat([nulls[:, tf.newaxis], scores], 1))
    # Subtract in the order of `SquadTask`, so that the floats are identical.
    null_odds = (
        nulls
        - _gather(spans.start_logits, spans.best)
        - _gather(spans.end_logits, spans.best)
    )
    is_answered = (scores[:, 0] > -math.inf) & (null_odds <= threshold)
    score = tf.where(is_answered, probs[:, 1], probs[:, 0])
    return is_answered, score, probs[:, 0]


def _gather(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns `values` at `indices`; undefined for indices out of range."""
    padded = tf.concat([values, tf.zeros([1], values.dtype)], 0)
    return tf.gather(
        padded, tf.clip_by_value(indices, 0, tf.size(values, indices.dtype))
    )
