"""Verifies that an export returns what its model computes.

A fresh process without bert_tf runs the export on texts chosen to reveal
errors. Its answers are compared with those of the library, which loads the
model from the model directory.
"""

import dataclasses
import os
import statistics
import sys
from collections.abc import Mapping
from collections.abc import Sequence

from absl import logging

from bert_tf import keras_backend
from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import graph_file
from bert_tf.export import operators
from bert_tf.export import warmup
from bert_tf.export.artifact import Artifact
from bert_tf.export.verify import by_head
from bert_tf.export.verify import calls as verify_calls
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify import litert as litert_verification
from bert_tf.export.verify import live
from bert_tf.export.verify import weights
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import FreshProcess
from bert_tf.export.verify.report import Check
from bert_tf.export.verify.report import Report
from bert_tf.flags.export import VerifyConfig
from bert_tf.io import files
from bert_tf.io import quiet
from bert_tf.io import stored_files

# The largest allowed difference of numbers, by precision.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def run(config: VerifyConfig) -> None:
    """Runs export/verify.py.

    Raises:
      UserError: If the export is wrong or missing.
    """
    keras_backend.require_tensorflow()
    report = verify(config.export_dir, config.model_dir, config.url)
    sys.stdout.write(report.text())
    report.require_correct()
    sys.stdout.write("The export returns what the model computes.\n")


def verify(
    export_dir: str,
    model_dir: str,
    url: str | None = None,
    python: str = sys.executable,
) -> Report:
    """Compares a published export with its model.

    Args:
      export_dir: A version directory, or the directory above it.
      model_dir: The model directory.
      url: A live server to verify as well, or None.
      python: The Python interpreter of the fresh process.

    Returns:
      The report, whose `faults` are empty if the export is correct.

    Raises:
      UserError: If the export, the model or the server is missing.
    """
    directory = artifacts.find_version(export_dir)
    artifact = artifacts.read(directory)
    stored = checkpoint_loading.read(model_dir, flag="--model_dir")
    report = examine(directory, artifact, stored, url, python)
    checks = (*report.checks, _check_files(directory))
    return dataclasses.replace(report, checks=checks)


def examine(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    url: str | None = None,
    python: str = sys.executable,
    num_timings: int = 0,
    exact_litert: bytes | None = None,
) -> Report:
    """Compares a version directory, published or not, with its model.

    Args:
      directory: The version directory.
      artifact: The description of the export.
      stored: The model.
      url: A live server to verify as well, or None.
      python: The Python interpreter of the fresh process.
      num_timings: The number of timed calls per warm-up request of one row.
      exact_litert: For an export with litert/, the .tflite file of the model
        in float32, if it is known.

    Raises:
      UserError: If the directory has no valid SavedModel, or the server does
        not answer.
    """
    if artifact.precision not in TOLERANCES:
        raise UserError(
            f"The precision of an export must be {' or '.join(TOLERANCES)}. "
            f"Received: {artifact.precision!r}."
        )
    checks = [
        _check_operators(directory),
        _check_weights(directory, artifact, stored),
        _check_vocabulary(directory, stored),
    ]
    signatures = graph_file.read_signatures(directory)
    missing = _missing_signatures(artifact, signatures)
    # Calls would fail, too, and hide the reason.
    if missing or checks[0].faults:
        return Report(directory, stored.path, (*checks, *missing))
    fresh = FreshProcess(
        directory,
        operators.has_text_operators(operators.read(directory)),
        python,
    )
    tolerance = TOLERANCES[artifact.precision]
    planned = _plan(directory, artifact, stored, signatures)
    warmups = _plan_warmups(directory, num_timings)
    answers = fresh.send([x.call for x in (*planned, *warmups)])
    of_warmups = answers[len(planned) :]
    checks += comparison.check_answers(
        planned, answers[: len(planned)], fresh.name, tolerance
    )
    checks.append(_check_warmups(warmups, of_warmups))
    if artifact.litert is not None:
        checks += litert_verification.examine(
            directory, artifact.litert, planned, warmups, exact_litert
        )
    if url is not None:
        checks += live.check(url, artifact, signatures, planned, tolerance)
    return Report(
        directory,
        stored.path,
        tuple(checks),
        tuple(
            statistics.median(answer.milliseconds)
            for answer in of_warmups
            if answer.milliseconds
        ),
    )


def _check_operators(directory: str) -> Check:
    found = operators.read(directory)
    number = len(operators.TEXT_OPERATORS.keys() & found)
    return Check(
        "operators",
        f"{len(found)}, {number} of TensorFlow Text; TensorFlow Serving "
        f"{operators.oldest_serving(found)} and later link them",
        tuple(operators.find_faults(directory)),
    )


def _check_weights(
    directory: str, artifact: Artifact, stored: StoredModel
) -> Check:
    num_layers = None
    if "layer" in artifact.settings:
        layer = artifact.settings["layer"]
        num_layers = layer + 1
        if layer < 0:
            num_layers += stored.config.num_hidden_layers
    return weights.check(directory, stored, num_layers)


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
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    signatures: Mapping[str, graph_file.Signature],
) -> list[Planned]:
    """Returns the calls to make, with their reference outputs."""
    tolerance = TOLERANCES[artifact.precision]
    if artifact.litert is not None:
        tolerance = max(tolerance, litert_verification.TOLERANCE)
    # Silences a warning for every long text.
    with quiet.below(logging.ERROR):
        expected = by_head.build(stored, artifact, directory, tolerance)
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
    artifact: Artifact, signatures: Mapping[str, graph_file.Signature]
) -> list[Check]:
    names = {verify_calls.SERVING}
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
    planned: Sequence[Planned], answers: Sequence[Answer]
) -> Check:
    # TensorFlow Serving does not load a model whose warm-up fails.
    faults = comparison.find_failures(planned, answers)
    if not planned:
        faults.append("there is no request")
    return Check("warm-up", f"{len(planned)} requests", tuple(faults))


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
