"""Demo corpus: documentation text of installed packages, split by library.

Reads `pydoc_data.topics` and the docstrings of the standard library, numpy,
Keras and TensorFlow: several megabytes of technical English. Sources are
parsed, never imported, so none of their code runs.
"""

import ast
import collections
import csv
import hashlib
import importlib.util
import io
import pathlib
import re
import sysconfig
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from pydoc_data import topics

from absl import logging

from bert_tf.data import corpus
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import progress

PACKAGES = ("numpy", "keras", "tensorflow")
COLUMNS = ("sentence", "library")
_PYTHON = "python"  # Label of the standard library.

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
_MIN_WORDS, _MAX_WORDS = 6, 40
_MIN_LETTERS = 0.78  # Share of the characters; spaces count as letters.
_MAX_CODE_SIGNS = 0.12  # Per word.
# Shorter documents teach nothing about the order of sentences.
_MIN_PARAGRAPHS, _MIN_DOCUMENT_WORDS = 2, 40
_HELDOUT_SHARE = 0.05
# The most sentences per library for training and for evaluation.
_SENTENCES_PER_LIBRARY = (4000, 400)


def write_corpus(
    output_file: str,
    heldout_file: str,
    sentence_files: tuple[str, str] | None = None,
    packages: Sequence[str] = PACKAGES,
) -> None:
    """Writes two text files: a paragraph per line, blank lines in between.

    A paragraph appears once, so the two files share none. The names of the
    documents alone decide which are held out. The same packages give the same
    files.

    Args:
      output_file: Gets the training documents; written last.
      heldout_file: Gets the held-out documents.
      sentence_files: Two .csv files for sentences of the training and held-out
        documents, labeled with the library that each documents.
      packages: Installed packages to read, besides the standard library.

    Raises:
      UserError: If a package is not installed.
    """
    splits: list[list[tuple[str, list[str]]]] = [[], []]
    documents = _drop_repetition(_read_documents(packages))
    for library, name, paragraphs in documents:
        splits[_hash_share(name) < _HELDOUT_SHARE].append((library, paragraphs))
    if sentence_files:
        chosen = choose_sentences(splits, _SENTENCES_PER_LIBRARY)
        for path, rows in zip(sentence_files, chosen, strict=True):
            files.write_text(path, to_csv(rows))
    for path, documents in zip(
        (heldout_file, output_file), reversed(splits), strict=True
    ):
        texts = ["\n".join([*document, ""]) for _, document in documents]
        files.write_text(path, "\n".join(texts))
        logging.info("%s: %d documents.", path, len(texts))


def extract_paragraphs(docstring: str) -> list[str]:
    """Returns the paragraphs of prose of a docstring, one line each."""
    text = _CODE.sub("", docstring)
    paragraphs = (
        " ".join(_MARKUP.sub(r"\1", block).split())
        for block in _PARAGRAPH_BREAK.split(_HEADING.sub("\n", text))
        if block
    )
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def choose_sentences(
    splits: Sequence[Sequence[tuple[str, Sequence[str]]]],
    limits: Sequence[int],
) -> list[list[tuple[str, str]]]:
    """Chooses unique sentences of each split, equally many per library.

    Args:
      splits: Pairs of library and paragraphs, for each document of each split.
      limits: The most sentences per library in each split.

    Returns:
      Pairs of sentence and library for each split, ordered by library.
    """
    found = []
    for documents in splits:
        sentences = collections.defaultdict(list)
        for library, paragraphs in documents:
            for paragraph in paragraphs:
                sentences[library] += corpus.split_sentences(paragraph)
        found.append(sentences)
    counts = collections.Counter(
        x for split in found for group in split.values() for x in group
    )
    chosen = []
    for split, limit in zip(found, limits, strict=True):
        usable = {
            library: [
                x
                for x in group
                if counts[x] == 1
                and x[0].isupper()
                and _MIN_WORDS <= len(x.split()) <= _MAX_WORDS
            ]
            for library, group in sorted(split.items())
        }
        count = min([limit, *map(len, usable.values())])
        chosen.append(
            [
                (group[number * len(group) // count], library)
                for library, group in usable.items()
                for number in range(count)
            ]
        )
    return chosen


def to_csv(rows: Sequence[tuple[str, str]]) -> str:
    """Returns the rows as .csv text with a header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue()


def _read_documents(
    packages: Sequence[str],
) -> Iterator[tuple[str, str, list[str]]]:
    """Yields library, name and paragraphs of topics, modules and classes."""
    for name, text in topics.topics.items():
        yield _PYTHON, f"topics/{name}", extract_paragraphs(text)
    folders = {_PYTHON: sysconfig.get_paths()["stdlib"]}
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"The package {package!r} is not installed; the demo corpus "
                "needs its docstrings."
            )
        folders[package] = spec.submodule_search_locations[0]
    sources = []
    for library, folder in folders.items():
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            name = f"{library}/{path.relative_to(folder).as_posix()}"
            if not _SKIPPED.search(f"/{name}"):
                sources.append((library, name, path))
    with progress.bar(len(sources), "reading docstrings", "file") as bar:
        for library, name, path in sources:
            bar.update()
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                continue
            for scope, paragraphs in _read_scope(name, tree):
                yield library, scope, paragraphs


def _read_scope(
    name: str, scope: ast.Module | ast.ClassDef
) -> Iterator[tuple[str, list[str]]]:
    """Yields a scope with its functions, then the classes in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    members = [scope, *(x for x in scope.body if isinstance(x, functions))]
    docstrings = filter(None, map(ast.get_docstring, members))
    yield name, [p for text in docstrings for p in extract_paragraphs(text)]
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _read_scope(f"{name}.{node.name}", node)


def _drop_repetition(
    documents: Iterable[tuple[str, str, list[str]]],
) -> Iterator[tuple[str, str, list[str]]]:
    """Drops paragraphs that came before, then documents that are too short."""
    seen: set[str] = set()
    for library, name, paragraphs in documents:
        fresh = [x for x in dict.fromkeys(paragraphs) if x not in seen]
        seen.update(fresh)
        num_words = sum(len(x.split()) for x in fresh)
        if len(fresh) >= _MIN_PARAGRAPHS and num_words >= _MIN_DOCUMENT_WORDS:
            yield library, name, fresh


def _is_prose(text: str) -> bool:
    """Returns whether text reads like a sentence, not like code or a title."""
    num_words = len(text.split())
    letters = sum(x.isalpha() or x == " " for x in text)
    return (
        num_words >= _MIN_WORDS
        and text[-1] in ".!?:"
        and letters >= _MIN_LETTERS * len(text)
        and len(_CODE_SIGN.findall(text)) <= _MAX_CODE_SIGNS * num_words
    )


def _hash_share(name: str) -> float:
    """Returns a number from 0 to 1 that depends on the name alone."""
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
