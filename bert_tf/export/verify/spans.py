"""What exports must say that point into texts: answers and tagged words."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from scipy import special

from bert_tf.export.verify import expectation
from bert_tf.export.verify import texts as text_expectations
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.expectation import Row
from bert_tf.export.verify.expectation import TaskExpectation
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.tagging import inputs as tagging_inputs
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text import packing

_WINDOWS_PER_CALL = 32


class QuestionAnswering(TaskExpectation):
    """Where in a context the answer to a question is."""

    # The library has no places in what is no text.
    takes_invalid_bytes = False

    def example(self, row: Row) -> SquadExample:
        return squad_examples.make_example("0", row["question"], row["context"])

    def batches(self) -> list[list[Row]]:
        by_length = text_expectations.of_length(self.tokenizer, self.lengths())
        typed = [text for text in text_expectations.TEXTS if text.strip()]
        contexts = [*text_expectations.CONTEXTS, *by_length, *typed]
        rows = [
            {
                "question": text_expectations.QUESTIONS[
                    number % len(text_expectations.QUESTIONS)
                ],
                "context": context,
            }
            for number, context in enumerate(contexts)
        ]
        alone = [[row] for row in rows[: len(text_expectations.CONTEXTS)]]
        return [*alone, rows[::2], rows[1::2]]

    def expect(self, rows: Sequence[Row]) -> Expected:
        predictions = self.predict(rows)
        described = self.describe(rows)
        values: dict[str, np.ndarray] = {
            "answer": expectation.strings([x["answer"] for x in described])
        }
        for name in ("start", "end"):
            places = [-1 if x[name] is None else x[name] for x in described]
            values[name] = np.array(places, np.int32)
        for name in ("score", "no_answer_score"):
            scores = [x[name] or 0.0 for x in described]
            values[name] = np.array(scores, np.float32)
        doubtful = np.array([self._is_close(x) for x in predictions])
        return Expected(values, dict.fromkeys(values, doubtful))

    def _is_close(self, prediction: SquadPrediction) -> bool:
        """Returns whether another answer is almost as good."""
        scores = sorted(
            (entry.probability for entry in prediction.nbest if entry.text),
            reverse=True,
        )
        if len(scores) > 1 and scores[0] - scores[1] < 2 * self.tolerance:
            return True
        if prediction.null_odds is None:
            return False
        threshold = self.task.null_score_diff_threshold or 0.0
        # Odds are differences of logits, which are a few times as far apart.
        return abs(prediction.null_odds - threshold) < 10 * self.tolerance

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        outputs = self.compute(packed)
        names = ("start_logits", "end_logits")
        return Expected({name: outputs[name].numpy() for name in names})


class Tagging(TaskExpectation):
    """A tag for each word."""

    takes_invalid_bytes = False

    def example(self, row: Row) -> TaggingExample:
        return tagging_inputs.from_text(row["text"])

    def batches(self) -> list[list[Row]]:
        rows = [{"text": text} for text in text_expectations.SENTENCES]
        return [rows, *self.batches_of_texts()]

    def expect(self, rows: Sequence[Row]) -> Expected:
        described = self.describe(rows)
        offsets = [values["offsets"] for values in described]
        return Expected(
            values={
                "words": expectation.strings([x["words"] for x in described]),
                "tags": expectation.strings([x["tags"] for x in described]),
                "starts": expectation.padded(
                    [[start for start, _ in row] for row in offsets], -1
                ),
                "ends": expectation.padded(
                    [[end for _, end in row] for row in offsets], -1
                ),
            },
            doubtful={"tags": self._is_close(rows)},
        )

    def _is_close(self, rows: Sequence[Row]) -> np.ndarray:
        """Returns where another tag of a word is almost as good, <bool>[B]."""
        features = self.task.featurize(
            [self.example(row) for row in rows], self.tokenizer
        )
        is_close = np.zeros(len(features.word_rows), bool)
        # A few windows at a time, as long texts have any number of them.
        for first in range(0, len(features), _WINDOWS_PER_CALL):
            windows = np.arange(len(features))[first:][:_WINDOWS_PER_CALL]
            batch = features.batch(windows, int(features.lengths.max()))
            logits = self.compute(batch)["logits"].numpy()
            calls = expectation.is_close_call(
                special.softmax(logits, -1), self.tolerance
            )
            words = np.flatnonzero(np.isin(features.word_rows, windows))
            is_close[words] = calls[
                features.word_rows[words] - first,
                features.word_positions[words],
            ]
        before = np.concatenate([[0], np.cumsum(is_close)])
        splits = features.example_splits
        return before[splits[1:]] > before[splits[:-1]]

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["logits"].numpy()
        return Expected({"probabilities": special.softmax(logits, -1)})

    def pack_beginnings(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        words = tf.ragged.constant(
            [self.example(row).words for row in rows],
            ragged_rank=1,
            dtype=tf.string,
        )
        pieces = words.with_flat_values(
            self.tokenizer.tokenize(words.flat_values)
        )
        packed = packing.pack(
            pieces.merge_dims(1, 2),
            None,
            self.artifact.max_seq_length,
            self.tokenizer.vocabulary,
        )
        return {name: x.numpy() for name, x in expectation.cut(packed).items()}
