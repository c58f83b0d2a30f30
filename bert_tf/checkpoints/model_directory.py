"""Reads and writes model directories, the project's own model format.

A model directory holds everything that is needed to use the model and refers
to no other files, so it can be moved or copied:

  bert_config.json             the original's keys
  vocab.txt                    the vocabulary, one wordpiece a line
  tokenizer.json               lower case, strip accents, vocabulary hash, ...
  task.json                    kind of model, labels, sequence length, ...
  model.weights.safetensors    the weights, by the original's names
  optimizer_state.safetensors  Adam's moments and the step, if they are known
  README.md                    the model card
  checksums.json               SHA-256 of the files above; the card may change

Models trained on records with an unknown vocabulary lack vocab.txt and
tokenizer.json.

`read_model` also reads the output directory of a training run, which contains a
model directory. If the run is a pretraining run, the weights and the optimizer
state come from its newest checkpoint.
"""

import functools
import importlib.metadata
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import task_values
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tensors import read_safetensors
from bert_tf.checkpoints.tensors import write_safetensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.recipes import releases
from bert_tf.text.vocabulary import Vocabulary

CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
TASK_FILE = "task.json"
WEIGHTS_FILE = "model.weights.safetensors"
OPTIMIZER_FILE = "optimizer_state.safetensors"
README_FILE = "README.md"
CHECKSUMS_FILE = "checksums.json"
# The folder for the model in the output directory of a training run.
MODEL_FOLDER = "model"

_REQUIRED = (CONFIG_FILE, TASK_FILE, WEIGHTS_FILE, README_FILE)
_FORMAT = "bert_tf model directory"
_VERSION = 1
_CHECKSUMS = {
    "format": stored_files.choice(_FORMAT),
    "version": stored_files.integer(_VERSION, _VERSION),
    "sha256": stored_files.Kind(
        "an object from names of files in this folder to texts",
        lambda values: (
            stored_files.OBJECT.fits(values)
            and all(map(stored_files.is_base_name, values))
            and all(map(stored_files.TEXT.fits, values.values()))
        ),
    ),
}
_CHECKPOINT = re.compile(r"model\.ckpt-\d+\.index")
# The model card lists the versions of these packages.
_PACKAGES = ("tensorflow", "tensorflow-text", "keras", "numpy")

# Kind of model -> the task's name on Hugging Face's hub.
_PIPELINES = {
    "classification": "text-classification",
    "question_answering": "question-answering",
    "tagging": "token-classification",
    "multiple_choice": "multiple-choice",
    "pretraining": "fill-mask",
    "masked_lm": "fill-mask",
    "embeddings": "sentence-similarity",
}
_GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")
# The task's name or a data file's name -> the data set's name on the hub.
_DATA_SETS = dict.fromkeys(_GLUE, "nyu-mll/glue") | {
    "train-v1.1.json": "rajpurkar/squad",
    "train-v2.0.json": "rajpurkar/squad_v2",
    "eng.train": "eriktks/conll2003",
}
# A card's header lists only these scores, as the hub shows no others.
_METRIC = re.compile(
    r"(?:(?:subset|masked_lm|macro|micro)_)?(accuracy|f1|precision|recall)|"
    r"exact_match|matthews_correlation|pearson|spearmanr|"
    r"mean_squared_error|mean_absolute_error"
)
_BASE = re.compile(r'^(license|base_model): *"?([^"\n]+?)"? *$', re.MULTILINE)
# The folders in a path such as /a/b.txt or ~/a/b.txt: cards show only b.txt.
_FOLDERS = re.compile(
    r"(?<![\w:/.\])}])(?:~|\.\.?)?/(?:[^\s/,;|'\"()]+/)+(?=[^\s,;|'\"()])"
)


def write(
    path: str,
    config: BertConfig,
    weights: Mapping[str, np.ndarray],
    vocabulary: Vocabulary | None,
    tokenizer_settings: Mapping[str, Any] | None,
    task: Mapping[str, Any],
    readme: str,
) -> None:
    """Writes a model directory, as a whole or not at all.

    An existing directory stays until the new directory is complete.

    Arguments are as for `StoredModel`, and `readme` is the model card. If the
    vocabulary is None, the tokenizer settings are None, too.

    Raises:
      UserError: If the parts of the model do not fit together.
    """
    stored = StoredModel(
        path=path,
        config=config,
        weights=Tensors.from_arrays(weights),
        vocabulary=vocabulary,
        tokenizer_settings=tokenizer_settings,
        task=task,
    )
    with files.atomic_directory(path) as temporary:
        write_model(temporary, stored, readme)


def write_model(
    directory: str, stored: StoredModel, readme: str | None = None
) -> list[str]:
    """Writes the files of a model into an empty directory; see `formats`.

    The default `readme` is a short model card that names the source.
    """
    matching.match(stored.config, stored.weights, "bert_tf", stored.path)
    stored_model.check(stored)
    contents = {
        CONFIG_FILE: stored.config.to_json(),
        README_FILE: readme or default_card(stored),
    } | text_files(stored)
    for name, text in contents.items():
        files.write_text(os.path.join(directory, name), text)
    write_safetensors(os.path.join(directory, WEIGHTS_FILE), stored.weights, {})
    names = [*contents, WEIGHTS_FILE]
    if len(stored.optimizer_state):
        write_safetensors(
            os.path.join(directory, OPTIMIZER_FILE),
            stored.optimizer_state,
            {},
            integers=(weight_map.GLOBAL_STEP,),
        )
        names.append(OPTIMIZER_FILE)
    files.write_json(
        os.path.join(directory, CHECKSUMS_FILE),
        {
            "format": _FORMAT,
            "version": _VERSION,
            "sha256": {
                name: files.sha256(os.path.join(directory, name))
                for name in names
            },
        },
    )
    return []


def text_files(stored: StoredModel) -> dict[str, str]:
    """Returns the files of vocabulary, tokenizer and task: name to contents."""
    contents = {TASK_FILE: _to_json(stored.task)}
    if stored.vocabulary is not None:
        contents[VOCAB_FILE] = stored.vocabulary.to_text()
        contents[TOKENIZER_FILE] = _to_json(stored.tokenizer_settings)
    return contents


def parse_vocabulary(
    contents: Mapping[str, str], source: str
) -> tuple[Vocabulary | None, dict[str, Any] | None]:
    """Returns vocabulary and tokenizer settings; None for both if missing."""
    if VOCAB_FILE not in contents:
        return None, None
    # Split at \n only: a vocabulary may contain other line separators.
    lines = contents[VOCAB_FILE].removesuffix("\n").split("\n")
    settings = stored_files.parse_json(contents[TOKENIZER_FILE], source)
    task_values.check_tokenizer(settings, source)
    return Vocabulary(lines, source, settings.get("added_tokens", ())), settings


def recognizes(path: str) -> bool:
    """Returns whether `read_model` reads `path`."""
    try:
        return _locate(path) is not None
    except (OSError, tf.errors.OpError):
        return False


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a model directory and compares its files with the checksums.

    Args:
      path: A model directory; the output directory of a training run; or a
        run's checkpoint, which then provides weights and optimizer state.
      allow_missing: Pattern for names of tensors that may be missing or unused.
    """
    located = _locate(path)
    if located is None:
        raise UserError(
            "Expected a model directory, as training writes it to "
            f"<output_dir>/{MODEL_FOLDER}. Received: {path!r}, and there is no "
            f"{os.path.join(path, CHECKSUMS_FILE)}."
        )
    directory, checkpoint = located
    names = _check_files(directory)
    config = files.read_bert_config(os.path.join(directory, CONFIG_FILE))
    task_file = os.path.join(directory, TASK_FILE)
    task = stored_files.read_object(task_file)
    task_values.check_task(task, task_file)
    if checkpoint:
        prefix = tf1_checkpoint.find_prefix(checkpoint)
        weights, state, report = tf1_checkpoint.read_weights(
            prefix, config, allow_missing
        )
        report = report.with_notes(
            f"Weights and optimizer state come from the checkpoint {prefix}."
        )
        if weight_map.GLOBAL_STEP in state:
            step = int(state[weight_map.GLOBAL_STEP])
            task[weight_map.GLOBAL_STEP] = step
    else:
        weights, state, report = _read_weights(
            directory, OPTIMIZER_FILE in names, config, allow_missing
        )
    vocabulary = settings = None
    if VOCAB_FILE in names:
        vocabulary = Vocabulary.from_file(os.path.join(directory, VOCAB_FILE))
        tokenizer_file = os.path.join(directory, TOKENIZER_FILE)
        settings = stored_files.read_object(tokenizer_file)
        task_values.check_tokenizer(settings, tokenizer_file)
    stored = StoredModel(
        path=path,
        config=config,
        weights=weights,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task=task,
        optimizer_state=state,
        report=report,
    )
    stored_model.check(stored)
    return stored


def _locate(path: str) -> tuple[str, str | None] | None:
    """Returns (directory, checkpoint to read or None); None for no model."""
    if tf.io.gfile.exists(os.path.join(path, CHECKSUMS_FILE)):
        return path, None
    if tf.io.gfile.isdir(path):
        folder, names = path, tf.io.gfile.listdir(path)
    else:
        folder, name = os.path.split(path.removesuffix(".index"))
        names = [f"{name}.index"]
    directory = os.path.join(folder, MODEL_FOLDER)
    if not tf.io.gfile.exists(os.path.join(directory, CHECKSUMS_FILE)):
        return None
    # The last checkpoint of a fine-tuning run may be newer than the run's
    # model, so read a checkpoint only if `path` names it.
    if folder == path:
        task = stored_files.read_object(os.path.join(directory, TASK_FILE))
        if task.get("kind") != "pretraining":
            return directory, None
    has_checkpoint = any(
        _CHECKPOINT.fullmatch(name)
        and tf.io.gfile.exists(os.path.join(folder, name))
        for name in names
    )
    return (directory, path) if has_checkpoint else None


def _check_files(path: str) -> frozenset[str]:
    """Compares the files with the checksums; returns their names."""
    hashes = read_checksums(path)
    names = frozenset(hashes)
    has_vocabulary = VOCAB_FILE in names
    if not names.issuperset(_REQUIRED) or has_vocabulary != (
        TOKENIZER_FILE in names
    ):
        raise UserError(
            f"{os.path.join(path, CHECKSUMS_FILE)} is incomplete: expected "
            f"{', '.join(_REQUIRED)}, and both or neither of {VOCAB_FILE} and "
            f"{TOKENIZER_FILE}; copy the model directory again."
        )
    for name, expected in hashes.items():
        file = os.path.join(path, name)
        if not stored_files.exists(file):
            raise UserError(
                f"The model directory {path} is incomplete: {name} is missing; "
                "copy it again."
            )
        if name == README_FILE:
            continue  # People and hubs may edit the card.
        actual = files.sha256(file)
        if actual != expected:
            raise UserError(
                f"{file} was changed: its SHA-256 is not the one in "
                f"{CHECKSUMS_FILE}; copy the model directory again or, if you "
                f"have changed the file, put {actual} there."
            )
    return names


def read_checksums(path: str) -> dict[str, str]:
    """Returns file name -> SHA-256, as a model directory lists them.

    Raises `UserError` if checksums.json is damaged or lists files elsewhere.
    """
    file = os.path.join(path, CHECKSUMS_FILE)
    checksums = stored_files.read_object(file)
    stored_files.check(checksums, _CHECKSUMS, file, tuple(_CHECKSUMS))
    return checksums["sha256"]


def _read_weights(
    directory: str,
    has_state: bool,
    config: BertConfig,
    allow_missing: re.Pattern | None,
) -> tuple[Tensors, Tensors, matching.Report]:
    path = os.path.join(directory, WEIGHTS_FILE)
    tensors, _ = read_safetensors(path)
    weights, report = matching.match(
        config, tensors, "bert_tf", path, allow_missing=allow_missing
    )
    state = Tensors.from_arrays({})
    if has_state:
        path = os.path.join(directory, OPTIMIZER_FILE)
        state, _ = read_safetensors(path)
    return matching.with_optimizer_state(
        weights, report, state, path, allow_missing
    )


def default_card(stored: StoredModel, library: str = "bert_tf") -> str:
    """Returns a model card that names the source."""
    return build_card(
        "A BERT",
        f"A BERT of kind {stored.task['kind']}, read from "
        f"{paths.base_names(stored.source)}.",
        {"Notes": dict(enumerate(stored.report.notes, 1))},
        'import bert_tf\nmodel = bert_tf.load_model(".")',
        card_header(stored.task, stored.source, library=library),
    )


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n"


def build_card(
    title: str,
    summary: str,
    sections: Mapping[str, Mapping[str, Any]],
    usage: str,
    header: str = "",
) -> str:
    """Returns a model card in Markdown, with the versions of the packages.

    Cards are published, so the card has only the last part of each path.

    Args:
      title: The heading.
      summary: A paragraph on the model and its purpose.
      sections: Maps headings, such as "Training data" or "Flags", to rows of
        name and value; the card has the word None in an empty section.
      usage: A command or some lines of Python.
      header: The result of `card_header`.
    """
    summary = _FOLDERS.sub("", summary.strip())
    parts = [f"# {title}", summary, f"```\n{usage.strip()}\n```"]
    for heading, rows in (sections | {"Versions": versions()}).items():
        parts += [f"## {heading}", _to_table(rows) if rows else "None."]
    return header + "\n\n".join(parts) + "\n"


def card_header(
    task: Mapping[str, Any],
    source: str = "",
    data_files: Mapping[str, str] | None = None,
    library: str = "bert_tf",
) -> str:
    """Returns the YAML header by which Hugging Face's hub lists a model.

    Args:
      task: The contents of task.json, with the results by split.
      source: Name, revision or path of the converted or initial model. If this
        is a path, the card there provides the license and the base model.
      data_files: Name of a split -> its data file.
      library: The library that loads the model.
    """
    data_files = {k: paths.base_names(x) for k, x in (data_files or {}).items()}
    keys = (task.get("name"), *data_files.values())
    data_set = next((_DATA_SETS[x] for x in keys if x in _DATA_SETS), None)
    base = releases.hub_id(source)
    known = {"base_model": base} if base else _read_base(source)
    for release in releases.releases():
        if base and base == releases.hub_id(release.name):
            known["license"] = release.license.lower()
    pipeline = _PIPELINES.get(task["kind"], "feature-extraction")
    results = []
    for split, scores in task.get("results", {}).items():
        if not isinstance(scores, Mapping):
            continue
        file = data_files.get(split) or task.get("name") or split
        metrics = [
            {"type": found[1] or name, "name": name, "value": round(value, 4)}
            for name, value in scores.items()
            if isinstance(value, float)
            and math.isfinite(value)
            and (found := _METRIC.fullmatch(name))
        ]
        data = {"type": data_set or "custom", "name": file, "split": split}
        result = {"task": {"type": pipeline}, "dataset": data}
        results += [result | {"metrics": metrics}] if metrics else []
    values = {
        "license": "unknown",
        **known,
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": ["bert", "bert_tf", "tensorflow", "keras"],
        "datasets": [data_set] if data_set else None,
        "metrics": sorted({x["type"] for y in results for x in y["metrics"]}),
        "model-index": results
        and [{"name": f"bert-{pipeline}", "results": results}],
    }
    # Write JSON, which is valid YAML: then no package for YAML is needed.
    to_json = functools.partial(json.dumps, ensure_ascii=False)
    lines = [f"{name}: {to_json(x)}" for name, x in values.items() if x]
    return "\n".join(["---", *lines, "---", "", ""])


def _read_base(path: str) -> dict[str, str]:
    """Returns license and base_model in the card of a model on disk."""
    card = read_card(path) if os.path.exists(path) else ""
    if not card.startswith("---\n"):
        return {}
    return dict(_BASE.findall(card.split("\n---", 1)[0]))


def read_card(path: str) -> str:
    """Returns the README.md of a model or of a training run; "" without one."""
    for folder in ("", MODEL_FOLDER):
        file = os.path.join(path, folder, README_FILE)
        if files.exists(file):
            return files.read_small(file).decode("utf-8", "replace")
    return ""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of packages that affect results."""
    result = {"python": platform.python_version()}
    for package in (*_PACKAGES, "bert_tf"):
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "not installed as a package"
    return result


def _to_table(rows: Mapping[str, Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        if isinstance(value, float):
            value = f"{value:.6g}"
        # A bar or a line break would end the cell, so replace them.
        cell = _FOLDERS.sub("", str(value))
        cell = cell.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
