"""Usage instructions for a .tflite file."""

import itertools
from importlib import metadata

from bert_tf.export.tflite import tflite_file
from bert_tf.export.tflite.accuracy import Report
from bert_tf.export.tflite.build import Build
from bert_tf.text.vocabulary import MASK

_TEXT = "The cat sat on the mat."
_SECOND_TEXT = "Then it slept."
_MASKED_TEXT = f"The cat sat on the {MASK}."
_NUM_CHOICES = 2
# Heads whose rows have two segments.
_OF_PAIRS = ("question_answering", "multiple_choice", "next_sentence")


def text(build: Build, path: str, content: bytes, measured: Report) -> str:
    """Returns the usage instructions that the exporter prints.

    Args:
      build: The build of the file.
      path: The path of the file.
      content: The file.
      measured: The accuracy and the costs of the file.
    """
    operators = ", ".join(
        f"{count} {name}"
        for name, count in tflite_file.operators(content).items()
    )
    packages = "ai-edge-litert"
    if _takes_text(build):
        packages += f" tensorflow-text=={metadata.version('tensorflow-text')}"
    return "\n\n".join(
        [
            f"{path} ({build.quantization})\n{measured.text()}",
            f"Operators: {operators}",
            f"To run it in Python (pip install {packages}):",
            _indent(python_snippet(build, path)),
        ]
    )


def python_snippet(build: Build, path: str) -> str:
    """Returns a Python program that runs a file on one row."""
    lines = (
        _of_text(build, path) if _takes_text(build) else _of_ids(build, path)
    )
    return "\n".join(
        [
            *lines,
            "for name, values in outputs.items():",
            "    print(name, values)",
        ]
    )


def _takes_text(build: Build) -> bool:
    return build.config.input == "text"


def _of_text(build: Build, path: str) -> list[str]:
    texts = itertools.cycle((_TEXT, _SECOND_TEXT))
    inputs = []
    for name, spec in build.head.input_specs().items():
        text = next(texts).encode()
        row = text if len(spec.shape) == 1 else [text] * _NUM_CHOICES
        rows = [row] * (build.batch_size or 1)
        inputs.append(f"    {name}=np.array({rows}, object),")
    return [
        "import numpy as np",
        "from ai_edge_litert import interpreter",
        "from tensorflow_text import tflite_registrar",
        "",
        "lite = interpreter.InterpreterWithCustomOps(",
        "    tflite_registrar.SELECT_TFTEXT_OPS,",
        f"    model_path={path!r}, num_threads=2)",
        "outputs = lite.get_signature_runner()(",
        *inputs,
        ")",
    ]


def _of_ids(build: Build, path: str) -> list[str]:
    ids, num_of_first = _row(build)
    shape = [build.batch_size or 1, build.seq_length or len(ids)]
    if build.name == "multiple_choice":
        shape.insert(1, _NUM_CHOICES)
    lines = [
        "import numpy as np",
        "from ai_edge_litert import interpreter",
        "",
        f"lite = interpreter.Interpreter({path!r}, num_threads=2)",
        f"input_ids = np.zeros({shape}, np.int32)",
        "input_mask = np.zeros_like(input_ids)",
        "segment_ids = np.zeros_like(input_ids)",
        f"input_ids[..., :{len(ids)}] = {ids}",
        f"input_mask[..., :{len(ids)}] = 1",
    ]
    if num_of_first < len(ids):
        lines.append(f"segment_ids[..., {num_of_first}:{len(ids)}] = 1")
    return [
        *lines,
        "outputs = lite.get_signature_runner()(",
        "    input_ids=input_ids, input_mask=input_mask, "
        "segment_ids=segment_ids)",
    ]


def _row(build: Build) -> tuple[list[int], int]:
    """Returns the ids of an example, and the length of its first segment.

    The example is truncated to the row length of the model.
    """
    tokenizer = build.head.tokenizer
    vocabulary = tokenizer.vocabulary

    def token_ids(text: str) -> list[int]:
        return tokenizer.tokenize(text).numpy().tolist()

    if build.name == "fill_mask":
        before, after = _MASKED_TEXT.split(MASK)
        first = [*token_ids(before), vocabulary.mask_id, *token_ids(after)]
    else:
        first = token_ids(_TEXT)
    first = [vocabulary.cls_id, *first, vocabulary.sep_id]
    second = []
    if build.name in _OF_PAIRS or getattr(build.head, "pair", False):
        second = [*token_ids(_SECOND_TEXT), vocabulary.sep_id]
    room = build.seq_length or build.head.max_seq_length
    return (first + second)[:room], min(len(first), room)


def _indent(lines: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines.split("\n"))
