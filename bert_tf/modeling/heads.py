"""The pooler, output layers, and combinations of layers under a head.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence, or S if every position is predicted.
  H: hidden size.
  L: encoder layers.
  V: vocabulary size.
  O: outputs of a linear head.
"""

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import APPROACHES
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.errors import require_choice
from bert_tf.modeling import dropout
from bert_tf.modeling import layers

_FOUR = 4
# Combination -> minimum number of encoder layers; all others need only one.
_LEAST_LAYERS = {
    "second_to_last_hidden": 2,
    "weighted_sum_last_four_hidden": _FOUR,
    "concat_last_four_hidden": _FOUR,
}


def check_approach(approach, layer_combination, head):
    """Raises `UserError` if arguments do not fit a tagger's `approach`."""
    require_choice("approach", approach, APPROACHES)
    if approach == "feature_based" and head != "linear":
        raise UserError(
            "The feature-based approach has its own two BiLSTMs under the "
            f"head, so `head` must be 'linear'. Received: {head!r}."
        )
    if approach != "feature_based" and layer_combination is not None:
        raise UserError(
            "`layer_combination` is for the feature-based approach. Received: "
            f"{layer_combination!r} with {approach!r}."
        )


def take_last_token(sequence, input_mask, for_inference=False):
    """Gathers the last position that is not padding, <float>[B, H].

    For a row without tokens, this is the first position.

    Args:
      sequence: <float>[B, S, H].
      input_mask: <int32>[B, S], 1 for tokens and 0 for padding.
      for_inference: True if no gradient is needed; then `tf.gather` is used.
    """
    position = tf.range(dropout.shape_of(sequence)[1])
    last = tf.reduce_max(position * tf.cast(input_mask, tf.int32), axis=-1)
    if for_inference:
        return tf.gather(sequence, last, batch_dims=1)
    return take_positions(sequence, last[:, tf.newaxis])[:, 0]


def pool_tokens(
    sequence,
    input_mask,
    pooling="mean",
    normalize=True,
    left_to_right=False,
    for_inference=False,
):
    """Returns the embeddings of texts, as sentence-transformers pools tokens.

    [CLS] and [SEP] are pooled like other tokens. "mean_sqrt_len" divides the
    sum of the states by the square root of the number of tokens.

    Args:
      sequence: <float>[B, S, H].
      input_mask: <int32>[B, S], 1 for tokens and 0 for padding.
      pooling: Some of `config.POOLINGS`, joined by "+".
      normalize: Whether to divide each embedding by its L2 norm.
      left_to_right: Whether the model reads left to right. If so, [CLS] attends
        only to itself, and "cls" takes the last token instead of [CLS].
      for_inference: As for `take_last_token`.

    Returns:
      <float32>[B, H times the number of poolings].
    """
    states = tf.cast(sequence, tf.float32)
    # TensorFlow Lite cannot convert [..., tf.newaxis], so use tf.expand_dims.
    is_token = tf.expand_dims(input_mask, -1) > 0
    # Clients may send rows of padding only, so avoid a division by 0.
    count = tf.maximum(tf.reduce_sum(tf.cast(is_token, tf.float32), 1), 1.0)
    parts = []
    for one in pooling.split("+"):
        if one == "max":
            masked = tf.where(is_token, states, tf.float32.min)
            parts.append(tf.reduce_max(masked, 1))
        elif one == "cls" and left_to_right:
            parts.append(take_last_token(states, input_mask, for_inference))
        elif one == "cls":
            parts.append(states[:, 0])
        else:
            total = tf.reduce_sum(tf.where(is_token, states, 0.0), 1)
            parts.append(total / (count if one == "mean" else tf.sqrt(count)))
    embedding = parts[0] if len(parts) == 1 else tf.concat(parts, -1)
    if normalize:
        embedding = tf.math.l2_normalize(embedding, -1, epsilon=1e-24)
    return embedding


@keras.saving.register_keras_serializable(package="bert_tf")
class Pooler(layers.BertLayer):
    """tanh(state . kernel + bias) of the first token's state.

    In a left-to-right model the first token attends only to itself, so the
    pooler reads the last token that is not padding; the paper names no token
    for such models. Source: modeling.py:218-232 of the original.

    Call arguments:
      sequence_output: <float>[B, S, H].
      input_mask: <int32>[B, S], 1 for tokens and 0 for padding. Only
        left-to-right models use it.

    Returns:
      <float>[B, H] in the compute dtype.
    """

    def build(self, sequence_output_shape, input_mask_shape=None):
        width = self.bert_config.hidden_size
        self.dense = self.project(width, (sequence_output_shape[0], width))
        self.output_shape = (sequence_output_shape[0], width)

    def call(self, sequence_output, input_mask=None):
        if self.bert_config.left_to_right:
            token = take_last_token(
                sequence_output, input_mask, self.for_inference
            )
        else:
            token = sequence_output[:, 0]
        return self.activate(self.dense, token, "tanh")


@keras.saving.register_keras_serializable(package="bert_tf")
class Transform(layers.BertLayer):
    """layer_norm(activation(inputs . kernel + bias)), without dropout.

    Call arguments:
      inputs: <float>[B, P, H].

    Returns:
      <float>[B, P, H] in the compute dtype.
    """

    def build(self, input_shape):
        config = self.bert_config
        self.dense = self.project(config.hidden_size, input_shape)
        self.layer_norm = layers.LayerNorm(
            config.layer_norm_eps,
            fuse=self.fuse,
            dtype=self.dtype_policy,
            name="LayerNorm",
        )
        self.layer_norm.build(input_shape)

    def call(self, inputs):
        return self.layer_norm(
            self.activate(self.dense, inputs, self.bert_config.hidden_act)
        )


@tf.custom_gradient
def take_positions(sequence, positions):
    """Gathers positions of each row, with a gradient that is a product.

    The gradient of `tf.gather` is a scatter. On a GPU, a scatter adds in any
    order, so results would vary.

    The sequence is <float>[B, S, H], the positions are <int32>[B, P], and the
    result is <float>[B, P, H].
    """
    length = dropout.shape_of(sequence)[1]

    def gradient(upstream):
        places = tf.one_hot(positions, length, dtype=upstream.dtype)
        return tf.matmul(places, upstream, transpose_a=True), None

    return tf.gather(sequence, positions, batch_dims=1), gradient


def _tied_product(rows, table, bfloat16_gradient):
    """Returns rows <float32>[rows, H] . transposed(table) <float32>[V, H].

    The logits are float32, because bfloat16 would round a logit of 10 to steps
    of 0.06. The gradient is less sensitive and needs two such products, so it
    may be computed in bfloat16.
    """

    @tf.custom_gradient
    def product(rows, table):
        def gradient(upstream):
            dtype = tf.bfloat16 if bfloat16_gradient else tf.float32
            upstream = tf.cast(upstream, dtype)
            into_rows = tf.matmul(upstream, tf.cast(table, dtype))
            into_table = tf.matmul(
                upstream, tf.cast(rows, dtype), transpose_a=True
            )
            return [tf.cast(x, tf.float32) for x in (into_rows, into_table)]

        return tf.matmul(rows, table, transpose_b=True), gradient

    return product(rows, table)


@keras.saving.register_keras_serializable(package="bert_tf")
class MaskedLMHead(layers.BertLayer):
    """Scores the vocabulary at the chosen positions.

    The output matrix is the table of word embeddings. Source:
    run_pretraining.py:240-285 of the original.

    Call arguments:
      sequence_output: <float>[B, S, H].
      word_embeddings: <float>[V, H].
      masked_lm_positions: <int32>[B, P], or None for every position.

    Returns:
      Logits <float32>[B, P, V].
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.transform = self.add_layer(Transform, "transform")

    def build(self, sequence_output_shape, word_embeddings_shape=None):
        self.transform.build(sequence_output_shape)
        self.output_shape = (None, None, self.bert_config.vocab_size)
        self.output_bias = self.add_variable(
            "output_bias", (self.bert_config.vocab_size,), "zeros"
        )

    def call(self, sequence_output, word_embeddings, masked_lm_positions=None):
        chosen = sequence_output
        if masked_lm_positions is not None and self.for_inference:
            chosen = tf.gather(chosen, masked_lm_positions, batch_dims=1)
        elif masked_lm_positions is not None:
            chosen = take_positions(chosen, masked_lm_positions)
        transformed = self.transform(chosen)
        shape = dropout.shape_of(transformed)
        rows = tf.cast(tf.reshape(transformed, [-1, shape[-1]]), tf.float32)
        word_embeddings = tf.cast(word_embeddings, tf.float32)
        if self.for_inference:
            logits = tf.matmul(rows, word_embeddings, transpose_b=True)
        else:
            # The range of float16 is too small for the gradients: use float32.
            bfloat16 = self.compute_dtype == "bfloat16"
            logits = _tied_product(rows, word_embeddings, bfloat16)
        logits += tf.convert_to_tensor(self.output_bias)
        return tf.reshape(logits, [*shape[:-1], self.bert_config.vocab_size])


@keras.saving.register_keras_serializable(package="bert_tf")
class LinearHead(layers.BertLayer):
    """dropout(inputs) . transposed(output_weights) + output_bias.

    The original has this head for next sentences (run_pretraining.py:287-305, 2
    outputs), for labels (run_classifier.py:594-611), and for start and end of
    answers (run_squad.py:565-579).

    Args:
      num_outputs: Number of logits, O.
      dropout_prob: Probability of dropping an element of the input.

    Call arguments:
      inputs: <float>[B, ..., width].
      dropout_seeds: <int32>[B], or None for no dropout.

    Returns:
      Logits <float32>[B, ..., O].
    """

    def __init__(self, config, num_outputs, dropout_prob=0.0, **kwargs):
        super().__init__(config, **kwargs)
        self.num_outputs = num_outputs
        self.dropout_prob = dropout_prob

    def build(self, input_shape):
        config = self.bert_config
        self.output_weights = self.add_variable(
            "output_weights",
            (self.num_outputs, input_shape[-1]),
            layers.TruncatedNormal(stddev=config.initializer_range),
        )
        self.output_bias = self.add_variable(
            "output_bias", (self.num_outputs,), "zeros"
        )
        self.output_shape = (*input_shape[:-1], self.num_outputs)

    def call(self, inputs, dropout_seeds=None):
        kept = dropout.dropout(
            tf.cast(inputs, tf.float32),
            self.dropout_prob,
            dropout_seeds,
            self.dropout_id,
        )
        shape = dropout.shape_of(inputs)
        logits = tf.matmul(
            tf.reshape(kept, [-1, shape[-1]]),
            tf.convert_to_tensor(self.output_weights),
            transpose_b=True,
        )
        logits += tf.convert_to_tensor(self.output_bias)
        return tf.reshape(logits, [*shape[:-1], self.num_outputs])

    def get_config(self):
        return super().get_config() | {
            "num_outputs": self.num_outputs,
            "dropout_prob": self.dropout_prob,
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class LayerCombination(layers.BertLayer):
    """One of the six combinations of the encoder's layers in Table 7.

    - embeddings: the output of the embeddings, after layer normalization.
    - second_to_last_hidden, last_hidden: the output of one encoder layer.
    - weighted_sum_last_four_hidden, weighted_sum_all_layers (the paper's
      Weighted Sum All 12 Layers): encoder layers, without the embeddings. The
      paper does not specify the weights. Here they are learned as in ELMo, to
      which Table 7 compares BERT: a softmax (equal at first) times a scale (1
      at first).
    - concat_last_four_hidden: the last four layers' outputs, in layer order.

    Args:
      config: The model's `BertConfig`, or its dictionary.
      combination: One of `bert_tf.config.LAYER_COMBINATIONS`.
      **kwargs: As for `BertLayer`.

    Call arguments:
      embedding_output: <float>[B, S, H].
      encoder_outputs: A list of <float>[B, S, H], one for each of L layers.

    Returns:
      <float>[B, S, H], or [B, S, 4H] if concatenated, in the compute dtype.

    Raises:
      UserError: If the combination is unknown or needs more encoder layers.

    Reference:
      Peters et al., 2018, https://arxiv.org/abs/1802.05365, equation 1.
    """

    def __init__(self, config, combination, **kwargs):
        super().__init__(config, **kwargs)
        require_choice("layer_combination", combination, LAYER_COMBINATIONS)
        number = self.bert_config.num_hidden_layers
        least = _LEAST_LAYERS.get(combination, 1)
        if number < least:
            raise UserError(
                f"The layer combination {combination} needs an encoder of "
                f"{least} layers at least. Received: one of {number}."
            )
        self.combination = combination

    @property
    def is_weighted(self):
        """True if the combination has weights of its own."""
        return self.combination.startswith("weighted_sum")

    @property
    def width(self):
        parts = _FOUR if self.combination == "concat_last_four_hidden" else 1
        return parts * self.bert_config.hidden_size

    def build(self, embedding_output_shape, encoder_outputs_shape=None):
        self.output_shape = (None, None, self.width)
        if not self.is_weighted:
            return
        number = self.bert_config.num_hidden_layers
        if self.combination == "weighted_sum_last_four_hidden":
            number = _FOUR
        self.layer_weights = self.add_variable("weights", (number,), "zeros")
        self.scale = self.add_variable("scale", (1,), "ones")

    def call(self, embedding_output, encoder_outputs):
        if self.combination == "embeddings":
            return embedding_output
        if self.combination == "last_hidden":
            return encoder_outputs[-1]
        if self.combination == "second_to_last_hidden":
            return encoder_outputs[-2]
        if self.combination == "concat_last_four_hidden":
            return tf.concat(encoder_outputs[-_FOUR:], axis=-1)
        shares = tf.nn.softmax(tf.convert_to_tensor(self.layer_weights))
        summed = encoder_outputs[-self.layer_weights.shape[0] :]
        total = tf.add_n(
            [
                tf.cast(layer, tf.float32) * share
                for layer, share in zip(summed, tf.unstack(shares), strict=True)
            ]
        )
        return tf.cast(total * self.scale, self.compute_dtype)

    def get_config(self):
        return super().get_config() | {"combination": self.combination}


def require_names(labels):
    """Returns names as a tuple, or None; refuses all else with `UserError`."""
    if labels is None:
        return None
    is_list = np.ndim(labels) == 1
    if not is_list or not all(isinstance(x, str) and x for x in labels):
        raise UserError(
            "Expected labels=[...], a list of names that are not empty; for "
            "numbers give list(map(str, labels)), for a mapping "
            f"list(labels.values()). Received: labels={labels!r:.80}."
        )
    return tuple(map(str, labels))
