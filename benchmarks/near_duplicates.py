r"""Finds planted duplicates in real text; measures the memory of the search.

  python benchmarks/near_duplicates.py --experiment=planted
  python benchmarks/near_duplicates.py --experiment=memory --documents=1000000

`planted` takes the first words of real articles and adds copies with several
kinds of changes. For each threshold, it prints the share of found copies. The
similarity of copy and original is computed exactly, from 5-word sequences. A
copy is missed if its similarity is at least the threshold and it is not
dropped. A document is dropped wrongly if its similarity is below the threshold,
or if it is no copy.

`memory` searches synthetic signatures; every tenth is a copy of an earlier one
with a tenth of its values changed. They are mapped from a file, like a corpus's
signatures. It prints the peak memory of the process by kind, because the system
can take back the pages of mapped files.
"""

import gzip
import os
import tempfile
import time

import numpy as np
import runs
from absl import flags

_EXPERIMENT = flags.DEFINE_enum(
    "experiment", "planted", ["planted", "memory"], "What to measure."
)
_TEXT = flags.DEFINE_string(
    "text", str(runs.DATA / "corpus/wiki.txt.gz"), "planted: articles, .gz."
)
_WORDS = flags.DEFINE_integer("words", 300, "planted: words of a document.")
_COPIES = flags.DEFINE_integer("copies", 500, "planted: copies of each kind.")
_DOCUMENTS = flags.DEFINE_integer(
    "documents", 1000000, "memory: number of signatures."
)
_THRESHOLD = flags.DEFINE_float(
    "threshold", 0.8, "memory: similarity of near duplicates."
)

_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
_SEED = 1


def _read_documents():
    """Returns the first words of each article that is long enough."""
    with gzip.open(_TEXT.value, "rt", encoding="utf-8") as file:
        articles = file.read().split("\n\n")
    words = [article.split()[: _WORDS.value] for article in articles]
    return [x for x in words if len(x) == _WORDS.value]


def _kinds(generator, vocabulary):
    """Returns functions that change a document, by their names."""

    def replace(share):
        def change(words):
            count = round(share * len(words))
            places = generator.choice(len(words), count, replace=False)
            changed = list(words)
            for place in places:
                changed[place] = vocabulary[generator.integers(len(vocabulary))]
            return changed

        return change

    kinds = {
        f"{share:.0%} of the words replaced" if share else "exact": replace(
            share
        )
        for share in _SHARES
    }
    kinds["other case and punctuation"] = lambda words: [
        word.upper().strip(".,;") for word in words
    ]
    kinds["last tenth cut off"] = lambda words: words[: len(words) * 9 // 10]
    kinds["halves in the other order"] = lambda words: [
        *words[len(words) // 2 :],
        *words[: len(words) // 2],
    ]
    kinds["60 words before it"] = lambda words: [
        *generator.choice(vocabulary, 60),
        *words,
    ]
    return kinds


def _shingles(text):
    from bert_tf.corpus import fingerprints

    hashes = fingerprints.hash_words(text)
    return {
        *fingerprints.hash_ngrams(hashes, fingerprints.SHINGLE_LENGTH).tolist()
    }


def _find_planted(folder):
    from bert_tf.corpus import fingerprints
    from bert_tf.corpus import judging

    originals = _read_documents()
    generator = np.random.default_rng(_SEED)
    vocabulary = np.array([word for words in originals for word in words])
    kinds = _kinds(generator, vocabulary)
    texts = [" ".join(words) for words in originals]
    sources = []
    for change in kinds.values():
        chosen = generator.choice(len(originals), _COPIES.value, replace=False)
        texts += [" ".join(change(originals[i])) for i in chosen]
        sources += chosen.tolist()
    # A copy is compared only with its original, not with other similar texts.
    similarities = np.zeros(len(sources))
    for number, source in enumerate(sources):
        one = _shingles(texts[source])
        other = _shingles(texts[len(originals) + number])
        similarities[number] = len(one & other) / len(one | other)
    signatures = np.stack([fingerprints.compute_signature(x) for x in texts])
    dropped = {
        threshold: judging.similar_documents(signatures, threshold, folder) >= 0
        for threshold in _THRESHOLDS
    }
    shape = (len(kinds), _COPIES.value)
    means = similarities.reshape(shape).mean(1)
    print(f"{len(originals)} documents, {_COPIES.value} copies of each kind")
    columns = " | ".join(f"found at {x}" for x in _THRESHOLDS)
    print(f"| copies | similarity | {columns} |")
    print("|---" * (2 + len(_THRESHOLDS)) + "|")
    for number, name in enumerate(kinds):
        shares = [
            dropped[x][len(originals) :].reshape(shape)[number].mean()
            for x in _THRESHOLDS
        ]
        cells = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {name} | {means[number]:.3f} | {cells} |")
    for name, count in (
        ("copies at and above the threshold", lambda x: similarities >= x),
        (
            "of these missed",
            lambda x: (similarities >= x) & ~dropped[x][len(originals) :],
        ),
        ("copies below it", lambda x: similarities < x),
        (
            "of these dropped (false)",
            lambda x: (similarities < x) & dropped[x][len(originals) :],
        ),
        (
            "documents, no copies, dropped",
            lambda x: dropped[x][: len(originals)],
        ),
    ):
        cells = " | ".join(str(count(x).sum()) for x in _THRESHOLDS)
        print(f"| {name} | | {cells} |")


def _write_signatures(path, count):
    """Writes signatures; every tenth is a changed copy of an earlier one."""
    generator = np.random.default_rng(_SEED)
    block = 1 << 16
    with open(path, "wb") as file:
        for start in range(0, count, block):
            rows = min(block, count - start)
            values = generator.integers(0, 1 << 32, (rows, 128), np.uint32)
            copies = np.arange(9, rows, 10)
            changed = generator.random((len(copies), 128)) < 0.1
            values[copies] = np.where(
                changed, values[copies], values[copies - 5]
            )
            values.tofile(file)


def _memory():
    """Returns this process's memory in MiB: anonymous, and of mapped files."""
    return [runs.memory_status(x) / 2**20 for x in ("RssAnon", "RssFile")]


def _measure_memory(folder):
    from bert_tf.corpus import judging

    count = _DOCUMENTS.value
    path = os.path.join(folder, "signatures")
    _write_signatures(path, count)
    signatures = np.memmap(path, np.uint32, "r", shape=(count, 128))
    start = time.perf_counter()
    with runs.watch(_memory, 0.1) as used:
        found = judging.similar_documents(signatures, _THRESHOLD.value, folder)
    seconds = time.perf_counter() - start
    bands, _ = judging.choose_bands(_THRESHOLD.value, 128)
    own, mapped = np.max(used, axis=0)
    print(
        f"{count} signatures: {own - used[0][0]:.0f} MiB of memory, "
        f"{mapped:.0f} MiB of mapped files at most, "
        f"{(count * (128 * 4 + bands * 8)) / 2**20:.0f} MiB of disk, "
        f"{(found >= 0).sum()} found, {seconds:.0f} s"
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        {"planted": _find_planted, "memory": _measure_memory}[
            _EXPERIMENT.value
        ](folder)


if __name__ == "__main__":
    runs.main(main)
