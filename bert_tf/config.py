"""The configuration in `bert_config.json`, and `option` to declare flags.

Nothing here imports TensorFlow, so `--help` and flag errors appear at once.
"""

import dataclasses
import json
import types
from typing import Any

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.errors import did_you_mean

# Values of `hidden_act`. "gelu" is the tanh approximation, as in the original
# at eedf571 (modeling.py:264-277). "gelu_erf" is the exact form, which the
# original used before 2019-02-07. In bert_config.json, letters may be upper
# case, and null or "" means "linear".
HIDDEN_ACTS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# Text normalization: the original's rules, or the rules of MediaPipe and the
# TensorFlow Lite Task Library; see `text.normalizer`.
ORIGINAL = "original"
ASCII_LOWER = "ascii_lower"
NORMALIZATIONS = (ORIGINAL, ASCII_LOWER)

# Task heads: a linear layer, or a BiLSTM and a linear layer (paper, Table 5).
HEAD_TYPES = ("linear", "bilstm")
# Fine-tuning also trains a tagger's encoder. A feature-based tagger reads one
# of the `LAYER_COMBINATIONS` of a frozen encoder (paper, Table 7).
APPROACHES = ("fine_tuning", "feature_based")
LAYER_COMBINATIONS = (
    "embeddings",
    "second_to_last_hidden",
    "last_hidden",
    "weighted_sum_last_four_hidden",
    "concat_last_four_hidden",
    "weighted_sum_all_layers",
)
# Ways to pool token vectors into one; "cls+mean" concatenates two poolings.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len")
# The best layer combination in Table 7 of the paper.
DEFAULT_LAYER_COMBINATION = "concat_last_four_hidden"

# A larger number of layers is surely a typing error, and would fill the memory.
MAX_HIDDEN_LAYERS = 1000
_MAX_INT, _MAX_FLOAT = 2**31 - 1, 3e38

# Multilingual and Chinese BERT have these keys, which the original ignores.
_UNUSED_KEYS = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)

# Groups of flags in `--help`, in this order.
IGNORED = "accepted for compatibility, ignored"
GROUPS = (
    "data",
    "masking",
    "model",
    "training",
    "distillation",
    "evaluation and prediction",
    "output",
    "server",
    "batching",
    "limits",
    "hardware",
    "other",
    IGNORED,
)
# Effects of a flag. A "weights" flag changes the trained weights or the choice
# of a model, so a run that resumes refuses or logs a changed value. A "place"
# flag changes only where a run reads, writes or computes.
EFFECTS = ("weights", "place", "nothing")
# The default of a flag that every command line must set.
REQUIRED = dataclasses.MISSING
# Rules that limit a flag's value; `flags.options.Flags` checks them.
BOUNDS = ("at_least", "above", "at_most", "below")
_MODEL_NAMES = (
    " May also be a name, which is fetched: bert-base-uncased "
    "(run/models.py lists such names), or hf://owner/name."
)


def option(
    help_text: str,
    default: Any = None,
    *,
    group: str = "other",
    affects: str = "weights",
    name: str | None = None,
    choices: tuple[str, ...] | None = None,
    reads: str | None = None,
    **rules: Any,
) -> Any:
    """Declares one field of a script's configuration, which is one flag.

    Args:
      help_text: One sentence for `--help`.
      default: The flag's default, or `REQUIRED`.
      group: The flag's subject in `--help`, one of `GROUPS`.
      affects: The flag's effect on training, one of `EFFECTS`.
      name: The flag's name, if it differs from the name of the field.
      choices: The values that a text flag accepts.
      reads: For a path that must exist: "file", "files" (globs, separated by
        commas), "folder", "model" or "models" (globs or names, separated by
        commas); see `paths`.
      **rules: `at_least`, `above`, `at_most` and `below` limit the value, but
        None is always allowed; a number is at least 0 by default. `needs` lists
        flags ("do_train") or values ("head=bilstm"); if this flag is set, one
        of these must be set. `not_with` lists flags or values that must not be
        set together with this flag. `endings` lists usual endings of an output;
        of the endings of compressed and binary files, only these are allowed.

    Raises:
      ValueError: For an unknown group, effect or rule.
    """
    if group not in GROUPS:
        raise ValueError(f"Unknown group of flags: {group!r}.")
    if affects not in EFFECTS:
        raise ValueError(f"Unknown effect of a flag: {affects!r}.")
    if not rules.keys() <= {*BOUNDS, "needs", "not_with", "endings"}:
        raise ValueError(f"Unknown rules of a flag: {', '.join(rules)}.")
    metadata = {
        "help": help_text + (_MODEL_NAMES if reads == "model" else ""),
        "group": group,
        "affects": affects,
        "name": name,
        "choices": choices,
        "reads": reads,
        "rules": rules,
    }
    return dataclasses.field(
        default=default, metadata=types.MappingProxyType(metadata)
    )


def fields_affecting(config_cls: type, *effects: str) -> frozenset[str]:
    """Returns the names of the fields that have one of the effects."""
    return frozenset(
        field.name
        for field in dataclasses.fields(config_cls)
        if field.metadata["affects"] in effects
    )


def check_bools(**values: Any) -> None:
    """Raises `UserError` for a value that is not a bool; None is allowed.

    Without this check, Python would read every text, even "no", as True.
    """
    for name, value in values.items():
        # NumPy's booleans are of the type `bool_`, in NumPy 2 of `bool`.
        if value is not None and type(value).__name__ not in ("bool", "bool_"):
            raise UserError(
                f"Expected {name} to be True or False. Received: "
                f"{name}={value!r:.80}."
            )


def check_pooling(pooling: str) -> None:
    """Raises `UserError` unless `pooling` is like "cls" or "cls+mean"."""
    if not set(str(pooling).split("+")) <= set(POOLINGS):
        raise UserError(
            f"The pooling of embeddings must be {', '.join(POOLINGS)}, or "
            'several of these as in "cls+mean"; other modules of '
            f"sentence-transformers are not supported. Received: {pooling!r}."
        )


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The hyperparameters of a BERT; the keys of `bert_config.json`.

    Source: modeling.py:34-100 of the original. The original has no
    `layer_norm_eps` and `left_to_right`, and ignores these keys; a file has
    them only if their values are not the defaults.

    Attributes:
      vocab_size: Rows of the word embedding table, V.
      hidden_size: Width of the encoder, H.
      num_hidden_layers: Encoder layers, L.
      num_attention_heads: Attention heads; must divide H.
      intermediate_size: Width of the feed-forward layer, I.
      hidden_act: One of `HIDDEN_ACTS`.
      hidden_dropout_prob: Dropout of embeddings and layer outputs.
      attention_probs_dropout_prob: Dropout of attention probabilities.
      max_position_embeddings: The longest sequence the model can read.
      type_vocab_size: Number of segments.
      initializer_range: Standard deviation of the truncated normal initializer.
      layer_norm_eps: Added to the variance in layer normalization.
      left_to_right: If true, a token attends only to itself and to earlier
        tokens (paper, Table 5); the last token gives the pooled output.

    Raises:
      UserError: For an invalid value.

    Example:
      >>> config = bert_tf.BertConfig(vocab_size=30522, num_hidden_layers=6)
      >>> config.num_hidden_layers, config.hidden_size
      (6, 768)
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    left_to_right: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # A file may have 0 instead of 0.0, so accept an int as a float.
            accepted = (float, int) if field.type is float else field.type
            is_wrong_bool = isinstance(value, bool) and field.type is not bool
            if is_wrong_bool or not isinstance(value, accepted):
                raise UserError(
                    f"`{field.name}` must be of type {field.type.__name__}. "
                    f"Received: {field.name}={value!r}."
                )
            if field.type is int and not 1 <= value <= _MAX_INT:
                raise UserError(
                    f"`{field.name}` must be at least 1 and at most {_MAX_INT}."
                    f" Received: {field.name}={value!s:.40}."
                )
        if self.num_hidden_layers > MAX_HIDDEN_LAYERS:
            raise UserError(
                f"`num_hidden_layers` must be at most {MAX_HIDDEN_LAYERS}. "
                f"Received: num_hidden_layers={self.num_hidden_layers}."
            )
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                "`num_attention_heads` must divide `hidden_size`. Received: "
                f"num_attention_heads={self.num_attention_heads}, "
                f"hidden_size={self.hidden_size}."
            )
        errors.require_choice("hidden_act", self.hidden_act, HIDDEN_ACTS)
        for field in ("initializer_range", "layer_norm_eps"):
            if not 0 <= getattr(self, field) <= _MAX_FLOAT:
                raise UserError(
                    f"`{field}` must be at least 0 and finite. "
                    f"Received: {field}={getattr(self, field)}."
                )
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, field) < 1:
                raise UserError(
                    f"`{field}` must be at least 0 and below 1. "
                    f"Received: {field}={getattr(self, field)}."
                )

    @classmethod
    def from_dict(
        cls, values: dict[str, Any], source: str = "the configuration"
    ) -> "BertConfig":
        """Builds a configuration from the contents of `bert_config.json`.

        Args:
          values: The parsed JSON object.
          source: The origin of the values, such as a path, for errors.

        Raises:
          UserError: For an unknown or missing key or an invalid value.
        """
        keys = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - keys - _UNUSED_KEYS)
        if "model_type" in unknown:
            raise UserError(
                f"{source} must be a bert_config.json. Received: a Hugging "
                "Face configuration; give the folder of its model, without "
                "--bert_config_file, or let run/convert_checkpoint.py "
                "--to=bert_tf write the file."
            )
        if unknown:
            hint = did_you_mean(unknown[0], keys)
            raise UserError(
                f"Unknown keys in {source}: {', '.join(unknown)}. Known keys: "
                f"{', '.join(sorted(keys))}{hint}"
            )
        if "vocab_size" not in values:
            raise UserError(f"{source} lacks the key `vocab_size`.")
        known_values = {key: values[key] for key in values if key in keys}
        if isinstance(act := known_values.get("hidden_act", 0), str | None):
            known_values["hidden_act"] = (act or "linear").lower()
        try:
            return cls(**known_values)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @classmethod
    def from_json(cls, text: str, source: str) -> "BertConfig":
        """Parses the text of a `bert_config.json`; errors name `source`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source} is not valid JSON: {error}.") from error
        if not isinstance(values, dict):
            raise UserError(
                f"{source} must hold one JSON object. Received: "
                f"{type(values).__name__}."
            )
        return cls.from_dict(values, source)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values by key; omits defaults that the original lacks."""
        values = dataclasses.asdict(self)
        for name in ("layer_norm_eps", "left_to_right"):
            if values[name] == getattr(BertConfig, name):
                del values[name]
        return values

    def to_json(self) -> str:
        """Returns the text of a `bert_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


BertConfig.__init__ = errors.suggests_arguments(BertConfig.__init__)
