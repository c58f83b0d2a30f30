"""The base class of task models: one linear head, maybe over BiLSTMs.

Shapes:
  B: batch size.
  S: sequence length.
"""

import contextlib

import keras
import tensorflow as tf

from bert_tf.config import HEAD_TYPES
from bert_tf.errors import UserError
from bert_tf.modeling import bert
from bert_tf.modeling import bilstm
from bert_tf.modeling import dropout
from bert_tf.modeling import heads

# Units of a direction (paper, section 5.3). Others count units per direction
# too, for instance GLUE's "1500D (per direction)" baselines.
LSTM_SIZE = 768


class BertWithOutputHead(bert.BertWithHead):
    """BERT with one linear head, maybe with BiLSTMs under it.

    The paper's "randomly initialized BiLSTM on top" (section 5.1) leaves its
    layers, its units and its outputs open. Here it is one layer of
    `LSTM_SIZE` units a direction, the width of BERT-base, that reads
    `sequence_output`; the head reads its states. A head that reads a text
    rather than tokens reads the last states: the first LSTM's at the last
    token and the second LSTM's at the first token.

    Subclasses set `_NAME`, the model's name, and `_HEAD_SCOPE`, the scopes
    before `output_weights` in the names of the head's weights.
    """

    _NAME: str
    _HEAD_SCOPE: tuple[str, ...]

    def __init__(
        self, config, name=None, head="linear", lstm_size=None, **kwargs
    ):
        super().__init__(config, name=name or self._NAME, **kwargs)
        if head not in HEAD_TYPES:
            raise UserError(
                f"`head` must be one of {', '.join(HEAD_TYPES)}. Received: "
                f"{head!r}."
            )
        self.head_type = head
        self.lstm_size = lstm_size

    def add_head(self, num_outputs, dropout_prob, num_lstms=None):
        """Makes the head and the layers under it.

        Args:
          num_outputs: How many logits.
          dropout_prob: Probability of dropping an element of its input.
          num_lstms: BiLSTMs under it; by default one if `head` is "bilstm".
        """
        if num_lstms is None:
            num_lstms = int(self.head_type == "bilstm")
        self.lstms = self._make_lstms(num_lstms)
        # The original has the classifier's weights in the root scope, so this
        # layer then has the name of the model itself.
        *scopes, name = (self.name, *self._HEAD_SCOPE)
        self.head = self.add_layer(
            heads.LinearHead,
            name,
            dropout_id=dropout.HEAD_DROPOUT_ID,
            num_outputs=num_outputs,
            dropout_prob=dropout_prob,
        )
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            with keras.name_scope(name):
                width = self.build_under_head()
            self.head.build((None, width))
        self.build()

    def _make_lstms(self, number):
        size = self.lstm_size
        if size is not None and (number == 0 or size < 1):
            raise UserError(
                "`lstm_size` must be at least 1, and is for heads with a "
                f"BiLSTM. Received: {size}."
            )
        if number and size is None:
            self.lstm_size = LSTM_SIZE
        return [
            bilstm.BiLSTM(
                self.lstm_size,
                self.for_inference,
                dtype=self.dtype_policy,
                name=f"bilstm_{index}",
            )
            for index in range(number)
        ]

    def build_under_head(self):
        """Builds the layers under the head; returns the width of the last."""
        width = self.features_width()
        for layer in self.lstms:
            layer.build((None, None, width))
            width = 2 * self.lstm_size
        return width

    def features_width(self):
        """Returns the width of the input of the first BiLSTM or the head."""
        return self.bert_config.hidden_size

    def build(self, input_shape=None):
        """Does nothing: the constructor has made all variables."""

    def read_tokens(self, sequence, inputs):
        """Returns the head's input for tokens, <float>[B, S, width]."""
        _, input_mask, _ = bert.standardize_inputs(inputs)
        for layer in self.lstms:
            sequence = layer(sequence, input_mask)
        return sequence

    def read_text(self, outputs, inputs):
        """Returns the head's input for a text, <float>[B, width]."""
        if not self.lstms:
            if not self.bert.has_pooler:
                raise UserError(
                    "A linear head for a text reads the pooler's output. "
                    "Received: has_pooler=False."
                )
            return outputs["pooled_output"]
        states = self.read_tokens(outputs["sequence_output"], inputs)
        first, second = tf.split(states, 2, axis=-1)
        _, input_mask, _ = bert.standardize_inputs(inputs)
        last = heads.take_last_token(first, input_mask)
        return tf.concat([last, second[:, 0]], axis=-1)

    def get_config(self):
        return super().get_config() | {
            "head": self.head_type,
            "lstm_size": self.lstm_size,
        }
