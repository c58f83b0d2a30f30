"""What exports must say that choose: labels, scores, one of several texts."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.export.verify import expectation
from bert_tf.export.verify import texts as text_expectations
from bert_tf.export.verify.expectation import Expectation
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.expectation import Row
from bert_tf.export.verify.expectation import TaskExpectation
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample

# A label of a multi-label problem is given from this probability on.
_THRESHOLD = 0.5
_NEXT_SENTENCE_LABELS = ("is_next", "not_next")


class Classification(TaskExpectation):
    """Classifiers of one label or several, and regression."""

    def method_values(self, expected: Expected) -> dict[str, np.ndarray]:
        if self.task.problem_type == "regression":
            return {"outputs": expected.values["score"]}
        scores = expected.values["probabilities"]
        classes = expectation.classes(self.task.labels, len(scores))
        return {"classes": classes, "scores": scores}

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

    def method_values(self, expected: Expected) -> dict[str, np.ndarray]:
        scores = expected.values["probabilities"]
        names = [str(number) for number in range(scores.shape[1])]
        classes = expectation.classes(names, len(scores))
        return {"classes": classes, "scores": scores}

    def example(self, row: Row) -> MultipleChoiceExample:
        choices = tuple(choice for choice in row["choices"] if choice)
        names = tuple(str(number) for number in range(len(choices)))
        # Without a text the choices stand alone.
        return MultipleChoiceExample(
            "", row["text"] if row["text"].strip() else None, choices, names
        )

    def batches(self) -> list[list[Row]]:
        by_length = text_expectations.of_length(self.tokenizer, self.lengths())
        choices = [
            text for text in text_expectations.TEXTS if text.strip()
        ] + by_length
        found = []
        for number, count in enumerate((2, 3, 4)):
            rows = []
            for place, text in enumerate(
                [*text_expectations.TEXTS, *by_length][number::3]
            ):
                chosen = [
                    choices[(place + 5 * n) % len(choices)]
                    for n in range(count)
                ]
                # Of some texts the last one is lacking.
                if count > 2 and place % 3 == 2:
                    chosen[-1] = ""
                rows.append({"text": text, "choices": chosen})
            found.append(rows)
        return [found[0][:1], *found]

    def expect(self, rows: Sequence[Row]) -> Expected:
        described = self.describe(rows)
        width = len(rows[0]["choices"])
        probabilities = np.zeros((len(rows), width), np.float32)
        for row, values in zip(probabilities, described, strict=True):
            given = list(values["probabilities"].values())
            row[: len(given)] = given
        return self._expected(probabilities)

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["logits"].numpy()
        return self._expected(expectation.softmax(logits))

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        # Of ids nobody says which choice is lacking.
        full = [row for row in rows if all(row["choices"])]
        return super().pack(full)

    def _expected(self, probabilities: np.ndarray) -> Expected:
        return Expected(
            {
                "index": probabilities.argmax(-1).astype(np.int32),
                "probabilities": probabilities,
            },
            {"index": expectation.is_close_call(probabilities, self.tolerance)},
        )


class NextSentence(Expectation):
    """Whether one text follows another."""

    def method_values(self, expected: Expected) -> dict[str, np.ndarray]:
        scores = expected.values["probabilities"]
        classes = expectation.classes(_NEXT_SENTENCE_LABELS, len(scores))
        return {"classes": classes, "scores": scores}

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> Expected:
        return self.expect_ids(self.pack(rows))

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> Expected:
        logits = self.compute(packed)["next_sentence_logits"].numpy()
        probabilities = expectation.softmax(logits)
        named = [_NEXT_SENTENCE_LABELS[n] for n in logits.argmax(-1)]
        return Expected(
            {
                "label": expectation.strings(named),
                "probabilities": probabilities,
            },
            {"label": expectation.is_close_call(probabilities, self.tolerance)},
        )
