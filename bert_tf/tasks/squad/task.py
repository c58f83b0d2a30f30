"""SQuAD 1.1 and 2.0: which words of a paragraph answer a question."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.features import INPUT_MASK
from bert_tf.tasks import task
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import inputs as squad_inputs
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.tasks.squad import windows as squad_windows
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import SquadPrediction
from bert_tf.tasks.squad.windows import SquadFeatures
from bert_tf.text.tokenizer import BertTokenizer

START_LOGITS = "start_logits"
END_LOGITS = "end_logits"

_MAX_IDS_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadTask(task.Task):
    """Answers questions with words of a paragraph, in windows if it is long.

    Attributes:
      max_seq_length: The most pieces of a window.
      doc_stride: How many pieces one window begins after the other.
      max_query_length: Longer questions lose what is behind that piece.
      n_best_size: How many starts and ends of each window are tried, and how
        many answers are kept.
      max_answer_length: The most pieces in an answer.
      version_2_with_negative: Whether some questions have no answer.
      null_score_diff_threshold: "No answer" must be ahead of the best answer
        by more than this to be given; None, as long as it is not chosen, is
        the original's 0.
      mask_padding: Whether padding is neither trained on nor predicted, so
        that results do not depend on how long a batch is. The original does
        not mask it: padding takes part in the softmax, and among the n best
        starts and ends it takes the place of others. That is well-defined in
        batches of one length only.
    """

    kind: ClassVar[str] = "question_answering"

    name: str = "squad"
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float | None = None
    mask_padding: bool = True
    head: str = "linear"
    verbose_logging: bool = False

    @property
    def metric(self) -> str:
        """F1, with the threshold as it is."""
        return "f1"

    def read(self, split: str) -> tuple[SquadExample, ...]:
        """Reads a SQuAD file.

        What is to train on is left out where the answer is not in its
        paragraph, as in the original, and counted.

        Raises:
          UserError: If the file is none, or has nothing to train on; if
            questions to score have no answer and `version_2_with_negative`
            does not say so.
        """
        path = self.files[split]
        is_training = split.split("_")[0] == task.TRAIN
        read = squad_examples.read_squad_examples(
            path, is_training, self.version_2_with_negative
        )
        if is_training:
            squad_examples.report_training(
                path, read, None if self.verbose_logging else _MAX_IDS_SHOWN
            )
        else:
            squad_examples.check_answers(
                path, read.examples, self.version_2_with_negative
            )
        return read.examples

    def featurize(
        self,
        examples: Sequence[SquadExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> SquadFeatures:
        """Makes windows, and logs how many questions were too long."""
        features = squad_windows.pack_windows(
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
        if features.num_truncated_queries:
            logging.warning(
                "%d of %d questions have more than --max_query_length=%d "
                "pieces and lose the others.",
                features.num_truncated_queries,
                len(examples),
                self.max_query_length,
            )
        return features

    def model_arguments(self) -> dict[str, Any]:
        """Returns the head."""
        return {"head": self.head}

    def losses(
        self, outputs: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """Returns the mean of the two cross-entropies of windows, <float32>[B].

        A window without the answer points at [CLS]. Source:
        run_squad.py:630-660 of the original.
        """
        losses = []
        for logits_name, positions_name in (
            (START_LOGITS, squad_windows.START_POSITIONS),
            (END_LOGITS, squad_windows.END_POSITIONS),
        ):
            logits = tf.cast(outputs[logits_name], tf.float32)
            if self.mask_padding:
                is_piece = tf.cast(batch[INPUT_MASK.name], tf.bool)
                logits = tf.where(is_piece, logits, tf.float32.min)
            losses.append(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    batch[positions_name], logits
                )
            )
        return (losses[0] + losses[1]) / 2.0

    def soft_targets(
        self, outputs: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]
    ) -> tuple[task.SoftTargets, ...]:
        """Returns the logits of starts and ends, each <float32>[B, T].

        Padding is never meant, whatever `mask_padding` says.
        """
        is_piece = tf.cast(batch[INPUT_MASK.name], tf.bool)
        return tuple(
            task.SoftTargets(
                tf.where(is_piece, logits, task.NO_LOGIT), "choice"
            )
            for logits in self.outputs(outputs).values()
        )

    def outputs(self, outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
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

        Without windows, as of paragraphs without words, `outputs` may be empty.
        """
        windows = list(features.windows())
        results = {}
        for window, start_logits, end_logits in zip(
            windows,
            outputs.get(START_LOGITS, ()),
            outputs.get(END_LOGITS, ()),
            strict=True,
        ):
            stop = len(window.input_ids) if self.mask_padding else None
            results[window.unique_id] = squad_predictions.RawResult(
                window.unique_id, start_logits[:stop], end_logits[:stop]
            )
        return list(
            squad_predictions.predict_answers(
                examples,
                windows,
                results,
                tokenizer,
                self.n_best_size,
                self.max_answer_length,
                self.version_2_with_negative,
            )
        )

    def describe(
        self, example: SquadExample, prediction: SquadPrediction
    ) -> dict[str, Any]:
        """Returns the answer and where it is, as JSON values.

        `answer` is "" and `start` and `end`, in characters of the paragraph,
        are null where there is no answer. `score` is the probability of the
        answer, and `no_answer_score` that of there being none (null for SQuAD
        1.1), both among the n best.
        """
        answer = prediction.answer(self._threshold)
        entries = {entry.text: entry for entry in prediction.nbest}
        entry = entries[answer]
        values = {
            "id": example.qas_id or None,
            "answer": entry.text,
            "start": entry.start,
            "end": entry.end,
            "score": entry.probability,
            "no_answer_score": None,
        }
        if prediction.null_odds is not None:
            values["no_answer_score"] = entries[""].probability
        elif entry.start is None:
            # Without any candidate; the original answers "empty" for 1.1.
            values |= {"answer": "", "score": 0.0}
        return values

    def is_labelled(self, examples: Sequence[SquadExample]) -> bool:
        """Returns whether the answers of all questions are known."""
        return all(example.answers is not None for example in examples)

    def score(
        self,
        examples: Sequence[SquadExample],
        predictions: Sequence[SquadPrediction],
    ) -> dict[str, float]:
        """Returns the official scores, in percent; see `squad_metrics`."""
        answers = {
            one.qas_id: one.answer(self._threshold) for one in predictions
        }
        return squad_metrics.evaluate(
            squad_examples.to_dataset(examples),
            answers,
            self.version_2_with_negative,
        )

    def tune(
        self,
        examples: Sequence[SquadExample],
        predictions: Sequence[SquadPrediction],
    ) -> "SquadTask":
        """Chooses, for SQuAD 2.0, the threshold with the best F1.

        One that is chosen already stays.
        """
        is_chosen = self.null_score_diff_threshold is not None
        if is_chosen or not self.version_2_with_negative:
            return self
        best = squad_metrics.find_best_thresholds(
            squad_examples.to_dataset(examples), predictions
        )
        logging.info(
            "The null_score_diff_threshold %.6g is the one with the best F1, "
            "%.2f, on %d questions of dev.",
            best.best_f1_thresh,
            best.best_f1,
            len(examples),
        )
        return dataclasses.replace(
            self, null_score_diff_threshold=best.best_f1_thresh
        )

    def with_threshold(self, stored: Mapping[str, Any]) -> "SquadTask":
        """Returns the task with the threshold of a model, unless it has one."""
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

        The original predicts one file, so the first one that is predicted has
        these names.
        """
        del examples  # The predictions name their questions.
        if self.version_2_with_negative:
            is_default = self.null_score_diff_threshold is None
            logging.info(
                "No answer is given where null_odds is above %.6g%s.",
                self._threshold,
                ", the original's default" if is_default else "",
            )
        predicted = [*self.splits(task.DEV), *self.splits(task.TEST)]
        squad_predictions.write_predictions(
            output_dir,
            predictions,
            self._threshold,
            "" if split in predicted[:1] else f"{split}_",
        )

    def read_inputs(self, path: str) -> Iterator[SquadExample]:
        """Yields the questions of a file: see `squad_inputs`."""
        yield from squad_inputs.read_questions(path)

    def num_rows(self, example: SquadExample) -> int:
        """Returns how many windows the words of the paragraph have at least."""
        return 1 + len(example.doc_tokens) // self.doc_stride

    def parse(self, row: Any) -> SquadExample:
        """Returns a question: see `squad_inputs.parse_question`."""
        return squad_inputs.parse_question(row)

    def to_json(self) -> dict[str, Any]:
        """Returns what predicting needs; how it was trained is left out."""
        return {name: getattr(self, name) for name in _SAVED}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "SquadTask":
        """Returns the task of a model directory, by default as of SQuAD 1.1."""
        return cls(**{name: values[name] for name in _SAVED if name in values})

    @property
    def _threshold(self) -> float:
        return self.null_score_diff_threshold or 0.0


# What predicting depends on; there padding is always masked, as the lengths of
# batches are nobody's choice.
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
