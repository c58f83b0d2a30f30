"""Converts a model from one format to another and reports the result.

Names and shapes are checked first, so nothing is written if a model cannot be
converted. The output directory appears only when it is complete.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Iterable
from collections.abc import Iterator

from bert_tf import errors
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import task_values
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.config import ORIGINAL
from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import paths
from bert_tf.recipes import releases
from bert_tf.text.tokenizer import MAX_CHARS_PER_WORD


def run(config: Flags) -> None:
    """Converts a model and prints a report; an error writes nothing."""
    with locked_output(config) as output:
        source_format = config.source_format or formats.detect(config.input)
        pattern = config.missing_pattern
        stored = formats.read(config.input, source_format, pattern)
        check_complete(stored)
        if config.do_lower_case is not None:
            stored = with_lower_case(stored, config.do_lower_case)
        _check_normalization(config, stored)
        print_now(_describe_source(stored, source_format))
        print_now(_write(output, stored, source_format, config))


@contextlib.contextmanager
def locked_output(config: Flags) -> Iterator[str]:
    """Locks --output and yields the directory to write.

    Raises:
      UserError: If `check_replaced` raises, another process writes to --output,
        or the disk is full.
    """
    output = task_values.check_replaced(config)
    with (
        errors.full_disks(),
        errors.naming(config.output),
        locks.one_writer(output, "--output", is_replaced=True),
    ):
        # Check again: before the lock, another process may have made --output.
        yield task_values.check_replaced(config)


def check_complete(stored: StoredModel) -> None:
    """Raises `UserError` if there is no vocabulary."""
    if stored.vocabulary is None:
        raise UserError(
            f"{stored.path} has no vocabulary, without which no text can be "
            "read; put the vocab.txt that the model was trained with beside "
            "its weights."
        )


def with_lower_case(stored: StoredModel, lower_case: bool) -> StoredModel:
    """Returns the model with lower-casing as --do_lower_case sets it.

    Raises:
      UserError: If the model's own files contradict `lower_case`.
    """
    settings = stored.tokenizer_settings
    if settings["lower_case"] == lower_case:
        return stored
    flag = "--do_lower_case" if lower_case else "--nodo_lower_case"
    if not stored.lower_case_is_derived:
        case = "lower case" if settings["lower_case"] else "cased text"
        raise UserError(
            f"The model in {stored.path} reads {case}, which {flag} "
            "contradicts; drop the flag."
        )
    return dataclasses.replace(
        stored,
        tokenizer_settings={
            **settings,
            "lower_case": lower_case,
            "strip_accents": lower_case,
        },
        report=stored.report.with_notes(f"{flag} overrides this."),
    )


def _check_normalization(config: Flags, stored: StoredModel) -> None:
    """Checks that the target format supports the normalization and pooling."""
    if config.target_format == "bert_tf":
        return
    if stored.normalization != ORIGINAL:
        raise UserError(
            f"The model in {stored.path} was trained with "
            f"normalization={stored.normalization}, which tokenizers of "
            f"--to={config.target_format} do not support; fine-tune it with "
            f"--normalization={ORIGINAL}."
        )
    is_classifier = stored.task["kind"] == "classification"
    if is_classifier and (pooling := stored.task.get("pooling")):
        raise UserError(
            f"The head of {stored.path} reads the {pooling} of all tokens, "
            f"and classifiers of --to={config.target_format} read the pooler; "
            "train it without --few_shot, or export it."
        )


def _write(
    output: str, stored: StoredModel, source_format: str, config: Flags
) -> list[str]:
    write_model = formats.module_of(config.target_format).write_model
    options = {}
    if config.target_format == "bert_tf":
        options["readme"] = _card(stored, source_format, config)
    else:
        stored = stored.with_folded_temperature()
    if config.allow_activation_change:
        options["allow_activation_change"] = True
    with files.atomic_directory(output) as temporary:
        sentences = write_model(temporary, stored, **options)
        if config.target_format == "huggingface":
            card = _card(stored, source_format, config)
            readme = os.path.join(temporary, model_directory.README_FILE)
            files.write_text(readme, card)
        contents = {
            str(path.relative_to(temporary)): path.stat().st_size
            for path in sorted(pathlib.Path(temporary).rglob("*"))
            if path.is_file()
        }
    is_kept = config.target_format in ("bert_tf", "huggingface")
    if stored.max_input_chars_per_word != MAX_CHARS_PER_WORD and not is_kept:
        sentences.append("The format does not keep max_input_chars_per_word.")
    if stored.vocabulary.added_tokens and not is_kept:
        sentences.append(
            "The format does not keep which tokens were added in transformers; "
            "in texts they are split like any words."
        )
    total = sum(contents.values())
    return [
        f"Wrote {config.output} (format {config.target_format}, "
        f"{releases.format_bytes(total)}):",
        *(
            f"  {name}, {releases.format_bytes(size)}"
            for name, size in contents.items()
        ),
        *(f"  {sentence}" for sentence in sentences),
    ]


def _card(stored: StoredModel, source_format: str, config: Flags) -> str:
    kind = stored.task["kind"]
    is_foreign = config.target_format == "huggingface"
    program = cli.program("run/fill_mask.py")
    usage = f'{program} --model_dir=. --text="A [MASK] is here."'
    if kind not in ("pretraining", "masked_lm"):
        usage = 'import bert_tf\nmodel = bert_tf.load_model(".")'
    return model_directory.build_card(
        "A converted BERT",
        f"A BERT of kind {kind}, converted from the format {source_format} "
        f"({paths.base_names(stored.source)}) by run/convert_checkpoint.py of "
        "bert_tf.",
        {
            "Flags": options.for_card(config),
            "Notes": dict(enumerate(stored.report.notes, 1)),
        },
        usage,
        model_directory.card_header(
            stored.task,
            stored.source,
            library="transformers" if is_foreign else "bert_tf",
        ),
    )


def print_now(lines: Iterable[str]) -> None:
    """Writes lines to standard output at once."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _describe_source(stored: StoredModel, source_format: str) -> Iterator[str]:
    config, report = stored.config, stored.report
    numbers = sum(map(math.prod, stored.weights.shapes.values()))
    case = "" if stored.tokenizer_settings["lower_case"] else "not "
    yield f"Read {stored.path} (format {source_format}):"
    yield (
        f"  a BERT of kind {stored.task['kind']}: {config.num_hidden_layers} "
        f"layers of width {config.hidden_size}, {numbers:,} parameters, "
        f"hidden_act {config.hidden_act}"
    )
    yield (
        f"  a vocabulary of {len(stored.vocabulary)} wordpieces; text is "
        f"{case}lower-cased"
    )
    if stored.task.get("labels"):
        yield f"  labels: {', '.join(stored.task['labels'])}"
    if state := stored.optimizer_state:
        slots = sum(x.endswith(weight_map.SLOT_SUFFIXES[0]) for x in state)
        step = ""
        if weight_map.GLOBAL_STEP in state:
            step = f", step {int(state[weight_map.GLOBAL_STEP])}"
        yield f"  the optimizer's state: both moments of {slots} weights{step}"
    yield from (f"  {note}" for note in report.notes)
    yield (
        f"Loaded {len(report.loaded)} weights, {len(report.reshaped)} of them "
        "reshaped."
    )
    for title, names in (
        ("Missing, so initialized", report.missing),
        ("Unused", report.unused),
        ("Not needed", report.expected),
        ("Absent parts", report.absent_heads),
    ):
        if names:
            yield f"{title}: {', '.join(names)}"
