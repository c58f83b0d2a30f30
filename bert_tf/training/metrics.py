"""Writes training metrics to JSON lines and TensorBoard; describes them."""

import collections
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import files

METRICS_FILE = "train_metrics.jsonl"
SUMMARY_FOLDER = "summaries"
# Scores on held-out records during training have names with this prefix.
HELD_OUT = "held_out_"
# A line of the log has these metrics, in this order and in these formats.
_FORMS = {
    "loss": "loss {:.3f}",
    "masked_lm_accuracy": "masked LM {:.1%}",
    "next_sentence_accuracy": "next sentence {:.1%}",
    "masked_lm_perplexity": "perplexity {:.4g}",
    "masked_lm_frequency_loss": "frequency line {:.3f}",
    "tokens_seen": "{:,.0f} tokens",
    "learning_rate": "learning rate {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
}


class Means:
    """Means of metrics over several steps, for one line of the log.

    One step has few masked tokens, so its metrics are noisy. Metrics without
    sums, such as the learning rate, are from the last step.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._sums: collections.Counter[str] = collections.Counter()
        self._count = 0

    def add(
        self,
        num_steps: int,
        last: Mapping[str, float],
        sums: Mapping[str, float],
    ) -> None:
        """Adds metrics and sums that `TrainingStep.run` returns."""
        self._count += num_steps
        self._last = dict(last)
        self._sums.update(sums)

    def take(self) -> dict[str, float]:
        """Returns the means over the steps since the previous call."""
        means = {name: x / self._count for name, x in self._sums.items()}
        self.restore({})
        return self._last | means

    def state(self) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores."""
        return {"sums": dict(self._sums), "num_steps": self._count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`; {} clears all sums."""
        self._sums = collections.Counter(state.get("sums", {}))
        self._count = state.get("num_steps", 0)


class MetricsLog:
    """Appends metrics to `train_metrics.jsonl` and to TensorBoard's files.

    A line is on disk when `write` returns, even if the process is killed. A
    killed run may have left lines after `start_step`. They are removed, because
    these steps run again.
    """

    def __init__(self, output_dir: str, start_step: int = 0) -> None:
        self.path = os.path.join(output_dir, METRICS_FILE)
        tf.io.gfile.makedirs(output_dir)
        if tf.io.gfile.exists(self.path):
            rows = [row for row in read(self.path) if row["step"] <= start_step]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            if text.encode() != files.read_bytes(self.path):
                files.write_text(self.path, text)
        summaries = os.path.join(output_dir, SUMMARY_FOLDER)
        files.announce(self.path)
        files.announce(summaries)
        self._file = tf.io.gfile.GFile(self.path, "a")
        self._summaries = tf.summary.create_file_writer(summaries)

    def write(
        self, step: int, values: Mapping[str, float], prefix: str = ""
    ) -> None:
        """Writes the metrics of a step as a line; values not finite as null.

        Metrics of training have no prefix.
        """
        line = {"step": step}
        for name, value in values.items():
            line[prefix + name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        files.sync(self.path)
        self.write_summaries(prefix.rstrip("_") or "train", step, values)

    def write_summaries(
        self, group: str, step: int, values: Mapping[str, float]
    ) -> None:
        """Writes TensorBoard summaries `<group>/<name>` only."""
        with self._summaries.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{group}/{name}", value)
        self._summaries.flush()

    def close(self) -> None:
        self._file.close()
        self._summaries.close()


def read(path: str) -> list[dict[str, Any]]:
    """Reads the complete lines of a metrics file.

    Raises `UserError` if a line is not a JSON object with a `step`.
    """
    if not tf.io.gfile.exists(path):
        return []
    lines = files.read_bytes(path).split(b"\n")
    # Drop the part after the last \n, which a killed run may have left.
    lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            int(values["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: expected a JSON object with a `step`. "
                f"Received: {line[:80]!r}; move the file away to resume."
            ) from error
        rows.append(values)
    return rows


def summarize(values: Mapping[str, float]) -> str:
    """Formats the metrics for the progress bar, where 25 columns are free."""
    text = f"loss {values['loss']:.3f}"
    if "masked_lm_accuracy" in values:
        text += f", masked LM {values['masked_lm_accuracy']:.0%}"
    return text


def describe(values: Mapping[str, float]) -> str:
    """Formats the metrics as a line of the log."""
    return ", ".join(
        form.format(values[name])
        for name, form in _FORMS.items()
        if name in values
    )
