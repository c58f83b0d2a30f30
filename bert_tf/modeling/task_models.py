"""BERT with the head of a task, as Keras models.

Shapes:
  B: batch size.
  S: sequence length.
  C: choices of an example.
  H: hidden size.
  L: labels.
"""

import contextlib

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.modeling import dropout
from bert_tf.modeling import heads
from bert_tf.modeling import model

# Fixed in the original, whatever the config says (run_classifier.py:601).
_DROPOUT_PROB = 0.1


class _TaskModel(model.BertWithHead):
    """BERT with one linear head.

    Subclasses name the model, and say what stands before `output_weights` in
    the names of the head's weights.
    """

    _NAME: str
    _HEAD_SCOPE: tuple[str, ...]

    def __init__(self, config, name=None, **kwargs):
        super().__init__(config, name=name or self._NAME, **kwargs)

    def _add_head(self, num_outputs, dropout_prob):
        # The original has the classifier's weights in the root scope, so a
        # layer that is called as the model stands for the model itself.
        *scopes, name = (self.name, *self._HEAD_SCOPE)
        self.head = self.add_layer(
            heads.LinearHead,
            name,
            salt=dropout.HEAD_SALT,
            num_outputs=num_outputs,
            dropout_prob=dropout_prob,
        )
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            self.head.build((None, self.bert_config.hidden_size))
        self.build()

    def build(self, input_shape=None):
        """Does nothing: the constructor has made all variables."""


class _LabelModel(_TaskModel):
    """BERT with a logit for each label; subclasses say what the head reads."""

    _HEAD_INPUT: str

    def __init__(
        self,
        config,
        num_labels=None,
        labels=None,
        head_dropout_prob=_DROPOUT_PROB,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.labels = None if labels is None else tuple(labels)
        if num_labels is None and self.labels is not None:
            num_labels = len(self.labels)
        _check_labels(num_labels, self.labels)
        self.num_labels = num_labels
        self._add_head(num_labels, head_dropout_prob)

    def call(self, inputs, training=False, dropout_seeds=None):
        outputs, seeds = self.encode(inputs, training, dropout_seeds)
        outputs["logits"] = self.head(
            outputs[self._HEAD_INPUT], dropout_seeds=seeds
        )
        return outputs

    def get_config(self):
        return super().get_config() | {
            "num_labels": self.num_labels,
            "labels": None if self.labels is None else list(self.labels),
            "head_dropout_prob": self.head.dropout_prob,
        }


def _check_labels(num_labels, labels):
    if not num_labels or num_labels < 1:
        raise UserError(
            "A head needs at least one label: labels=[...], or num_labels. "
            f"Received: num_labels={num_labels}, labels={labels}."
        )
    if labels is not None and len(set(labels)) != num_labels:
        raise UserError(
            f"Expected as many labels as num_labels={num_labels}, each of "
            f"another name. Received: {', '.join(map(str, labels))}."
        )


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForClassification(_LabelModel):
    """BERT that scores labels for a text or a pair; one label for regression.

    Source: run_classifier.py:574-615 of the original.

    Args:
      config: A `BertConfig`, or its dictionary.
      num_labels: How many labels; not needed where `labels` are given.
      labels: Their names in the order of the logits, or None.
      head_dropout_prob: Probability of dropping an element of the pooled
        output.
      **kwargs: As for `keras.Model`, and `fuse` and the `return_` flags of
        `BertModel`.

    Call arguments:
      inputs: As for `BertModel`.
      training: Whether to apply dropout.
      dropout_seeds: As for `BertModel`.

    Returns:
      What `BertModel` returns, and `logits` <float32>[B, L].

    Raises:
      UserError: If there is no label, or two have the same name.

    Example:
      >>> model = BertForClassification(config, labels=["no", "yes"])
      >>> logits = model({"input_ids": ids})["logits"]
      >>> model.labels[int(tf.argmax(logits[0]))]
      'yes'
    """

    _NAME = "bert_for_classification"
    _HEAD_SCOPE = ()
    _HEAD_INPUT = "pooled_output"


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForTagging(_LabelModel):
    """BERT that scores labels for each piece, for instance names of entities.

    Source: section 5.3 of the paper; the original has no code for it.

    Args:
      config: A `BertConfig`, or its dictionary.
      num_labels: How many labels; not needed where `labels` are given.
      labels: Their names in the order of the logits, or None.
      head_dropout_prob: Probability of dropping an element of the sequence
        output.
      **kwargs: As for `keras.Model`, and `fuse` and the `return_` flags of
        `BertModel`.

    Call arguments:
      inputs: As for `BertModel`.
      training: Whether to apply dropout.
      dropout_seeds: As for `BertModel`.

    Returns:
      What `BertModel` returns, and `logits` <float32>[B, S, L]; those of
      padding mean nothing.

    Raises:
      UserError: If there is no label, or two have the same name.
    """

    _NAME = "bert_for_tagging"
    _HEAD_SCOPE = ("cls", "tagging")
    _HEAD_INPUT = "sequence_output"


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForQuestionAnswering(_TaskModel):
    """BERT that scores where in a text an answer starts and ends.

    Source: run_squad.py:549-586 of the original, which has no dropout here.

    Args:
      config: A `BertConfig`, or its dictionary.
      **kwargs: As for `keras.Model`, and `fuse` and the `return_` flags of
        `BertModel`.

    Call arguments:
      inputs: As for `BertModel`; the question is the first segment.
      training: Whether to apply dropout in the encoder.
      dropout_seeds: As for `BertModel`.

    Returns:
      What `BertModel` returns, and `start_logits` and `end_logits`
      <float32>[B, S]; those of padding mean nothing.
    """

    _NAME = "bert_for_question_answering"
    _HEAD_SCOPE = ("cls", "squad")

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self._add_head(2, 0.0)

    def call(self, inputs, training=False, dropout_seeds=None):
        outputs, _ = self.encode(inputs, training, dropout_seeds)
        logits = self.head(outputs["sequence_output"])  # [B, S, 2]
        outputs["start_logits"], outputs["end_logits"] = tf.unstack(
            logits, num=2, axis=-1
        )
        return outputs


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForMultipleChoice(_TaskModel):
    """BERT that scores each of an example's choices.

    A softmax over the choices makes probabilities of the logits. Source:
    section 4.4 of the paper; the original has no code for it.

    Args:
      config: A `BertConfig`, or its dictionary.
      head_dropout_prob: Probability of dropping an element of the pooled
        output.
      **kwargs: As for `keras.Model`, and `fuse` and the `return_` flags of
        `BertModel`.

    Call arguments:
      inputs: As for `BertModel`, but [B, C, S]: the example with each of its
        choices.
      training: Whether to apply dropout.
      dropout_seeds: As for `BertModel`, <int32>[B].

    Returns:
      What `BertModel` returns, with [B, C] in place of [B], and `logits`
      <float32>[B, C].

    Raises:
      UserError: If `input_ids` are not of rank 3.
    """

    _NAME = "bert_for_multiple_choice"
    _HEAD_SCOPE = ("cls", "multiple_choice")

    def __init__(self, config, head_dropout_prob=_DROPOUT_PROB, **kwargs):
        super().__init__(config, **kwargs)
        self._add_head(1, head_dropout_prob)

    def call(self, inputs, training=False, dropout_seeds=None):
        flat = {}
        for name, value in inputs.items():
            value = tf.convert_to_tensor(value)
            if value.shape.rank != 3:
                raise UserError(
                    f"`{name}` of multiple choice must be [examples, choices, "
                    f"length]. Received: shape {tuple(value.shape)}."
                )
            batch, choices, length = dropout.shape_of(value)
            flat[name] = tf.reshape(value, [-1, length])
        if dropout_seeds is not None:
            dropout_seeds = dropout.derive_seeds(dropout_seeds, choices)
            dropout_seeds = tf.reshape(dropout_seeds, [-1])
        outputs, seeds = self.encode(flat, training, dropout_seeds)
        logits = self.head(outputs["pooled_output"], dropout_seeds=seeds)
        outputs = tf.nest.map_structure(
            lambda x: tf.reshape(x, [batch, choices, *dropout.shape_of(x)[1:]]),
            outputs,
        )
        outputs["logits"] = tf.reshape(logits, [batch, choices])
        return outputs

    def get_config(self):
        return super().get_config() | {
            "head_dropout_prob": self.head.dropout_prob
        }
