r"""Pretrains, fine-tunes and serves a tiny BERT on text from this machine.

  python run/demo.py --output_dir=.demo

The documentation of Python and of installed packages becomes a corpus, a
vocabulary, records, a tiny BERT that fills in a [MASK], a classifier, and a
server that runs it on raw text. Each step is a command, which is printed, so
that it can be repeated with any other text. A second run resumes the first.
"""

import ast
import collections
import contextlib
import csv
import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import time
import types
import urllib.request
from collections.abc import Iterator
from collections.abc import Sequence
from pydoc_data import topics
from typing import Any

import bert_tf
from bert_tf.commands import create_pretraining_data
from bert_tf.commands import export_savedmodel
from bert_tf.commands import fill_mask
from bert_tf.commands import finetune_classifier
from bert_tf.commands import learn_vocabulary
from bert_tf.commands import pretrain
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.commands.fill_mask import FillMaskConfig
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.commands.pretrain import PretrainConfig
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files

# Small enough to learn within minutes on two cores.
MODEL = BertConfig(
    vocab_size=8000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=128,
    # About 1 / sqrt(hidden_size). With 0.02, a model this narrow spends
    # thousands of steps on word frequencies before its attention matters.
    initializer_range=0.08,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
SIZES = {"max_seq_length": 64, "max_predictions_per_seq": 10}
TRAIN_STEPS = 4000
# The least that the models must reach on held-out text. Always predicting the
# most common token or label has 0.07, 0.55 and 0.25.
REQUIRED = {
    "masked_lm_accuracy": 0.17,
    "next_sentence_accuracy": 0.57,
    "classifier's accuracy": 0.55,
}
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

    output_dir: str = options.output(".demo", "Directory for all files.")
    num_train_steps: int = options.training(
        0,
        "Pretraining steps; 0 means those that its required scores need.",
        at_least=0,
    )


def main(config: DemoConfig) -> None:
    root = config.output_dir
    steps = config.num_train_steps or TRAIN_STEPS

    show("\n== Corpus: the documentation of Python and its packages")
    corpus, heldout = f"{root}/corpus.txt", f"{root}/heldout.txt"
    tables = f"{root}/library_train.csv", f"{root}/library_dev.csv"
    if not os.path.exists(corpus):
        write_corpus(corpus, heldout, tables)

    vocabulary = f"{root}/vocab.txt"
    flags = learn_vocabulary.LearnVocabularyConfig(
        input_file=corpus,
        output_file=vocabulary,
        vocab_size=MODEL.vocab_size,
        num_unused=99,
    )
    run_step("Vocabulary", learn_vocabulary, flags, vocabulary)

    records = f"{root}/train.tfrecord", f"{root}/heldout.tfrecord"
    for text, made, times in (corpus, records[0], 4), (heldout, records[1], 2):
        flags = CreatePretrainingDataConfig(
            input_file=text,
            output_file=made,
            vocab_file=vocabulary,
            dupe_factor=times,
            **SIZES,
        )
        run_step("Pretraining records", create_pretraining_data, flags)

    # Runs of different lengths have different folders.
    pretrained = f"{root}/pretrained_{steps}_steps"
    bert_config = f"{root}/bert_config.json"
    files.write_text(bert_config, MODEL.to_json())
    flags = PretrainConfig(
        bert_config_file=bert_config,
        input_file=records[0],
        eval_input_file=records[1],
        output_dir=pretrained,
        do_train=True,
        do_eval=True,
        train_batch_size=32,
        eval_batch_size=128,
        learning_rate=1e-3,
        num_train_steps=steps,
        num_warmup_steps=steps // 15,
        iterations_per_loop=100,
        **SIZES,
    )
    new = dataclasses.replace(
        flags, output_dir=f"{root}/untrained", do_train=False
    )
    results = f"{root}/untrained/eval_results.txt"
    run_step("The new model, before training", pretrain, new, results)
    run_step("Pretraining", pretrain, flags, f"{pretrained}/model")
    flags = FillMaskConfig(model_dir=f"{pretrained}/model", text=MASKED)
    run_step("The best words for [MASK]", fill_mask, flags)

    classifier = f"{root}/library_{steps}_steps"
    flags = ClassifierConfig(
        task_name="custom",
        train_file=tables[0],
        dev_file=tables[1],
        text_column="sentence",
        label_column="library",
        pretrained_model_dir=f"{pretrained}/model",
        output_dir=classifier,
        do_train=True,
        do_eval=True,
        max_seq_length=64,
        eval_batch_size=64,
        # Higher than in the paper, because the model is narrow; one epoch over
        # this many sentences is enough.
        learning_rate="5e-4",
        num_train_epochs="1",
        # Few lengths, because compiling each one costs more than it saves.
        num_length_buckets=3,
    )
    run_step("Fine-tuning", finetune_classifier, flags, f"{classifier}/model")

    served = f"{classifier}/served/library"
    flags = SavedModelConfig(model_dir=f"{classifier}/model", output_dir=served)
    run_step("Export", export_savedmodel, flags, f"{served}/1")
    answers = ask_server(served, f"{classifier}/server.log")

    before = read_results(f"{root}/untrained/eval_results.txt")
    after = read_results(f"{pretrained}/eval_results.txt")
    scores = json.loads(_read(f"{classifier}/eval_results.json"))["dev"]
    after["classifier's accuracy"] = scores["accuracy"]
    show(f"\n{'=' * 79}\nOn held-out text:{'before':>22}{'after':>10}")
    for name in (*REQUIRED, "masked_lm_loss", "next_sentence_loss"):
        first = f"{before[name]:.3f}" if name in before else ""
        show(f"  {name:<28}{first:>9}{after[name]:>10.3f}")
    show("\nWhich library does a sentence document? On held-out documents:\n")
    show(_read(f"{classifier}/confusion_matrix.txt"))
    show("The server's answers, and those of bert_tf.load_model:")
    own = bert_tf.load_model(f"{classifier}/model").predict(list(SENTENCES))
    for text, answer, row in zip(SENTENCES, answers, own, strict=True):
        label = f"{answer['label']} {max(answer['probabilities']):.0%}"
        show(f"  {text}\n      {label}, {row['label']}")
    flags = ServeConfig(model_base_path=served)
    url = f"http://localhost:{flags.rest_api_port}"
    text = json.dumps({"instances": [{"text": SENTENCES[0]}]})
    show(
        f"\nPictures are in {pretrained} and {classifier}."
        f"\nTry your own sentences, with curl or at {url}/:\n"
        f"  {cli.command_line('run/serve.py', flags)}\n"
        f"  curl -d '{text}' {url}/v1/models/library:predict\n{'=' * 79}"
    )
    for name, least in REQUIRED.items():
        if not config.num_train_steps and after[name] < least:
            raise UserError(
                f"The demo's {name} must be {least} or more. Received: "
                f"{after[name]:.3f}; this is a bug, please report it."
            )


def show(text: str) -> None:
    """Prints a text at once, in order with the log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_step(
    title: str, command: types.ModuleType, flags: Any, made: str = ""
) -> None:
    """Runs a command, unless the file or folder exists that it writes last."""
    script = f"run/{command.__name__.split('.')[-1]}.py"
    script = script.replace("run/export_", "export/")
    show(f"\n== {title}\n   {cli.command_line(script, flags)}")
    if made and os.path.exists(made):
        show(f"   {made} already exists.")
    else:
        command.main(flags)


def ask_server(model_base_path: str, log_file: str) -> list[dict[str, Any]]:
    """Starts a server, returns its answers to `SENTENCES`, and stops it."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    flags = ServeConfig(
        model_base_path=model_base_path, rest_api_port=port, port=0
    )
    command = cli.command_line("run/serve.py", flags)
    url = f"http://localhost:{port}/v1/models/library"
    show(f"\n== Serving\n   {command}\n   POST {url}:predict")
    words = [x for x in shlex.split(command) if x.startswith("--")]
    words = [sys.executable, "-m", "bert_tf", "serve", *words]
    body = json.dumps({"instances": [{"text": text} for text in SENTENCES]})
    with open(log_file, "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while server.poll() is None and time.monotonic() < deadline:
            # Connections are refused, then 404, until the model is loaded.
            with contextlib.suppress(OSError):
                request = f"{url}:predict", body.encode("utf-8"), 300
                with urllib.request.urlopen(*request) as answer:
                    return json.load(answer)["predictions"]
            time.sleep(0.5)
    finally:
        server.terminate()
        server.wait()
    raise UserError(f"run/serve.py must serve {url}; see {log_file}.")


def read_results(path: str) -> dict[str, float]:
    """Reads results in the original's format: one `name = value` a line."""
    pairs = (line.split(" = ") for line in _read(path).splitlines())
    return {name: float(value) for name, value in pairs}


def _read(path: str) -> str:
    return pathlib.Path(path).read_text("utf-8")


# === The corpus ===

# Tests, vendored code and copies, such as the older Keras inside TensorFlow.
_SKIPPED = re.compile(
    r"/(__pycache__|_api|_vendor|idlelib|lib2to3|(dist|site)-packages|test|"
    r"tests|testing|tensorflow/python/keras|turtledemo)/|_test\.py$"
)
_CODE = re.compile(r"(?ms)^ *(```|~~~).*?(^ *\1|\Z)|^ *>>>.*?(^ *$|\Z)")
_HEADING = re.compile(r"(?m)^ *([A-Z][\w ]*:|[-=~^*#]{3,}|[\w, *]+ : .*)$")
# Blank lines separate paragraphs; bullets and `name: text` begin new ones.
_PARAGRAPH_BREAK = re.compile(r"\n *\n|\n *(?:[-*+] +|(?=\*{0,2}`?\w+`?: ))")
# Links lose their address; roles, quotes, emphasis and footnotes vanish.
_MARKUP = re.compile(
    r"\[([^\]]*)\]\([^)]*\)|:\w+:(?=`)|[`*]+|https?://\S+|\[[^\]]*\]_"
)
_CODE_SIGN = re.compile(r"[={}\\<>$|]|\w\(")


def write_corpus(
    output_file: str,
    heldout_file: str,
    sentence_files: Sequence[str] = (),
    packages: Sequence[str] = ("numpy", "keras", "tensorflow"),
) -> None:
    """Writes two text files: a paragraph per line, blank lines in between.

    Sources are parsed, never imported. A document's name alone decides whether
    it is held out. `sentence_files` are two .csv files with sentences of the
    two, labeled with the library that each documents.
    """
    splits, seen = [[], []], set()
    for library, name, paragraphs in _read_documents(packages):
        fresh = [x for x in dict.fromkeys(paragraphs) if x not in seen]
        seen.update(fresh)
        # Shorter documents teach nothing about the order of sentences.
        if len(fresh) >= 2 and sum(len(x.split()) for x in fresh) >= 40:
            digest = hashlib.sha256(name.encode("utf-8")).digest()
            is_heldout = int.from_bytes(digest[:8], "big") / 2**64 < 0.05
            splits[is_heldout].append((library, fresh))
    chosen = choose_sentences(splits) if sentence_files else ()
    for path, rows in zip(sentence_files, chosen, strict=True):
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows([("sentence", "library"), *rows])
        files.write_text(path, text.getvalue())
    for path, documents in (heldout_file, splits[1]), (output_file, splits[0]):
        texts = ["\n".join([*document, ""]) for _, document in documents]
        files.write_text(path, "\n".join(texts))


def choose_sentences(
    splits: Sequence[Any], limits: Sequence[int] = (4000, 400)
) -> Iterator[list[tuple[str, str]]]:
    """Yields each split's whole, unique sentences, as many of each library."""
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
    for rows, limit in zip(found, limits, strict=True):
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
    """Yields library, name and paragraphs of topics, modules and classes."""
    for name, text in topics.topics.items():
        yield "python", f"topics/{name}", extract_paragraphs(text)
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
                for scope, paragraphs in _read_scope(name, tree):
                    yield library, scope, paragraphs


def _read_scope(name: str, scope: ast.Module) -> Iterator[tuple]:
    """Yields a scope with its functions, then the classes in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    members = [scope, *(x for x in scope.body if isinstance(x, functions))]
    docstrings = filter(None, map(ast.get_docstring, members))
    yield name, [p for text in docstrings for p in extract_paragraphs(text)]
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _read_scope(f"{name}.{node.name}", node)


def extract_paragraphs(docstring: str) -> list[str]:
    """Returns the paragraphs of prose of a docstring, one line each."""
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
