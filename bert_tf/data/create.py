"""Creates pretraining data: records, manifest, vocabulary and report.

All names start with that of the output file, so data sets can share a folder. A
data set is finished once its manifest exists. Until then, `<output_file>.work`
stores its recipe, so that the same command resumes after a kill and another one
does not mix its records with these.
"""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf.data.generators import original as original_generator
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.records import manifest
from bert_tf.data.records import report as data_report
from bert_tf.data.records.manifest import Manifest
from bert_tf.data.records.manifest import Recipe
from bert_tf.errors import UserError
from bert_tf.errors import WorkerEndedError
from bert_tf.flags.data import CreatePretrainingDataConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

_GENERATORS = {
    "original": original_generator.generate,
    "streaming": streaming_generator.generate,
}


@errors.full_disks()
def create(config: CreatePretrainingDataConfig) -> Manifest:
    """Creates the data set, resumes it, or finds that it is finished.

    Raises:
      UserError: If the input is unsuitable, or if the output exists and was
        made with other flags or input.
    """
    config.require_beam()
    names = _output_names(config)
    files.require_writable(names[0], "--output_file")
    work_dir = _work_dir(config, names[0])
    # A second process would remove the temporary files of the first.
    with (
        locks.one_writer(work_dir, "--output_file", is_replaced=True),
        errors.naming(work_dir),
    ):
        return _create(_resolve(config), names, work_dir)


def _create(
    config: CreatePretrainingDataConfig, names: Sequence[str], work_dir: str
) -> Manifest:
    input_files = files.expand_globs(config.input_file)
    files.require_file(config.vocab_file, "--vocab_file")
    vocabulary = Vocabulary.from_file(config.vocab_file)
    tokenizer = BertTokenizer(
        vocabulary, config.do_lower_case, config.strip_accents
    )
    recipe = manifest.build_recipe(
        config, input_files, len(names), vocabulary.hash
    )
    output_files = [
        path
        for name in names
        for path in manifest.record_files(name, config.num_shards)
    ]
    if config.overwrite_output_dir:
        _start_over(config, names, work_dir)
    finished = _find_finished(names, output_files, recipe)
    if finished:
        logging.info(
            "%s is already finished with these flags; nothing to do.",
            names[0],
        )
        return finished
    is_new = _begin(names[0], work_dir, output_files, recipe)
    try:
        result = _generator(config)(
            config, input_files, tokenizer, output_files, work_dir
        )
        made = _finish(config, names, recipe, vocabulary, result)
    except WorkerEndedError:
        raise  # The work folder stays, so the same command can resume.
    except UserError:
        # The text is unsuitable: remove the recipe, so it can be corrected.
        if is_new and not any(map(tf.io.gfile.exists, output_files)):
            tf.io.gfile.rmtree(work_dir)
        raise
    tf.io.gfile.rmtree(work_dir)
    return made


def _generator(
    config: CreatePretrainingDataConfig,
) -> Callable[..., GenerationResult]:
    if config.runner:
        # Imported here because Apache Beam is optional.
        from bert_tf.data.generators import beam as beam_data

        return beam_data.generate
    return _GENERATORS[config.generator]


def _output_names(config: CreatePretrainingDataConfig) -> list[str]:
    """Returns the names in `--output_file`: files, or one name for shards."""
    names = [name.strip() for name in config.output_file.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UserError(
            "--output_file must name different files, separated by commas. "
            f"Received: {config.output_file!r}."
        )
    if config.num_shards and len(names) > 1:
        raise UserError(
            "With --num_shards, --output_file must name one file. Received: "
            f"{config.output_file!r}."
        )
    for name in names:
        if tf.io.gfile.isdir(name):
            raise UserError(
                f"--output_file must name a file. Received the folder {name!r}."
            )
    return names


def _resolve(
    config: CreatePretrainingDataConfig,
) -> CreatePretrainingDataConfig:
    """Fills in defaults that depend on other flags."""
    strip_accents = config.strip_accents
    split_sentences = config.split_sentences
    if strip_accents is None:
        strip_accents = config.do_lower_case
    if split_sentences is None:
        split_sentences = config.generator == "streaming"
    return dataclasses.replace(
        config, strip_accents=strip_accents, split_sentences=split_sentences
    )


def _start_over(
    config: CreatePretrainingDataConfig, names: Sequence[str], work_dir: str
) -> None:
    """Removes what an earlier run wrote under the names of the output.

    These are the records that its manifest or its unfinished work lists, the
    manifest, the report, the copy of the vocabulary, and the work folder. A
    file that neither of them lists stays.

    Args:
      config: The flags.
      names: The names in --output_file.
      work_dir: The folder of an unfinished run with these names.

    Raises:
      UserError: If one of the flags names a file that would be removed.
    """
    recipe_file = os.path.join(work_dir, "recipe.json")
    is_unfinished = tf.io.gfile.exists(recipe_file)
    found = []
    for name in names:
        stored = _read_manifest(manifest.manifest_path(name))
        if stored:
            found += manifest.record_paths(name, stored["files"])
            found += [
                manifest.manifest_path(name),
                manifest.vocabulary_path(name),
                *data_report.paths(name),
            ]
        if is_unfinished:
            num_shards = files.read_json(recipe_file)["flags"]["num_shards"]
            found += manifest.record_files(name, num_shards)
    found = [x for x in dict.fromkeys(found) if tf.io.gfile.exists(x)]
    _check_inputs(config, found)
    for path in found:
        tf.io.gfile.remove(path)
    if is_unfinished:
        tf.io.gfile.rmtree(work_dir)
        found.append(work_dir)
    if found:
        logging.info("Starting over: removed %s.", ", ".join(found))


def _read_manifest(path: str) -> dict[str, Any] | None:
    """Returns a manifest of any version of this project, or None."""
    values = files.read_json(path) if tf.io.gfile.exists(path) else None
    is_ours = isinstance(values, dict) and values.get("format") == (
        manifest.FORMAT
    )
    return values if is_ours and isinstance(values.get("files"), dict) else None


def _check_inputs(
    config: CreatePretrainingDataConfig, found: Sequence[str]
) -> None:
    """Raises `UserError` if a file that the flags name would be removed."""
    inputs = {config.vocab_file: "vocab_file"}
    for path in files.expand_globs(config.input_file):
        inputs[path] = "input_file"
    removed = set(map(os.path.realpath, found))
    for path, flag in inputs.items():
        if os.path.realpath(path) in removed:
            raise UserError(
                f"--overwrite_output_dir would remove --{flag}={path}; choose "
                "another --output_file, or give a copy of the file."
            )


def _find_finished(
    names: Sequence[str], output_files: Sequence[str], recipe: Recipe
) -> Manifest | None:
    """Returns the manifest if the data set is complete."""
    manifests = [manifest.read(name) for name in names]
    for name, present in zip(names, manifests, strict=True):
        if present and present.fingerprint != recipe.hash():
            difference = recipe.difference(present)
            raise UserError(
                f"{name} already exists, made with {difference}; use "
                "another --output_file, start over with "
                "--overwrite_output_dir, or delete it and its manifest "
                f"{present.source}."
            )
    if not all(manifests) or not all(map(tf.io.gfile.exists, output_files)):
        return None
    sizes = [tf.io.gfile.stat(path).length for path in output_files]
    stored = [entry["bytes"] for entry in manifests[0].files.values()]
    return manifests[0] if sizes == stored else None


def _work_dir(config: CreatePretrainingDataConfig, name: str) -> str:
    """Returns the folder for the state of a killed run."""
    if "://" in name and not config.runner:
        # Workers map its files into memory, so it must be local.
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return os.path.join(tempfile.gettempdir(), f"bert_tf-{key}.work")
    return f"{name}.work"


def _begin(
    name: str, work_dir: str, output_files: Sequence[str], recipe: Recipe
) -> bool:
    """Creates the work folder, or checks it; returns True if it is new."""
    recipe_file = os.path.join(work_dir, "recipe.json")
    if tf.io.gfile.exists(recipe_file):
        present = Recipe(**files.read_json(recipe_file))
        if present.hash() != recipe.hash():
            raise UserError(
                f"{work_dir} is from an unfinished run with "
                f"{recipe.difference(present)}; finish it with its own flags, "
                "use another --output_file, or start over with "
                "--overwrite_output_dir, which deletes that folder and the "
                "record files of that run."
            )
        logging.info("Resuming from %s.", work_dir)
        _remove_temporaries([*output_files, f"{name}.manifest.json"])
        return False
    present = [path for path in output_files if tf.io.gfile.exists(path)]
    if present and not manifest.read(name):
        raise UserError(
            f"{present[0]} already exists without a manifest; delete it or use "
            "another --output_file."
        )
    files.write_json(recipe_file, dataclasses.asdict(recipe))
    return True


def _remove_temporaries(paths: Sequence[str]) -> None:
    for path in paths:
        for temporary in tf.io.gfile.glob(f"{path}.tmp-*"):
            tf.io.gfile.remove(temporary)


def _finish(
    config: CreatePretrainingDataConfig,
    names: Sequence[str],
    recipe: Recipe,
    vocabulary: Vocabulary,
    result: GenerationResult,
) -> Manifest:
    """Writes report, vocabulary and, last, the manifest."""
    made = Manifest(
        **vars(recipe),
        fingerprint=recipe.hash(),
        generator=config.generator,
        seed=config.random_seed,
        vocab_size=len(vocabulary),
        do_lower_case=config.do_lower_case,
        strip_accents=bool(config.strip_accents),
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        files={
            path: dataclasses.asdict(file)
            for path, file in result.files.items()
        },
        num_documents=result.num_documents,
        num_sentences=result.num_sentences,
        counts=result.counts.to_dict(),
        random_next_share=result.counts.random_next_share,
    )
    report = data_report.build(config, result)
    for name in names:
        data_report.write(name, report)
        vocabulary.write(manifest.vocabulary_path(name))
        made.write(name)
    data_report.log(report)
    return manifest.read(names[0])
