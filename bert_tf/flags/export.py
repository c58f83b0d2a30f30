"""What the scripts in export/ can be told."""

import dataclasses
import itertools
import os

from bert_tf.config import option
from bert_tf.errors import UserError
from bert_tf.flags.checks import require
from bert_tf.flags.checks import require_at_least

HEADS = (
    "classification",
    "question_answering",
    "multiple_choice",
    "tagging",
    "fill_mask",
    "next_sentence",
    "embeddings",
)
POOLINGS = ("mean", "cls", "max")
# How the weights of a .tflite file are kept, and how products are computed.
QUANTIZATIONS = ("none", "float16", "dynamic", "full_int8")
ALL = "all"
# Those of them for --litert.
LITERT_QUANTIZATIONS = QUANTIZATIONS[:3]
# The oldest runtimes that a .tflite file is made for: the newest alone, or
# also tflite-runtime 2.14 and tflite-support 0.4.
COMPATIBILITIES = ("current", "2.14")
# Lengths that rows are padded to, unless told otherwise: few, and none more
# than half again as long as the one before.
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Flags of every exporter: which model, and what it is to answer."""

    model_dir: str = option(
        help_text="A model of any format, with its vocabulary."
    )
    head: str = option(
        "auto",
        "What to answer (default: what the model was trained for; of a "
        "pretrained model fill_mask, of a bare encoder embeddings).",
        choices=("auto", *HEADS),
    )
    pair: bool | None = option(
        None,
        "Whether a classifier takes text_pair beside text (default: as the "
        "model was trained; where that is not known, no).",
    )
    pooling: str = option(
        "mean",
        "What of a layer is the embedding of a text: the mean or the maximum "
        "over its pieces, or the piece [CLS].",
        choices=POOLINGS,
    )
    layer: int = option(
        -1, "Which layer's output embeddings are made of, from 0 or from -1."
    )
    top_k: int = option(5, "Candidates of fill_mask per [MASK].")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelConfig(ExportConfig):
    """Flags of export/savedmodel.py."""

    output_dir: str = option(
        help_text="Where the versions of the model are: 1, 2, ..."
    )
    version: int | None = option(
        None, "The version to write (default: the next number)."
    )
    max_seq_length: int | None = option(
        None,
        "The most pieces of a row (default: as the model was trained; where "
        "it does not say that, as many as it has positions).",
    )
    buckets: str | None = option(
        None,
        "Lengths that a batch may be padded to, such as 16,32,64; "
        "--max_seq_length is always one (default: "
        f"{','.join(map(str, BUCKETS))}).",
    )
    precision: str = option(
        "float32",
        "Precision of the arithmetic; auto takes bfloat16 where this machine "
        "computes in it.",
        choices=("float32", "bfloat16", "auto"),
    )
    ids_only: bool = option(
        False,
        "Whether to write also a SavedModel that takes ids and needs no "
        "TF-Text, into <output_dir>_ids.",
    )
    litert: bool = option(
        False,
        "Whether to write also what run/serve.py --engine=litert runs, the "
        "fastest way on an x86 CPU, into litert/ of the version.",
    )
    litert_quantization: str | None = option(
        None,
        "How the weights in litert/ are kept: dynamic in int8, float16, or "
        "none in float32 (default: dynamic).",
        choices=LITERT_QUANTIZATIONS,
    )
    model_name: str | None = option(
        None, "What servers call the model (default: the name of --output_dir)."
    )
    doc_stride: int | None = option(
        None,
        "How far windows of a long text begin after each other, in pieces "
        "(default: as the model was trained).",
    )
    max_query_length: int | None = option(
        None, "The most pieces of a question (default: as trained)."
    )
    n_best_size: int | None = option(
        None, "How many starts and ends are tried (default: as trained)."
    )
    max_answer_length: int | None = option(
        None, "The most pieces of an answer (default: as trained)."
    )

    def __post_init__(self) -> None:
        require_at_least(
            self,
            1,
            "version",
            "top_k",
            "doc_stride",
            "max_query_length",
            "n_best_size",
            "max_answer_length",
        )
        require_at_least(self, 3, "max_seq_length")
        # A version is an <int64> to a server.
        require(
            self.version is None or self.version < 2**63,
            f"--version must be below 2**63. Received: {self.version}.",
        )
        name = self.served_name
        require(
            bool(name) and "/" not in name and ":" not in name,
            "--model_name must be a name without / and :, as it stands in "
            f"addresses. Received: {name!r}.",
        )
        require(
            self.litert or self.litert_quantization is None,
            "--litert_quantization is of use with --litert only.",
        )
        self.bucket_lengths()

    @property
    def quantization_of_litert(self) -> str | None:
        """How the weights in litert/ are kept; None if there are none."""
        if not self.litert:
            return None
        return self.litert_quantization or "dynamic"

    @property
    def served_name(self) -> str:
        """What servers call the model."""
        if self.model_name is not None:
            return self.model_name
        return os.path.basename(os.path.abspath(self.output_dir))

    def bucket_lengths(self) -> tuple[int, ...] | None:
        """Returns the lengths of --buckets; None if they are not given.

        Raises:
          UserError: If they are no rising numbers.
        """
        if self.buckets is None:
            return None
        try:
            lengths = tuple(int(part) for part in self.buckets.split(","))
        except ValueError as error:
            raise UserError(
                "--buckets must be whole numbers separated by commas, such as "
                f"16,32,64. Received: {self.buckets!r}."
            ) from error
        pairs = itertools.pairwise((0, *lengths))
        if not all(first < second for first, second in pairs):
            raise UserError(
                "--buckets must be positive and rise from one to the next. "
                f"Received: {self.buckets!r}."
            )
        return lengths


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """Flags of export/verify.py."""

    export_dir: str = option(
        help_text="The export: <output_dir>/<version>, or <output_dir>, of "
        "which the newest version counts."
    )
    model_dir: str = option(help_text="The model that was exported.")
    url: str | None = option(
        None,
        "A live server to ask as well: http://HOST:PORT/v1/models/NAME, or "
        "HOST:PORT of gRPC.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfliteConfig(ExportConfig):
    """Flags of export/tflite.py."""

    output_file: str = option(
        help_text="The .tflite file to write; what it is, and how it was "
        "verified, stands in <output_file>.json."
    )
    quantization: str = option(
        "dynamic",
        "How weights are kept: none is float32; float16 halves the file; "
        "dynamic keeps them in int8 and computes products in it; full_int8 "
        "all else too; all makes each of them, to compare.",
        choices=(*QUANTIZATIONS, ALL),
    )
    input: str = option(
        "ids",
        "What goes in: ids, with TensorFlow Lite's own operators alone; or "
        "text, which hosts with TF-Text's operators can run.",
        choices=("ids", "text"),
    )
    max_seq_length: int | None = option(
        None,
        "Pieces of each row (default: free with --input=ids; with text as the "
        "model was trained).",
    )
    batch_size: int | None = option(
        None, "Rows of each call (default: any number)."
    )
    representative_file: str | None = option(
        None,
        "Rows like those to come, in the format of the task's files; "
        "full_int8 sets its scales by them.",
    )
    eval_file: str | None = option(
        None,
        "Rows with answers, in the format of the task's dev file. The file is "
        "scored on them beside the model.",
    )
    max_drop: float = option(
        1.0,
        "By how many points of 100 the score may be below the model's; if it "
        "is more, no file appears.",
    )
    compatibility: str = option(
        "current",
        "The oldest runtime that must run the file; 2.14 gives each dense "
        "layer one scale instead of one a column.",
        choices=COMPATIBILITIES,
    )

    def __post_init__(self) -> None:
        require_at_least(self, 1, "batch_size", "top_k")
        require_at_least(self, 3, "max_seq_length")
        require_at_least(self, 0, "max_drop")
        require(
            bool(os.path.basename(self.output_file)),
            f"--output_file must name a file. Received: {self.output_file!r}.",
        )
        is_calibrated = self.quantization in ("full_int8", ALL)
        require(
            is_calibrated or self.representative_file is None,
            "--representative_file is for --quantization=full_int8 or all. "
            f"Received: {self.quantization}.",
        )
        require(
            self.quantization != "full_int8"
            or self.representative_file is not None,
            "--quantization=full_int8 needs --representative_file, whose rows "
            "say how large activations become. Received: none.",
        )
        require(
            self.quantization != "full_int8" or self.input == "ids",
            "--quantization=full_int8 is for --input=ids. Received: "
            f"--input={self.input}; take dynamic.",
        )
        require(
            self.eval_file is not None or self.max_drop == 1.0,
            "--max_drop is for --eval_file. Received: "
            f"{self.max_drop} without it.",
        )
