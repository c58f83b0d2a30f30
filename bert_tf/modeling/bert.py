"""BERT's embeddings, and BERT as Keras models, also with pretraining heads.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence.
  H: hidden size.
  N: attention heads.
  V: vocabulary size.
"""

import os
import pathlib
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf import errors
from bert_tf.config import check_bools
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.modeling import attention
from bert_tf.modeling import encoder
from bert_tf.modeling import heads as head_layers
from bert_tf.modeling import layers
from bert_tf.modeling import layouts

_FLAGS = (
    "return_all_layers",
    "return_embeddings",
    "return_attention_probs",
    "has_pooler",
    "remat",
)
_RETURN_FLAGS = _FLAGS[:3]
_INPUTS = ("input_ids", "input_mask", "segment_ids", *layouts.INPUTS)
# The pretraining heads; the output of a head is called <head>_logits.
_PRETRAINING_HEADS = ("masked_lm", "next_sentence")


@tf.custom_gradient
def lookup(table, ids):
    """Gathers rows of a table, with a dense gradient.

    `tf.gather` has a sparse gradient, which lists a row once for each use. So
    the global norm would be wrong, and sums over replicas would be slow.

    The table is <float>[rows, width], the ids are <int32>[...], the result
    <float>[..., width].
    """
    rows, width = table.shape

    def gradient(upstream):
        flat = tf.reshape(upstream, [-1, width])
        indices = tf.reshape(ids, [-1])
        return tf.math.unsorted_segment_sum(flat, indices, rows), None

    return tf.gather(table, ids), gradient


@keras.saving.register_keras_serializable(package="bert_tf")
class Embeddings(layers.BertLayer):
    """layer_norm(word + segment + position), then dropout.

    Source: modeling.py:433-520 of the original.

    Call arguments:
      input_ids: <int32>[B, S].
      segment_ids: <int32>[B, S].
      dropout_seeds: <int32>[B], or None for no dropout.
      layout: The layout of the result, see `layouts`; by default padded.

    Returns:
      <float>[..., H], rows of the layout, in the compute dtype.

    Raises:
      UserError: If S is above `max_position_embeddings`.
    """

    def build(self, input_ids_shape, segment_ids_shape=None):
        config = self.bert_config
        self.output_shape = (*input_ids_shape, config.hidden_size)
        self.word_embeddings = self._add_table(
            "word_embeddings", config.vocab_size
        )
        self.token_type_embeddings = self._add_table(
            "token_type_embeddings", config.type_vocab_size
        )
        self.position_embeddings = self._add_table(
            "position_embeddings", config.max_position_embeddings
        )
        self.layer_norm = layers.LayerNorm(
            config.layer_norm_eps,
            config.hidden_dropout_prob,
            self.fuse,
            dtype=self.dtype_policy,
            name="LayerNorm",
        )
        self.layer_norm.build((*input_ids_shape, config.hidden_size))

    def _add_table(self, name, rows):
        return self.add_variable(
            name,
            (rows, self.bert_config.hidden_size),
            layers.TruncatedNormal(stddev=self.bert_config.initializer_range),
            self.variable_dtype,
        )

    def call(self, input_ids, segment_ids, dropout_seeds=None, layout=None):
        layout = layout or self.padded
        length = self._length(input_ids)
        if self.for_inference:
            # TensorFlow Lite stores the table in int8 only with tf.gather.
            positions = tf.gather(self.position_embeddings, tf.range(length))
        else:
            positions = self.position_embeddings[:length]
        input_ids = layout.select(input_ids)
        segment_ids = layout.select(segment_ids)
        table = tf.convert_to_tensor(self.word_embeddings)
        # Inference needs no gradient, so `tf.gather` is enough there.
        look_up = tf.gather if self.for_inference else lookup
        words = tf.cast(look_up(table, input_ids), tf.float32)
        # The segment table has few rows, so a product with one-hot rows is
        # faster than a gather, in particular in the backward pass.
        segments = tf.matmul(
            tf.one_hot(segment_ids, self.bert_config.type_vocab_size),
            tf.cast(self.token_type_embeddings, tf.float32),
        )
        positions = layout.select_positions(tf.cast(positions, tf.float32))
        width = self.bert_config.hidden_size
        keys = layout.draw_keys(dropout_seeds, self.dropout_id, width)
        return self.layer_norm(words + segments + positions, keys)

    def _length(self, input_ids):
        """Returns S, as an integer if possible, which exports need."""
        length = input_ids.shape[1]
        if length is None:
            return tf.shape(input_ids)[1]
        if length > self.bert_config.max_position_embeddings:
            raise UserError(
                "A sequence cannot be longer than `max_position_embeddings`. "
                f"Received: a sequence of {length}, max_position_embeddings="
                f"{self.bert_config.max_position_embeddings}."
            )
        return length


class _ConfiguredModel(layers.Configured, keras.Model):
    """A model with a `BertConfig`; its constructor makes all weights.

    Attributes:
      head_outputs: The names of the outputs of the head; () without a head.
      labels_tokens: True if the first output is trained by a label per token.
      text_files: The contents of vocab.txt, tokenizer.json and task.json of a
        model directory, by file name; {} if the model was not read from files.
        A .keras file stores them in assets/.
    """

    head_outputs = ()
    labels_tokens = False
    text_files = {}
    built = False

    def __init__(self, config, fuse=False, for_inference=False, **kwargs):
        check_bools(fuse=fuse, for_inference=for_inference)
        known = errors.arguments_of(type(self))
        errors.check_arguments(type(self).__name__, kwargs, known)
        super().__init__(autocast=False, **kwargs)
        self.bert_config = layers.as_config(config)
        self.fuse = fuse
        self.for_inference = for_inference

    def __getattr__(self, name):
        if hasattr(type(self), name):  # A property raised: raise its own error.
            return object.__getattribute__(self, name)
        # Keras looks for many names, mostly private ones or in constructors.
        names = ()
        if self.built and name[0] != "_":
            names = [x for x in dir(self) if x[0] != "_"]
        raise errors.no_attribute(repr(type(self).__name__), name, names)

    def current_text_files(self):
        """Returns the `text_files` to save."""
        return dict(self.text_files)

    def save_assets(self, dir_path):
        """Writes the text files into a folder; called by Keras."""
        for name, text in self.current_text_files().items():
            files.write_bytes(os.path.join(dir_path, name), text.encode())

    def load_assets(self, dir_path):
        """Reads the text files of a folder, if it exists; called by Keras."""
        if dir_path is None or not os.path.isdir(dir_path):
            return
        self.text_files = {
            path.name: files.read_bytes(str(path)).decode()
            for path in sorted(pathlib.Path(dir_path).iterdir())
            if not path.is_dir()
        }

    def build_from_config(self, config):
        """Does nothing: the constructor has made all variables."""

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertModel(_ConfiguredModel):
    """The encoder: embeddings, encoder layers and pooler.

    `named_variables` returns variables by their names in original checkpoints.

    Args:
      config: A `BertConfig`, or its dictionary.
      fuse: Whether to compile elementwise operations, for faster training.
      return_all_layers: Whether to return `encoder_outputs`.
      return_embeddings: Whether to return `embedding_output`.
      return_attention_probs: Whether to return `attention_probs`.
      has_pooler: Whether the model has a pooler and returns `pooled_output`.
      remat: As for `Encoder`; not with `return_attention_probs`.
      **kwargs: As for `keras.Model`: `name`, `dtype` (also a policy such as
        "mixed_bfloat16").

    Call arguments:
      inputs: A dictionary of `input_ids` <int32>[B, S] and, if there is
        padding or a second segment, `input_mask` <int32>[B, S] (1 for tokens,
        0 for padding; default ones) and `segment_ids` <int32>[B, S] (default
        zeros). If the results of `layouts.find_tokens` are added, the model
        skips padding and outputs 0 there.
      training: Whether to apply dropout.
      dropout_seeds: <int32>[B]; an example's dropout depends on its seed and
        the configuration alone. Keras draws the seeds if they are not given.

    Returns:
      A dictionary, in the compute dtype. Always: `sequence_output` <float>[B,
      S, H]. With a pooler: `pooled_output` <float>[B, H] of the first token (if
      left-to-right, of the last token that is not padding). On request:
      `encoder_outputs`, a list of <float>[B, S, H] per layer;
      `embedding_output` <float>[B, S, H]; and `attention_probs`, a list of
      <float>[B, N, S, S] per layer.

    Raises:
      UserError: For an unknown input, or S above `max_position_embeddings`.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertModel(config)
      >>> outputs = model({"input_ids": np.array([[101, 7592, 102]])})
      >>> outputs["sequence_output"].shape, outputs["pooled_output"].shape
      (TensorShape([1, 3, 768]), TensorShape([1, 768]))
    """

    def __init__(
        self,
        config,
        fuse=False,
        return_all_layers=False,
        return_embeddings=False,
        return_attention_probs=False,
        has_pooler=True,
        remat=False,
        name="bert",
        **kwargs,
    ):
        if remat and return_attention_probs:
            raise UserError(
                "`remat` keeps no attention probabilities, which "
                "`return_attention_probs` asks for; drop one of the two."
            )
        super().__init__(config, fuse, name=name, **kwargs)
        self.return_all_layers = return_all_layers
        self.return_embeddings = return_embeddings
        self.return_attention_probs = return_attention_probs
        self.has_pooler = has_pooler
        self.remat = remat
        check_bools(**{name: getattr(self, name) for name in _FLAGS})
        self.embeddings = self.add_layer(Embeddings, "embeddings")
        self.encoder = self.add_layer(
            encoder.Encoder, "encoder", dropout_id=1, remat=remat
        )
        self.encoder.needs_weights = return_attention_probs
        if has_pooler:
            self.pooler = self.add_layer(head_layers.Pooler, "pooler")
        self.seed_generator = keras.random.SeedGenerator()
        # Pass a shape, otherwise `summary` would not show `output_shape`.
        self.build((None, None))

    def build(self, input_shape=None):
        hidden = (None, None, self.bert_config.hidden_size)
        self.output_shape = hidden
        self.embeddings.build((None, None))
        self.encoder.build(hidden)
        if self.has_pooler:
            self.pooler.build(hidden)

    def call(self, inputs, training=False, dropout_seeds=None):
        input_ids, input_mask, segment_ids = standardize(inputs)
        if not training:
            dropout_seeds = None
        elif dropout_seeds is None:
            dropout_seeds = self.draw_seeds(input_ids)
        layout = layouts.choose(
            inputs, self.bert_config.num_attention_heads, self.for_inference
        )
        embedded = self.embeddings(
            input_ids, segment_ids, dropout_seeds=dropout_seeds, layout=layout
        )
        attention_bias = attention.build_attention_bias(
            input_mask, self.bert_config.left_to_right
        )
        encoded, probs = self.encoder(
            embedded,
            attention_bias,
            dropout_seeds=dropout_seeds,
            layout=layout,
        )
        sequence_output = layout.restore(encoded[-1])
        outputs = {"sequence_output": sequence_output}
        if self.has_pooler:
            outputs["pooled_output"] = self.pooler(
                sequence_output, input_mask=input_mask
            )
        if self.return_all_layers:
            others = [layout.restore(states) for states in encoded[:-1]]
            outputs["encoder_outputs"] = [*others, sequence_output]
        if self.return_embeddings:
            outputs["embedding_output"] = layout.restore(embedded)
        if self.return_attention_probs:
            outputs["attention_probs"] = probs
        return outputs

    def draw_seeds(self, input_ids):
        """Returns seeds <int32>[B], new in each call."""
        return keras.random.randint(
            (tf.shape(input_ids)[0],),
            0,
            2**31 - 1,
            dtype="int32",
            seed=self.seed_generator,
        )

    def get_config(self):
        flags = {name: getattr(self, name) for name in _FLAGS}
        return super().get_config() | flags


class BertWithHead(_ConfiguredModel):
    """A model with a `BertModel` in `bert`; subclasses add heads.

    Args:
      config: A `BertConfig`, or its dictionary.
      fuse: Whether to compile elementwise operations, for faster training.
      return_encoder_outputs: Whether to also return the outputs of `BertModel`;
        by default True if one of `BertModel`'s `return_` flags is set.
      **kwargs: As for `BertModel`.
    """

    encoder_class = BertModel

    def __init__(
        self, config, fuse=False, return_encoder_outputs=None, **kwargs
    ):
        check_bools(return_encoder_outputs=return_encoder_outputs)
        if return_encoder_outputs is None:
            return_encoder_outputs = returns_more(kwargs)
        flags = {name: kwargs.pop(name) for name in _FLAGS if name in kwargs}
        super().__init__(config, fuse, **kwargs)
        self.return_encoder_outputs = return_encoder_outputs
        with keras.name_scope(self.name):
            self.bert = self.encoder_class(
                self.bert_config,
                fuse,
                for_inference=self.for_inference,
                dtype=self.dtype_policy,
                **flags,
            )

    def build(self, input_shape=None):
        """Does nothing: the constructor has made all variables."""

    def with_encoder(self, head_outputs, encoder_outputs):
        """Returns the head's outputs, with the encoder's if requested."""
        if not self.return_encoder_outputs:
            return head_outputs
        return encoder_outputs | head_outputs

    def encode(self, inputs, training, dropout_seeds):
        """Returns the outputs of `BertModel`, and the dropout seeds used."""
        dropout_seeds = self.choose_seeds(inputs, training, dropout_seeds)
        outputs = self.bert(
            inputs, training=training, dropout_seeds=dropout_seeds
        )
        return outputs, dropout_seeds

    def choose_seeds(self, inputs, training, dropout_seeds):
        """Returns the given or new seeds <int32>[B]; None without dropout."""
        if not training:
            return None
        if dropout_seeds is None:
            input_ids, _, _ = standardize(inputs)
            return self.bert.draw_seeds(input_ids)
        return dropout_seeds

    def get_config(self):
        flags = {name: getattr(self.bert, name) for name in _FLAGS}
        flags["return_encoder_outputs"] = self.return_encoder_outputs
        return super().get_config() | flags


def returns_more(arguments):
    """Returns True if arguments request optional outputs of `BertModel`."""
    return any(arguments.get(name) for name in _RETURN_FLAGS)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertForPretraining(BertWithHead):
    """BERT with the masked-LM head and the next-sentence head.

    Args:
      config: A `BertConfig`, or its dictionary.
      fuse: Whether to compile elementwise operations, for faster training.
      heads: A tuple of "masked_lm", "next_sentence" or both. The model has a
        pooler only with "next_sentence", the only head that reads the pooler.
      **kwargs: Arguments of `BertWithHead`: for instance `dtype`,
        `return_encoder_outputs` or a `return_` flag of `BertModel`.

    Call arguments: As for `BertModel`; the inputs may also have
      `masked_lm_positions` <int32>[B, P], by default all positions.

    Returns:
      A dictionary of `masked_lm_logits` <float32>[B, P, V] and
      `next_sentence_logits` <float32>[B, 2] (0 for a second segment that
      follows the first, 1 for a random second segment). With
      `return_encoder_outputs`, the outputs of `BertModel` are added.

    Raises:
      UserError: If `heads` is empty or contains an unknown head.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=2)
      >>> model = bert_tf.BertForPretraining(config)
      >>> ids = np.array([[101, 103, 2158, 102]])
      >>> places = np.array([[1]])
      >>> outputs = model({"input_ids": ids, "masked_lm_positions": places})
      >>> outputs["masked_lm_logits"].shape
      TensorShape([1, 1, 30522])
    """

    def __init__(
        self,
        config,
        fuse=False,
        heads=_PRETRAINING_HEADS,
        name="bert_for_pretraining",
        **kwargs,
    ):
        if not heads or not set(heads) <= set(_PRETRAINING_HEADS):
            raise UserError(
                "`heads` must be some of "
                f"{', '.join(_PRETRAINING_HEADS)}. Received: {heads!r}."
            )
        kwargs["has_pooler"] = "next_sentence" in heads
        super().__init__(config, fuse, name=name, **kwargs)
        self.heads = tuple(heads)
        self.head_outputs = tuple(f"{head}_logits" for head in heads)
        self.labels_tokens = heads[0] == "masked_lm"
        if "masked_lm" in heads:
            self.masked_lm_head = self.add_layer(
                head_layers.MaskedLMHead, "predictions"
            )
        if "next_sentence" in heads:
            self.next_sentence_head = self.add_layer(
                head_layers.LinearHead, "seq_relationship", num_outputs=2
            )
        self.build()

    def build(self, input_shape=None):
        width = self.bert_config.hidden_size
        with keras.name_scope("cls"):
            if "masked_lm" in self.heads:
                self.masked_lm_head.build((None, None, width))
            if "next_sentence" in self.heads:
                self.next_sentence_head.build((None, width))

    def call(self, inputs, training=False, dropout_seeds=None):
        inputs = dict(inputs)
        positions = inputs.pop("masked_lm_positions", None)
        encoded, _ = self.encode(inputs, training, dropout_seeds)
        outputs = {}
        if "masked_lm" in self.heads:
            outputs["masked_lm_logits"] = self.masked_lm_head(
                encoded["sequence_output"],
                tf.convert_to_tensor(self.bert.embeddings.word_embeddings),
                masked_lm_positions=positions,
            )
        if "next_sentence" in self.heads:
            outputs["next_sentence_logits"] = self.next_sentence_head(
                encoded["pooled_output"]
            )
        return self.with_encoder(outputs, encoded)

    def get_config(self):
        return super().get_config() | {"heads": list(self.heads)}


def named_variables(model):
    """Returns the weights of a model by their canonical names.

    A canonical name is the weight's name in the original's checkpoints, such as
    `bert/encoder/layer_0/attention/self/query/kernel`, whatever the names of
    the model and its `BertModel` are. States of random generators are left out.

    Raises:
      UserError: If two weights share a name, as in a model with two encoders.
    """
    encoders = [x for x in [model, *model.layers] if isinstance(x, BertModel)]
    prefixes = {f"{encoder.path}/": "bert/" for encoder in encoders}
    prefixes.setdefault(f"{model.name}/", "")
    named = {}
    for variable in model.weights:
        name = variable.path
        prefix = next(filter(name.startswith, prefixes), "")
        name = prefixes.get(prefix, "") + name.removeprefix(prefix)
        if name in named:
            raise UserError(
                "Each weight of a model needs a canonical name of its own. "
                f"Received: two of the name {name}."
            )
        named[name] = variable
    return named


def check_inputs(inputs, *others):
    """Raises `UserError` unless `inputs` has input_ids and known names only."""
    names = [type(inputs).__name__]
    if isinstance(inputs, Mapping):
        names = sorted(map(str, inputs))
    if "input_ids" not in names or {*names} - {*_INPUTS, *others}:
        raise UserError(
            "The model's inputs are a dictionary of `input_ids` and, "
            "optionally, `input_mask` (attention_mask elsewhere) and "
            "`segment_ids` (token_type_ids elsewhere). Received: "
            f"{', '.join(names)}."
        )


def standardize(inputs):
    """Returns the three inputs as <int32>[B, S], with defaults filled in."""
    if not isinstance(inputs, Mapping):
        # Keras' export tries a bare tensor, and expects a TypeError.
        raise TypeError(
            "The model's inputs are a dictionary of `input_ids` and others. "
            f"Received: {type(inputs).__name__}."
        )
    check_inputs(inputs)
    input_ids = tf.cast(inputs["input_ids"], tf.int32)
    if input_ids.shape.rank == 1:
        raise UserError(
            "Expected the model's inputs in the shape [rows, tokens]. "
            f"Received: input_ids {input_ids.shape}."
        )
    input_mask = inputs.get("input_mask")
    if input_mask is None:
        input_mask = tf.ones_like(input_ids)
    segment_ids = inputs.get("segment_ids")
    if segment_ids is None:
        segment_ids = tf.zeros_like(input_ids)
    return input_ids, input_mask, tf.cast(segment_ids, tf.int32)
