"""Creates pretraining data: records, manifest, vocabulary and report.

All names start with that of the output file, so data sets can share a folder. A
data set is finished once its manifest exists. Until then, `<output_file>.work`
holds what a kill leaves, so that the same command resumes.
"""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable
from collections.abc import Sequence

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
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import run_folder
from bert_tf.io.run_folder import Made
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

_GENERATORS = {
    "original": original_generator.generate,
    "streaming": streaming_generator.generate,
}


@errors.full_disks()
def create(config: Flags) -> Manifest:
    """Creates the data set, resumes it, or finds that it is finished.

    Raises:
      UserError: If the input is unsuitable, or if the output exists and was
        made with other flags or input.
    """
    config.require_beam()
    names = _output_names(config)
    files.require_writable(names[0], "--output_file")
    return _create(_resolve(config), names)


def _create(config: Flags, names: Sequence[str]) -> Manifest:
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
    with run_folder.RunFolder(
        names[0],
        manifest.flatten(vars(recipe)),
        lambda: [*map(_find_finished, names)],
        _work_dir(config, names[0]),
    ) as run:
        if config.overwrite_output_dir:
            run.start_over(run_folder.inputs_of(config))
        if run.is_finished:
            logging.info(
                "%s is already finished with these flags; nothing to do.",
                names[0],
            )
            run.finish()  # A kill at its very end may have left its work.
            return manifest.read(names[0])
        others = [x for name in names for x in _other_files(name)]
        is_resumed = run.resume([*output_files, *others])
        try:
            result = _generator(config)(
                config, input_files, tokenizer, output_files, run.work_dir
            )
            made = _finish(config, names, recipe, vocabulary, result)
        except WorkerEndedError:
            raise  # The work folder stays, so the same command can resume.
        except UserError:
            # Forgets the recipe, so that unsuitable text can be corrected.
            if not (is_resumed or any(map(files.exists, output_files))):
                run.discard()
            raise
        run.finish()
    return made


def _generator(
    config: Flags,
) -> Callable[..., GenerationResult]:
    if config.runner:
        # Imported here because Apache Beam is optional.
        from bert_tf.data.generators import beam as beam_data

        return beam_data.generate
    return _GENERATORS[config.generator]


def _output_names(config: Flags) -> list[str]:
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
    config: Flags,
) -> Flags:
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


def _other_files(name: str) -> list[str]:
    """Returns the files beside the records; the manifest is the last one."""
    return [
        *data_report.paths(name),
        manifest.vocabulary_path(name),
        manifest.manifest_path(name),
    ]


def _find_finished(name: str) -> Made | None:
    """Returns the files of a manifest of any version of this project."""
    *extras, path = _other_files(name)
    values = files.read_json(path) if files.exists(path) else None
    if not isinstance(values, dict) or values.get("format") != manifest.FORMAT:
        return None
    sizes: dict[str, int | None] = {}
    for record_file in manifest.record_files(
        name, values["flags"].get("num_shards", 0)
    ):
        entry = values["files"].get(manifest.relative_name(record_file, path))
        if entry is None:
            return None  # The manifest was renamed.
        sizes[record_file] = entry["bytes"]
    return Made(manifest.flatten(values), sizes | {path: None}, extras)


def _work_dir(config: Flags, name: str) -> str:
    """Returns the folder for the state of a killed run."""
    if "://" in name and not config.runner:
        # Workers map its files into memory, so it must be local.
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return os.path.join(tempfile.gettempdir(), f"bert_tf-{key}.work")
    return f"{name}.work"


def _finish(
    config: Flags,
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
