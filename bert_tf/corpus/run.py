"""Extracts text: splits the input, extracts, judges, and writes.

`<output_file>.work/` has the finished parts, each named by a hash of its chunk
and the flags, and a list of the complete output files. The report is written
last, so if it exists, nothing is left to do.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_tf import config as configs
from bert_tf import errors
from bert_tf import reports
from bert_tf.corpus import extraction
from bert_tf.corpus import filters
from bert_tf.corpus import fingerprints
from bert_tf.corpus import inputs
from bert_tf.corpus import judging
from bert_tf.corpus import report as corpus_report
from bert_tf.corpus import writing
from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.documents import Tally
from bert_tf.corpus.fingerprints import Fingerprints
from bert_tf.corpus.writing import Judged
from bert_tf.errors import UserError
from bert_tf.flags.options import Flags
from bert_tf.io import compression
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import progress
from bert_tf.io import run_folder
from bert_tf.io import text_files
from bert_tf.io import worker_processes

# Warn if fewer documents than this are held out: the loss is unreliable.
_FEW_HELDOUT = 100


@errors.extras()
@errors.full_disks()
def run(config: Flags) -> dict[str, Any]:
    """Extracts the text or resumes; does nothing if the report exists.

    Returns the report as JSON values. Raises `UserError` if the input is
    unsuitable, or if the output was made with other flags or input.
    """
    config.require_beam()
    names = output_files(config)
    files.require_writable(config.output_file, "--output_file")
    found = inputs.find(config.input_file, config.input_format)
    if config.language_sampling is not None:
        for file in found:
            if not file.language:
                raise UserError(
                    "--language_sampling needs the language of each glob in "
                    "--input_file, as en=GLOB,de=GLOB. Received none for "
                    f"{file.path}."
                )
    filters.check_languages(config.languages)
    recipe = _build_recipe(config, found)
    with run_folder.RunFolder(
        config.output_file, _flatten(recipe), lambda: _find_finished(config)
    ) as run:
        if config.overwrite_output_dir:
            read = (("--input_file", path) for path, *_ in recipe["inputs"])
            run.start_over([*paths.inputs_of(config), *read])
        report, picture = reports.paths_of(config.output_file)
        if run.ends_at_once():
            return text_files.read_json(report)
        # Before the first output file is complete, a run may resume with other
        # flags or input. It reuses the parts that do not change.
        run.resume([*names, picture, report], fits_any=True)
        options = extraction.ExtractOptions(
            config, *_store_excluded(config, run.work_dir)
        )
        made = _make(config, found, options, names, run.work_dir)
        made["recipe"] = recipe
        figure = corpus_report.draw(made)
        reports.write_report(config.output_file, made, figure)
        corpus_report.log(made)
        run.finish()
    return made


def _make(
    config: Flags,
    found: Sequence[inputs.InputFile],
    options: extraction.ExtractOptions,
    names: Sequence[str],
    work_dir: str,
) -> dict[str, Any]:
    processes = config.num_processes or os.cpu_count() or 1
    with worker_processes.pool(processes) as pool:
        folder = os.path.join(work_dir, "parts")
        if config.runner:
            parts = extraction.extract_on_beam(found, options, folder, work_dir)
        else:
            parts = _extract(found, options, pool, processes, folder)
        judged, decisions, prints, tally = _judge(config, parts, work_dir)
        orders, languages = _choose(config, parts, judged, decisions, prints)
        for name, order in orders.items():
            judged.store(name, order)
        tasks = _plan_outputs(config, names, orders, decisions.sizes, judged)
        written = _write(tasks, pool, processes, work_dir)
    return corpus_report.build(tally, written, languages)


def _store_excluded(
    config: Flags, work_dir: str
) -> tuple[str | None, str | None]:
    """Writes the 13-grams of --exclude_file; returns their file and hash."""
    if not config.exclude_file:
        return None, None
    hashes = filters.read_ngrams(config.exclude_file)
    path = os.path.join(work_dir, "excluded.npy")
    with files.atomic_file(path) as temporary, open(temporary, "wb") as file:
        np.save(file, hashes)
    digest = hashlib.blake2b(hashes.tobytes(), digest_size=16)
    return path, digest.hexdigest()


def _extract(
    found: Sequence[inputs.InputFile],
    options: extraction.ExtractOptions,
    pool: Any,
    processes: int,
    folder: str,
) -> list[tuple[str, str]]:
    """Extracts the chunks that have no part yet; returns (part, language)."""
    parts: list[tuple[str, str]] = []
    total = sum(compression.stored_size(file.path) for file in found)
    with progress.bar(total, "extracting text", "B") as bar:

        def tasks() -> Iterator[tuple[Chunk, extraction.ExtractOptions, str]]:
            started = set()
            for file in found:
                for chunk in inputs.split(file, bar.update):
                    key = extraction.part_key(chunk, options)
                    path = extraction.part_path(folder, key)
                    parts.append((path, file.language))
                    if path not in started and not os.path.exists(path):
                        started.add(path)
                        yield chunk, options, path

        for _ in worker_processes.finished(
            pool, processes, extraction.extract, tasks()
        ):
            pass
    return parts


def _judge(
    config: Flags, parts: Sequence[tuple[str, str]], work_dir: str
) -> tuple[Judged, judging.Decisions, Fingerprints, Tally]:
    folder = os.path.join(work_dir, "judged")
    tally, part_sizes = Tally(), []

    def read() -> Iterator[Fingerprints]:
        for path, _ in parts:
            prints, lost = extraction.read_findings(path)
            part_sizes.append(len(prints.ids))
            tally.merge(lost)
            yield prints

    prints = fingerprints.concatenate(read(), folder)
    decisions = judging.decide(prints, config, folder)
    judged = Judged(folder, [path for path, _ in parts])
    judged.store_decisions(decisions, prints.num_paragraphs, part_sizes)
    tally.merge(corpus_report.tally_decisions(prints, decisions, judged))
    if not (decisions.documents == 0).any():
        reasons = ", ".join(
            f"{reason.count} {name}" for name, reason in tally.reasons.items()
        )
        raise UserError(
            f"No text is left of --input_file={config.input_file}; dropped: "
            f"{reasons or 'nothing, as it holds no document'}."
        )
    return judged, decisions, prints, tally


def _choose(
    config: Flags,
    parts: Sequence[tuple[str, str]],
    judged: Judged,
    decisions: judging.Decisions,
    prints: Fingerprints,
) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """Returns document indices of "text" and "heldout", and language shares."""
    is_kept = decisions.documents == 0
    orders = {}
    if config.heldout_share:
        is_heldout = judging.is_heldout(prints.ids, config.heldout_share)
        orders["heldout"] = np.flatnonzero(is_kept & is_heldout)
        is_kept &= ~is_heldout
        _check_heldout(config, len(orders["heldout"]), int(is_kept.sum()))
    names = sorted({language for _, language in parts})
    if not any(names):
        orders["text"] = np.flatnonzero(is_kept)
        return orders, None
    numbers = [names.index(language) for _, language in parts]
    languages = np.repeat(numbers, np.diff(judged.load("first_document")))
    sizes = decisions.sizes * is_kept
    copies = is_kept.astype(np.int64)
    if config.language_sampling is not None:
        copies *= judging.count_copies(
            prints.ids, sizes, languages, config.language_sampling
        )
    # Write each document once before any document twice, so that copies are far
    # apart. With copies = [2, 0, 1], the order is 0 2 0.
    orders["text"] = np.concatenate(
        [np.flatnonzero(copies > i) for i in range(copies.max())]
    )
    return orders, corpus_report.share_languages(
        names,
        np.bincount(languages, sizes, len(names)),
        np.bincount(languages, sizes * copies, len(names)),
    )


def _check_heldout(config: Flags, heldout: int, left: int) -> None:
    """Warns of a small held-out text; raises `UserError` if no text is left."""
    if not left:
        raise UserError(
            f"--heldout_share={config.heldout_share} holds out all {heldout} "
            "documents, so no text is left; lower it."
        )
    if heldout < _FEW_HELDOUT:
        logging.warning(
            "--heldout_share=%g holds out %d of %d documents, too few for a "
            "reliable loss; raise it for %d or more.",
            config.heldout_share,
            heldout,
            heldout + left,
            _FEW_HELDOUT,
        )


def _plan_outputs(
    config: Flags,
    names: Sequence[str],
    orders: dict[str, np.ndarray],
    sizes: np.ndarray,
    judged: Judged,
) -> list[tuple[Judged, str, int, int, str]]:
    """Returns the arguments of `writing.write`; shards are about equal."""
    order = orders["text"]
    shards = max(config.num_shards, 1)
    ends = np.cumsum(sizes[order])
    cuts = np.searchsorted(ends, [ends[-1] * i / shards for i in range(shards)])
    cuts = [0, *cuts[1:].tolist(), len(order)]
    tasks = [
        (judged, "text", start, stop, name)
        for name, start, stop in zip(
            names[:shards], cuts, cuts[1:], strict=False
        )
    ]
    if "heldout" in orders:
        tasks.append((judged, "heldout", 0, len(orders["heldout"]), names[-1]))
    return tasks


def _write(
    tasks: Sequence[tuple[Judged, str, int, int, str]],
    pool: Any,
    processes: int,
    work_dir: str,
) -> dict[str, writing.Written]:
    """Writes the unfinished files; returns the counts of all files."""
    path = os.path.join(work_dir, "written.json")
    stored = text_files.read_json(path) if os.path.exists(path) else {}
    done = {x: y for x, y in stored.items() if os.path.exists(x)}
    # Remove deleted files from written.json before they are written again:
    # after a kill in between, a new file would have the old file's counts.
    files.write_json(path, done)
    missing = [task for task in tasks if task[-1] not in done]
    for task, written in worker_processes.finished(
        pool, processes, writing.write, missing
    ):
        done[task[-1]] = vars(written)
        files.write_json(path, done)
    return {task[-1]: writing.Written(**done[task[-1]]) for task in tasks}


def output_files(config: Flags) -> list[str]:
    """Returns the files to write; the file of held-out text is the last one.

    >>> from bert_tf.commands import extract_text
    >>> config = extract_text.ExtractTextConfig(
    ...     input_file="a", output_file="b.txt.gz", heldout_share=0.1
    ... )
    >>> output_files(config)
    ['b.txt.gz', 'b_heldout.txt.gz']
    """
    path = config.output_file
    if "://" in path:
        raise UserError(
            f"--output_file must be a local path. Received: {path!r}; copy the "
            "files when they are complete."
        )
    folder, name = os.path.split(path)
    compressed = ".gz" if name.endswith(".gz") else ""
    stem, ending = os.path.splitext(name.removesuffix(".gz"))
    ending += compressed
    names = [f"{stem}{ending}"]
    if count := config.num_shards:
        names = [f"{stem}-{i:05d}-of-{count:05d}{ending}" for i in range(count)]
    if config.heldout_share:
        names.append(f"{stem}_heldout{ending}")
    return [os.path.join(folder, name) for name in names]


def _build_recipe(
    config: Flags, found: Sequence[inputs.InputFile]
) -> dict[str, Any]:
    """Returns the recipe: flags, and [path, hash, language] of each input.

    Raises `UserError` if an output file is also an input file.
    """
    effective = configs.fields_affecting(type(config), "weights")
    flags = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name in effective
    }
    read = [(file.path, file.language) for file in found]
    for pattern in filter(None, (config.exclude_file or "").split(",")):
        excluded = inputs.expand(pattern.strip(), "--exclude_file")
        read += [(path, "excluded") for path in excluded]
    outputs = set(map(os.path.realpath, output_files(config)))
    for path, _ in read:
        if os.path.realpath(path) in outputs:
            raise UserError(
                "--output_file must differ from the files that are read. "
                f"Received: {path!r} for both."
            )
    entries = [[path, files.fingerprint(path), kind] for path, kind in read]
    return {"flags": flags, "inputs": entries}


def _flatten(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's values by the names that `run_folder.changes` uses."""
    inputs_text = json.dumps(recipe["inputs"]).encode()
    return {f"--{name}": value for name, value in recipe["flags"].items()} | {
        "the input files": hashlib.sha256(inputs_text).hexdigest()
    }


def _find_finished(config: Flags) -> list[run_folder.Made | None]:
    """Returns the files of an existing report, or [None] without a report."""
    path, picture = reports.paths_of(config.output_file)
    if not os.path.exists(path):
        return [None]
    report = text_files.read_json(path)
    folder = os.path.dirname(path)
    # Paths in the report may be relative to another folder, so use only names.
    names = [os.path.join(folder, os.path.basename(x)) for x in report["files"]]
    made = dict.fromkeys([*names, path])
    return [run_folder.Made(_flatten(report["recipe"]), made, [picture])]
