"""Reference outputs of question answering and tagging."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from scipy import special

from bert_tf.export.verify import reference
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.reference import Row
from bert_tf.export.verify.reference import TaskReference
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text import packing

_WINDOWS_PER_CALL = 32


class QuestionAnswering(TaskReference):
    """Reference outputs of question answering."""

    # The library has no character offsets in bytes.
    takes_invalid_bytes = False

    def example(self, row: Row) -> SquadExample:
        return squad_examples.make_example("0", row["question"], row["context"])

    def batches(self) -> list[list[Row]]:
        by_length = test_texts.of_length(self.tokenizer, self.lengths())
        typed = [text for text in test_texts.TEXTS if text.strip()]
        contexts = [*test_texts.CONTEXTS, *by_length, *typed]
        rows = [
            {
                "question": test_texts.QUESTIONS[
                    number % len(test_texts.QUESTIONS)
                ],
                "context": context,
            }
            for number, context in enumerate(contexts)
        ]
        alone = [[row] for row in rows[: len(test_texts.CONTEXTS)]]
        return [*alone, rows[::2], rows[1::2]]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        predictions = self.predict(rows)
        described = [
            self.task.prediction_to_json(self.example(row), prediction)
            for row, prediction in zip(rows, predictions, strict=True)
        ]
        values: dict[str, np.ndarray] = {
            "answer": reference.strings([x["answer"] for x in described])
        }
        for name in ("start", "end"):
            places = [-1 if x[name] is None else x[name] for x in described]
            values[name] = np.array(places, np.int32)
        for name in ("score", "no_answer_score"):
            scores = [x[name] or 0.0 for x in described]
            values[name] = np.array(scores, np.float32)
        doubtful = np.array([self._is_close(x) for x in predictions])
        return ReferenceOutputs(values, dict.fromkeys(values, doubtful))

    def _is_close(self, prediction: SquadPrediction) -> bool:
        """Returns whether another answer has almost the same probability."""
        scores = sorted(
            (entry.probability for entry in prediction.nbest if entry.text),
            reverse=True,
        )
        if len(scores) > 1 and scores[0] - scores[1] < 2 * self.tolerance:
            return True
        if prediction.null_odds is None:
            return False
        threshold = self.task.null_score_diff_threshold or 0.0
        # Odds are differences of logits, which differ a few times as much.
        return abs(prediction.null_odds - threshold) < 10 * self.tolerance

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        outputs = self.compute(packed)
        names = ("start_logits", "end_logits")
        return ReferenceOutputs({name: outputs[name].numpy() for name in names})


class Tagging(TaskReference):
    """Reference outputs of tagging."""

    takes_invalid_bytes = False

    def example(self, row: Row) -> TaggingExample:
        return tagging_examples.from_text(row["text"])

    def batches(self) -> list[list[Row]]:
        rows = [{"text": text} for text in test_texts.SENTENCES]
        return [rows, *self.batches_of_texts()]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        described = self.describe(rows)
        offsets = [values["offsets"] for values in described]
        return ReferenceOutputs(
            values={
                "words": reference.strings([x["words"] for x in described]),
                "tags": reference.strings([x["tags"] for x in described]),
                "starts": reference.padded(
                    [[start for start, _ in row] for row in offsets], -1
                ),
                "ends": reference.padded(
                    [[end for _, end in row] for row in offsets], -1
                ),
            },
            doubtful={"tags": self._is_close(rows)},
        )

    def _is_close(self, rows: Sequence[Row]) -> np.ndarray:
        """Returns where a word has another tag almost as likely, <bool>[B]."""
        features = self.task.featurize(
            [self.example(row) for row in rows], self.tokenizer
        )
        is_close = np.zeros(len(features.word_rows), bool)
        # Bounds the memory, as long texts have any number of windows.
        for first in range(0, len(features), _WINDOWS_PER_CALL):
            windows = np.arange(len(features))[first:][:_WINDOWS_PER_CALL]
            batch = features.batch(windows, int(features.lengths.max()))
            logits = self.compute(batch)["logits"].numpy()
            calls = reference.is_close_call(
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

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["logits"].numpy()
        return ReferenceOutputs({"probabilities": special.softmax(logits, -1)})

    def pack_beginnings(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        words = tf.ragged.constant(
            [self.example(row).words for row in rows],
            ragged_rank=1,
            dtype=tf.string,
        )
        tokens = words.with_flat_values(
            self.tokenizer.tokenize(words.flat_values)
        )
        packed = packing.pack(
            tokens.merge_dims(1, 2),
            None,
            self.artifact.max_seq_length,
            self.tokenizer.vocabulary,
        )
        return {name: x.numpy() for name, x in reference.cut(packed).items()}
