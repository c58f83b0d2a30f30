"""Labels or a score for each text, or for each pair of texts."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Self

import tensorflow as tf

from bert_tf.tasks import registry as tasks
from bert_tf.tasks.classification import ClassificationTask
from bert_tf.text.tokenizer import BertTokenizer
from export.heads import head
from export.heads.head import Rows
from export.heads.head import Source

# A label of a multi-label problem is given from this probability on.
_THRESHOLD = 0.5


class Classification(head.Head):
    """Serves classifiers of one label or several, and regression.

    Args:
      tokenizer: The one that the model was trained with.
      max_seq_length: The most pieces of a row.
      buckets: Lengths that rows may have.
      labels: Names in the order of the logits; None for regression.
      problem_type: "single_label", "multi_label" or "regression".
      pair: Whether `text_pair` comes beside `text`.
    """

    flags = ("pair",)

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_seq_length: int,
        buckets: Sequence[int],
        labels: Sequence[str] | None,
        problem_type: str,
        pair: bool,
    ) -> None:
        super().__init__(tokenizer, max_seq_length, buckets)
        self.labels = labels
        self.problem_type = problem_type
        self.inputs = ("text", "text_pair") if pair else ("text",)
        self.method = "regress" if labels is None else "classify"

    @classmethod
    def build(cls, source: Source) -> Self:
        """Returns the head of a stored classifier."""
        task = tasks.from_stored(source.stored)
        pair = source.config.pair
        return cls(
            source.stored.build_tokenizer(),
            source.max_seq_length,
            source.buckets,
            task.labels,
            task.problem_type,
            _is_pair(task) if pair is None else pair,
        )

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs texts or pairs; of a pair the longer is truncated first."""
        return Rows(self.pack_texts(*(strings[x] for x in self.inputs)))

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `label` and `probabilities`, `labels`, or `score`."""
        del rows  # One of each text.
        return self._answer(outputs["logits"])

    def answer_ids(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns what `answer` does, and `logits`."""
        del rows
        return self._answer(outputs["logits"]) | {"logits": outputs["logits"]}

    def _answer(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.problem_type == "regression":
            score = logits[:, 0]
            return {"score": score, "outputs": score}
        if self.problem_type == "multi_label":
            probs = tf.sigmoid(logits)
            named = {"labels": self._given_labels(probs)}
        else:
            probs = tf.nn.softmax(logits)
            best = tf.argmax(probs, -1, output_type=tf.int32)
            named = {"label": tf.gather(tf.constant(self.labels), best)}
        classes = tf.tile([self.labels], [tf.shape(probs)[0], 1])
        return named | {
            "probabilities": probs,
            "classes": classes,
            "scores": probs,
        }

    def _given_labels(self, probs: tf.Tensor) -> tf.Tensor:
        """Returns the labels that are given, in their order, then "".

        Args:
          probs: <float32>[B, L].

        Returns:
          <string>[B, L].
        """
        count = len(self.labels)
        is_given = probs >= _THRESHOLD
        # Sorts by whether a label is given, then by its number.
        key = tf.range(count) + tf.where(is_given, 0, count)
        order = tf.argsort(key, -1)
        names = tf.gather(tf.constant(self.labels), order)
        return tf.where(tf.gather(is_given, order, batch_dims=1), names, "")


def _is_pair(task: ClassificationTask) -> bool:
    """Returns whether a model was trained on pairs, if it says so."""
    if task.official is not None:
        return task.official.is_pair
    return task.columns is not None and len(task.columns.texts) > 1
