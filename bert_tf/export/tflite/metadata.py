"""TFLite metadata: what lets MediaPipe and the Task Library open a file.

They find in it which tensor is which, and behind it, as in a zip file, the
vocabulary and the labels. Interpreters read none of this.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.export.tflite import metadata_tables
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.metadata_tables import Tensor
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text.vocabulary import Vocabulary

VOCAB_FILE = "vocab.txt"
LABELS_FILE = "labels.txt"

# What the clients look for, and what each tensor is.
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
# As the schema demands of buffers: kernels may count on it.
_ALIGNMENT = 16
# Zip files begin with this year.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def describe(content: bytes, build: Build) -> bytes:
    """Returns the file of a build with metadata.

    Args:
      content: What was converted.
      build: What it is.

    Raises:
      UserError: If labels and file do not belong together.
    """
    stem, _ = os.path.splitext(os.path.basename(build.config.output_file))
    return add_metadata(
        content,
        stem,
        _describe_build(build),
        build.head.tokenizer.vocabulary,
        build.labels,
    )


def _describe_build(build: Build) -> str:
    config, tokenizer = build.stored.config, build.head.tokenizer
    case = "in lower case" if tokenizer.lower_case else "as it stands"
    accents = "without" if tokenizer.strip_accents else "with"
    if tokenizer.normalization == ASCII_LOWER:
        case = "with ASCII in lower case"
    return (
        f"A BERT for {build.name.replace('_', ' ')}: "
        f"{config.num_hidden_layers} layers of {config.hidden_size}, "
        f"quantization {build.quantization}. It was trained on text {case}, "
        f"{accents} accents."
    )


def add_metadata(
    content: bytes,
    name: str,
    description: str,
    vocabulary: Vocabulary,
    labels: Sequence[str] = (),
) -> bytes:
    """Returns a file with metadata, the same for the same arguments.

    Args:
      content: A .tflite file with one signature, whose inputs are
        `input_ids`, `input_mask` and `segment_ids`.
      name: What the model is called.
      description: What it does, in a sentence.
      vocabulary: Its pieces.
      labels: Names of the numbers in a row of `probabilities`; none where
        they have no names.

    Raises:
      UserError: If the file has other inputs or outputs, or another number of
        labels.
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    signature, subgraph = model.signatureDefs[0], model.subgraphs[0]
    _check_labels(_shapes(signature.outputs, subgraph), labels)
    associated = {VOCAB_FILE: vocabulary.to_text()}
    if labels:
        associated[LABELS_FILE] = "".join(f"{label}\n" for label in labels)
    table = metadata_tables.build(
        name,
        description,
        version=f"sha256:{hashlib.sha256(content).hexdigest()}",
        inputs=[
            Tensor(*_describe_tensor(_INPUTS, key))
            for key in _in_order(signature.inputs, subgraph.inputs)
        ],
        outputs=[
            Tensor(
                *_describe_tensor(_OUTPUTS, key),
                is_probability=key == _PROBABILITIES,
                labels_file=(
                    LABELS_FILE if labels and key == _PROBABILITIES else None
                ),
            )
            for key in _in_order(signature.outputs, subgraph.outputs)
        ],
        vocab_file=VOCAB_FILE,
    )
    return _append_files(_pack(model, table, len(content)), associated)


def _in_order(tensors, indices) -> list[str]:
    """Returns the names of a signature in the order of the graph's tensors."""
    names = {tensor.tensorIndex: tensor.name.decode() for tensor in tensors}
    return [names[index] for index in indices]


def _shapes(tensors, subgraph) -> dict[str, list[int]]:
    """Returns the shapes of a signature's tensors by name, -1 where free."""
    shapes = {}
    for tensor in tensors:
        found = subgraph.tensors[tensor.tensorIndex]
        shape = found.shape
        if found.shapeSignature is not None:
            shape = found.shapeSignature
        shapes[tensor.name.decode()] = [int(size) for size in shape]
    return shapes


def _check_labels(
    shapes: Mapping[str, Sequence[int]], labels: Sequence[str]
) -> None:
    """Checks that there is a label for each probability."""
    if not labels:
        return
    if _PROBABILITIES not in shapes:
        raise UserError(
            f"Labels are for a file with the output {_PROBABILITIES}. "
            f"Received: {len(labels)} labels and the outputs "
            f"{', '.join(shapes)}."
        )
    size = shapes[_PROBABILITIES][-1]
    if size != len(labels):
        raise UserError(
            f"Each of the {size} probabilities that the model returns must "
            f"have a label. Received: {len(labels)} labels; correct `labels` "
            "in task.json."
        )
    for label in labels:
        if not label:
            raise UserError(
                "Labels must not be empty, as the Task Library leaves out such "
                f"lines of {LABELS_FILE}, and would name wrongly what follows. "
                f"Received: {', '.join(map(repr, labels))}; rename it in "
                "task.json."
            )


def _describe_tensor(
    known: Mapping[str, tuple[str, str]], name: str
) -> tuple[str, str]:
    if name not in known:
        raise UserError(
            f"Metadata know the tensors {', '.join(known)}. Received: a file "
            f"with {name}."
        )
    return known[name]


class _Builder(flatbuffers.Builder):
    """A builder that keeps weights where kernels want them."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802
        self.Prep(_ALIGNMENT, x.nbytes)
        return super().CreateNumpyVector(x)


def _pack(model: schema.ModelT, table: bytes, size: int) -> bytes:
    """Returns a file with one more buffer, which is called metadata."""
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(table, np.uint8)
    entry = schema.MetadataT()
    entry.name = _ENTRY
    entry.buffer = len(model.buffers)
    model.buffers = [*model.buffers, buffer]
    model.metadata = [*(model.metadata or ()), entry]
    # What does not fit is copied once more, and is hundreds of megabytes.
    builder = _Builder(size + size // 8 + len(table) + 4096)
    builder.Finish(model.Pack(builder), _FILE_IDENTIFIER)
    return bytes(builder.Output())


def _append_files(content: bytes, texts: Mapping[str, str]) -> bytes:
    """Returns the content with a zip file behind it."""
    with io.BytesIO() as file:
        file.write(content)
        with zipfile.ZipFile(file, "a") as archive:
            for name, text in texts.items():
                # Not compressed, as readers take them from where they lie.
                info = zipfile.ZipInfo(name, _NO_TIME)
                info.create_system = 0  # Whatever the machine.
                archive.writestr(info, text.encode())
        return file.getvalue()
