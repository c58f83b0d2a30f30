"""Creates pretraining data: records, manifest, vocabulary and report.

All file names start with the output file's name, so data sets can share a
folder. A data set is finished once its manifest exists. `<output_file>.work`
keeps the work of an unfinished data set, so that the same command resumes.
"""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.figure import Figure

from bert_tf import errors
from bert_tf import reports
from bert_tf.data.generators import masks
from bert_tf.data.generators import original as original_generator
from bert_tf.data.generators import streaming as streaming_generator
from bert_tf.data.generators.counts import GenerationResult
from bert_tf.data.generators.counts import RecordCounts
from bert_tf.data.records import manifest
from bert_tf.errors import UserError
from bert_tf.errors import WorkerEndedError
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import run_folder
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

_GENERATORS = {
    "original": original_generator.generate,
    "streaming": streaming_generator.generate,
}

# Warn above this share of pairs with a random B. Sentences as lines give 54%.
# Paragraphs as lines give 73%: a chunk of one line always has a random B.
_MOST_RANDOM_NEXT = 0.6
_NUM_LENGTH_BARS = 32


@errors.full_disks()
def create(config: Flags) -> manifest.Manifest:
    """Creates the data set or resumes; does nothing if it is finished.

    Raises:
      UserError: If the input is unsuitable, or if the output exists and was
        made with other flags or input.
    """
    config.require_beam()
    names = _output_names(config)
    config = _resolve(config)
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
    generate = _GENERATORS[config.generator]
    if config.runner:
        # Imported here because Apache Beam is optional.
        from bert_tf.data import beam

        generate = beam.generate
    with run_folder.RunFolder(
        names[0],
        manifest.flatten(recipe),
        lambda: [*map(_find_finished, names)],
        _work_dir(config, names[0]),
    ) as run:
        if config.overwrite_output_dir:
            run.start_over(paths.inputs_of(config))
        if run.ends_at_once():
            return manifest.read(names[0])
        others = [x for name in names for x in _other_files(name)]
        is_resumed = run.resume([*output_files, *others])
        try:
            result = generate(
                config, input_files, tokenizer, output_files, run.work_dir
            )
            made = _finish(config, names, recipe, vocabulary, result)
        except WorkerEndedError:
            raise  # The work folder stays, so the same command can resume.
        except UserError:
            # Delete the run's record, or a rerun on corrected text is refused.
            if not (is_resumed or any(map(files.exists, output_files))):
                run.discard()
            raise
        run.finish()
    return made


def _output_names(config: Flags) -> list[str]:
    """Returns the names in `--output_file`: files, or one name for shards."""
    names = list(options.values(config, "output_file"))
    options.require(
        not config.num_shards or len(names) == 1,
        "With --num_shards, --output_file must name one file. Received: "
        f"{config.output_file!r}.",
    )
    for name in names:
        files.require_writable(name, "--output_file")
    return names


def _resolve(config: Flags) -> Flags:
    """Fills in defaults that depend on other flags."""
    defaults = {
        "strip_accents": config.do_lower_case,
        "split_sentences": config.generator == "streaming",
    }
    given = options.set_values(config, *defaults)
    return dataclasses.replace(config, **defaults | given)


def _other_files(name: str) -> list[str]:
    """Returns the files next to the records; the manifest is the last one."""
    return [
        *reports.paths_of(name),
        manifest.vocabulary_path(name),
        manifest.manifest_path(name),
    ]


def _find_finished(name: str) -> run_folder.Made | None:
    """Returns the files in a manifest of any version, or None without one."""
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
    return run_folder.Made(
        manifest.flatten(values), sizes | {path: None}, extras
    )


def _work_dir(config: Flags, name: str) -> str:
    if "://" in name and not config.runner:
        # Workers map files of this folder into memory, so use a local folder.
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return os.path.join(tempfile.gettempdir(), f"bert_tf-{key}.work")
    return f"{name}.work"


def _finish(
    config: Flags,
    names: Sequence[str],
    recipe: dict[str, Any],
    vocabulary: Vocabulary,
    result: GenerationResult,
) -> manifest.Manifest:
    """Writes the report, the vocabulary and, last, the manifest.

    The manifest must be the last file, because it marks the data set complete.
    """
    made = manifest.Manifest(
        **recipe,
        generator=config.generator,
        seed=config.random_seed,
        vocab_size=len(vocabulary),
        do_lower_case=config.do_lower_case,
        strip_accents=bool(config.strip_accents),
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        files=result.files,
        num_documents=result.num_documents,
        num_sentences=result.num_sentences,
        counts=result.counts.to_dict(),
        random_next_share=result.counts.random_next_share,
    )
    report = build_report(config, result)
    for name in names:
        figure = draw_report(report, os.path.basename(name))
        reports.write_report(name, report, figure)
        vocabulary.write(manifest.vocabulary_path(name))
        made.write(name)
    log_report(report)
    return manifest.read(names[0])


# === The report: expected and actual statistics, with a plot ===


def build_report(config: Flags, result: GenerationResult) -> dict[str, Any]:
    """Returns the report as JSON values."""
    counts = result.counts
    instances = max(1, counts.num_instances)
    predicted = max(1, counts.num_predicted)
    return {
        "num_documents": result.num_documents,
        "num_sentences": result.num_sentences,
        "num_instances": counts.num_instances,
        "num_pieces": counts.num_pieces,
        "num_predicted": counts.num_predicted,
        "mean_length": counts.num_pieces / instances,
        "padding_share": 1
        - counts.num_pieces / (instances * config.max_seq_length),
        "masked_share": counts.num_predicted / max(1, counts.num_pieces),
        "replaced_by_mask_share": counts.num_masked / predicted,
        "kept_share": counts.num_same / predicted,
        "replaced_by_random_share": counts.num_random / predicted,
        "random_next_share": counts.random_next_share,
        "truncated_share": counts.num_truncated / instances,
        "asked": _expected_shares(config),
        "length_histogram": _length_bars(config, counts),
        "warnings": _warnings(config, result),
    }


def _expected_shares(config: Flags) -> dict[str, float]:
    rates = (config.mask_rate, config.same_rate, config.random_rate)
    if config.left_to_right:
        rates = (0.0, 1.0, 0.0)  # Nothing is masked.
    return {
        "masked_share": config.masked_lm_prob,
        "replaced_by_mask_share": rates[0],
        "kept_share": rates[1],
        "replaced_by_random_share": rates[2],
    }


def _length_bars(config: Flags, counts: RecordCounts) -> list[dict[str, int]]:
    """Returns the number of records in each range of lengths."""
    longest = config.max_seq_length
    width = -(-longest // _NUM_LENGTH_BARS)
    return [
        {
            "from": first,
            "to": min(first + width - 1, longest),
            "records": int(counts.length_histogram[first:][:width].sum()),
        }
        for first in range(1, longest + 1, width)
    ]


def _warnings(config: Flags, result: GenerationResult) -> list[str]:
    lengths = np.arange(len(result.counts.length_histogram))
    # The predictions that each length would have without a maximum.
    predictions = lengths - config.num_special_tokens
    if not config.left_to_right:
        predictions = masks.num_predictions(
            lengths, config.masked_lm_prob, config.max_seq_length
        )
    most = config.max_predictions_per_seq
    cut = result.counts.describe_cut(predictions, most)
    return [*filter(None, (cut, _warn_of_pairs(config, result)))]


def _warn_of_pairs(config: Flags, result: GenerationResult) -> str | None:
    if not config.next_sentence_pairs:
        return None
    if result.num_documents == 1 and result.num_sentences > 1:
        return (
            "The text is one document, so random next sentences come from it, "
            "too, and may be the true ones; put an empty line after each "
            "document."
        )
    share = result.counts.random_next_share
    if share <= _MOST_RANDOM_NEXT:
        return None
    is_random = f"{share:.1%} of the pairs are random instead of about 54%: "
    # A document of one sentence has no next sentence, so its pairs are random.
    if result.num_sentences < 1.5 * result.num_documents:
        return (
            f"{is_random}most documents have one sentence; remove the empty "
            "lines inside documents."
        )
    advice = "write one sentence per line"
    if config.generator != "original" and not config.split_sentences:
        advice = f"set --split_sentences, or {advice}"
    cause = "lines seem to be paragraphs instead of sentences"
    if config.max_seq_length < 128:  # At length 64, 66% are random.
        cause = (
            f"rows of --max_seq_length={config.max_seq_length} hold few "
            "sentences, which is no fault, or lines are paragraphs"
        )
    return f"{is_random}{cause}; {advice}."


def log_report(report: dict[str, Any]) -> None:
    """Logs the report in two lines, and its warnings."""
    for line in (
        "{num_instances} records of {mean_length:.1f} tokens on average from "
        "{num_documents} documents, {num_sentences} sentences.",
        "Predicted {masked_share:.1%} of the tokens: "
        "{replaced_by_mask_share:.1%} as [MASK], {kept_share:.1%} kept, "
        "{replaced_by_random_share:.1%} random. Random next "
        "{random_next_share:.1%}. Truncated {truncated_share:.1%}.",
    ):
        logging.info("%s", line.format_map(report))
    for warning in report["warnings"]:
        logging.warning("%s", warning)


def draw_report(report: dict[str, Any], title: str) -> Figure:
    """Draws the report: lengths, replacements, shares."""
    summary = (
        f"{title}: {report['num_instances']:,} records, "
        f"{report['mean_length']:.1f} tokens on average, "
        f"{report['padding_share']:.1%} padding"
    )
    figure, panels = reports.new_panels(summary, [5, 3, 3])
    bars = report["length_histogram"]
    panels[0].bar(
        [bar["from"] for bar in bars],
        [bar["records"] for bar in bars],
        width=[bar["to"] - bar["from"] + 0.9 for bar in bars],
        align="edge",
        color=reports.BLUE,
    )
    panels[0].set_yscale("symlog")
    panels[0].set(xlabel="tokens in a record", ylabel="records")
    reports.finish(panels[0], "y", "Lengths")

    def draw_bars(axes, title, names, sources):
        series = {
            label: [100 * values[name] for name in names]
            for label, values in sources.items()
        }
        reports.draw_bars(axes, [*names.values()], series, text="{:.1f}")
        axes.set_xlim(0, 112)
        reports.finish(axes, "x", title)

    draw_bars(
        panels[1],
        "Replacements, % of the predicted tokens",
        {
            "replaced_by_mask_share": "[MASK]",
            "kept_share": "kept",
            "replaced_by_random_share": "random",
        },
        {"actual": report, "expected": report["asked"]},
    )
    draw_bars(
        panels[2],
        "Shares, %; the dotted line is the maximum",
        {
            "masked_share": "predicted, of tokens",
            "random_next_share": "random next, of records",
            "truncated_share": "truncated, of records",
        },
        {"": report},
    )
    panels[2].vlines(100 * _MOST_RANDOM_NEXT, 0.5, 1.5, reports.ORANGE, ":")
    reports.add_legend(figure)
    return figure
