r"""Pretrains, fine-tunes and serves a tiny BERT on text from this machine.

  python run/demo.py --output_dir=.demo

The text is the documentation of Python and of installed packages. From this
corpus the demo makes a vocabulary, records, a tiny BERT that fills in a [MASK],
and a classifier, which a server runs on raw text. Each step's command is
printed, so that you can repeat it with other text. Rerun the demo to resume.
"""

import ast
import collections
import contextlib
import csv
import dataclasses
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shlex
import socket
import sys
import sysconfig
import typing
import urllib.request
from collections.abc import Iterator
from collections.abc import Sequence
from pydoc_data import topics
from typing import Any

import bert_tf
from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files

RESULTS = "eval_results.txt"
# These steps read 13 million tokens. With 8 million tokens, the model learns
# only how frequent words are.
TRAIN_STEPS = 1600
# Masks held-out text as the original does, so that scores can be compared.
AS_ORIGINAL = (
    "--masked_lm_prob=0.15 --max_predictions_per_seq=10 --dupe_factor=1"
)
# Minimum scores on held-out text. Always guessing the most frequent word would
# score about 0.13, and always guessing the most frequent label about 0.25.
REQUIRED = {"masked_lm_accuracy": 0.3, "classifier's accuracy": 0.55}
MASKED = "If the file does not [MASK], an error is raised."
SENTENCES = (
    "Opens the file and returns an iterator over its lines as strings.",
    "Returns the indices that would sort the elements of the ndarray.",
    "A layer that normalizes the activations of the previous layer.",
    "Runs the graph in a session and fetches the values of the ops.",
)


@dataclasses.dataclass(frozen=True)
class DemoConfig(options.Flags):
    """Flags of run/demo.py."""

    output_dir: str = options.output("Directory for all files.", ".demo")
    num_train_steps: int = options.training(
        f"Pretraining steps; 0 means {TRAIN_STEPS}, after which the demo also "
        "checks its scores.",
        0,
    )


def main(config: DemoConfig) -> None:
    root = config.output_dir
    steps = config.num_train_steps or TRAIN_STEPS
    # Each number of steps has its own folder, so no run resumes a shorter run.
    pretrained = f"{root}/pretrained_{steps}_steps"
    library = f"{root}/library_{steps}_steps"

    show("\n== Corpus: the documentation of Python and its packages")
    tables = f"{root}/library_train.csv", f"{root}/library_dev.csv"
    if not os.path.exists(f"{root}/corpus.txt"):
        write_corpus(f"{root}/corpus.txt", f"{root}/heldout.txt", tables)

    vocabulary = f"""run/learn_vocabulary.py --flagfile=cpu_vocabulary.flags
        --input_file={root}/corpus.txt --output_file={root}/vocab.txt"""
    run_step("Vocabulary", vocabulary, f"{root}/vocab.txt")

    for text, name in ("corpus", "train"), ("heldout", "heldout"):
        records = f"""run/create_pretraining_data.py --flagfile=cpu_data.flags
            --input_file={root}/{text}.txt --output_file={root}/{name}.tfrecord
            --vocab_file={root}/vocab.txt"""
        masking = AS_ORIGINAL if name == "heldout" else ""
        run_step("Pretraining records", f"{records} {masking}".strip())

    pretraining = f"""run/pretrain.py --flagfile=cpu.flags
        --input_file={root}/train.tfrecord
        --eval_input_file={root}/heldout.tfrecord
        --num_train_steps={steps} --num_warmup_steps={steps // 8}"""
    before, after = f"{root}/untrained/{RESULTS}", f"{pretrained}/{RESULTS}"
    untrained = f"{pretraining} --output_dir={root}/untrained --nodo_train"
    run_step("The new model, before training", untrained, before)
    pretraining = f"{pretraining} --output_dir={pretrained}"
    run_step("Pretraining", pretraining, f"{pretrained}/model")
    filling = f"run/fill_mask.py --model_dir={pretrained}/model"
    run_step("The best words for [MASK]", f"{filling} --text={MASKED}")

    # A narrow model learns at a higher rate than in the paper, so one epoch is
    # enough. Compiling for a fourth bucket would take more time than it saves.
    finetuning = f"""run/finetune_classifier.py --task_name=custom
        --train_file={tables[0]} --dev_file={tables[1]}
        --text_column=sentence --label_column=library
        --pretrained_model_dir={pretrained}/model --output_dir={library}
        --do_train --do_eval --max_seq_length=64 --eval_batch_size=64
        --learning_rate=5e-4 --num_train_epochs=1 --num_length_buckets=3"""
    run_step("Fine-tuning", finetuning, f"{library}/model")
    served = f"{library}/served/library"
    export = f"export/savedmodel.py --model_dir={library}/model"
    run_step("Export", f"{export} --output_dir={served}", f"{served}/1")
    answers = ask_server(served)

    from bert_tf.pretraining import samples
    from bert_tf.training import metrics as training_metrics

    before, after = read_results(before), read_results(after)
    scores = files.read_json(f"{library}/eval_results.json")["dev"]
    after["classifier's accuracy"] = scores["accuracy"]
    show(f"\n{'=' * 79}\nOn held-out text:{'before':>22}{'after':>10}")
    for name in (*REQUIRED, "masked_lm_loss"):
        first = f"{before[name]:.3f}" if name in before else ""
        show(f"  {name:<28}{first:>9}{after[name]:>10.3f}")
    rows = training_metrics.read(
        f"{pretrained}/{training_metrics.METRICS_FILE}"
    )
    line = rows[0]["masked_lm_frequency_loss"]
    show(f"  {'loss of word frequencies':<28}{'':>9}{line:>10.3f}")
    show("\nThe likeliest words for a [MASK], before and after:\n")
    show("\n".join(samples.describe(pretrained)))
    show("\nWhich library does a sentence document? On held-out documents:\n")
    show(pathlib.Path(library, "confusion_matrix.txt").read_text("utf-8"))
    show("The server's answers, and those of bert_tf.load_model:")
    own = bert_tf.load_model(f"{library}/model").predict(list(SENTENCES))
    for text, answer, row in zip(SENTENCES, answers, own, strict=True):
        label = f"{answer['label']} {max(answer['probabilities']):.0%}"
        show(f"  {text}\n      {label}, {row['label']}")
    show(
        f"\nPictures are in {pretrained} and {library}."
        "\nTry your own sentences at http://localhost:8501/, with\n"
        f"  {errors.program('run/serve.py')} --model_base_path={served}"
        f"\n{'=' * 79}"
    )
    for name, least in REQUIRED.items():
        if not config.num_train_steps and after[name] < least:
            raise UserError(
                f"The demo's {name} must be {least} or more. Received: "
                f"{after[name]:.3f}; this is a bug, please report it."
            )


def show(text: str) -> None:
    """Prints a text and flushes it, so that it stays in order with the log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_step(title: str, command: str, made: str = "") -> None:
    """Runs a command unless `made`, the last path that it writes, exists."""
    # Split the command only before `--`: a folder's name may contain spaces.
    script, *words = re.split(r"\s+(?=--)", command)
    show(f"\n== {title}\n   {errors.program(script)} {shlex.join(words)}")
    if made and os.path.exists(made):
        show(f"   {made} already exists.")
        return
    name = errors.command(script).replace("-", "_")
    main = importlib.import_module(f"bert_tf.commands.{name}").main
    main(cli.parse(typing.get_type_hints(main)["config"], words))


def ask_server(model_base_path: str) -> list[dict[str, Any]]:
    """Starts a server, returns its answers to `SENTENCES`, and stops it."""
    from bert_tf.serving import server

    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://localhost:{port}/v1/models/library:predict"
    show(f"\n== Serving\n   POST {url}")
    config = ServeConfig(
        model_base_path=model_base_path, rest_api_port=port, port=0
    )
    running = server.ModelServer(config)
    running.start()
    try:
        body = json.dumps({"instances": [{"text": x} for x in SENTENCES]})
        with urllib.request.urlopen(url, body.encode(), 300) as answer:
            return json.load(answer)["predictions"]
    finally:
        running.stop()


def read_results(path: str) -> dict[str, float]:
    """Reads results in the original's format, lines of `name = value`."""
    lines = pathlib.Path(path).read_text("utf-8").splitlines()
    pairs = (line.split(" = ") for line in lines)
    return {name: float(value) for name, value in pairs}


# === The corpus ===

# Skips tests, vendored code, and copies such as TensorFlow's old Keras.
_SKIPPED = re.compile(
    r"/(__pycache__|_api|_vendor|idlelib|lib2to3|(dist|site)-packages|test|"
    r"tests|testing|tensorflow/python/keras|turtledemo)/|_test\.py$"
)
_CODE = re.compile(r"(?ms)^ *(```|~~~).*?(^ *\1|\Z)|^ *>>>.*?(^ *$|\Z)")
_HEADING = re.compile(r"(?m)^ *([A-Z][\w ]*:|[-=~^*#]{3,}|[\w, *]+ : .*)$")
# Blank lines, bullets and `name: text` start a new paragraph.
_PARAGRAPH_BREAK = re.compile(r"\n *\n|\n *(?:[-*+] +|(?=\*{0,2}`?\w+`?: ))")
# Markup to remove: URLs, targets of links (their text stays), names of roles,
# backticks, asterisks and marks of footnotes.
_MARKUP = re.compile(
    r"\[([^\]]*)\]\([^)]*\)|:\w+:(?=`)|[`*]+|https?://\S+|\[[^\]]*\]_"
)
_CODE_SIGN = re.compile(r"[={}\\<>$|]|\w\(")


def write_corpus(
    output_file: str,
    heldout_file: str,
    sentence_files: Sequence[str],
    packages: Sequence[str] = ("numpy", "keras", "tensorflow"),
) -> None:
    """Writes two text files: paragraphs are lines, blank lines end documents.

    Sources are parsed, never imported. Hashes of the documents' names decide
    which documents are held out. `sentence_files` are two .csv files to write,
    one with training sentences and one with held-out sentences; the label of a
    sentence is the library that it documents.
    """
    splits, seen = [[], []], set()
    for library, name, texts in _read_documents(packages):
        paragraphs = [p for text in texts for p in extract_paragraphs(text)]
        fresh = [x for x in dict.fromkeys(paragraphs) if x not in seen]
        seen.update(fresh)
        # Skip shorter documents, which have too little context.
        if len(fresh) >= 2 and sum(len(x.split()) for x in fresh) >= 40:
            digest = hashlib.sha256(name.encode("utf-8")).digest()
            is_heldout = int.from_bytes(digest[:8], "big") / 2**64 < 0.05
            splits[is_heldout].append((library, fresh))
    chosen = choose_sentences(splits)
    for path, rows in zip(sentence_files, chosen, strict=True):
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows([("sentence", "library"), *rows])
        files.write_text(path, text.getvalue())
    for path, documents in (heldout_file, splits[1]), (output_file, splits[0]):
        texts = ["\n".join([*document, ""]) for _, document in documents]
        files.write_text(path, "\n".join(texts))


def choose_sentences(splits: Sequence[Any]) -> Iterator[list[tuple[str, str]]]:
    """Yields unique sentences of each split, the same number per library."""
    from bert_tf.data import corpus

    found = [
        [
            (sentence, library)
            for library, paragraphs in documents
            for paragraph in paragraphs
            for sentence in corpus.split_sentences(paragraph)
        ]
        for documents in splits
    ]
    counts = collections.Counter(x for rows in found for x, _ in rows)
    for rows, limit in zip(found, (4000, 400), strict=True):
        groups = {library: [] for library in sorted({x for _, x in rows})}
        for x, library in rows:
            if counts[x] == 1 and x[0].isupper() and 6 <= len(x.split()) <= 40:
                groups[library].append((x, library))
        count = min([limit, *map(len, groups.values())])
        yield [
            group[number * len(group) // count]
            for group in groups.values()
            for number in range(count)
        ]


def _read_documents(packages: Sequence[str]) -> Iterator[tuple]:
    """Yields (library, name, texts) for each topic, module and class."""
    for name, text in topics.topics.items():
        yield "python", f"topics/{name}", [text]
    folders = {"python": sysconfig.get_paths()["stdlib"]}
    for package in packages:
        if not (spec := importlib.util.find_spec(package)):
            raise UserError(f"The package {package!r} must be installed.")
        folders[package] = spec.submodule_search_locations[0]
    for library, folder in folders.items():
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            name = f"{library}/{path.relative_to(folder).as_posix()}"
            if _SKIPPED.search(f"/{name}"):
                continue
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                tree = ast.parse(path.read_bytes())
                for scope, texts in _read_scope(name, tree):
                    yield library, scope, texts


def _read_scope(name: str, scope: ast.Module) -> Iterator[tuple]:
    """Yields (name, docstrings) of a scope, then of each class in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    members = [scope, *(x for x in scope.body if isinstance(x, functions))]
    yield name, [*filter(None, map(ast.get_docstring, members))]
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _read_scope(f"{name}.{node.name}", node)


def extract_paragraphs(docstring: str) -> list[str]:
    """Returns the prose of a docstring as paragraphs of one line."""
    text = _HEADING.sub("\n", _CODE.sub("", docstring))
    blocks = filter(None, _PARAGRAPH_BREAK.split(text))
    texts = (" ".join(_MARKUP.sub(r"\1", block).split()) for block in blocks)
    return [
        x
        for x in texts
        if (num_words := len(x.split())) >= 6
        and x[-1] in ".!?:"
        and sum(c.isalpha() or c == " " for c in x) >= 0.78 * len(x)
        and len(_CODE_SIGN.findall(x)) <= 0.12 * num_words
    ]
