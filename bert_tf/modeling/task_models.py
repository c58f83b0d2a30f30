"""BERT for tasks: classification, tagging, questions, choices, embeddings.

Shapes:
  B: batch size.
  S: sequence length.
  C: choices per example.
  H: hidden size.
  L: labels.
  U: BiLSTM units per direction.
"""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import DEFAULT_LAYER_COMBINATION
from bert_tf.config import HEAD_TYPES
from bert_tf.config import check_bools
from bert_tf.config import check_pooling
from bert_tf.errors import UserError
from bert_tf.errors import require_choice
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import bilstm
from bert_tf.modeling import dropout
from bert_tf.modeling import heads
from bert_tf.modeling import layouts

# Default dropout rate before a head, from the original's run_classifier.py:601.
_DROPOUT_PROB = 0.1
# Units per direction of a BiLSTM: the paper (5.3) has 768 dimensions, and the
# baselines of GLUE count dimensions per direction.
LSTM_SIZE = 768


class BertWithOutputHead(bert_model.BertWithHead):
    """BERT with one linear head, maybe with BiLSTMs under it.

    The paper does not specify the layers, units or outputs of its "randomly
    initialized BiLSTM on top" (section 5.1). Here the BiLSTM is one layer on
    `sequence_output`, with 768 units per direction, the width of BERT-base. A
    head for tokens reads all states. A head for a text reads the left-to-right
    LSTM's state at the last token, and the right-to-left LSTM's state at the
    first token.

    Subclasses set `_NAME`, the model's default name, and `_HEAD_SCOPE`, the
    name scopes in front of `output_weights` and `output_bias`.

    Args:
      config: A `BertConfig`, or its dictionary.
      name: The model's name.
      head: "linear", or "bilstm" for a BiLSTM under the head.
      lstm_size: Units per direction of the BiLSTMs, U; by default 768.
      **kwargs: As for `BertWithHead`; encoder outputs of multiple choice are
        [B, C, ...].
    """

    head_outputs = ("logits",)
    pooling = None
    _NAME: str
    _HEAD_SCOPE: tuple[str, ...]

    def __init__(
        self, config, name=None, head="linear", lstm_size=None, **kwargs
    ):
        super().__init__(config, name=name or self._NAME, **kwargs)
        require_choice("head", head, HEAD_TYPES)
        self.head_type = head
        self.lstm_size = lstm_size

    def add_head(self, num_outputs, dropout_prob, num_lstms=None):
        """Makes the head and its BiLSTMs, by default one for head="bilstm"."""
        if num_lstms is None:
            num_lstms = int(self.head_type == "bilstm")
        self.lstms = self._make_lstms(num_lstms)
        # If `_HEAD_SCOPE` is empty, head weights are directly in the model.
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
                width = self.build_under_head(self.bert_config.hidden_size)
            self.head.build((*[None] * (1 + self._reads_tokens), width))
        self.build()

    @property
    def _reads_tokens(self):
        return self.labels_tokens or len(self.head_outputs) > 1

    @property
    def reads_pooler(self):
        """True if the head reads the pooler's output."""
        return not (self._reads_tokens or self.lstms or self.pooling)

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

    def build_under_head(self, width):
        """Builds the layers under the head for inputs of a width.

        Returns the width of their output.
        """
        for layer in self.lstms:
            layer.build((None, None, width))
            width = 2 * self.lstm_size
        return width

    def read_tokens(self, sequence, inputs):
        """Returns the head's input for tokens, <float>[B, S, width]."""
        _, input_mask, _ = bert_model.standardize(inputs)
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
        _, input_mask, _ = bert_model.standardize(inputs)
        last = heads.take_last_token(first, input_mask, self.for_inference)
        return tf.concat([last, second[:, 0]], axis=-1)

    def get_config(self):
        return super().get_config() | {
            "head": self.head_type,
            "lstm_size": self.lstm_size,
        }


def _flatten(inputs, dropout_seeds):
    """Returns inputs [B, C, S] as B * C rows, the rows' seeds, and [B, C]."""
    flat = {}
    for name, value in inputs.items():
        flat[name] = value = tf.convert_to_tensor(value)
        if name != layouts.TOKEN_INDICES:
            batch, choices, length = dropout.shape_of(value)
            flat[name] = tf.reshape(value, [-1, length])
    if dropout_seeds is not None:
        dropout_seeds = dropout.derive_seeds(dropout_seeds, choices)
        dropout_seeds = tf.reshape(dropout_seeds, [-1])
    return flat, dropout_seeds, [batch, choices]


def _unflatten(outputs, axes):
    """Reshapes outputs [B * C, ...] to [B, C, ...]."""
    return tf.nest.map_structure(
        lambda x: tf.reshape(x, [*axes, *dropout.shape_of(x)[1:]]), outputs
    )


def _takes_groups(call):
    """Makes `call` accept examples of C texts each: inputs [B, C, S]."""

    @functools.wraps(call)
    def call_rows(self, inputs, training=False, dropout_seeds=None):
        if len(getattr(inputs.get("input_ids"), "shape", ())) != 3:
            return call(self, inputs, training, dropout_seeds)
        flat, seeds, axes = _flatten(inputs, dropout_seeds)
        return _unflatten(call(self, flat, training, seeds), axes)

    return call_rows


def _pool(model, encoded, inputs):
    """Returns the embeddings of rows, pooled as the model specifies."""
    return heads.pool_tokens(
        encoded["sequence_output"],
        bert_model.standardize(inputs)[1],
        model.pooling,
        model.normalize,
        model.bert_config.left_to_right,
        model.for_inference,
    )


class _LabelModel(BertWithOutputHead):
    """BERT with a logit for each label; subclasses choose the head's input."""

    def __init__(self, config, num_labels=None, labels=None, **kwargs):
        super().__init__(config, **kwargs)
        self._labels = labels = heads.require_names(labels)
        if num_labels is None:
            num_labels = len(labels or ())
        self.num_labels = int(num_labels)
        if self.num_labels < 1:
            raise UserError(
                "A head needs at least one label: labels=[...], or num_labels. "
                f"Received: num_labels={num_labels}, labels={labels}."
            )
        if labels is not None and len(set(labels)) != self.num_labels:
            raise UserError(
                f"Expected as many labels as num_labels={num_labels}, with "
                f"different names. Received: {', '.join(labels)}."
            )

    @property
    def labels(self):
        """The names of the labels in the order of the logits, or None."""
        return self._labels

    def call(self, inputs, training=False, dropout_seeds=None):
        encoded, seeds = self.encode(inputs, training, dropout_seeds)
        read = self._head_input(encoded, inputs)
        outputs = {"logits": self.head(read, dropout_seeds=seeds)}
        if self.pooling is not None:
            outputs["embedding"] = read
        return self.with_encoder(outputs, encoded)

    def get_config(self):
        return super().get_config() | {
            "num_labels": self.num_labels,
            "labels": None if self.labels is None else list(self.labels),
            "head_dropout_prob": self.head.dropout_prob,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForClassification(_LabelModel):
    """BERT that scores labels for a text or a pair; one label for regression.

    Source: run_classifier.py:574-615 of the original.

    Args:
      config: A `BertConfig`, or its dictionary.
      num_labels: Number of labels; not needed if `labels` are given.
      labels: The labels in the order of the logits, or None.
      head_dropout_prob: Probability of dropping an element of the head's input.
      pooling: How to pool a text's tokens into the head's input, as in
        `BertForEmbeddings`; by default, the head reads the pooler's output.
      normalize: Whether to divide the embedding by its L2 norm.
      **kwargs: As for `BertWithOutputHead`.

    Call arguments: As for `BertModel`. Inputs may be [B, C, S], with C texts of
      an example; then outputs are [B, C, ...].

    Returns:
      A dictionary of `logits` <float32>[B, L] and, with `pooling`, `embedding`
      <float32>[B, H times the number of poolings].

    Raises:
      UserError: If there is no label, or two have the same name.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForClassification(config, labels=["no", "yes"])
      >>> ids = np.array([[101, 7592, 102]])
      >>> model({"input_ids": ids})["logits"].shape
      TensorShape([1, 2])
      >>> model.labels
      ('no', 'yes')
    """

    _NAME = "bert_for_classification"
    _HEAD_SCOPE = ()

    def __init__(
        self,
        config,
        num_labels=None,
        labels=None,
        head_dropout_prob=_DROPOUT_PROB,
        pooling=None,
        normalize=False,
        **kwargs,
    ):
        check_bools(normalize=normalize)
        if pooling is not None:
            check_pooling(pooling)
        super().__init__(config, num_labels, labels, **kwargs)
        self.pooling = pooling
        self.normalize = normalize
        self.add_head(self.num_labels, head_dropout_prob)

    call = _takes_groups(_LabelModel.call)

    def _head_input(self, outputs, inputs):
        if self.pooling is None:
            return self.read_text(outputs, inputs)
        return _pool(self, outputs, inputs)

    def get_config(self):
        return super().get_config() | {
            "pooling": self.pooling,
            "normalize": self.normalize,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForTagging(_LabelModel):
    """BERT that scores labels for each token, for instance named entities.

    Source: section 5.3 of the paper; the original has no code for it. In the
    feature-based approach, a "randomly initialized two-layer 768-dimensional
    BiLSTM" reads a `heads.LayerCombination` of the encoder's layers. Then the
    encoder is not trained; the only dropout is before the classification layer.

    Args:
      config: A `BertConfig`, or its dictionary.
      num_labels: Number of labels; not needed if `labels` are given.
      labels: The labels in the order of the logits, or None.
      head_dropout_prob: Probability of dropping an element of the head's input.
      approach: "fine_tuning", or "feature_based" for two BiLSTMs on top of a
        frozen encoder; this sets `return_all_layers` and `return_embeddings`.
      layer_combination: For "feature_based" only: the input of the BiLSTMs,
        one of `bert_tf.config.LAYER_COMBINATIONS`; by default the best of
        Table 7, "concat_last_four_hidden".
      **kwargs: As for `BertWithOutputHead`.

    Call arguments: As for `BertModel`.

    Returns:
      A dictionary of `logits` <float32>[B, S, L]; ignore logits at padding.

    Raises:
      UserError: If there is no label, two labels have the same name, or an
        argument is not for the chosen `approach`.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForTagging(config, labels=["O", "B-PER", "I-PER"])
      >>> ids = np.array([[101, 7592, 102]])
      >>> model({"input_ids": ids})["logits"].shape
      TensorShape([1, 3, 3])
    """

    labels_tokens = True
    _NAME = "bert_for_tagging"
    _HEAD_SCOPE = ("cls", "tagging")

    def __init__(
        self,
        config,
        num_labels=None,
        labels=None,
        head_dropout_prob=_DROPOUT_PROB,
        approach="fine_tuning",
        layer_combination=None,
        head="linear",
        **kwargs,
    ):
        heads.check_approach(approach, layer_combination, head)
        is_feature_based = approach == "feature_based"
        if is_feature_based:
            kwargs.setdefault(
                "return_encoder_outputs", bert_model.returns_more(kwargs)
            )
            kwargs |= {"return_all_layers": True, "return_embeddings": True}
        super().__init__(config, num_labels, labels, head=head, **kwargs)
        self.approach = approach
        self.combination = None
        if is_feature_based:
            self.bert.trainable = False
            self.combination = self.add_layer(
                heads.LayerCombination,
                "layer_combination",
                combination=layer_combination or DEFAULT_LAYER_COMBINATION,
            )
        num_lstms = 2 if is_feature_based else None
        self.add_head(self.num_labels, head_dropout_prob, num_lstms)

    def build_under_head(self, width):
        if self.combination is not None:
            self.combination.build((None, None, width))
            width = self.combination.width
        return super().build_under_head(width)

    def encode(self, inputs, training, dropout_seeds):
        if self.combination is None:
            return super().encode(inputs, training, dropout_seeds)
        outputs = self.bert(inputs, training=False)
        outputs = tf.nest.map_structure(tf.stop_gradient, outputs)
        return outputs, self.choose_seeds(inputs, training, dropout_seeds)

    def _head_input(self, outputs, inputs):
        features = outputs["sequence_output"]
        if self.combination is not None:
            features = self.combination(
                outputs["embedding_output"],
                encoder_outputs=outputs["encoder_outputs"],
            )
        return self.read_tokens(features, inputs)

    def get_config(self):
        return super().get_config() | {
            "approach": self.approach,
            "layer_combination": getattr(self.combination, "combination", None),
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForQuestionAnswering(BertWithOutputHead):
    """BERT that scores each token as the start and as the end of an answer.

    The head has no dropout. Source: run_squad.py:549-586 of the original.

    Args:
      config: A `BertConfig`, or its dictionary.
      **kwargs: As for `BertWithOutputHead`.

    Call arguments: As for `BertModel`; the question is the first segment.

    Returns:
      `start_logits` and `end_logits` <float32>[B, S]; ignore logits at padding.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForQuestionAnswering(config)
      >>> ids = np.array([[101, 2040, 102, 14050, 2626, 2009, 102]])
      >>> segments = np.array([[0, 0, 0, 1, 1, 1, 1]])
      >>> outputs = model({"input_ids": ids, "segment_ids": segments})
      >>> outputs["start_logits"].shape
      TensorShape([1, 7])
    """

    head_outputs = ("start_logits", "end_logits")
    _NAME = "bert_for_question_answering"
    _HEAD_SCOPE = ("cls", "squad")

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.add_head(2, 0.0)

    def call(self, inputs, training=False, dropout_seeds=None):
        encoded, _ = self.encode(inputs, training, dropout_seeds)
        read = self.read_tokens(encoded["sequence_output"], inputs)
        logits = tf.unstack(self.head(read), num=2, axis=-1)
        outputs = dict(zip(self.head_outputs, logits, strict=True))
        return self.with_encoder(outputs, encoded)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForMultipleChoice(BertWithOutputHead):
    """BERT that scores each of an example's choices.

    A softmax over the choices turns the logits into probabilities. Source:
    section 4.4 of the paper; the original has no code for it.

    Args:
      config: A `BertConfig`, or its dictionary.
      head_dropout_prob: Probability of dropping an element of the head's input.
      **kwargs: As for `BertWithOutputHead`.

    Call arguments: As for `BertModel`, but the inputs are [B, C, S], with a
      sequence for each choice of each example.

    Returns:
      A dictionary of `logits` <float32>[B, C].

    Raises:
      UserError: If an input is not of rank 3.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForMultipleChoice(config)
      >>> ids = np.full((1, 4, 6), 101)  # One example with four choices.
      >>> model({"input_ids": ids})["logits"].shape
      TensorShape([1, 4])
    """

    _NAME = "bert_for_multiple_choice"
    _HEAD_SCOPE = ("cls", "multiple_choice")

    def __init__(self, config, head_dropout_prob=_DROPOUT_PROB, **kwargs):
        super().__init__(config, **kwargs)
        self.add_head(1, head_dropout_prob)

    def call(self, inputs, training=False, dropout_seeds=None):
        for name, value in inputs.items():
            shape = tf.convert_to_tensor(value).shape
            if name != layouts.TOKEN_INDICES and shape.rank != 3:
                raise UserError(
                    f"`{name}` of multiple choice must be [examples, choices, "
                    f"length]. Received: shape {tuple(shape)}."
                )
        flat, dropout_seeds, axes = _flatten(inputs, dropout_seeds)
        encoded, seeds = self.encode(flat, training, dropout_seeds)
        logits = self.head(self.read_text(encoded, flat), dropout_seeds=seeds)
        outputs = _unflatten(self.with_encoder({}, encoded), axes)
        outputs["logits"] = tf.reshape(logits, axes)
        return outputs

    def get_config(self):
        return super().get_config() | {
            "head_dropout_prob": self.head.dropout_prob
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForEmbeddings(bert_model.BertWithHead):
    """BERT that turns a text into a vector; similar texts get similar vectors.

    The outputs of the last layer are pooled as by sentence-transformers
    (Reimers and Gurevych, 2019).

    Args:
      config: A `BertConfig`, or its dictionary.
      pooling: "mean", "cls", "max" or "mean_sqrt_len" of the tokens, or several
        that are concatenated, as in "cls+mean".
      normalize: Whether to divide each vector by its L2 norm.
      name: The model's name.
      **kwargs: As for `BertWithHead`.

    Call arguments: As for `BertModel`. Inputs may be [B, C, S], with C texts of
      an example; then outputs are [B, C, ...].

    Returns:
      A dictionary of `embedding` <float32>[B, H times the number of poolings].

    Raises:
      UserError: If `pooling` is unknown.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForEmbeddings(config)
      >>> ids = np.array([[101, 7592, 102]])
      >>> model({"input_ids": ids})["embedding"].shape
      TensorShape([1, 768])
    """

    head_outputs = ("embedding",)

    def __init__(
        self,
        config,
        pooling="mean",
        normalize=True,
        name="bert_for_embeddings",
        **kwargs,
    ):
        check_bools(normalize=normalize)
        check_pooling(pooling)
        super().__init__(config, name=name, **kwargs)
        self.pooling = pooling
        self.normalize = normalize
        self.build()

    @property
    def embedding_size(self):
        return self.bert_config.hidden_size * len(self.pooling.split("+"))

    @_takes_groups
    def call(self, inputs, training=False, dropout_seeds=None):
        encoded, _ = self.encode(inputs, training, dropout_seeds)
        embedding = _pool(self, encoded, inputs)
        return self.with_encoder({"embedding": embedding}, encoded)

    def similarity(self, a, b=None):
        """Returns the cosine of each embedding of `a` with each of `b`.

        Args:
          a: Embeddings <float>[N, size] or [size]; or texts, as for `predict`.
          b: M embeddings or texts, like `a`; by default `a` itself.

        Returns:
          <float32>[N, M], from -1 to 1.

        Raises:
          UserError: If the embeddings do not have the model's size.
        """
        first = self._unit_vectors(a)
        second = first if b is None else self._unit_vectors(b)
        return first @ second.T

    def _unit_vectors(self, x):
        x = x.numpy() if isinstance(x, tf.Tensor) else x
        if getattr(getattr(x, "dtype", None), "kind", None) != "f":
            x = self.predict(x, verbose=0)
            x = x["embedding"] if isinstance(x, dict) else x
        x = np.atleast_2d(x)
        if x.ndim > 2 or x.shape[1] != self.embedding_size:
            raise UserError(
                f"Expected embeddings [rows, {self.embedding_size}]. Received: "
                f"an array {[*x.shape]}; give texts, or what predict returns."
            )
        lengths = np.linalg.norm(x, axis=-1, keepdims=True)
        return np.float32(x / np.maximum(lengths, np.finfo(np.float32).tiny))

    def get_config(self):
        return super().get_config() | {
            "pooling": self.pooling,
            "normalize": self.normalize,
        }
