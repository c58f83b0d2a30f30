"""What becomes of the answers of an export: a check for each signature."""

from collections.abc import Mapping
from collections.abc import Sequence

from export import comparison
from export.clients import Answer
from export.clients import Client
from export.replay_plan import Planned
from export.report import Check


def judge(
    planned: Sequence[Planned],
    answers: Sequence[Answer],
    client: Client,
    tolerance: float,
) -> list[Check]:
    """Returns a check for each signature.

    Args:
      planned: The calls.
      answers: What they gave.
      client: Who made them.
      tolerance: How far numbers may be apart.
    """
    by_signature: dict[str, list[tuple[Planned, Answer]]] = {}
    for one, answer in zip(planned, answers, strict=True):
        pairs = by_signature.setdefault(one.call.signature, [])
        pairs.append((one, answer))
    scales = comparison.measure_scales(
        one.expected for one in planned if one.expected is not None
    )
    checks = []
    for signature, pairs in by_signature.items():
        faults: list[str] = []
        largest, num_compared = 0.0, 0
        for one, answer in pairs:
            difference = _compare(one, answer, tolerance, scales)
            faults += [f"{one.what}: {x}" for x in difference.faults]
            largest = max(largest, difference.largest)
            num_compared += difference.num_compared
        detail = f"{len(pairs)} calls, "
        if any(one.expected is not None for one, _ in pairs):
            detail += (
                f"{num_compared:,} values, largest difference {largest:.2g}"
            )
        else:
            detail += "not compared, as nothing is known to compare with"
        checks.append(
            Check(
                f"{signature} by {client.name}",
                detail,
                tuple(faults),
                largest,
            )
        )
    return checks


def _compare(
    planned: Planned,
    answer: Answer,
    tolerance: float,
    scales: Mapping[str, float],
) -> comparison.Difference:
    if answer.error is not None:
        return comparison.Difference(faults=(f"it fails: {answer.error}",))
    if planned.expected is None:
        return comparison.Difference()
    return comparison.compare(
        planned.expected, answer.outputs, tolerance, scales
    )
