"""The SQuAD 1.1 and 2.0 task: extractive question answering."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.features import INPUT_MASK
from bert_tf.tasks import task
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.examples import SquadFiles
from bert_tf.tasks.squad.features import SquadFeatures
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.task import TensorMap
from bert_tf.tasks.task_files import DEV
from bert_tf.tasks.task_files import TEST
from bert_tf.text.tokenizer import BertTokenizer

START_LOGITS = "start_logits"
END_LOGITS = "end_logits"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask(SquadFiles, task.Task):
    """Answers questions with a span of a paragraph, in windows if it is long.

    Attributes:
      max_seq_length: The maximum number of tokens in a window.
      doc_stride: The distance between the starts of windows, in tokens.
      max_query_length: The maximum number of tokens in a question; longer
        questions are truncated.
      n_best_size: The number of starts and ends tried in each window, and of
        answers kept.
      max_answer_length: The maximum number of tokens in an answer.
      null_score_diff_threshold: "No answer" is predicted if its score minus the
        best answer's score exceeds this. If None, no threshold is chosen yet,
        and 0 is used, as in the original.
      mask_padding: Whether padding is masked in training and prediction, so
        that results do not depend on the length of a batch. In the original,
        padding takes part in the softmax and may be among the n best starts and
        ends, so all batches must have the same length.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | None = None
    mask_padding: bool = True
    head: str = "linear"

    metric = "f1"  # At the current threshold.

    @property
    def reads_padding(self) -> bool:
        return not self.mask_padding

    def featurize(
        self,
        examples: Sequence[SquadExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> SquadFeatures:
        """Converts examples to windows; logs the truncated questions."""
        features = squad_features.pack_windows(
            squad_features.convert_examples_to_features(
                examples,
                tokenizer,
                self.max_seq_length,
                self.doc_stride,
                self.max_query_length,
                is_training,
            ),
            tokenizer.vocabulary.pad_id,
            is_training,
        )
        task.warn_of_truncated(
            features.num_truncated,
            f"{len(examples)} questions have",
            f"max_query_length={self.max_query_length}",
        )
        return features

    def model_arguments(self) -> dict[str, Any]:
        return {"head": self.head}

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns the mean cross-entropy of start and end, <float32>[B].

        The target is [CLS] in a window without the answer. Source:
        run_squad.py:630-660 of the original.
        """

        def losses(logits, positions):
            if self.mask_padding:
                is_token = tf.cast(batch[INPUT_MASK.name], tf.bool)
                logits = tf.where(is_token, logits, tf.float32.min)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(
                batch[positions], logits
            )

        starts = losses(outputs[START_LOGITS], squad_features.START_POSITIONS)
        ends = losses(outputs[END_LOGITS], squad_features.END_POSITIONS)
        return (starts + ends) / 2.0

    def soft_targets(
        self, outputs: TensorMap, batch: TensorMap
    ) -> tuple[task.SoftTargets, ...]:
        """Returns the logits of starts and ends, each <float32>[B, T].

        Padding is always masked, regardless of `mask_padding`.
        """
        is_token = tf.cast(batch[INPUT_MASK.name], tf.bool)
        return tuple(
            task.SoftTargets(
                tf.where(is_token, logits, task.NO_LOGIT), "choice"
            )
            for logits in self.select_outputs(outputs).values()
        )

    def select_outputs(self, outputs: TensorMap) -> dict[str, tf.Tensor]:
        """Returns `start_logits` and `end_logits` <float32>[B, T]."""
        return {
            name: tf.cast(outputs[name], tf.float32)
            for name in (START_LOGITS, END_LOGITS)
        }

    def predict(
        self,
        examples: Sequence[SquadExample],
        features: SquadFeatures,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[SquadPrediction]:
        """Returns the n best answers of each example, over its windows.

        If the task has `files`, answers have the original's texts. `outputs`
        may be empty, because paragraphs without words have no windows.
        """
        logits = []
        for window, *pair in zip(
            features.windows,
            outputs.get(START_LOGITS, ()),
            outputs.get(END_LOGITS, ()),
            strict=True,
        ):
            stop = len(window.input_ids) if self.mask_padding else None
            logits.append(tuple(x[:stop] for x in pair))
        return list(
            squad_predictions.predict_answers(
                examples,
                features.windows,
                logits,
                tokenizer,
                self.n_best_size,
                self.max_answer_length,
                self.version_2_with_negative,
                original_texts=bool(self.files),
            )
        )

    def prediction_to_json(
        self, example: SquadExample, prediction: SquadPrediction
    ) -> dict[str, Any]:
        """Returns the answer and its offsets, as JSON values.

        `answer` is `context[start:end]`. Without an answer, it is "", and
        `start` and `end` are null. `score` is the probability of `answer` among
        the n best answers; `no_answer_score` is the probability of "no answer"
        (null in SQuAD 1.1).
        """
        answer = prediction.answer(self._threshold)
        entries = {entry.text: entry for entry in prediction.nbest}
        entry = entries[answer]
        values = {
            "id": example.qas_id or None,
            "answer": example.context[entry.start or 0 : entry.end or 0],
            "start": entry.start,
            "end": entry.end,
            "score": entry.probability,
            "no_answer_score": None,
        }
        if prediction.null_odds is not None:
            values["no_answer_score"] = entries[""].probability
        elif entry.start is None:
            # Without candidates, the answer is "empty", which gets score 0.
            values["score"] = 0.0
        return values

    def score(
        self,
        examples: Sequence[SquadExample],
        predictions: Sequence[SquadPrediction],
    ) -> dict[str, float]:
        """Returns the official scores, in percent; see `evaluate`."""
        answers = {
            one.qas_id: one.answer(self._threshold) for one in predictions
        }
        return squad_metrics.evaluate(
            examples, answers, self.version_2_with_negative
        )

    def select_threshold(
        self,
        examples: Sequence[SquadExample],
        predict: Callable[..., Sequence[SquadPrediction]],
    ) -> "SquadTask":
        """Selects the `null_score_diff_threshold` with the best F1.

        SQuAD 1.1 has no threshold. A threshold that is already set is kept.
        """
        is_chosen = self.null_score_diff_threshold is not None
        if is_chosen or not self.version_2_with_negative:
            return self
        f1, threshold = squad_metrics.find_best_threshold(
            examples, predict(self)
        )
        logging.info(
            "The null_score_diff_threshold %.6g is the one with the best F1, "
            "%.2f, on %d questions of dev.",
            threshold,
            f1,
            len(examples),
        )
        return dataclasses.replace(self, null_score_diff_threshold=threshold)

    def with_threshold(self, stored: Mapping[str, Any]) -> "SquadTask":
        """Returns the task with the model's threshold if none is set."""
        if self.null_score_diff_threshold is not None:
            return self
        return dataclasses.replace(
            self,
            null_score_diff_threshold=stored.get("null_score_diff_threshold"),
        )

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[SquadExample],
        predictions: Sequence[SquadPrediction],
    ) -> None:
        """Writes predictions.json and the original's other files.

        The original predicts only one split, so the files of the first split
        have the original's names. Other file names begin with the split.
        """
        if self.version_2_with_negative:
            is_default = self.null_score_diff_threshold is None
            logging.info(
                'The answer is "" where null_odds is above %.6g%s.',
                self._threshold,
                ", the original's default" if is_default else "",
            )
        predicted = [*self.splits(DEV), *self.splits(TEST)]
        squad_predictions.write_predictions(
            output_dir,
            predictions,
            self._threshold,
            "" if split in predicted[:1] else f"{split}_",
        )

    def example_to_json(self, example: SquadExample) -> dict[str, Any]:
        values: dict[str, Any] = {"question": example.question_text}
        if example.answers is not None:
            values["gold_answers"] = list(example.answers)
        return values

    def num_rows(self, example: SquadExample) -> int:
        """Estimates the number of windows by the paragraph's words."""
        return 1 + len(example.doc_tokens) // self.doc_stride

    def to_json(self) -> dict[str, Any]:
        """Returns the settings that prediction needs."""
        return {name: getattr(self, name) for name in _SAVED}

    @property
    def _threshold(self) -> float:
        return self.null_score_diff_threshold or 0.0


# The settings that task.json stores. `mask_padding` is not stored: the batches
# of a loaded model vary in length, so the model always masks padding.
_SAVED = (
    "name",
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
    "version_2_with_negative",
    "null_score_diff_threshold",
    "head",
)
