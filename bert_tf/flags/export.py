"""Flags of the scripts in export/."""

import dataclasses
import math
import os

from bert_tf.config import check_pooling
from bert_tf.flags import options
from bert_tf.flags.groups import ModelSourceConfig

# --head=auto uses the first of these heads that fits the model.
HEADS = (
    "classification",
    "question_answering",
    "multiple_choice",
    "tagging",
    "fill_mask",
    "next_sentence",
    "embeddings",
)
# The kinds of models that have a head, if these are not the kind of its name.
_KINDS = {
    "fill_mask": ("pretraining", "masked_lm"),
    "next_sentence": ("pretraining", "next_sentence"),
}
# Values of --quantization: how a .tflite file stores and multiplies weights.
QUANTIZATIONS = ("none", "float16", "dynamic", "full_int8")
LITERT_QUANTIZATIONS = QUANTIZATIONS[:3]
# Values of --compatibility, the oldest runtime for a .tflite file: "current" is
# the newest runtime, "2.14" is tflite-runtime 2.14 with tflite-support 0.4.
COMPATIBILITIES = ("current", "2.14")
# Rows are padded to these lengths by default. Each is at most 1.5 times the
# length before it, so a row of 17 or more tokens is less than a third padding.
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def heads_of(kind: str) -> list[str]:
    """Returns the heads that fit a kind of model, the best one first."""
    return [
        x for x in HEADS if x == "embeddings" or kind in _KINDS.get(x, (x,))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(ModelSourceConfig):
    """Flags of every exporter: the model and the task of the export."""

    model_dir: str = options.model(
        "Model of any format, with its vocabulary.",
        options.REQUIRED,
        reads="model",
    )
    head: str = options.model(
        "Task of the export (default: the task that the model was trained for; "
        "fill_mask for a pretrained model, embeddings for a bare encoder).",
        "auto",
        choices=("auto", *HEADS),
    )
    pair: bool | None = options.model(
        "The classifier takes text_pair in addition to text (default: as in "
        "training; false if that is not stored)."
    )
    pooling: str | None = options.model(
        "Embedding of a text: mean, max or mean_sqrt_len of a layer's outputs "
        "over the tokens, cls for the output at [CLS], or several as in "
        "cls+mean (default: as the model says, else mean)."
    )
    normalize: bool | None = options.model(
        "Divide each embedding by its length (default: as the model says, "
        "else true)."
    )
    layer: int = options.model(
        "Layer whose outputs become embeddings, from 0 or from -1.",
        -1,
        at_least=-math.inf,
    )
    top_k: int = options.model(
        "Candidates per [MASK], for fill_mask.", 5, at_least=1
    )

    def check(self) -> None:
        super().check()
        if self.pooling is not None:
            check_pooling(self.pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelConfig(ExportConfig):
    """Flags of export/savedmodel.py."""

    output_dir: str = options.output(
        "Directory of the model's versions: 1, 2, ...", options.REQUIRED
    )
    version: int | None = options.output(
        "Version to write (default: the next number).",
        at_least=1,
        below=1 << 63,
    )
    max_seq_length: int | None = options.model(
        "Maximum length of a row, in tokens (default: as in training; if "
        "that is not stored, the number of positions).",
        at_least=3,
    )
    buckets: str | None = options.hardware(
        "Lengths that a batch may be padded to, such as 16,32,64, in "
        "addition to --max_seq_length (default: "
        f"{','.join(map(str, BUCKETS))})."
    )
    precision: str = options.hardware(
        "Compute precision. auto uses bfloat16 where this machine supports it.",
        "float32",
        choices=("float32", "bfloat16", "auto"),
    )
    ids_only: bool = options.output(
        "Also write a SavedModel that takes ids and needs no TF-Text, to "
        "<output_dir>_ids.",
        False,
    )
    litert: bool = options.output(
        "Also write the files that run/serve.py --engine=litert runs, the "
        "fastest way on an x86 CPU, to litert/ of the version.",
        False,
    )
    litert_quantization: str | None = options.output(
        "Weights in litert/: dynamic is int8, float16, or none for float32 "
        "(default: dynamic).",
        choices=LITERT_QUANTIZATIONS,
        needs="litert",
    )
    model_name: str | None = options.output(
        "Name of the model on servers (default: the name of --output_dir)."
    )
    doc_stride: int | None = options.model(
        "Distance between the starts of the windows of a long text, in "
        "tokens (default: as in training).",
        at_least=1,
    )
    max_query_length: int | None = options.model(
        "Maximum length of a question, in tokens (default: as in training).",
        at_least=1,
    )
    n_best_size: int | None = options.model(
        "Number of starts and ends to combine (default: as in training).",
        at_least=1,
    )
    max_answer_length: int | None = options.model(
        "Maximum length of an answer, in tokens (default: as in training).",
        at_least=1,
    )

    def check(self) -> None:
        super().check()
        name = self.served_name
        options.require(
            name and "/" not in name and ":" not in name,
            "--model_name must be a name without / and :, as it is part of "
            f"URLs. Received: {name!r}.",
        )
        self.bucket_lengths()

    @property
    def quantization_of_litert(self) -> str | None:
        """The quantization of the weights in litert/; None without --litert."""
        if not self.litert:
            return None
        return self.litert_quantization or "dynamic"

    @property
    def served_name(self) -> str:
        """The model's name on servers."""
        if self.model_name is not None:
            return self.model_name
        return os.path.basename(os.path.abspath(self.output_dir))

    def bucket_lengths(self) -> tuple[int, ...] | None:
        """Returns the lengths in --buckets; None if the flag is not set."""
        lengths = options.values(self, "buckets", int)
        options.require(
            list(lengths) == sorted(lengths),
            "--buckets must rise from one to the next. Received: "
            f"{self.buckets!r}.",
        )
        return lengths or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfliteConfig(ExportConfig):
    """Flags of export/tflite.py."""

    output_file: str = options.output(
        ".tflite file to write; <output_file>.json describes it "
        "and its verification.",
        options.REQUIRED,
    )
    quantization: str = options.output(
        "Weights: none is float32; float16 halves the file; dynamic stores "
        "them in int8 and multiplies in int8; full_int8 also calibrates int8 "
        "inputs of dense layers.",
        "dynamic",
        choices=QUANTIZATIONS,
    )
    input: str = options.model(
        "Inputs: ids, with TensorFlow Lite's own operators only; or text, "
        "for hosts that have TF-Text's operators.",
        "ids",
        choices=("ids", "text"),
    )
    max_seq_length: int | None = options.model(
        "Length of each row, in tokens (default: as in training for "
        "classifiers and with --input=text; else variable).",
        at_least=3,
    )
    batch_size: int | None = options.model(
        "Rows per call (default: 1 for classifiers with --input=ids; else any "
        "number).",
        at_least=1,
    )
    dynamic_shapes: bool = options.model(
        "Leave rows and lengths of a classifier variable where no flag sets "
        "them; MediaPipe needs fixed ones.",
        False,
    )
    representative_file: str | None = options.evaluation(
        "Typical rows, in the format of the task's files, to calibrate the "
        "scales of full_int8.",
        reads="file",
        needs="quantization=full_int8",
    )
    eval_file: str | None = options.evaluation(
        "Labeled rows, in the format of the task's dev file, to score the "
        "file and the model on.",
        reads="file",
    )
    max_drop: float = options.evaluation(
        "Maximum loss of score compared with the model, in points of 100; if "
        "it is exceeded, no file is written.",
        1.0,
        needs="eval_file",
    )
    compatibility: str = options.output(
        "Oldest runtime that must run the file; 2.14 uses one scale per "
        "dense layer instead of one per column.",
        "current",
        choices=COMPATIBILITIES,
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.output_file.endswith(".tflite"),
            f"--output_file must end in .tflite. Received: {self.output_file!r}"
            f"; use {self.output_file.rstrip('/') + '.tflite'!r}.",
        )
        options.require(
            self.quantization != "full_int8"
            or self.representative_file is not None,
            "--quantization=full_int8 needs --representative_file, to "
            "calibrate the range of activations. Received: none.",
        )
        options.require(
            self.quantization != "full_int8" or self.input == "ids",
            "--quantization=full_int8 is for --input=ids. Received: "
            f"--input={self.input}; use dynamic.",
        )
