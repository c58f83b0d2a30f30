"""Writes model cards: summary, usage, training data, metrics, versions."""

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

_PACKAGES = ("tensorflow", "tensorflow-text", "keras", "numpy")


def build(
    title: str,
    summary: str,
    sections: Mapping[str, Mapping[str, Any]],
    usage: str,
) -> str:
    """Returns the text of a model card.

    Args:
      title: The heading.
      summary: A paragraph on the model and its purpose.
      sections: Heading to rows of name and value, for instance "Training data",
        "Flags", "Metrics"; an empty section contains "None."
      usage: A command or some lines of Python.

    Returns:
      Markdown, with a last section for the versions of the packages.
    """
    parts = [f"# {title}", summary.strip(), f"```\n{usage.strip()}\n```"]
    for heading, rows in (sections | {"Versions": versions()}).items():
        parts += [f"## {heading}", _table(rows) if rows else "None."]
    return "\n\n".join(parts) + "\n"


def versions() -> dict[str, str]:
    """Returns the versions of Python and of packages that affect results."""
    result = {"python": platform.python_version()}
    for package in (*_PACKAGES, "bert_tf"):
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "not installed as a package"
    return result


def _table(rows: Mapping[str, Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        if isinstance(value, float):
            value = f"{value:.6g}"
        # A bar or a line break would end the cell.
        cell = str(value).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
