"""The model's configuration and the helper that declares run configurations.

Nothing here imports TensorFlow, so `--help` and flag errors answer at once.
"""

import dataclasses
import json
import types
from typing import Any

from bert_tf.errors import UserError

# What `hidden_act` may name. "gelu" is the tanh approximation, as in the
# original at eedf571 (modeling.py:264-277); "gelu_erf" is the exact form that
# the original used before 2019-02-07. "linear" may also be spelt null.
HIDDEN_ACTS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

# How text is read: by the original's rules, or by those of MediaPipe and the
# TensorFlow Lite Task Library; see `text.normalizer`.
ORIGINAL = "original"
ASCII_LOWER = "ascii_lower"
NORMALIZATIONS = (ORIGINAL, ASCII_LOWER)

# What may stand between the encoder and the linear head (paper, Table 5).
HEAD_TYPES = ("linear", "bilstm")
# How a tagger uses the encoder, and what it takes of it if the encoder keeps
# its weights (paper, Table 7).
APPROACHES = ("fine_tuning", "feature_based")
LAYER_COMBINATIONS = (
    "embeddings",
    "second_to_last_hidden",
    "last_hidden",
    "weighted_sum_last_four_hidden",
    "concat_last_four_hidden",
    "weighted_sum_all_layers",
)
# The best of them there.
DEFAULT_LAYER_COMBINATION = "concat_last_four_hidden"

# No encoder is as deep; a slip of the keyboard would fill the memory.
MAX_HIDDEN_LAYERS = 1000

# Keys of released multilingual and Chinese files that no code ever read.
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


def option(
    default: Any = dataclasses.MISSING,
    help_text: str = "",
    *,
    name: str | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declares one field of a run configuration, which is one flag.

    Args:
      default: The flag's default; without one the flag is required.
      help_text: One sentence for `--help`.
      name: The flag's name where it differs from the field's.
      choices: The values a text flag may take.
    """
    metadata = {"help": help_text, "name": name, "choices": choices}
    return dataclasses.field(
        default=default, metadata=types.MappingProxyType(metadata)
    )


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT; the keys of `bert_config.json`.

    Source: modeling.py:34-100 of the original. `layer_norm_eps` and
    `left_to_right` are ours; they are written only where they differ from
    what the original does, so that its files stay its files.

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
      layer_norm_eps: Added to the variance in layer normalisation.
      left_to_right: Whether a token sees only itself and what stands left of
        it (paper, Table 5); the pooled output is then of the last token.

    Raises:
      UserError: If a value cannot be.
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
        self._check_types()
        for field in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            if getattr(self, field) < 1:
                raise UserError(
                    f"`{field}` must be at least 1. "
                    f"Received: {field}={getattr(self, field)}."
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
        if self.hidden_act not in HIDDEN_ACTS:
            raise UserError(
                f"`hidden_act` must be one of {', '.join(HIDDEN_ACTS)}. "
                f"Received: hidden_act={self.hidden_act!r}."
            )
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, field) < 1:
                raise UserError(
                    f"`{field}` must be at least 0 and below 1. "
                    f"Received: {field}={getattr(self, field)}."
                )

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected = field.type if isinstance(field.type, type) else object
            # JSON has one kind of number: 0 is a fine probability.
            accepted = (float, int) if expected is float else expected
            is_bool = isinstance(value, bool)
            if not isinstance(value, accepted) or (
                is_bool and expected is not bool
            ):
                raise UserError(
                    f"`{field.name}` must be of type {expected.__name__}. "
                    f"Received: {field.name}={value!r}."
                )

    @classmethod
    def from_dict(
        cls, values: dict[str, Any], source: str = "the configuration"
    ) -> "BertConfig":
        """Builds a configuration from the contents of `bert_config.json`.

        Args:
          values: Key to value.
          source: What to call the values in an error, for instance a path.

        Raises:
          UserError: For an unknown or missing key or an impossible value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known - _UNUSED_KEYS)
        if unknown:
            raise UserError(
                f"Unknown keys in {source}: {', '.join(unknown)}. Known keys: "
                f"{', '.join(sorted(known))}."
            )
        if "vocab_size" not in values:
            raise UserError(f"{source} lacks the key `vocab_size`.")
        kept = {key: values[key] for key in values if key in known}
        if kept.get("hidden_act", "") is None:
            kept["hidden_act"] = "linear"
        try:
            return cls(**kept)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @classmethod
    def from_json(cls, text: str, source: str) -> "BertConfig":
        """Parses the text of a `bert_config.json`; `source` names it."""
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
        """Returns the original's keys, and ours where they are not default."""
        values = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            ours = field.name in ("layer_norm_eps", "left_to_right")
            if ours and values[field.name] == field.default:
                del values[field.name]
        return values

    def to_json(self) -> str:
        """Returns the text of a `bert_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
