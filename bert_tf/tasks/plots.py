"""Figures of `export.tflite.accuracy`; all others are of `reports`."""

from matplotlib.figure import Figure

from bert_tf import reports


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a width and height in inches."""
    return reports.new_figure("", height, width)


def write_figure(figure: Figure, path: str) -> None:
    """Writes a figure as PNG, atomically."""
    reports.write(path, figure)
