"""Times featurizing texts against Hugging Face's tokenizers.

  python benchmarks/featurizing.py --input_file=qnli/train.tsv

Both tokenize, truncate and pack the same texts to rows without padding,
uncased, and take turns. Ours uses the classifier's
`convert_examples_to_features`. Hugging Face's BertWordPieceTokenizer uses
`encode_batch`; its ids, which are equal, are joined to one array. The times are
processor times, because other programs on the machine hardly change these. The
output has medians for single texts, for pairs, and for single texts cut into
windows, and the share of our time for tokenizing alone. The last line has the
median ratios of the rates, ours / Hugging Face's.
"""

import os
import statistics
import time

import numpy as np
import runs
from absl import flags

_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", runs.VOCAB_FILE, "The vocabulary, one token a line."
)
_TABLE = runs.Table("input_file", "train_part.tsv.gz")
_EXAMPLES = flags.DEFINE_integer("examples", 8000, "Number of examples.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Maximum row length.")
_WINDOW = flags.DEFINE_integer("window_length", 32, "Maximum window length.")
_STRIDE = flags.DEFINE_integer("doc_stride", 8, "Stride of windows.")
_TURNS = flags.DEFINE_integer("turns", 7, "Turns of each.")


def _build_ours(texts_a, texts_b, labels, length, stride):
    from bert_tf.tasks.classification import task
    from bert_tf.tasks.classification.examples import InputExample
    from bert_tf.text.tokenizer import BertTokenizer

    tokenizer = BertTokenizer.from_vocab_file(_VOCAB_FILE.value)
    examples = [
        InputExample(str(number), *row)
        for number, row in enumerate(
            zip(texts_a, texts_b or [None] * len(texts_a), labels, strict=True)
        )
    ]
    names = sorted(set(labels))
    return (
        lambda: task.convert_examples_to_features(
            examples, tokenizer, length, names, doc_stride=stride
        ),
        lambda: [
            tokenizer.tokenize(part[start : start + 2048])
            for part in (texts_a, texts_b or [])
            for start in range(0, len(part), 2048)
        ],
    )


def _build_hugging_face(texts_a, texts_b, length, stride):
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(
        _VOCAB_FILE.value, lowercase=True
    )
    # Hugging Face's stride is the overlap of windows, not their distance.
    overlap = 0 if stride is None else length - 2 - stride
    tokenizer.enable_truncation(length, overlap)
    rows = list(zip(texts_a, texts_b, strict=True)) if texts_b else texts_a

    def run():
        ids = []
        for encoding in tokenizer.encode_batch(rows):
            ids.append(encoding.ids)
            if stride is not None:
                ids.extend(one.ids for one in encoding.overflowing)
        return np.concatenate(ids).astype(np.int32)

    return run


def _measure(run):
    start = time.process_time()
    run()
    return time.process_time() - start


def _compare(name, texts_a, texts_b, labels, length, stride):
    """Prints the times of one case; returns the ratio of rates."""
    ours, tokenize = _build_ours(texts_a, texts_b, labels, length, stride)
    ways = {
        "bert_tf": ours,
        "tokenizing": tokenize,
        "Hugging Face": _build_hugging_face(texts_a, texts_b, length, stride),
    }
    for run in ways.values():
        run()
    times = {key: [] for key in ways}
    for _ in range(_TURNS.value):
        for key, run in ways.items():
            times[key].append(_measure(run))
    medians = {key: statistics.median(x) for key, x in times.items()}
    pairs = zip(times["Hugging Face"], times["bert_tf"], strict=True)
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    print(
        f"{name}: bert_tf {medians['bert_tf'] * 1e3:.0f} ms of processor time, "
        f"{medians['tokenizing'] / medians['bert_tf']:.0%} of it tokenizing; "
        f"Hugging Face {medians['Hugging Face'] * 1e3:.0f} ms",
        flush=True,
    )
    return ratio


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    rows = _TABLE.read()[: _EXAMPLES.value]
    firsts, seconds, labels = (
        [row[key] for row in rows] for key in ("text", "text_pair", "label")
    )
    cases = {
        "single texts": (seconds, None, labels, _LENGTH.value, None),
        "pairs": (firsts, seconds, labels, _LENGTH.value, None),
        "windows": (seconds, None, labels, _WINDOW.value, _STRIDE.value),
    }
    ratios = {name: _compare(name, *case) for name, case in cases.items()}
    shown = ", ".join(f"{x:.2f} for {name}" for name, x in ratios.items())
    print(f"ratio to Hugging Face: {shown}")


if __name__ == "__main__":
    runs.main(main)
