"""Reference outputs of each serving head."""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import next_sentence
from bert_tf.export.verify import reference
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.reference import TaskReference
from bert_tf.export.verify.texts import Row
from bert_tf.inference import fill_mask
from bert_tf.inference.fill_mask import Candidate
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.task import Prediction
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging import features as tagging_features
from bert_tf.text import masking
from bert_tf.text.vocabulary import MASK

_WINDOWS_PER_CALL = 32


class Classification(TaskReference):
    """Reference outputs of classification and regression."""

    def __init__(self, stored: StoredModel, artifact: Artifact, *args) -> None:
        if artifact.ids_only:
            # Every classifier takes the ids of pairs, which have two segments.
            settings = {**artifact.settings, "pair": True}
            artifact = dataclasses.replace(artifact, settings=settings)
        super().__init__(stored, artifact, *args)

    @property
    def labels(self) -> Sequence[str]:
        return self.task.labels

    def example(self, row: Row) -> InputExample:
        return InputExample("", *(row[name] for name in self.inputs))

    def describe(self, row: Row, prediction: Prediction) -> dict[str, Any]:
        # Classification does not need the example.
        described = self.task.prediction_to_json(None, prediction)
        if "labels" in described:
            missing = len(self.labels) - len(described["labels"])
            described["labels"] += [""] * missing
        return described

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["logits"].numpy()
        values = {
            "regression": lambda: logits,
            "multi_label": lambda: special.expit(logits),
            "single_label": lambda: special.softmax(logits, -1),
        }[self.task.problem_type]()
        described = [self.describe({}, Prediction(row)) for row in values]
        return self.decide(reference.to_outputs(described) | {"logits": logits})


class MultipleChoice(TaskReference):
    """Reference outputs of multiple choice."""

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

    def describe(self, row: Row, prediction: Any) -> dict[str, Any]:
        probabilities = prediction.probabilities.tolist()
        missing = len(row["choices"]) - len(probabilities)
        return {
            "index": prediction.index,
            "probabilities": probabilities + [0.0] * missing,
        }

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        probabilities = special.softmax(
            self.compute(packed)["logits"].numpy(), -1
        )
        index = probabilities.argmax(-1).astype(np.int32)
        return self.decide({"index": index, "probabilities": probabilities})

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        # Requests with ids cannot mark missing choices.
        return super().pack([row for row in rows if all(row["choices"])])


class QuestionAnswering(TaskReference):
    """Reference outputs of question answering."""

    # The library has no character offsets in bytes.
    takes_invalid_bytes = False

    def example(self, row: Row) -> squad_examples.SquadExample:
        return squad_examples.make_example("0", row["question"], row["context"])

    def batches(self) -> list[list[Row]]:
        by_length = test_texts.of_length(self.tokenizer, self.lengths())
        typed = [text for text in test_texts.TEXTS if text.strip()]
        questions = test_texts.QUESTIONS
        rows = [
            {
                "question": questions[number % len(questions)],
                "context": context,
            }
            for number, context in enumerate(
                [*test_texts.CONTEXTS, *by_length, *typed]
            )
        ]
        alone = [[row] for row in rows[: len(test_texts.CONTEXTS)]]
        return [*alone, rows[::2], rows[1::2]]

    def doubt(
        self,
        values: Mapping[str, np.ndarray],
        rows: Sequence[Row],
        predictions: Sequence[SquadPrediction],
    ) -> ReferenceOutputs:
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

    def example(self, row: Row) -> tagging_examples.TaggingExample:
        return tagging_examples.from_text(row["text"])

    def batches(self) -> list[list[Row]]:
        rows = [{"text": text} for text in test_texts.SENTENCES]
        return [rows, *super().batches()]

    def describe(self, row: Row, prediction: Any) -> dict[str, Any]:
        described = super().describe(row, prediction)
        starts, ends = np.reshape(described["offsets"], [-1, 2]).T.tolist()
        return described | {"starts": starts, "ends": ends}

    def doubt(
        self,
        values: Mapping[str, np.ndarray],
        rows: Sequence[Row],
        predictions: Sequence[Any],
    ) -> ReferenceOutputs:
        features = self.task.featurize(
            [self.example(row) for row in rows], self.tokenizer
        )
        is_close: list[np.ndarray] = []
        # Bounds the memory, as long texts have any number of windows.
        for first in range(0, len(features), _WINDOWS_PER_CALL):
            windows = np.arange(len(features))[first:][:_WINDOWS_PER_CALL]
            batch = features.batch(windows, int(features.lengths.max()))
            logits = self.compute(batch)["logits"].numpy()
            probs = special.softmax(logits, -1)
            is_close += [*reference.is_close_call(probs, self.tolerance)]
        of_words = tagging_features.decode_tags(
            features, [x.astype(int) for x in is_close], ("sure", "close")
        )
        doubtful = np.array(["close" in words for words in of_words])
        return ReferenceOutputs(values, {"tags": doubtful})

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["logits"].numpy()
        return ReferenceOutputs({"probabilities": special.softmax(logits, -1)})


class FillMask(Reference):
    """Reference outputs of masked-token prediction."""

    def __init__(self, stored: StoredModel, *args) -> None:
        super().__init__(stored, *args)
        self._fill_mask = fill_mask.FillMask(stored.path)
        self._top_k = self.artifact.settings["top_k"]
        # One more candidate shows whether the last one is certain.
        self._count = min(
            self._top_k + 1, len(self.tokenizer.vocabulary.token_ids)
        )

    def batches(self) -> list[list[Row]]:
        column = [text for text in test_texts.TEXTS if MASK not in text]
        longest = [length - 4 for length in self.lengths()]
        column += test_texts.of_length(
            self.tokenizer, [length for length in longest if length > 0]
        )
        column = [
            (
                f"{text} {MASK}",
                f"{MASK}{text}{MASK}",
                f"{text[: len(text) // 2]} {MASK}, {MASK} "
                f"{text[len(text) // 2 :]} {MASK}",
            )[number % 3]
            for number, text in enumerate(column)
        ]
        # The library rejects texts longer than the model reads.
        ids, *_ = self.head.tokenize_with_offsets(tf.constant(column))
        rows = [
            {"text": text}
            for text, count in zip(column, ids.row_lengths(), strict=True)
            if count + 2 <= self.artifact.max_seq_length
        ]
        return [rows[:1], rows]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        found = self._fill_mask([row["text"] for row in rows], self._count)
        values, doubtful = self._expected(found)
        del values["token_ids"]
        return ReferenceOutputs(values, {"tokens": doubtful})

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        vocabulary = self.tokenizer.vocabulary
        tokens = vocabulary.tokens
        found = []
        for ids, logits in zip(
            packed["input_ids"],
            self.compute(packed)["masked_lm_logits"].numpy(),
            strict=True,
        ):
            probs = special.softmax(logits[ids == vocabulary.mask_id], -1)
            probs = np.asarray(masking.without_blank_rows(probs, vocabulary))
            best = np.argsort(-probs, -1, kind="stable")[:, : self._count]
            found.append(
                [
                    [Candidate(tokens[x], x, of_mask[x]) for x in of_best]
                    for of_mask, of_best in zip(probs, best, strict=True)
                ]
            )
        values, doubtful = self._expected(found)
        return ReferenceOutputs(
            values, {"tokens": doubtful, "token_ids": doubtful}
        )

    def _expected(
        self, found: Sequence[Sequence[Sequence[Candidate]]]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the first `top_k` candidates, and <bool>[B] doubtful rows.

        Args:
          found: `_count` candidates for each [MASK] of each text.
        """
        shape = (len(found), max(map(len, found)), self._count)
        tokens = np.full(shape, b"", object)
        ids = np.full(shape, -1, np.int32)
        probs = np.zeros(shape, np.float32)
        for row, masks in enumerate(found):
            for mask, candidates in enumerate(masks):
                names, ids[row, mask], probs[row, mask] = zip(
                    *candidates, strict=True
                )
                tokens[row, mask] = [name.encode() for name in names]
        is_close = -np.diff(probs, axis=-1) < 2 * self.tolerance
        values = {"tokens": tokens, "probabilities": probs, "token_ids": ids}
        return (
            {name: x[..., : self._top_k] for name, x in values.items()},
            (is_close & (probs[..., :1] > 0)).any((1, 2)),
        )


class NextSentence(Reference):
    """Reference outputs of next-sentence prediction."""

    labels = next_sentence.LABELS

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        logits = self.compute(packed)["next_sentence_logits"].numpy()
        label = test_texts.to_array(
            [self.labels[x] for x in logits.argmax(-1)], ""
        )
        return self.decide(
            {"label": label, "probabilities": special.softmax(logits, -1)}
        )


class Embeddings(Reference):
    """Reference outputs of embeddings."""

    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        layers = self.compute(packed)["encoder_outputs"]
        layer = layers[self.head.layer].numpy()  # [R, T, H]
        is_token = packed["input_mask"][..., np.newaxis] > 0
        counts = is_token.sum(1)
        if self.head.pooling == "max":
            embedding = np.where(is_token, layer, -np.inf).max(1)
        elif self.head.pooling == "mean":
            embedding = (layer * is_token).sum(1) / counts.astype(np.float32)
        else:
            # In a left-to-right model, only the last token attends to all.
            last = counts[:, 0] - 1 if self.head.config.left_to_right else 0
            embedding = layer[np.arange(len(layer)), last]
        return ReferenceOutputs({"embedding": embedding})


_REFERENCES: Mapping[str, type[Reference]] = {
    "classification": Classification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
    "tagging": Tagging,
    "fill_mask": FillMask,
    "next_sentence": NextSentence,
    "embeddings": Embeddings,
}


def build(
    stored: StoredModel,
    artifact: Artifact,
    version_directory: str,
    tolerance: float,
) -> Reference:
    """Builds the object that computes the reference outputs of an export.

    Args:
      stored: The model.
      artifact: The description of the export.
      version_directory: The version directory, for the error message.
      tolerance: The largest allowed difference of numbers.

    Raises:
      UserError: If the head is unknown.
    """
    found = _REFERENCES.get(artifact.head)
    if found is None:
        path = os.path.join(version_directory, artifacts.CARD_FILE)
        raise UserError(
            f"{path} must name one of the heads {', '.join(_REFERENCES)}. "
            f"Received: {artifact.head!r}."
        )
    return found(stored, artifact, tolerance)
