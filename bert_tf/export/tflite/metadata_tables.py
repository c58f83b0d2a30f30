"""The tables of TFLite metadata, as a flatbuffer.

No package that is installed here has code for their schema, metadata_schema.fbs
of MediaPipe (M001, version 1.5.0), so fields stand under their numbers in it. A
union has two: its type's and its value's.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flatbuffers

_FILE_IDENTIFIER = b"M001"
# The schema's version that has all that is used: BertTokenizerOptions.
_MIN_PARSER_VERSION = "1.1.0"
# Values of AssociatedFileType.
_TENSOR_AXIS_LABELS = 2
_VOCABULARY = 5
# Values of the unions ContentProperties and ProcessUnitOptions.
_FEATURE_PROPERTIES = 1
_BERT_TOKENIZER_OPTIONS = 4

# Field number to value: a string, a list of tables or of floats, a table, or a
# number of one byte.
_Table = dict[int, Any]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What there is to say of an input or an output.

    Attributes:
      name: What clients look for.
      description: A sentence for people.
      is_probability: Whether it lies between 0 and 1.
      labels_file: The file with the names of its last axis.
    """

    name: str
    description: str
    is_probability: bool = False
    labels_file: str | None = None


def build(
    name: str,
    description: str,
    version: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    vocab_file: str,
) -> bytes:
    """Returns a ModelMetadata of one graph that a BERT tokenizer feeds.

    Args:
      name: What the model is called.
      description: What it does.
      version: What tells it from others of that name.
      inputs: In the order of the graph's.
      outputs: The like.
      vocab_file: The associated file with the pieces.
    """
    tokenizer = {0: [_file(vocab_file, "The pieces.", _VOCABULARY)]}
    graph = {  # SubGraphMetadata
        2: [_tensor(tensor) for tensor in inputs],
        3: [_tensor(tensor) for tensor in outputs],
        5: [{0: _BERT_TOKENIZER_OPTIONS, 1: tokenizer}],  # ProcessUnit
    }
    model = {
        0: name,
        1: description,
        2: version,
        3: [graph],
        7: _MIN_PARSER_VERSION,
    }
    builder = flatbuffers.Builder(4096)
    builder.Finish(_write(builder, model), _FILE_IDENTIFIER)
    return bytes(builder.Output())


def _tensor(tensor: Tensor) -> _Table:
    table = {  # TensorMetadata
        0: tensor.name,
        1: tensor.description,
        3: {0: _FEATURE_PROPERTIES, 1: {}},  # Content
        5: {},  # Stats
    }
    if tensor.is_probability:
        table[5] = {0: [1.0], 1: [0.0]}  # The most and the least.
    if tensor.labels_file:
        table[6] = [
            _file(tensor.labels_file, "The labels.", _TENSOR_AXIS_LABELS)
        ]
    return table


def _file(name: str, description: str, kind: int) -> _Table:
    return {0: name, 1: description, 2: kind}  # AssociatedFile


def _write(builder: flatbuffers.Builder, value: Any) -> int:
    """Writes a value and what it is made of; returns where it is."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, list):
        return _write_vector(builder, value)
    fields = {
        number: part if isinstance(part, int) else _write(builder, part)
        for number, part in value.items()
    }
    builder.StartObject(max(fields, default=-1) + 1)
    for number, field in fields.items():
        if isinstance(value[number], int):
            builder.PrependUint8Slot(number, field, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(number, field, 0)
    return builder.EndObject()


def _write_vector(
    builder: flatbuffers.Builder, values: list[float] | list[_Table]
) -> int:
    if isinstance(values[0], float):
        write, parts = builder.PrependFloat32, values
    else:
        write = builder.PrependUOffsetTRelative
        parts = [_write(builder, value) for value in values]
    size = flatbuffers.number_types.Float32Flags.bytewidth
    builder.StartVector(size, len(parts), size)
    for part in reversed(parts):
        write(part)
    return builder.EndVector()
