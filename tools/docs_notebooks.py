"""Converts the notebooks, with their outputs, to pages of the site."""

import pathlib
from typing import Any

import nbconvert
import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = "notebooks/"
# The menu has the notebooks in this order.
_NAMES = (
    *("classify", "few_labels", "tag", "answer_questions", "pretrain"),
    *("serve", "phone"),
)
_OVERVIEW = """# Notebooks

Each runs from a clone in a few minutes on a laptop, with data that it makes
itself or that are in the clone: start Jupyter in `notebooks/`, with the
environment of `make setup`. Outputs and plots here are kept from a run on two
CPU cores; `make notebooks` repeats it.

| notebook | |
|---|---|
"""


def pages() -> tuple[dict[str, str], dict[str, bytes]]:
    """Returns the Markdown of each page, and other files, by path on the site.

    The other files are the pictures and the notebooks themselves.
    """
    texts, others, rows = {}, {}, []
    for name in _NAMES:
        path = ROOT / FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        heading, _, summary = notebook.cells[0].source.partition("\n")
        title = heading.removeprefix("# ")
        summary = " ".join(summary.split("\n\n")[0].split())
        rows.append(f"| [{title}]({name}.md) | {summary} |\n")
        text, pictures = _convert(notebook, name)
        # Use HTML: the hook would turn a Markdown link into a link to a page.
        note = f'<a href="{name}.ipynb" download>Download the notebook</a>'
        texts[f"{FOLDER}{name}.md"] = text.replace(
            heading, f"{heading}\n\n{note}", 1
        )
        others[f"{FOLDER}{name}.ipynb"] = path.read_bytes()
        others |= {f"{FOLDER}{x}": data for x, data in pictures.items()}
    index = {f"{FOLDER}index.md": _OVERVIEW + "".join(rows)}
    return index | texts, others


def _convert(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook as Markdown, and its pictures."""
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(
        notebook,
        resources={"unique_key": name, "output_files_dir": f"{name}_files"},
    )
    return text, resources["outputs"]
