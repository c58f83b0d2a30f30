"""The canonical names of all weights, and what a name says about a weight.

They are the names of the original's checkpoints; models, checkpoints, weight
files and converters all use them.
"""

from bert_tf.config import BertConfig

# The suffixes of what an optimizer keeps for each weight (optimization.py:
# 107-118 of the original).
SLOT_SUFFIXES = ("/adam_m", "/adam_v")
GLOBAL_STEP = "global_step"

# Fine-tuned classifiers have their head in the root scope
# (run_classifier.py:600-605 of the original).
_ROOT_HEAD = ("output_weights", "output_bias")

# The part of a model that no checkpoint may lack.
ENCODER = "bert"

Shapes = dict[str, tuple[int, ...]]


def is_optimizer_state(name: str) -> bool:
    """Returns whether `name` is a slot or the step rather than a weight."""
    return name == GLOBAL_STEP or name.endswith(SLOT_SUFFIXES)


def head_of(name: str) -> str | None:
    """Returns the head that a checkpoint's weight belongs to.

    For instance "cls/squad" for "cls/squad/output_bias", "output" for the
    classifier's "output_bias", and None where the name is no head's.
    """
    if name in _ROOT_HEAD:
        return "output"
    parts = name.split("/")
    if parts[0] == "cls" and len(parts) > 2:
        return "/".join(parts[:2])
    return None


def part_of(name: str) -> str:
    """Returns what is loaded as a whole: a head, or "bert" for the encoder."""
    return head_of(name) or name.split("/")[0]


def _dense(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}


def _layer_norm(name: str, width: int) -> Shapes:
    return {f"{name}/beta": (width,), f"{name}/gamma": (width,)}


def encoder_shapes(config: BertConfig) -> Shapes:
    """Returns name to shape of embeddings, encoder layers and pooler."""
    width, inner = config.hidden_size, config.intermediate_size
    tables = "bert/embeddings"
    shapes: Shapes = {
        f"{tables}/word_embeddings": (config.vocab_size, width),
        f"{tables}/token_type_embeddings": (config.type_vocab_size, width),
        f"{tables}/position_embeddings": (
            config.max_position_embeddings,
            width,
        ),
        **_layer_norm(f"{tables}/LayerNorm", width),
    }
    for index in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{index}"
        for name in ("query", "key", "value"):
            shapes |= _dense(f"{layer}/attention/self/{name}", width, width)
        shapes |= _dense(f"{layer}/attention/output/dense", width, width)
        shapes |= _layer_norm(f"{layer}/attention/output/LayerNorm", width)
        shapes |= _dense(f"{layer}/intermediate/dense", width, inner)
        shapes |= _dense(f"{layer}/output/dense", inner, width)
        shapes |= _layer_norm(f"{layer}/output/LayerNorm", width)
    return shapes | _dense("bert/pooler/dense", width, width)


def pretraining_shapes(config: BertConfig) -> Shapes:
    """Returns name to shape of the encoder and the two pretraining heads."""
    width = config.hidden_size
    return {
        **encoder_shapes(config),
        **_dense("cls/predictions/transform/dense", width, width),
        **_layer_norm("cls/predictions/transform/LayerNorm", width),
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
