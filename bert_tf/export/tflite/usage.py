"""Usage instructions for a .tflite file, and a warning about its clients.

MediaPipe and the Task Library always lower-case ASCII and strip no accents, see
`bert_tf.text.normalizer`. So they tokenize some texts differently.
"""

import itertools
import textwrap
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite.accuracy import Report
from bert_tf.export.tflite.build import Build
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import MASK

_TEXT = "The cat sat on the mat."
_SECOND_TEXT = "Then it slept."
_MASKED_TEXT = f"The cat sat on the {MASK}."
_NUM_CHOICES = 2
# Heads whose rows have two segments.
_OF_PAIRS = ("question_answering", "multiple_choice", "next_sentence")
# The heads that MediaPipe and the Task Library support.
_HEADS_OF_CLIENTS = ("classification", "question_answering", "embeddings")


def text(build: Build, path: str, content: bytes, measured: Report) -> str:
    """Returns the usage instructions that the exporter prints."""
    operators = ", ".join(
        f"{count} {name}"
        for name, count in conversion.operators(content).items()
    )
    packages = "ai-edge-litert"
    if build.config.input == "text":
        packages += f" tensorflow-text=={metadata.version('tensorflow-text')}"
    return "\n\n".join(
        [
            f"{path} ({build.quantization})\n{measured.text()}",
            f"Operators: {operators}",
            f"To run it in Python (pip install {packages}):",
            textwrap.indent(python_snippet(build, path), "    "),
        ]
    )


def python_snippet(build: Build, path: str) -> str:
    """Returns a Python program that runs a file on one row."""
    write = _of_text if build.config.input == "text" else _of_ids
    return f"""\
{write(build, path)}
for name, values in outputs.items():
    print(name, values)"""


def _of_text(build: Build, path: str) -> str:
    texts = itertools.cycle((_TEXT, _SECOND_TEXT))
    inputs = []
    for name, spec in build.head.input_specs().items():
        text = next(texts).encode()
        row = text if len(spec.shape) == 1 else [text] * _NUM_CHOICES
        rows = [row] * (build.batch_size or 1)
        inputs.append(f"\n    {name}=np.array({rows}, object),")
    return f"""\
import numpy as np
from ai_edge_litert import interpreter
from tensorflow_text import tflite_registrar

lite = interpreter.InterpreterWithCustomOps(
    tflite_registrar.SELECT_TFTEXT_OPS,
    model_path={path!r}, num_threads=2)
outputs = lite.get_signature_runner()({"".join(inputs)}
)"""


def _of_ids(build: Build, path: str) -> str:
    ids, num_of_first = _row(build)
    shape = [build.batch_size or 1, build.seq_length or len(ids)]
    if build.name == "multiple_choice":
        shape.insert(1, _NUM_CHOICES)
    segments = ""
    if num_of_first < len(ids):
        segments = f"\nsegment_ids[..., {num_of_first}:{len(ids)}] = 1"
    return f"""\
import numpy as np
from ai_edge_litert import interpreter

lite = interpreter.Interpreter({path!r}, num_threads=2)
input_ids = np.zeros({shape}, np.int32)
input_mask = np.zeros_like(input_ids)
segment_ids = np.zeros_like(input_ids)
input_ids[..., :{len(ids)}] = {ids}
input_mask[..., :{len(ids)}] = 1{segments}
outputs = lite.get_signature_runner()(
    input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids)"""


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


def warning(build: Build, examples: Sequence[Any] = ()) -> str | None:
    """Warns of texts that MediaPipe and the Task Library tokenize differently.

    Returns:
      A paragraph, which counts the affected examples of the dev set; None if
      all texts are tokenized alike, or the clients do not support such files.
    """
    tokenizer = build.head.tokenizer
    if (
        build.config.input != "ids"
        or build.name not in _HEADS_OF_CLIENTS
        or getattr(build.head, "pair", False)
        or tokenizer.normalization == ASCII_LOWER
    ):
        return None
    if tokenizer.lower_case:
        text = (
            "MediaPipe and the Task Library lower-case only ASCII and strip no "
            "accents: they tokenize texts with other letters differently from "
            "the training data."
        )
    else:
        text = (
            "MediaPipe and the Task Library lower-case all ASCII, but this "
            "model was trained on cased text: they tokenize texts with "
            "capitals differently from the training data."
        )
    if examples:
        count = count_changed(tokenizer, [_all_text(one) for one in examples])
        text += (
            f" This affects {count:,} of the {len(examples):,} examples of "
            "--eval_file."
        )
    return (
        f"{text} Fine-tune with --normalization={ASCII_LOWER} to tokenize as "
        "they do; see docs/on_device.md."
    )


def count_changed(tokenizer: BertTokenizer, texts: Sequence[str]) -> int:
    """Counts the texts that these clients tokenize differently."""
    of_clients = BertTokenizer(tokenizer.vocabulary, normalization=ASCII_LOWER)
    theirs = of_clients.tokenize(texts).to_list()
    ours = tokenizer.tokenize(texts).to_list()
    return sum(a != b for a, b in zip(ours, theirs, strict=True))


def _all_text(example: Any) -> str:
    """Returns all text of an example of classification or of SQuAD."""
    if isinstance(example, SquadExample):
        return " ".join((example.question_text, *example.doc_tokens))
    return " ".join(filter(None, (example.text_a, example.text_b)))
