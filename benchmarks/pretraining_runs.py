"""Pretraining runs on made-up text, shared by several benchmarks.

Made-up text will do: a record's contents change neither times nor recovery.
"""

import os
import random
import subprocess

import runs

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A document has 30 sentences of 9 to 40 words, enough for some 7 sequences.
_SENTENCES, _WORDS = 30, (9, 40)


def _write(path: str, lines: list[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def make_records(
    folder: str, vocab_size: int, num_documents: int = 200, shards: int = 3
) -> dict[str, str]:
    """Writes records of length 128.

    Args:
      folder: The folder of the records.
      vocab_size: Lines of the vocabulary.
      num_documents: Number of documents; each gives some 7 records.
      shards: Number of files of records.

    Returns:
      The flags of run/pretrain.py that name the files.
    """
    words = [f"word{number}" for number in range(vocab_size - len(_SPECIAL))]
    vocab_file = os.path.join(folder, "vocab.txt")
    _write(vocab_file, [*_SPECIAL, *words])
    rng = random.Random(5)
    lines = []
    for _ in range(num_documents):
        for _ in range(_SENTENCES):
            lines.append(" ".join(rng.choices(words, k=rng.randint(*_WORDS))))
        lines.append("")
    text_file = os.path.join(folder, "text.txt")
    _write(text_file, lines)
    records = os.path.join(folder, "records")
    os.makedirs(records, exist_ok=True)
    runs.run_script(
        "run/create_pretraining_data.py",
        input_file=text_file,
        output_file=f"{records}/part.tfrecord",
        vocab_file=vocab_file,
        num_shards=shards,
        dupe_factor=1,
        split_sentences=False,
    )
    return {
        "input_file": f"{records}/*.tfrecord",
        "vocab_file": vocab_file,
    }


def start(script: str, log_file: str, **flag_values) -> subprocess.Popen:
    """Starts a script of run/.

    Args:
      script: The script's name, without the ending.
      log_file: The file to which its output is appended.
      **flag_values: Its flags; a bool becomes --name or --noname.
    """
    variables = {"PYTHONPATH": str(runs.ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment = os.environ | variables
    environment.pop("TF_CONFIG", None)
    with open(log_file, "a", encoding="utf-8") as log:
        return subprocess.Popen(
            runs.command(f"run/{script}.py", **flag_values),
            cwd=runs.ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
