"""Style of plots that are readable at the width of a phone.

The background is white on dark pages, too.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_WIDTH = 4.7  # Inches: at the 360 pixels of a phone, letters have 9.
_DPI = 200
SMALL = 8  # Points.

# Distinguishable for color-blind readers.
BLUE, ORANGE, GRAY, BLACK = "#1f6fb4", "#d95f02", "#767676", "#222222"


def new_figure(title: str, height: float) -> Figure:
    """Returns an empty figure with a title; the height is in inches."""
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    figure.suptitle(wrap(title, 50), fontsize=11)
    return figure


def legend(
    figure: Figure,
    handles: Sequence[Any],
    labels: Sequence[str],
    ncols: int = 1,
) -> None:
    """Adds a legend below the panels."""
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
        fontsize=SMALL,
    )


def wrap(text: str, width: int) -> str:
    """Returns the text with line breaks between words."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    return "\n".join(lines) or text


def finish(axes: Axes, grid: str) -> None:
    """Sets the grid ("x", "y" or "both"), spines and size of the ticks."""
    axes.grid(axis=grid, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
