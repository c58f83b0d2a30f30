"""Adds TFLite metadata to a file, for MediaPipe and the Task Library.

The metadata contain the names of the tensors. The vocabulary and the labels are
appended as a zip file. Interpreters ignore the metadata and the zip file. The
schema is metadata_schema.fbs of MediaPipe (M001, version 1.5.0). No installed
package has code for this schema, so tables are dicts from field number to
value. A union takes two fields of a table, for its type and its value.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.tflite.build import Build
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text.vocabulary import Vocabulary

VOCAB_FILE = "vocab.txt"
LABELS_FILE = "labels.txt"

# Each tensor has the name that clients expect, and a description.
_INPUTS = {
    INPUT_IDS.name: ("ids", "The pieces' numbers in vocab.txt."),
    INPUT_MASK.name: ("mask", "1 for pieces and 0 for padding."),
    SEGMENT_IDS.name: (
        "segment_ids",
        "0 for the first text and 1 for the second.",
    ),
}
_PROBABILITIES = "probabilities"
_OUTPUTS = {
    _PROBABILITIES: ("probability", "How probable each of the choices is."),
    "score": ("score", "The score."),
    "index": ("index", "The number of the best choice."),
    "embedding": ("embedding", "The vector of the text."),
    "token_ids": ("token_ids", "Pieces for each [MASK], the best first."),
    "start_logits": ("start_logits", "For each piece: the answer begins here."),
    "end_logits": ("end_logits", "For each piece: the answer ends here."),
}
_ENTRY = b"TFLITE_METADATA"
_FILE_IDENTIFIER = b"TFL3"
# The schema requires this alignment of buffers, and kernels may rely on it.
_ALIGNMENT = 16
# Files in the zip get a fixed time, so equal contents give equal .tflite files.
_NO_TIME = (1980, 1, 1, 0, 0, 0)

_METADATA_IDENTIFIER = b"M001"
# The first version of the schema that has BertTokenizerOptions.
_MIN_PARSER_VERSION = "1.1.0"
# Values of the enum AssociatedFileType in the schema.
_AXIS_LABELS = 2
_VOCABULARY = 5
# Types of the unions ContentProperties and ProcessUnitOptions in the schema.
_FEATURE_PROPERTIES = 1
_BERT_TOKENIZER_OPTIONS = 4

# A table of the schema as a dict from field number to value. A value is a
# string, a table, an unsigned byte, or a list of tables or of floats.
_Table = dict[int, Any]


def describe(content: bytes, build: Build) -> bytes:
    """Returns a built .tflite file with metadata added.

    Raises:
      UserError: If the labels do not match the file's probabilities.
    """
    stem, _ = os.path.splitext(os.path.basename(build.config.output_file))
    config, tokenizer = build.stored.config, build.head.tokenizer
    case = "in lower case" if tokenizer.lower_case else "as it stands"
    accents = "without" if tokenizer.strip_accents else "with"
    if tokenizer.normalization == ASCII_LOWER:
        case = "with ASCII in lower case"
    description = (
        f"A BERT for {build.name.replace('_', ' ')}: "
        f"{config.num_hidden_layers} layers of {config.hidden_size}, "
        f"quantization {build.config.quantization}. It was trained on text "
        f"{case}, {accents} accents."
    )
    labels = build.head.labels
    return add_metadata(
        content, stem, description, tokenizer.vocabulary, labels
    )


def add_metadata(
    content: bytes,
    name: str,
    description: str,
    vocabulary: Vocabulary,
    labels: Sequence[str] = (),
) -> bytes:
    """Returns a .tflite file with metadata; equal arguments give equal bytes.

    The inputs of the file's only signature are `input_ids`, `input_mask` and
    `segment_ids`. `labels` are the names of the columns of `probabilities`.

    Raises:
      UserError: If `labels` do not fit `probabilities`.
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    signature, subgraph = model.signatureDefs[0], model.subgraphs[0]
    _check_labels(signature.outputs, subgraph, labels)
    associated = {VOCAB_FILE: vocabulary.to_text()}
    if labels:
        associated[LABELS_FILE] = "".join(f"{label}\n" for label in labels)
    # The field takes a list of AssociatedFile tables.
    tokenizer = {0: [{0: VOCAB_FILE, 1: "The pieces.", 2: _VOCABULARY}]}
    graph = {  # SubGraphMetadata
        2: [
            _tensor_table(_INPUTS, key)
            for key in _in_order(signature.inputs, subgraph.inputs)
        ],
        3: [
            _tensor_table(_OUTPUTS, key, labels)
            for key in _in_order(signature.outputs, subgraph.outputs)
        ],
        5: [{0: _BERT_TOKENIZER_OPTIONS, 1: tokenizer}],  # ProcessUnit
    }
    root = {  # ModelMetadata
        0: name,
        1: description,
        2: f"sha256:{hashlib.sha256(content).hexdigest()}",
        3: [graph],
        7: _MIN_PARSER_VERSION,
    }
    builder = flatbuffers.Builder(4096)
    builder.Finish(_write_value(builder, root), _METADATA_IDENTIFIER)
    packed = _pack(model, bytes(builder.Output()), len(content))
    return _append_files(packed, associated)


def _in_order(tensors, indices) -> list[str]:
    """Returns the names of a signature in the order of the graph's tensors."""
    names = {tensor.tensorIndex: tensor.name.decode() for tensor in tensors}
    return [names[index] for index in indices]


def _check_labels(tensors, subgraph, labels: Sequence[str]) -> None:
    if not labels:
        return
    indices = {x.name.decode(): x.tensorIndex for x in tensors}
    size = subgraph.tensors[indices[_PROBABILITIES]].shape[-1]
    if size != len(labels):
        raise UserError(
            f"Each of the {size} probabilities that the model returns must "
            f"have a label. Received: {len(labels)} labels; correct `labels` "
            "in task.json."
        )
    if not all(labels):
        raise UserError(
            "Labels must not be empty, as the Task Library skips empty lines "
            f"of {LABELS_FILE} and would shift later labels. Received: "
            f"{', '.join(map(repr, labels))}; rename it in task.json."
        )


def _tensor_table(
    descriptions: Mapping[str, tuple[str, str]],
    key: str,
    labels: Sequence[str] = (),
) -> _Table:
    name, description = descriptions.get(key, (key, "An answer."))
    table = {  # TensorMetadata
        0: name,
        1: description,
        3: {0: _FEATURE_PROPERTIES, 1: {}},  # Content
        5: {},  # Stats
    }
    if key == _PROBABILITIES:
        table[5] = {0: [1.0], 1: [0.0]}  # Maximum and minimum.
        if labels:
            table[6] = [{0: LABELS_FILE, 1: "The labels.", 2: _AXIS_LABELS}]
    return table


class _Builder(flatbuffers.Builder):
    """A flatbuffer builder that aligns weights to `_ALIGNMENT` bytes."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802
        self.Prep(_ALIGNMENT, x.nbytes)
        return super().CreateNumpyVector(x)


def _pack(model: schema.ModelT, table: bytes, size: int) -> bytes:
    """Returns a file with the metadata table as an additional buffer."""
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(table, np.uint8)
    entry = schema.MetadataT()
    entry.name = _ENTRY
    entry.buffer = len(model.buffers)
    model.buffers = [*model.buffers, buffer]
    model.metadata = [*(model.metadata or ()), entry]
    # Allocate the whole file at once: growing would copy hundreds of MB again.
    builder = _Builder(size + size // 8 + len(table) + 4096)
    builder.Finish(model.Pack(builder), _FILE_IDENTIFIER)
    return bytes(builder.Output())


def _append_files(content: bytes, texts: Mapping[str, str]) -> bytes:
    with io.BytesIO() as file:
        file.write(content)
        with zipfile.ZipFile(file, "a") as archive:
            for name, text in texts.items():
                # Store files uncompressed, as clients map them into memory.
                info = zipfile.ZipInfo(name, _NO_TIME)
                info.create_system = 0  # Same bytes on every machine.
                archive.writestr(info, text.encode())
        return file.getvalue()


def _write_value(builder: flatbuffers.Builder, value: Any) -> int:
    """Writes a value and its parts; returns its offset."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, list) and isinstance(value[0], float):
        return builder.CreateNumpyVector(np.array(value, np.float32))
    if isinstance(value, list):
        parts = [_write_value(builder, part) for part in value]
        size = flatbuffers.number_types.UOffsetTFlags.bytewidth
        builder.StartVector(size, len(parts), size)
        for part in reversed(parts):
            builder.PrependUOffsetTRelative(part)
        return builder.EndVector()
    fields = {
        number: part if isinstance(part, int) else _write_value(builder, part)
        for number, part in value.items()
    }
    builder.StartObject(max(fields, default=-1) + 1)
    for number, field in fields.items():
        if isinstance(value[number], int):
            builder.PrependUint8Slot(number, field, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(number, field, 0)
    return builder.EndObject()
