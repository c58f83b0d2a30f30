r"""Trains MiniLM further on novels: perplexity, and the author of a paragraph.

  python benchmarks/own_field.py
  python benchmarks/own_field.py --report

The rows are MiniLM (6 layers, width 384) with a new masked-LM head and a frozen
encoder, MiniLM trained further at two rates, and the same network from random
weights. All have equal steps and batches. Each is scored on novels that are in
no training text. The first two are fine-tuned with three seeds to name the
author of a paragraph. The test is every fifth chapter of each novel; these
chapters are in no training text either.

Killed runs resume. Finished results are in --results_dir, a part of the
repository, and are not run again. Time is processor time since the last start.
"""

import collections
import gzip
import json
import os
import pathlib
import random
import statistics
import time

import runs
from absl import flags

_FOLDERS = runs.Folders("own_field")
_path = _FOLDERS.output
_STEPS = flags.DEFINE_integer("num_train_steps", 300, "Steps of each row.")

_LENGTH, _BATCH = 64, 32
_FROZEN, _FURTHER = "MiniLM, frozen", "MiniLM, trained further"
_SCRATCH, _HIGHER = "from scratch", "MiniLM, at a higher rate"
# Peak learning rate by row.
_ROWS = {
    _FROZEN: 5e-3,
    _FURTHER: 1e-4,
    _SCRATCH: 5e-4,
    _HIGHER: 5e-4,
}
_SEEDS = 3
# Every fifth chapter of a novel is for the test.
_FOLDS = 5
# Novels with fewer chapters are only training text, and no label.
_MIN_CHAPTERS = 10
_MIN_WORDS = 30
# Maximum number of paragraphs of an author.
_MAX_TRAIN, _MAX_TEST = 40, 50

# The corpus has no titles, so a novel is found by its first words, in order.
_NOVELS = {
    "Alice was beginning to get": "Carroll",
    "It is a truth universally": "Austen",
    "CHAP. I.": "Wollstonecraft",
    "The studio was filled": "Wilde",
    "A RED-HAIRED GIRL": "Wodehouse",
    "At the little town of Vevey": "James",
    "The Nellie, a cruising yawl": "Conrad",
    "01 My Early Home": "Sewell",
    "THIS is the saddest story": "Ford",
    "THE SISTERS": "Joyce",
    "Mr. Sherlock Holmes, who": "Doyle",
    "One may as well begin with": "Forster",
    "At sunset hour the forest": "Grey",
    "I. The Return": "Jewett",
    "'HASTE TO THE WEDDING'": "Gaskell",
    "A STRANGER FROM SOUTH": "Chesnutt",
    "THE STRANGE MAN'S ARRIVAL": "Wells",
    "ON THE ARIZONA HILLS": "Burroughs",
    "The cold passed reluctantly": "Crane",
    "1801.--I have just returned": "Brontë",
    "The author gives some": "Swift",
    "Letter 1": "Shelley",
    "“Mine ear is open": "Cooper",
}


def _read_novels():
    """Returns the chapters of each author, a list of paragraphs each."""
    with gzip.open(
        _FOLDERS.data("corpus", "books.txt.gz"), "rt", encoding="utf-8"
    ) as file:
        chapters = file.read().strip("\n").split("\n\n")
    beginnings = iter(_NOVELS.items())
    beginning, author = next(beginnings)
    novels = {}
    for chapter in chapters:
        if beginning and chapter.startswith(beginning):
            novels[author] = []
            current = novels[author]
            beginning, author = next(beginnings, (None, None))
        current.append(chapter.split("\n"))
    if beginning:
        raise SystemExit(f"No chapter begins with {beginning!r}.")
    return novels


def _split():
    """Returns chapters to train on, and the rows of the task.

    A row has a text, its author and the number of its chapter.
    """
    chapters, train, test = [], [], []
    for author, novel in _read_novels().items():
        rows = collections.defaultdict(list)
        for number, paragraphs in enumerate(novel):
            has_label = len(novel) >= _MIN_CHAPTERS
            is_test = has_label and number % _FOLDS == _FOLDS - 1
            if not is_test:
                chapters.append(paragraphs)
            rows[is_test] += [
                {"text": x, "label": author, "chapter": number}
                for x in paragraphs
                if has_label and len(x.split()) >= _MIN_WORDS
            ]
        for is_test, split, most in (
            (False, train, _MAX_TRAIN),
            (True, test, _MAX_TEST),
        ):
            found = rows[is_test]
            split += random.Random(1).sample(found, min(most, len(found)))
    return chapters, train, test


def _prepare():
    """Writes text and rows, and, unless they exist, records and MiniLM."""
    from tests.support import minilm

    os.makedirs(_path(), exist_ok=True)
    chapters, train, test = _split()
    with open(_path("train.txt"), "w", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(x) for x in chapters) + "\n")
    for name, rows in (("train", train), ("test", test)):
        with open(_path(f"{name}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    if not os.path.exists(_path("minilm")):
        runs.run_script(
            "run/convert_checkpoint.py",
            input=minilm.directory(),
            to="bert_tf",
            output=_path("minilm"),
        )
    for name, text in (
        ("train", _path("train.txt")),
        ("heldout", _FOLDERS.data("corpus", "books_heldout.txt.gz")),
    ):
        if not os.path.exists(_path("records", f"{name}.tfrecord.report.json")):
            runs.run_script(
                "run/create_pretraining_data.py",
                input_file=text,
                vocab_file=_path("minilm", "vocab.txt"),
                output_file=_path("records", f"{name}.tfrecord"),
                max_seq_length=_LENGTH,
                max_predictions_per_seq=10,
                dupe_factor=1,
                next_sentence_pairs=False,
            )


def _train_head(row):
    """Trains the new head alone; returns the folder of the model."""
    import bert_tf

    folder = _path("head")
    if not os.path.exists(folder):
        texts = [x for chapter in _split()[0] for x in chapter]
        random.Random(1).shuffle(texts)
        model = bert_tf.load_model(
            _path("minilm"), "masked_lm", max_seq_length=_LENGTH
        )
        model.bert.trainable = False
        model.compile(
            bert_tf.build_optimizer(
                "adamw",
                learning_rate=_ROWS[row],
                num_train_steps=_STEPS.value,
                num_warmup_steps=_STEPS.value // 10,
            )
        )
        model.fit(texts[: _STEPS.value * _BATCH], batch_size=_BATCH, verbose=2)
        bert_tf.save_model(model, folder)
    return folder


def _pretrain(row, output_dir):
    """Trains a row; returns its scores on held-out novels."""
    values = {"do_train": True, "init_checkpoint": _path("minilm")}
    if row == _FROZEN:
        values = {"init_checkpoint": _train_head(row)}
    elif row == _SCRATCH:
        values = {"do_train": True}
    runs.run_script(
        "run/pretrain.py",
        bert_config_file=_path("minilm", "bert_config.json"),
        input_file=_path("records", "train.tfrecord"),
        eval_input_file=_path("records", "heldout.tfrecord"),
        output_dir=output_dir,
        do_eval=True,
        use_next_sentence=False,
        dynamic_masking=True,
        max_seq_length=_LENGTH,
        train_batch_size=_BATCH,
        optimizer="adamw",
        learning_rate=_ROWS[row],
        num_train_steps=_STEPS.value,
        num_warmup_steps=_STEPS.value // 10,
        eval_batch_size=_BATCH,
        max_eval_steps=100,
        iterations_per_loop=50,
        save_checkpoints_secs=120,
        keep_checkpoint_max=1,
        mixed_precision="auto",
        **values,
    )
    scores = runs.read_scores(output_dir)
    return {"learning_rate": _ROWS[row], "steps": _STEPS.value, **scores}


def _fine_tune(row, output_dir):
    """Returns the rows of each test chapter, and each seed's correct rows."""
    model = _path("minilm")
    if row != _FROZEN:
        model = _path(_name(row, "perplexity"), "model")
    runs.run_script(
        "run/finetune_classifier.py",
        task_name="custom",
        train_file=_path("train.jsonl"),
        # The test set may be the dev set, because no trial is chosen by it.
        dev_file=_path("test.jsonl"),
        pretrained_model_dir=model,
        new_pooler=True,
        output_dir=output_dir,
        do_train=True,
        do_eval=True,
        optimizer="adamw",
        learning_rate=2e-4,
        num_train_epochs=6,
        train_batch_size=16,
        max_seq_length=_LENGTH,
        eval_batch_size=64,
        mixed_precision="auto",
        seed=1,
        num_restarts=_SEEDS,
    )
    chapters = [(x["label"], x["chapter"]) for x in _split()[2]]
    right = []
    found = pathlib.Path(output_dir).glob("runs/*/dev_predictions.jsonl")
    for path in sorted(found):
        counts = dict.fromkeys(chapters, 0)
        with open(path, encoding="utf-8") as file:
            for chapter, line in zip(chapters, file, strict=True):
                counts[chapter] += json.loads(line)["label"] == chapter[0]
        right.append([*counts.values()])
    return {
        "rows_by_chapter": [*collections.Counter(chapters).values()],
        "right_by_seed_and_chapter": right,
    }


_MEASURES = {"perplexity": _pretrain, "author": _fine_tune}
# The jobs that answer the main question come first.
_JOBS = (
    (_FROZEN, "perplexity"),
    (_FURTHER, "perplexity"),
    (_FROZEN, "author"),
    (_FURTHER, "author"),
    (_SCRATCH, "perplexity"),
    (_HIGHER, "perplexity"),
)


def _name(*words):
    letters = (x if x.isalpha() else " " for x in " ".join(words))
    return "_".join("".join(letters).split())


def _result_path(row, measure):
    return _FOLDERS.result(_name(row, measure))


def _measure(row, measure):
    start = runs.processor_seconds() + time.process_time()
    result = _MEASURES[measure](row, _path(_name(row, measure)))
    result["processor_seconds"] = (
        runs.processor_seconds() + time.process_time() - start
    )
    runs.write_json(_result_path(row, measure), result)


def _read(row, measure):
    return runs.read_json(_result_path(row, measure))


def _error(values):
    return statistics.stdev(values) / len(values) ** 0.5


def _gain(before, after):
    """Returns the points gained, and their standard error over chapters."""
    sizes = before["rows_by_chapter"]
    key = "right_by_seed_and_chapter"
    old, new = (
        [statistics.mean(x) for x in zip(*result[key], strict=True)]
        for result in (before, after)
    )
    gains = [y - x for x, y in zip(old, new, strict=True)]
    gain = sum(gains) / sum(sizes)
    # Rows of a chapter are alike, so chapters are the sample, not rows.
    rest = [x - gain * size for x, size in zip(gains, sizes, strict=True)]
    error = _error(rest) * len(sizes) / sum(sizes)
    return f"{100 * gain:+.1f} ± {100 * error:.1f}"


def _print_report():
    print("| model | rate | perplexity | right | author | gained | seconds |")
    print("|---" * 7 + "|")
    before = _read(_FROZEN, "author")
    for row, rate in _ROWS.items():
        found = _read(row, "perplexity")
        author = _read(row, "author")
        cells = [row, f"{rate:g}", "", "", "", ""]
        if found:
            cells[2:4] = (
                f"{found['masked_lm_perplexity']:.1f} ± "
                f"{found['masked_lm_perplexity_error']:.1f}",
                f"{found['masked_lm_accuracy']:.1%}",
            )
        if author:
            total = sum(author["rows_by_chapter"])
            right = author["right_by_seed_and_chapter"]
            scores = [100 * sum(x) / total for x in right]
            cells[4:] = (
                f"{statistics.mean(scores):.1f} ± {_error(scores):.1f}",
                _gain(before, author) if before else "",
            )
        seconds = [x["processor_seconds"] for x in (found, author) if x]
        print(f"| {' | '.join(cells)} | {sum(seconds):.0f} |")


def main():
    if not _FOLDERS.only_reports:
        _prepare()
        for row, measure in _JOBS:
            if not _read(row, measure):
                _measure(row, measure)
    _print_report()


if __name__ == "__main__":
    runs.main(main)
