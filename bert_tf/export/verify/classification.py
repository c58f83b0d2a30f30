"""Reference outputs of classification, multiple choice and next sentence."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from scipy import special

from bert_tf.export.verify import reference
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.reference import Row
from bert_tf.export.verify.reference import TaskReference
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import Prediction
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample

# The minimum probability of an assigned label in multi-label problems.
_THRESHOLD = 0.5
_NEXT_SENTENCE_LABELS = ("is_next", "not_next")


class Classification(TaskReference):
    """Reference outputs of classification and regression."""

    def class_names(self, count: int) -> Sequence[str]:
        return self.task.labels

    def example(self, row: Row) -> InputExample:
        return InputExample("", *(row[name] for name in self.inputs))

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        return self._expected(self.predict(rows))

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["logits"].numpy()
        values = {
            "regression": lambda: logits,
            "multi_label": lambda: special.expit(logits),
            "single_label": lambda: special.softmax(logits, -1),
        }[self.task.problem_type]()
        expected = self._expected([Prediction(row) for row in values])
        return ReferenceOutputs(
            {**expected.values, "logits": logits}, expected.doubtful
        )

    def _expected(self, predictions: Sequence[Prediction]) -> ReferenceOutputs:
        """Returns the labels and probabilities, or the scores."""
        probabilities = np.stack([x.values for x in predictions])
        if self.task.problem_type == "regression":
            return ReferenceOutputs({"score": probabilities[:, 0]})
        if self.task.problem_type == "single_label":
            labels = [self.task.label(x) for x in predictions]
            return _single_label(labels, probabilities, self.tolerance)
        # Classification does not need the example.
        labels = [
            self.task.prediction_to_json(None, x)["labels"] for x in predictions
        ]
        width = probabilities.shape[1]
        padded = [[*row, *[""] * (width - len(row))] for row in labels]
        distance = np.abs(probabilities - _THRESHOLD).min(-1)
        return ReferenceOutputs(
            {
                "labels": reference.strings(padded),
                "probabilities": probabilities,
            },
            {"labels": distance < 2 * self.tolerance},
        )


class MultipleChoice(TaskReference):
    """Reference outputs of multiple choice."""

    def class_names(self, count: int) -> Sequence[str]:
        return [str(number) for number in range(count)]

    def example(self, row: Row) -> MultipleChoiceExample:
        choices = tuple(choice for choice in row["choices"] if choice)
        names = tuple(str(number) for number in range(len(choices)))
        # Without a text the choices are packed alone.
        return MultipleChoiceExample(
            "", row["text"] if row["text"].strip() else None, choices, names
        )

    def batches(self) -> list[list[Row]]:
        by_length = test_texts.of_length(self.tokenizer, self.lengths())
        choices = [
            text for text in test_texts.TEXTS if text.strip()
        ] + by_length
        found = []
        for number, count in enumerate((2, 3, 4)):
            rows = []
            for place, text in enumerate(
                [*test_texts.TEXTS, *by_length][number::3]
            ):
                chosen = [
                    choices[(place + 5 * n) % len(choices)]
                    for n in range(count)
                ]
                # Some texts lack the last choice.
                if count > 2 and place % 3 == 2:
                    chosen[-1] = ""
                rows.append({"text": text, "choices": chosen})
            found.append(rows)
        return [found[0][:1], *found]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        described = self.describe(rows)
        width = len(rows[0]["choices"])
        probabilities = np.zeros((len(rows), width), np.float32)
        for row, values in zip(probabilities, described, strict=True):
            present = list(values["probabilities"].values())
            row[: len(present)] = present
        return self._expected(probabilities)

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["logits"].numpy()
        return self._expected(special.softmax(logits, -1))

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        # Requests with ids cannot mark missing choices.
        full = [row for row in rows if all(row["choices"])]
        return super().pack(full)

    def _expected(self, probabilities: np.ndarray) -> ReferenceOutputs:
        return ReferenceOutputs(
            {
                "index": probabilities.argmax(-1).astype(np.int32),
                "probabilities": probabilities,
            },
            {"index": reference.is_close_call(probabilities, self.tolerance)},
        )


class NextSentence(Reference):
    """Reference outputs of next-sentence prediction."""

    def class_names(self, count: int) -> Sequence[str]:
        return _NEXT_SENTENCE_LABELS

    def batches(self) -> list[list[Row]]:
        return self.batches_of_texts()

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        return self.expect_ids(self.pack(rows))

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["next_sentence_logits"].numpy()
        labels = [_NEXT_SENTENCE_LABELS[n] for n in logits.argmax(-1)]
        return _single_label(
            labels, special.softmax(logits, -1), self.tolerance
        )


def _single_label(
    labels: Sequence[str], probabilities: np.ndarray, tolerance: float
) -> ReferenceOutputs:
    return ReferenceOutputs(
        {
            "label": reference.strings(labels),
            "probabilities": probabilities,
        },
        {"label": reference.is_close_call(probabilities, tolerance)},
    )
