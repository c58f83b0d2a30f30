"""The report of text extraction: counts, shares, samples and a plot."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.figure import Figure

from bert_tf import reports
from bert_tf.corpus import filters
from bert_tf.corpus import judging
from bert_tf.corpus import writing
from bert_tf.corpus.documents import NUM_SAMPLES
from bert_tf.corpus.documents import Tally
from bert_tf.corpus.fingerprints import Fingerprints

# Reasons to drop a paragraph. The plot of documents leaves them out.
_PARAGRAPHS = (
    filters.SHORT_PARAGRAPH,
    filters.FEW_LETTERS,
    judging.DUPLICATE_PARAGRAPH,
    judging.REPEATED_LINE,
)
_KEPT = "kept"
_HELDOUT = "held out"
# Warn above this number of repeats: a model memorizes text read so often.
_MANY_TIMES = 10


def tally_decisions(
    fingerprints: Fingerprints,
    decisions: judging.Decisions,
    judged: writing.Judged,
) -> Tally:
    """Counts and samples the texts that the decisions drop."""
    tally = Tally()
    chosen: dict[str, list[int]] = {"documents": [], "paragraphs": []}
    sides = (
        ("documents", fingerprints.ids, fingerprints.sizes),
        ("paragraphs", fingerprints.paragraphs, fingerprints.lengths),
    )
    for side, hashes, sizes in sides:
        decided = getattr(decisions, side)
        counts = np.bincount(decided, minlength=len(judging.REASONS))
        for number in np.flatnonzero(counts[1:]) + 1:
            positions = np.flatnonzero(decided == number)
            lowest = np.argsort(hashes[positions], kind="stable")[:NUM_SAMPLES]
            chosen[side] += positions[lowest].tolist()
            reason = tally.reasons[judging.REASONS[number]]
            reason.count += len(positions)
            reason.characters += int(sizes[positions].sum())
    for one in writing.dropped_at(judged, **chosen):
        tally.sample(one)
    return tally


def build(
    tally: Tally,
    written: Mapping[str, writing.Written],
    languages: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the report as JSON values.

    `written` has the counts of each file by path. `languages` is the result of
    `share_languages`, or None if no language is given.
    """
    ordered = sorted(
        tally.reasons.items(), key=lambda item: (-item[1].characters, item[0])
    )
    report = {
        "files": {path: vars(counts) for path, counts in written.items()},
        "dropped": {
            name: vars(reason)
            | {
                "samples": [
                    {"id": name, "text": text}
                    for _, name, text in reason.samples
                ],
            }
            for name, reason in ordered
        },
    }
    if languages is not None:
        report["languages"] = languages
    return report


def share_languages(
    names: Sequence[str], before: np.ndarray, after: np.ndarray
) -> dict[str, Any]:
    """Returns each language's characters and share before and after sampling.

    `before` and `after` are numbers of characters, float [languages].
    """
    return {
        name: {
            "characters_before": int(before[number]),
            "characters": int(after[number]),
            "share_before": float(before[number] / max(before.sum(), 1)),
            "share": float(after[number] / max(after.sum(), 1)),
        }
        for number, name in enumerate(names)
    }


def draw(report: Mapping[str, Any]) -> Figure:
    """Returns the plot: documents, characters, and shares of languages."""
    dropped = report["dropped"]
    kept = _kept(report)
    documents = {name: counts["documents"] for name, counts in kept.items()}
    documents |= {
        name: reason["count"]
        for name, reason in dropped.items()
        if name not in _PARAGRAPHS
    }
    characters = {name: counts["characters"] for name, counts in kept.items()}
    characters |= {name: x["characters"] for name, x in dropped.items()}
    languages = report.get("languages") or {}
    figure, panels = reports.new_panels(
        "Text that was kept and dropped",
        [len(x) for x in (documents, characters, languages) if x],
    )
    drawn = {"Documents": documents, "Characters": characters}
    for axes, (title, values) in zip(panels, drawn.items(), strict=False):
        colors = [
            reports.BLUE if name in kept else reports.ORANGE for name in values
        ]
        reports.draw_bars(axes, [*values], {"": [*values.values()]}, [colors])
        reports.finish(axes, "x", title)
    if languages:
        shares = {
            label: [100 * x[name] for x in languages.values()]
            for label, name in (
                ("before sampling", "share_before"),
                ("as written", "share"),
            )
        }
        colors = (reports.GRAY, reports.BLUE)
        reports.draw_bars(
            panels[2], [*languages], shares, colors, text="{:.1f}%"
        )
        reports.finish(panels[2], "x", "Languages, % of the characters")
        reports.add_legend(figure)
    return figure


def _kept(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Returns the counts of the text and, if given, of the held-out text."""
    sums = {_KEPT: {"documents": 0, "characters": 0}}
    counts = [*report["files"].values()]
    if report["recipe"]["flags"]["heldout_share"]:
        sums[_HELDOUT] = counts.pop()
    for each in counts:
        for name in sums[_KEPT]:
            sums[_KEPT][name] += each[name]
    return sums


def log(report: Mapping[str, Any]) -> None:
    """Logs what was written and dropped, in a few lines."""
    for path, counts in report["files"].items():
        logging.info(
            "%s: %d documents, %d paragraphs, %.1f million characters.",
            path,
            counts["documents"],
            counts["paragraphs"],
            counts["characters"] / 1e6,
        )
    for name, counts in report.get("languages", {}).items():
        factor = counts["characters"] / max(counts["characters_before"], 1)
        if factor > _MANY_TIMES:
            logging.warning(
                "--language_sampling repeats the text of %r %.0f times, which "
                "a model learns by heart; add text, or raise it toward 1.",
                name,
                factor,
            )
    for reason, dropped in report["dropped"].items():
        logging.info("Dropped %d: %s.", dropped["count"], reason)
