"""What becomes of the answers of an export: a check for each signature."""

from collections.abc import Mapping
from collections.abc import Sequence

from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import Client
from bert_tf.export.verify.report import Check


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
    scales = comparison.measure_scales(one.expected for one in planned)
    checks = []
    for signature, pairs in by_signature.items():
        faults: list[str] = []
        largest, num_compared = 0.0, 0
        for one, answer in pairs:
            difference = _compare(one, answer, tolerance, scales)
            faults += [f"{one.what}: {x}" for x in difference.faults]
            largest = max(largest, difference.largest)
            num_compared += difference.num_compared
        if not num_compared and not faults:
            faults.append("nothing was compared")
        checks.append(
            Check(
                f"{signature} by {client.name}",
                f"{len(pairs)} calls, {num_compared:,} values, "
                f"largest difference {largest:.2g}",
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
    return comparison.compare(
        planned.expected, answer.outputs, tolerance, scales
    )
