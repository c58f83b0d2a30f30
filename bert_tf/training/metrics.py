"""Writes training metrics to JSON lines and TensorBoard; describes them."""

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
# Parts of a line of the log.
_FORMS = {
    "loss": "loss {:.3f}",
    "masked_lm_accuracy": "masked LM {:.1%}",
    "next_sentence_accuracy": "next sentence {:.1%}",
    "masked_lm_perplexity": "perplexity {:.4g}",
    "learning_rate": "rate {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
}


class MetricsLog:
    """Appends metrics to `train_metrics.jsonl` and to TensorBoard's files.

    A line is on disk when `write` returns, even if the process is killed.

    Args:
      start_step: Steps done before. Lines of later steps, which a killed run
        may have written and which will be written again, are removed.
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

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step.

        Values that are not finite become null.
        """
        line = {"step": step}
        for name, value in values.items():
            line[name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        files.sync(self.path)
        self.write_summaries("train", step, values)

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

    Raises:
      UserError: If a line is no JSON object with a `step`.
    """
    if not tf.io.gfile.exists(path):
        return []
    lines = files.read_bytes(path).split(b"\n")
    # A killed run may have written part of the last line.
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
