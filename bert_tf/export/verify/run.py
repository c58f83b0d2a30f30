"""Verifies that an export returns what its model computes.

The export is loaded from its files, runs on texts chosen to reveal errors, and
its answers are compared with those of the library, which loads the model from
the model directory. The files in litert/ run in the server's LiteRT engine: in
float32 their outputs must equal the model's; with quantized weights the
differences are only reported.
"""

import dataclasses
import os
import statistics
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import serving_module
from bert_tf.export import warmup
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import registry as heads
from bert_tf.export.serving_module import ATTENTION
from bert_tf.export.serving_module import SERVING
from bert_tf.export.verify import calls as verify_calls
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify.calls import Answer
from bert_tf.export.verify.calls import Call
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.compare import LITE_TOLERANCES
from bert_tf.export.verify.compare import TOLERANCES
from bert_tf.export.verify.compare import Check
from bert_tf.export.verify.compare import Report
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.io import terminal
from bert_tf.serving import errors
from bert_tf.serving.litert import LitertEngine

# Outputs that are decisions; all others are numbers or offsets of words.
_CHOICES = ("answer", "index", "label", "labels", "tags", "tokens")
# Signatures that the engine lacks.
_NOT_IN_LITERT = (ATTENTION,)


def verify(export_dir: str, model_dir: str) -> Report:
    """Compares a published export with its model.

    Args:
      export_dir: A version directory, or the directory above it.
      model_dir: The model directory.

    Returns:
      The report, whose `faults` are empty if the export is correct.

    Raises:
      UserError: If the export or the model is missing.
    """
    directory = artifacts.find_version(export_dir)
    artifact = artifacts.read(directory)
    stored = checkpoint_loading.read(model_dir, flag="--model_dir")
    report = examine(directory, artifact, stored)
    checks = (*report.checks, _check_files(directory))
    return dataclasses.replace(report, checks=checks)


def examine(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    num_timings: int = 0,
    exact_litert: bytes | None = None,
) -> Report:
    """Compares a version directory, published or not, with its model.

    Args:
      directory: The version directory.
      artifact: The description of the export.
      stored: The model.
      num_timings: The number of timed calls per warm-up request of one row.
      exact_litert: For an export with litert/, the .tflite file of the model
        in float32, if it is known.

    Raises:
      UserError: If the directory has no valid SavedModel.
    """
    checks = [_check_vocabulary(directory, stored)]
    signatures = serving_module.read_signatures(directory)
    missing = _missing_signatures(artifact, signatures)
    # Calls would fail, too, and hide the reason.
    if missing:
        return Report(directory, stored.path, (*checks, *missing))
    tolerance = TOLERANCES[artifact.precision]
    planned = _plan(artifact, stored, signatures)
    warmups = _plan_warmups(directory, num_timings)
    answers = call(directory, [x.call for x in (*planned, *warmups)])
    of_warmups = answers[len(planned) :]
    checks += comparison.check_answers(
        planned, answers[: len(planned)], "TensorFlow", tolerance
    )
    checks.append(_check_warmups("warm-up", warmups, of_warmups))
    if artifact.litert is not None:
        checks += examine_litert(
            directory, artifact.litert, planned, warmups, exact_litert
        )
    return Report(directory, stored.path, tuple(checks), _medians(of_warmups))


def call(directory: str, calls: Sequence[Call]) -> list[Answer]:
    """Loads a SavedModel and returns its answer to each call.

    Raises:
      UserError: If it cannot be loaded.
    """
    try:
        signatures = tf.saved_model.load(directory).signatures
    except (tf.errors.OpError, OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory} must be a SavedModel that TensorFlow can load. "
            f"Received: {error}."
        ) from error

    def run(call: Call) -> verify_calls.Arrays:
        inputs = {
            # An empty array of objects has no strings to infer the dtype from.
            name: tf.constant(
                x, tf.string if x.dtype == object else None, x.shape
            )
            for name, x in call.inputs.items()
        }
        outputs = signatures[call.signature](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    return verify_calls.send(calls, run)


def _check_vocabulary(directory: str, stored: StoredModel) -> Check:
    path = os.path.join(directory, artifacts.VOCAB_FILE)
    files.require_file(path, "--export_dir")
    expected = stored.vocabulary.to_text() if stored.vocabulary else ""
    is_same = files.read_bytes(path) == expected.encode("utf-8")
    return Check(
        "vocabulary",
        artifacts.VOCAB_FILE,
        () if is_same else ("it is not the vocabulary of the model",),
    )


def _plan(
    artifact: Artifact,
    stored: StoredModel,
    signatures: Mapping[str, serving_module.Signature],
) -> list[Planned]:
    """Returns the calls to make, with their reference outputs."""
    tolerance = TOLERANCES[artifact.precision]
    if artifact.litert is not None:
        tolerance = max(tolerance, LITE_TOLERANCES["none"])
    # Silences a warning for every long text.
    with terminal.below(logging.ERROR):
        head = heads.restore(artifact, stored)
        expected = Reference(
            artifact.head, head, stored, tolerance, artifact.ids_only
        )
        return verify_calls.plan(expected, signatures)


def _plan_warmups(directory: str, num_timings: int) -> list[Planned]:
    """Returns the warm-up requests; those of one row are timed."""
    calls = warmup.read(os.path.join(directory, artifacts.WARMUP_FILE))
    planned = []
    for number, call in enumerate(calls):
        rows = {len(values) for values in call.inputs.values()}
        if rows == {1}:
            call = dataclasses.replace(call, repeats=num_timings)
        planned.append(Planned(f"request {number}", call, None))
    return planned


def _missing_signatures(
    artifact: Artifact, signatures: Mapping[str, serving_module.Signature]
) -> list[Check]:
    names = {SERVING}
    if not artifact.ids_only:
        names |= {
            verify_calls.FROM_IDS,
            verify_calls.FROM_EXAMPLES,
            verify_calls.TOKENIZE,
        }
    missing = sorted(names - set(signatures))
    if not missing:
        return []
    fault = f"there is no {' and no '.join(missing)}"
    return [Check("signatures", ", ".join(sorted(signatures)), (fault,))]


def _check_warmups(
    name: str, planned: Sequence[Planned], answers: Sequence[Answer]
) -> Check:
    # TensorFlow Serving does not load a model whose warm-up fails.
    faults = comparison.find_failures(planned, answers)
    if not planned:
        faults.append("there is no request")
    return Check(name, f"{len(planned)} requests", tuple(faults))


def _medians(answers: Sequence[Answer]) -> tuple[float, ...]:
    """Returns the median milliseconds of each timed call."""
    times = (answer.milliseconds for answer in answers)
    return tuple(statistics.median(one) for one in times if one)


def _check_files(directory: str) -> Check:
    """Compares the files with the checksums in the model card."""
    path = os.path.join(directory, artifacts.CARD_FILE)
    checksums = files.read_json_object(path).get("sha256")
    if not isinstance(checksums, dict):
        raise UserError(f'{path} must have checksums under "sha256".')
    faults = []
    for name, expected in checksums.items():
        file = os.path.join(directory, name)
        if not stored_files.is_inside(name):
            faults.append(f"{name} is not a file of the export")
            continue
        if not stored_files.exists(file):
            faults.append(f"{name} is missing")
            continue
        actual = files.sha256(file)
        if actual != expected:
            faults.append(f"{name} was changed after the export")
    return Check("files", f"{len(checksums)} with checksums", tuple(faults))


def call_litert(
    directory: str, calls: Sequence[Call], content: bytes | None = None
) -> list[Answer]:
    """Returns the answer of the engine to each call.

    Args:
      directory: The version directory.
      calls: The calls.
      content: The .tflite file, if not the one in the directory.
    """
    engine = LitertEngine()
    servable = engine.load("model", 1, directory, content)

    def run(call: Call) -> dict[str, np.ndarray]:
        signature = servable.signatures[call.signature]
        return servable.run(signature, call.inputs, tuple(signature.outputs))

    def explain(error: Exception) -> str:
        answer = errors.from_exception(error)
        return f"{answer.code_name}: {answer.message}"

    return verify_calls.send(calls, run, explain)


def examine_litert(
    directory: str,
    quantization: str,
    planned: Sequence[Planned],
    warmups: Sequence[Planned],
    exact: bytes | None = None,
) -> list[Check]:
    """Verifies the litert/ part of an export with the planned calls.

    Args:
      directory: The version directory.
      quantization: How the weights are quantized, one of
        `flags.export.LITERT_QUANTIZATIONS`.
      planned: The calls with their reference outputs.
      warmups: Warm-up requests, of which some are timed.
      exact: The .tflite file in float32, if it is known and not the one in the
        directory.

    Raises:
      RequestError: If a part cannot be loaded.
    """
    name = f"LiteRT ({quantization})"
    planned = [x for x in planned if x.call.signature not in _NOT_IN_LITERT]
    sent = planned
    if quantization != "none":
        sent = [x for x in planned if x.call.signature == SERVING]
    answers = call_litert(directory, [x.call for x in (*sent, *warmups)])
    of_warmups, answers = answers[len(sent) :], answers[: len(sent)]
    checks = []
    if quantization == "none":
        checks += comparison.check_answers(
            sent, answers, name, LITE_TOLERANCES["none"]
        )
    else:
        if exact is not None:
            checks += comparison.check_answers(
                planned,
                call_litert(directory, [x.call for x in planned], exact),
                "LiteRT (float32)",
                LITE_TOLERANCES["none"],
            )
        checks.append(_measure(sent, answers, name))
    check = _check_warmups(f"warm-up by {name}", warmups, of_warmups)
    if times := _medians(of_warmups):
        detail = f", one row takes {min(times):.3g} to {max(times):.3g} ms"
        check = dataclasses.replace(check, detail=check.detail + detail)
    return [*checks, check]


def _measure(
    planned: Sequence[Planned], answers: Sequence[Answer], name: str
) -> Check:
    """Reports the difference of numbers and the share of equal decisions."""
    scales = comparison.measure_scales(x.expected for x in planned)
    faults: list[str] = []
    largest, num_equal, num_choices = 0.0, 0, 0
    for one, answer in zip(planned, answers, strict=True):
        if answer.error is not None:
            faults.append(f"{one.description}: it fails: {answer.error}")
            continue
        difference = comparison.compare(
            ReferenceOutputs(_numbers(one.expected.values)),
            _numbers(answer.outputs),
            np.inf,
            scales,
        )
        faults += [f"{one.description}: {x}" for x in difference.faults]
        largest = max(largest, difference.largest)
        equal, choices = _count_equal(one.expected.values, answer.outputs)
        num_equal += equal
        num_choices += choices
    detail = f"{len(planned)} calls, largest difference {largest:.2g}"
    if num_choices:
        detail += (
            f", {num_equal / num_choices:.2%} of {num_choices} decisions agree "
            "with the model"
        )
    return Check(
        f"{SERVING} by {name}",
        detail,
        tuple(faults),
        largest,
    )


def _count_equal(
    expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]
) -> tuple[int, int]:
    """Returns the number of equal decisions, and that of all decisions."""
    num_equal = num_choices = 0
    for name in set(_CHOICES) & set(expected):
        # The axes of an empty batch may differ.
        if not expected[name].size:
            continue
        # Padding is no decision.
        is_choice = (expected[name] != b"") | (actual[name] != b"")
        is_equal = expected[name] == actual[name]
        num_equal += np.count_nonzero(is_equal & is_choice)
        num_choices += np.count_nonzero(is_choice)
    return num_equal, num_choices


def _numbers(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x for name, x in values.items() if x.dtype.kind == "f"}
