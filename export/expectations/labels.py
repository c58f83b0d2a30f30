"""What exports must say that choose: labels, scores, one of several texts."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.tasks.classification_examples import InputExample
from bert_tf.tasks.multiple_choice_examples import MultipleChoiceExample
from export.expectations import expectation
from export.expectations import texts
from export.expectations.expectation import Expectation
from export.expectations.expectation import Expected
from export.expectations.expectation import Row
from export.expectations.expectation import TaskExpectation

# A label of a multi-label problem is given from this probability on.
_THRESHOLD = 0.5
_NEXT_SENTENCE_LABELS = ("is_next", "not_next")


class Classification(TaskExpectation):
    """Classifiers of one label or several, and regression."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.task.problem_type == "regression":
            self.method_outputs = {"outputs": "score"}
        else:
            self.method_outputs = {"scores": "probabilities"}

    def labels(self) -> tuple[str, ...]:
        return tuple(self.task.labels or ())

    def expect_attention(self, rows: Sequence[Row]) -> Expected | None:
        return self.attention_of_texts(rows)

    def example(self, row: Row) -> InputExample:
        return InputExample("", *(row[name] for name in self.inputs))

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> Expected:
        described = self.describe(rows)
        if self.task.problem_type == "regression":
            scores = [values["score"] for values in described]
            return Expected({"score": np.array(scores, np.float32)})
        probabilities = np.array(
            [
                [values["probabilities"][label] for label in self.task.labels]
                for values in described
            ],
            np.float32,
        )
        if self.task.problem_type == "multi_label":
            given = [values["labels"] for values in described]
            return self._several(probabilities, given)
        named = [values["label"] for values in described]
        return self._one(probabilities, named)

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["logits"].numpy()
        if self.task.problem_type == "regression":
            return Expected({"score": logits[:, 0], "logits": logits})
        labels = self.task.labels
        if self.task.problem_type == "multi_label":
            probabilities = 1 / (1 + np.exp(-logits))
            given = [
                [labels[n] for n in np.flatnonzero(row >= _THRESHOLD)]
                for row in probabilities
            ]
            expected = self._several(probabilities, given)
        else:
            probabilities = expectation.softmax(logits)
            named = [labels[n] for n in logits.argmax(-1)]
            expected = self._one(probabilities, named)
        return Expected(
            {**expected.values, "logits": logits}, expected.doubtful
        )

    def _one(self, probabilities: np.ndarray, named: list[str]) -> Expected:
        return Expected(
            {
                "label": expectation.strings(named),
                "probabilities": probabilities,
            },
            {"label": expectation.is_close_call(probabilities, self.tolerance)},
        )

    def _several(
        self, probabilities: np.ndarray, given: list[list[str]]
    ) -> Expected:
        width = probabilities.shape[1]
        filled = [[*row, *[""] * (width - len(row))] for row in given]
        distance = np.abs(probabilities - _THRESHOLD).min(-1)
        return Expected(
            {
                "labels": expectation.strings(filled),
                "probabilities": probabilities,
            },
            {"labels": distance < 2 * self.tolerance},
        )


class MultipleChoice(TaskExpectation):
    """Which of several texts goes with another."""

    def example(self, row: Row) -> MultipleChoiceExample:
        names = tuple(str(n) for n in range(len(row["choices"])))
        return MultipleChoiceExample(
            "", row["text"], tuple(row["choices"]), names
        )

    def batches(self) -> list[list[Row]]:
        by_length = texts.of_length(self.tokenizer, self.lengths())
        found = []
        for number, count in enumerate((2, 3, 4)):
            column = [*texts.TEXTS, *by_length][number::3]
            found.append(
                [
                    {
                        "text": text,
                        "choices": [
                            column[(place + 3 * n) % len(column)]
                            for n in range(1, count + 1)
                        ],
                    }
                    for place, text in enumerate(column)
                ]
            )
        return [*found, found[0][:1]]

    def expect(self, rows: Sequence[Row]) -> Expected:
        return self._expected(
            np.array(
                [list(x["probabilities"].values()) for x in self.describe(rows)]
            )
        )

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["logits"].numpy()
        expected = self._expected(expectation.softmax(logits))
        return Expected(
            {**expected.values, "logits": logits}, expected.doubtful
        )

    def _expected(self, probabilities: np.ndarray) -> Expected:
        return Expected(
            {
                "index": probabilities.argmax(-1).astype(np.int32),
                "probabilities": probabilities.astype(np.float32),
            },
            {"index": expectation.is_close_call(probabilities, self.tolerance)},
        )


class NextSentence(Expectation):
    """Whether one text follows another."""

    method_outputs = {"scores": "probabilities"}

    def labels(self) -> tuple[str, ...]:
        return tuple(self.stored.task.get("labels") or _NEXT_SENTENCE_LABELS)

    def expect_attention(self, rows: Sequence[Row]) -> Expected | None:
        return self.attention_of_texts(rows)

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> Expected:
        expected = self.expect_ids(self.pack(rows))
        names = ("label", "probabilities")
        return Expected(
            {name: expected.values[name] for name in names}, expected.doubtful
        )

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["next_sentence_logits"].numpy()
        probabilities = expectation.softmax(logits)
        named = [self.labels()[n] for n in logits.argmax(-1)]
        return Expected(
            {
                "label": expectation.strings(named),
                "probabilities": probabilities,
                "logits": logits,
            },
            {"label": expectation.is_close_call(probabilities, self.tolerance)},
        )
