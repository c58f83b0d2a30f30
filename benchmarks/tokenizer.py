"""Times the tokenizer against tf-text's and Hugging Face's on real text.

  python benchmarks/tokenizer.py --input_file=corpus.txt.gz

All three tokenize the same paragraphs in batches of 256, uncased, on all cores.
They take turns, so that the machine is in the same state for all. Ours and
tf-text's FastBertTokenizer run in a `tf.data` pipeline, Hugging Face's
BertWordPieceTokenizer in `encode_batch`. The output has the median rates in
tokens per second of wall time and of processor time. Each tokenizer's own
tokens count, because the three disagree on a few. The last line is the median
ratio of the rates, ours / FastBertTokenizer's.
"""

import gzip
import os
import statistics
import time

import runs
from absl import flags

_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", runs.VOCAB_FILE, "The vocabulary, one token a line."
)
_INPUT_FILE = flags.DEFINE_string(
    "input_file",
    str(runs.DATA / "corpus" / "wiki.txt.gz"),
    "Text, one paragraph a line; .gz is decompressed.",
)
_MEGABYTES = flags.DEFINE_integer("megabytes", 20, "Megabytes of text to read.")
_TURNS = flags.DEFINE_integer("turns", 5, "Turns of each.")

_BATCH = 256


def _read_paragraphs():
    opener = gzip.open if _INPUT_FILE.value.endswith(".gz") else open
    with opener(_INPUT_FILE.value, "rb") as file:
        text = file.read(_MEGABYTES.value * 1_000_000)
    lines = [line for line in text.split(b"\n")[:-1] if line]
    return [lines[i : i + _BATCH] for i in range(0, len(lines), _BATCH)]


def _in_pipeline(batches, tokenize):
    """Returns a function that tokenizes all and counts the tokens."""
    import tensorflow as tf

    texts = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=tf.TensorSpec([None], tf.string),
    ).cache()
    sum(1 for _ in texts)  # Fills the cache.
    counts = texts.map(
        lambda text: tf.size(tokenize(text).flat_values),
        num_parallel_calls=os.cpu_count(),
    )
    return lambda: sum(int(count) for count in counts)


def _build_ours(batches, with_offsets=False):
    from bert_tf.text.tokenizer import BertTokenizer

    tokenizer = BertTokenizer.from_vocab_file(_VOCAB_FILE.value)
    if with_offsets:
        return _in_pipeline(
            batches, lambda text: tokenizer.tokenize_with_offsets(text)[2]
        )
    return _in_pipeline(batches, tokenizer.tokenize)


def _build_tf_text(batches):
    import tensorflow as tf
    import tensorflow_text as tf_text

    from bert_tf.text.vocabulary import Vocabulary

    tokenizer = tf_text.FastBertTokenizer(
        vocab=list(Vocabulary.from_file(_VOCAB_FILE.value).tokens),
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=True,
    )
    return _in_pipeline(batches, tokenizer.tokenize)


def _build_hugging_face(batches):
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(
        _VOCAB_FILE.value, lowercase=True
    )
    texts = [[line.decode() for line in batch] for batch in batches]
    return lambda: sum(
        len(encoding.ids)
        for batch in texts
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False)
    )


_BUILDERS = {
    "bert_tf": _build_ours,
    "bert_tf with offsets": lambda batches: _build_ours(batches, True),
    "tf-text FastBertTokenizer": _build_tf_text,
    "Hugging Face BertWordPieceTokenizer": _build_hugging_face,
}


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    batches = _read_paragraphs()
    ways = {name: build(batches) for name, build in _BUILDERS.items()}
    for run in ways.values():
        run()
    rates = {name: [] for name in ways}
    cpu_rates = {name: [] for name in ways}
    for _ in range(_TURNS.value):
        for name, run in ways.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            tokens = run()
            rates[name].append(tokens / (time.perf_counter() - start))
            cpu_rates[name].append(tokens / (time.process_time() - cpu_start))
    for name in ways:
        print(
            f"{name}: {statistics.median(rates[name]) / 1e6:.2f} M tokens/s, "
            f"{statistics.median(cpu_rates[name]) / 1e6:.2f} M tokens per "
            "second of one core"
        )
    ratios = runs.ratios(rates["bert_tf"], rates["tf-text FastBertTokenizer"])
    print(f"ratio to FastBertTokenizer: {ratios}")


if __name__ == "__main__":
    runs.main(main)
