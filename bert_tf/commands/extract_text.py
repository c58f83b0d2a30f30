r"""Extracts clean text for pretraining from dumps and data sets.

Reads Wikipedia's XML dumps, .jsonl, Parquet and text, drops duplicates, and
writes text for run/learn_vocabulary.py and run/create_pretraining_data.py. A
report next to the text counts what was dropped, by reason.

  python run/extract_text.py --input_file=enwiki-latest-pages-articles.xml.bz2 \
      --output_file=corpus/wiki.txt.gz --num_shards=16 --heldout_share=0.01
"""

import dataclasses

from bert_tf.flags import options
from bert_tf.flags.groups import BeamConfig

INPUT_FORMATS = ("auto", "wikipedia", "jsonl", "parquet", "text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractTextConfig(BeamConfig):
    """Flags of run/extract_text.py."""

    input_file: str = options.data(
        "Files to read: comma-separated globs, each with an optional "
        "language before it, such as en=GLOB, unless files have that whole "
        "name. Wikipedia's XML dumps, .jsonl, Parquet and text; also .gz, "
        ".bz2, .xz and .zst. A folder stands for its Parquet files.",
        options.REQUIRED,
        affects="place",
    )
    output_file: str = options.target(
        "Text file to write, one paragraph a line and a blank line "
        "between documents; ending in .gz it is compressed.",
        options.REQUIRED,
        endings=(".txt", ".gz"),
    )
    input_format: str = options.data(
        "Format of the files; auto detects it by name, then by content.",
        "auto",
        choices=INPUT_FORMATS,
    )
    text_column: str = options.data(
        "Column of the text, of .jsonl and Parquet.", "text"
    )
    id_column: str | None = options.data(
        "Column of a document's id, of .jsonl and Parquet (default: a hash of "
        "the text)."
    )
    num_shards: int = options.output(
        "Number of files, named NAME-00000-of-NNNNN.ENDING for "
        "--output_file=NAME.ENDING; 0 writes one file.",
        0,
    )
    num_processes: int = options.speed(
        "Worker processes; 0 means one per core.", 0, not_with="runner"
    )
    drop_duplicate_documents: bool = options.data(
        "Drop documents that are equal to an earlier one.", True
    )
    duplicate_paragraph_length: int = options.data(
        "Drop paragraphs of at least this many characters that are equal to "
        "an earlier one; 0 keeps them.",
        200,
    )
    near_duplicate_threshold: float = options.data(
        "Drop documents with at least this similarity to an earlier one, such "
        "as 0.8: the estimated Jaccard similarity of their 5-word sequences; 0 "
        "keeps them.",
        0.0,
        **options.SHARE,
    )
    repeated_line_documents: int = options.data(
        "Drop paragraphs that more than this number of documents have; 0 keeps "
        "them.",
        0,
    )
    min_paragraph_length: int = options.data(
        "Drop shorter paragraphs, in characters.", 0
    )
    min_document_length: int = options.data(
        "Drop documents with less text, in characters.", 0
    )
    min_letter_share: float = options.data(
        "Drop paragraphs with a smaller share of letters among the characters "
        "that are not spaces.",
        0.0,
        **options.SHARE,
    )
    languages: str | None = options.data(
        "Keep only documents in these languages, such as en,de."
    )
    fix_encoding: bool = options.data(
        "Repair wrongly decoded text, such as schÃ¶n, with ftfy.", False
    )
    exclude_file: str | None = options.data(
        "Drop documents that share 13 words in a row with these files, such "
        "as a task's dev set: comma-separated globs of .json, .jsonl, .csv, "
        "Parquet, and text with tabs between columns; also .gz.",
        reads="files",
    )
    heldout_share: float = options.data(
        "Share of the documents, chosen by their ids, that go to a second "
        "file, NAME_heldout.ENDING for --output_file=NAME.ENDING.",
        0.0,
        below=1,
    )
    language_sampling: float | None = options.data(
        "Exponent S of the languages' shares: a language with the share p of "
        "the characters gets a share proportional to p^S. Multilingual BERT "
        "was trained with 0.7.",
        **options.SHARE,
    )
    replace_invalid_utf8: bool = options.data(
        "Replace bytes that are not UTF-8 with U+FFFD.", False
    )
    overwrite_output_dir: bool = options.reporting(
        "Remove the text, report and unfinished work of an earlier run with "
        "this --output_file, and start over. Drop it to resume.",
        False,
    )

    def check(self) -> None:
        super().check()
        options.require(
            self.runner != "DataflowRunner",
            "--runner must be one whose workers share a disk with this "
            "machine, as the work folder is on it. Received: DataflowRunner; "
            "use FlinkRunner or SparkRunner, or drop it.",
        )


def main(config: ExtractTextConfig) -> None:
    from bert_tf.corpus import run

    run.run(config)
