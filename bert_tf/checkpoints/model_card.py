"""The model card: what a model is, where it comes from, how good it is."""

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
    """Writes the text of a model card.

    Args:
      title: The heading.
      summary: What the model is and what it is for, in a paragraph.
      sections: Heading to rows of name and value, for instance "Training data",
        "Flags", "Metrics"; an empty section says "none".
      usage: A command or some lines of Python.

    Returns:
      Markdown. The versions of the packages come last by themselves.
    """
    parts = [f"# {title}", summary.strip(), f"```\n{usage.strip()}\n```"]
    for heading, rows in (sections | {"Versions": versions()}).items():
        parts += [f"## {heading}", _table(rows) if rows else "None."]
    return "\n\n".join(parts) + "\n"


def versions() -> dict[str, str]:
    """Returns the versions that a result may depend on."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, "bert_tf"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _table(rows: Mapping[str, Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        if isinstance(value, float):
            value = f"{value:.6g}"
        # A bar or a line end would end the cell.
        cell = str(value).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
