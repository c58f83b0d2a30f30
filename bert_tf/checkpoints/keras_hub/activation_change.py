"""How far the other form of GELU moves the outputs of a model.

Shapes:
  B: sentences, ten.
  S: sequence length.
  H: hidden size.
"""

from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints import building
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.modeling import bert as bert_model
from bert_tf.text import packing

SENTENCES = (
    "The ferry leaves at seven, and nobody waits for those who are late.",
    "She had read the letter twice before she understood what it asked of her.",
    "Is there a bakery near the station that opens before six?",
    "Copper conducts heat better than iron, but it costs a good deal more.",
    "He scored twice in the first half and was carried off in the second.",
    "The committee will publish its report on the flood by the end of March.",
    "Rain.",
    "Fold in the flour, then let the dough rest for an hour in the cold.",
    "In 1969 three men flew to the moon, and two of them walked on it.",
    "My grandmother kept bees, two goats and a very bad-tempered goose.",
)
_MAX_SEQ_LENGTH = 32
_OUTPUTS = ("sequence_output", "pooled_output")

Inputs = Mapping[str, np.ndarray]
Outputs = tuple[np.ndarray, np.ndarray]


def build_inputs(stored: StoredModel) -> Inputs:
    """Returns the ten sentences as the model reads them.

    A model whose vocabulary nobody knows gets ids spread over its table.

    Args:
      stored: The model.

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, S].
    """
    length = min(_MAX_SEQ_LENGTH, stored.config.max_position_embeddings)
    if stored.vocabulary is not None:
        tokens = stored.build_tokenizer().tokenize(SENTENCES)
        packed = packing.pack(tokens, None, length, stored.vocabulary)
        return {name: x.numpy() for name, x in packed.items()}
    rows, columns = np.indices((len(SENTENCES), length))
    # Multiples of a prime that divides no table's size reach all of it.
    ids = (rows * length + columns) * 7919 % stored.config.vocab_size
    mask = columns < length - rows * length // (2 * len(SENTENCES))
    return {
        "input_ids": (ids * mask).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": np.zeros_like(ids, np.int32),
    }


def compute_outputs(stored: StoredModel, inputs: Inputs) -> Outputs:
    """Returns what our own model gives for `inputs`.

    Args:
      stored: The model.
      inputs: What `build_inputs` returns.

    Returns:
      `sequence_output` <float32>[B, S, H] and `pooled_output` <float32>[B, H].
    """
    model = building.build(
        lambda: bert_model.BertModel(stored.config, dtype="float32"),
        bert_model.named_variables,
        stored.weights,
    )
    outputs = model(inputs)
    return tuple(np.asarray(outputs[name]) for name in _OUTPUTS)


def describe_difference(
    exact: Outputs, approximate: Outputs, inputs: Inputs
) -> str:
    """Returns a sentence with the largest difference of the outputs.

    Args:
      exact: What `compute_outputs` returns.
      approximate: The same of the exported model.
      inputs: What both were given; where they are padding nothing counts.
    """
    tokens = inputs["input_mask"].astype(bool)
    sequence = np.abs(exact[0] - approximate[0])[tokens].max()
    pooled = np.abs(exact[1] - approximate[1]).max()
    return (
        "The exact GELU became its tanh form: over ten sentences the outputs "
        f"differ by at most {sequence:.2g} (sequence_output) and {pooled:.2g} "
        "(pooled_output)."
    )
