"""The serving head of next-sentence prediction."""

from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import tensorflow as tf

from bert_tf.export.heads import classification
from bert_tf.export.heads import head
from bert_tf.export.heads.head import Rows
from bert_tf.tasks.classification import task as classification_task

# In the order of the logits (create_pretraining_data.py:326 of the original).
LABELS = ("is_next", "not_next")


class NextSentence(head.ServingHead):
    """Serves the next-sentence head of pretrained models."""

    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    outputs: ClassVar[tuple[str, ...]] = ("next_sentence_logits",)
    method = "classify"

    def model_values(self) -> dict[str, Any]:
        """Returns the settings that leave out the masked-LM head."""
        return {"heads": ["next_sentence"]}

    def pack(self, strings: Mapping[str, tf.Tensor]) -> Rows:
        """Packs pairs, truncating the longer text first."""
        return Rows(self.pack_texts(strings["text"], strings["text_pair"]))

    def answer(
        self, outputs: Mapping[str, tf.Tensor], rows: Rows
    ) -> dict[str, tf.Tensor]:
        """Returns `label` and `probabilities`."""
        del rows  # One per pair.
        probs = tf.nn.softmax(outputs["next_sentence_logits"])
        label = classification_task.choose_label(probs, LABELS)
        others = classification.all_labels(probs, LABELS)
        return {"label": label, "probabilities": probs} | others
