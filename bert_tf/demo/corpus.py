"""A corpus that is on the machine already: the documentation in its packages.

`pydoc_data.topics` of Python and the docstrings of the standard library, numpy,
Keras and TensorFlow: several megabytes of technical English. The sources are
parsed, never imported, so nothing of them runs.
"""

import ast
import concurrent.futures
import dataclasses
import hashlib
import importlib.util
import itertools
import multiprocessing
import os
import sysconfig
from collections.abc import Iterator
from collections.abc import Sequence

from absl import logging

from bert_tf.demo import docstring_prose
from bert_tf.demo import docstring_sentences
from bert_tf.demo.docstring_sentences import LabelledDocument
from bert_tf.errors import UserError
from bert_tf.io import progress

PACKAGES = ("numpy", "keras", "tensorflow")

# Tests, vendored code and copies: tensorflow.python.keras is an older keras.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "_api",
    "_vendor",
    "dist-packages",
    "idlelib",
    "include",
    "lib2to3",
    "node_modules",
    "site-packages",
    "test",
    "tests",
    "testing",
    "tensorflow/python/keras",
    "turtledemo",
}
_TOPICS = "pydoc_data.topics"
# Shorter documents teach nothing about the order of sentences.
_MIN_WORDS = 40
_MIN_PARAGRAPHS = 2
_FILES_PER_TASK = 16
# The most to learn from and to measure on.
_SENTENCES_OF_LIBRARY = (4000, 400)


@dataclasses.dataclass(frozen=True)
class Document:
    """The prose of one module, class or topic.

    Attributes:
      name: Its full name, for instance "keras.src.layers.core.dense.Dense".
      paragraphs: One line each.
    """

    name: str
    paragraphs: list[str]


@dataclasses.dataclass
class CorpusCounts:
    """What a corpus was made of.

    Attributes:
      files: Source files read.
      unreadable: Those of them that could not be parsed.
      documents: Documents to learn from.
      heldout_documents: Documents to measure on.
      characters: Characters of all documents.
    """

    files: int = 0
    unreadable: int = 0
    documents: int = 0
    heldout_documents: int = 0
    characters: int = 0


def write_corpus(
    output_file: str,
    heldout_file: str,
    sentence_files: tuple[str, str] | None = None,
    *,
    packages: Sequence[str] = PACKAGES,
    heldout_fraction: float = 0.05,
    num_processes: int = 0,
) -> CorpusCounts:
    """Writes two text files: a paragraph a line, blank lines between documents.

    A paragraph appears once, where it comes first, so that the held-out file
    holds no paragraph of the other. What is held out depends on the names of
    the documents alone. The same packages give the same files.

    Args:
      output_file: Gets the documents to learn from; is complete once it exists,
        and then so are the others.
      heldout_file: Gets the documents to measure on.
      sentence_files: Two .csv files that get sentences of the one and the
        other, and which library each of them documents.
      packages: Installed packages to read, beside the standard library.
      heldout_fraction: Share of documents to hold out.
      num_processes: Processes that parse; 0 means one a core.

    Raises:
      UserError: If a package is not installed.
    """
    # Here: processes that parse need no TensorFlow.
    from bert_tf.io import files

    counts = CorpusCounts()
    texts: dict[bool, list[str]] = {True: [], False: []}
    labelled: dict[bool, list[LabelledDocument]] = {True: [], False: []}
    documents = read_documents(packages, num_processes, counts)
    for document in _drop_repetition(documents):
        text = "\n".join(document.paragraphs) + "\n"
        is_heldout = hash_share(document.name) < heldout_fraction
        texts[is_heldout].append(text)
        library = _library(document.name, packages)
        labelled[is_heldout].append((library, document.paragraphs))
        counts.characters += len(text)
    counts.documents = len(texts[False])
    counts.heldout_documents = len(texts[True])
    if sentence_files:
        chosen = docstring_sentences.choose_sentences(
            (labelled[False], labelled[True]), _SENTENCES_OF_LIBRARY
        )
        for path, rows in zip(sentence_files, chosen, strict=True):
            files.write_text(path, docstring_sentences.to_csv(rows))
    files.write_text(heldout_file, "\n".join(texts[True]))
    files.write_text(output_file, "\n".join(texts[False]))
    logging.info(
        "%s: %d documents, and %d held out, %.1f million characters, of %d "
        "files; %d more could not be parsed.",
        output_file,
        counts.documents,
        counts.heldout_documents,
        counts.characters / 1e6,
        counts.files - counts.unreadable,
        counts.unreadable,
    )
    return counts


def _library(name: str, packages: Sequence[str]) -> str:
    """Returns the package of a document; that of Python itself is "python"."""
    package = name.split(".", maxsplit=1)[0]
    return package if package in packages else "python"


def read_documents(
    packages: Sequence[str], num_processes: int, counts: CorpusCounts
) -> Iterator[Document]:
    """Yields all documents, in the order of packages and files.

    Args:
      packages: Packages beside the standard library.
      num_processes: Processes that parse; 0 means one a core.
      counts: Gets the number of files.
    """
    sources = [*_find_standard_library(), *_find_packages(packages)]
    tasks = [
        sources[start : start + _FILES_PER_TASK]
        for start in range(0, len(sources), _FILES_PER_TASK)
    ]
    # "spawn": a forked copy of a process that runs TensorFlow may hang.
    context = multiprocessing.get_context("spawn")
    with (
        progress.bar(len(sources), "reading docstrings", "file") as bar,
        concurrent.futures.ProcessPoolExecutor(
            num_processes or os.cpu_count(), context
        ) as pool,
    ):
        parsed = pool.map(_parse_files, tasks)
        for task, results in zip(tasks, parsed, strict=True):
            bar.update(len(task))
            counts.files += len(task)
            counts.unreadable += results.count(None)
            for documents in results:
                yield from documents or ()


def hash_share(name: str) -> float:
    """Returns a number from 0 to 1 that depends on the name alone."""
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def parse_source(module: str, source: bytes) -> list[Document]:
    """Returns the documents of one source file: the module's, then classes'.

    A class has the docstrings of its methods, a module those of its functions.

    Args:
      module: The name of the module.
      source: Its text.

    Raises:
      SyntaxError: If it is no Python (of this version).
      ValueError: If it holds null bytes.
    """
    tree = ast.parse(source)
    if module == _TOPICS:
        return list(_parse_topics(tree))
    documents = []
    _parse_scope(module, tree, documents)
    return documents


def _parse_scope(
    name: str, scope: ast.Module | ast.ClassDef, documents: list[Document]
) -> None:
    docstrings = [ast.get_docstring(scope, clean=False)]
    document = Document(name, [])
    documents.append(document)
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            _parse_scope(f"{name}.{node.name}", node, documents)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings.append(ast.get_docstring(node, clean=False))
    for docstring in filter(None, docstrings):
        document.paragraphs.extend(
            docstring_prose.extract_paragraphs(docstring)
        )


def _parse_topics(tree: ast.Module) -> Iterator[Document]:
    """Yields the topics of Python's help: `topics = {name: text, ...}`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in ast.literal_eval(node.value).items():
                yield Document(
                    f"{_TOPICS}.{topic}",
                    docstring_prose.extract_paragraphs(text),
                )


def _parse_files(sources: list[tuple[str, str]]) -> list[list[Document] | None]:
    """Returns each file's documents, or None where it cannot be parsed."""
    results: list[list[Document] | None] = []
    for module, path in sources:
        try:
            with open(path, "rb") as file:
                results.append(parse_source(module, file.read()))
        except (SyntaxError, ValueError, RecursionError, OSError):
            results.append(None)
    return results


def _drop_repetition(documents: Iterator[Document]) -> Iterator[Document]:
    """Drops paragraphs that came before, then documents that are too short."""
    seen: set[str] = set()
    for document in documents:
        paragraphs = []
        for paragraph in document.paragraphs:
            if paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
        words = sum(len(paragraph.split()) for paragraph in paragraphs)
        if len(paragraphs) >= _MIN_PARAGRAPHS and words >= _MIN_WORDS:
            yield Document(document.name, paragraphs)


def _find_standard_library() -> list[tuple[str, str]]:
    return list(_find_sources(sysconfig.get_paths()["stdlib"], ""))


def _find_packages(packages: Sequence[str]) -> list[tuple[str, str]]:
    sources = []
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"The package {package!r} is not installed; its docstrings "
                "belong to the corpus."
            )
        folder = spec.submodule_search_locations[0]
        sources.extend(_find_sources(folder, package))
    return sources


def _find_sources(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """Yields module name and path of each source file, sorted by path."""
    for current, folders, names in os.walk(folder):
        relative = os.path.relpath(current, folder).replace(os.sep, "/")
        parts = [part for part in (package, relative) if part not in ("", ".")]
        prefix = "/".join(parts)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS
            and f"{prefix}/{name}" not in _SKIPPED_FOLDERS
        )
        for name in sorted(names):
            stem, extension = os.path.splitext(name)
            if extension == ".py" and not stem.endswith("_test"):
                module = "/".join(itertools.chain(parts, [stem]))
                module = module.removesuffix("/__init__").replace("/", ".")
                yield module, os.path.join(current, name)
