r"""Predicts the rows of a file with a fine-tuned model.

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.jsonl

The columns are the same as in training; labels are not read. The output is JSON
lines, or a table:

  python run/predict.py --model_dir=output/mrpc/model --input_file=pairs.csv \
      --output_file=predictions.csv --keep_columns=id,text --top_k=3

The output file appears when it is complete. With any model, embeddings of texts
are written as an array, or as a Parquet file with columns text and embedding:

  python run/predict.py --input_file=texts.txt --output_file=embeddings.npy \
      --model_dir=hf://sentence-transformers/all-MiniLM-L6-v2
"""

import dataclasses
import os

from bert_tf import errors
from bert_tf.distribute import packed_weights
from bert_tf.flags import options
from bert_tf.flags.groups import PredictionConfig

# Endings of --output_file for tables, and for embeddings.
_TABLES = (".csv", ".tsv")
_ARRAYS = (".npy", ".parquet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(PredictionConfig):
    """Flags of run/predict.py."""

    model_dir: str = options.model(
        "Fine-tuned model of any format, with its vocabulary; for "
        "embeddings any model.",
        options.REQUIRED,
        reads="model",
    )
    input_file: str = options.data(
        "Rows to predict, with the columns of the training data: "
        ".csv, .tsv, .jsonl, .json, .txt or .conll, each also .gz, or "
        ".parquet. Labels are not read. - reads standard input.",
        options.REQUIRED,
        reads="file",
    )
    output_file: str = options.output(
        "File to write, a row for each row of the input, in its order: a table "
        "for .csv and .tsv, embeddings for .npy and .parquet, else JSON lines.",
        options.REQUIRED,
        endings=(*_TABLES, ".jsonl", *_ARRAYS),
    )
    keep_columns: str | None = options.output(
        "Columns of a table to copy to the output, separated by commas, or "
        "all (default: none). A column that the predictions have too is "
        "named input_<name>."
    )
    top_k: int | None = options.evaluation(
        "Labels or choices to write with their probabilities, the best first "
        "(default: all in JSON lines; one in a table).",
        at_least=1,
    )
    keep_empty: bool = options.data(
        "Classification: keep rows with an empty text, and give them an empty "
        "answer (default: such a row is an error).",
        False,
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.array_ending != ".npy" or self.keep_columns is None,
            "An array has no columns to keep; write .parquet, or drop "
            "--keep_columns.",
        )
        options.require(
            not (self.array_ending and (self.keep_empty or self.top_k)),
            "--keep_empty and --top_k need labels, not embeddings; drop them.",
        )
        self.columns_to_keep()

    @property
    def output_ending(self) -> str | None:
        """The ending of --output_file if it is a table, else None."""
        return self._ending_of(_TABLES)

    @property
    def array_ending(self) -> str | None:
        """The ending of --output_file if it gets embeddings, else None."""
        return self._ending_of(_ARRAYS)

    def _ending_of(self, endings: tuple[str, ...]) -> str | None:
        ending = os.path.splitext(self.output_file)[1].lower()
        return ending if ending in endings else None

    def columns_to_keep(self) -> tuple[str, ...] | None:
        """Returns the names in --keep_columns, or None for all columns."""
        if self.keep_columns is None:
            return ()
        if self.keep_columns.strip() == "all":
            return None
        return options.values(self, "keep_columns")


def main(config: PredictConfig) -> None:
    from bert_tf.tasks import stored_task
    from bert_tf.tasks.embeddings.examples import EmbeddingsFiles

    if config.array_ending:
        kind = stored_task.read_kind(config.model_dir)
        stored_task.require_embeddings(kind)
    stored_task.check_inputs(
        EmbeddingsFiles()
        if config.array_ending
        else stored_task.describe_files(config.model_dir, "--model_dir"),
        config.input_file,
        config.keep_empty,
        config.columns_to_keep() or (),
    )
    if config.array_ending == ".parquet":
        errors.require("parquet")
    if packed_weights.computes_in_bfloat16(config.mixed_precision):
        packed_weights.assume()
    from bert_tf.inference import predict

    predict.run(config)
