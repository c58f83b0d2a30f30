"""SQuAD ensembles: combines the n-best files of several systems."""

import math
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import text_files
from bert_tf.tasks.squad.predictions import NbestPrediction
from bert_tf.tasks.squad.predictions import SquadPrediction

# Replaces a probability of 0, which has no logarithm.
_SMALLEST = 1e-300


def read_nbest(path: str) -> dict[str, dict[str, float]]:
    """Reads an nbest_predictions.json.

    Returns:
      Question id to answer to probability.

    Raises:
      UserError: If the file is invalid.
    """
    values = text_files.read_json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold one JSON object, question id to n best. "
            f"Received: {type(values).__name__}."
        )
    return {
        qas_id: _read_entries(entries, f"{path}, question {qas_id!r}")
        for qas_id, entries in values.items()
    }


def combine(
    nbest_files: Sequence[str], version_2_with_negative: bool = False
) -> list[SquadPrediction]:
    """Combines systems by the mean probability of each answer.

    An answer that is not among a system's n best has probability 0 there. The
    null odds are computed from the mean probabilities, so a single system
    keeps its own. The paper does not say how its seven systems were combined.

    Returns:
      The predictions in the order of the first file.

    Raises:
      UserError: If the files have different questions, or lack the empty
        answer that SQuAD 2.0 needs.
    """
    if not nbest_files:
        raise UserError("An ensemble needs the n-best file of a system.")
    systems = [read_nbest(path) for path in nbest_files]
    for path, system in zip(nbest_files, systems, strict=True):
        differing = sorted(systems[0].keys() ^ system.keys())
        if differing:
            raise UserError(
                f"{path} and {nbest_files[0]} must be about the same "
                f"questions. Received: {len(differing)} that are in only one "
                f"of them, as {differing[0]!r}."
            )
    return [
        _combine_question(
            qas_id,
            [system[qas_id] for system in systems],
            version_2_with_negative,
        )
        for qas_id in systems[0]
    ]


def _combine_question(
    qas_id: str,
    systems: Sequence[dict[str, float]],
    version_2_with_negative: bool,
) -> SquadPrediction:
    total: dict[str, float] = {}
    for system in systems:
        for text, probability in system.items():
            total[text] = total.get(text, 0.0) + probability
    # A stable sort: of equal answers, the one that a system named first.
    nbest = tuple(
        NbestPrediction(text, total[text] / len(systems))
        for text in sorted(total, key=lambda text: total[text], reverse=True)
    )
    if not version_2_with_negative:
        return SquadPrediction(qas_id, nbest)
    if "" not in total:
        raise UserError(
            f"Question {qas_id!r} lacks the empty answer in the n-best files, "
            "so they are not of SQuAD 2.0."
        )
    best = max((total[text] for text in total if text), default=0.0)
    return SquadPrediction(
        qas_id, nbest, null_odds=_log(total[""]) - _log(best)
    )


def _read_entries(entries: Any, where: str) -> dict[str, float]:
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{where} must have a list of answers. Received: {entries!r:.40}."
        )
    probabilities = {}
    for number, entry in enumerate(entries):
        text = text_files.require_value(
            entry, "text", str, f"{where}[{number}]"
        )
        probability = entry.get("probability")
        if not isinstance(probability, int | float) or not (
            0 <= probability <= 1
        ):
            raise UserError(
                f"{where}[{number}] must have a 'probability' between 0 and 1. "
                f"Received: {probability!r:.40}."
            )
        probabilities[text] = probability
    return probabilities


def _log(probability: float) -> float:
    return math.log(max(probability, _SMALLEST))
