"""A matrix as a grid of cells, a label beside each row and below each column; masks and attention share it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from torch import Tensor

from pellucid.errors import ShapeError
from pellucid.view.figure import INK
from pellucid.view.labels import Lettering

__all__ = ["cell_size", "draw_grid", "labels_or_numbers", "margin"]

MOST_LABELS = 80  # along one side; past it, every second or third token is named


def cell_size(most: int) -> float:
    """Inches of one cell's side where the longer side has so many: large for few, bounded in all for many."""
    return min(0.45, max(2.6 / most, min(0.24, 9.6 / most)))


def margin(labels: Sequence[str]) -> float:
    """Inches that the longest of the labels takes."""
    return 0.075 * max(map(len, labels), default=0) + 0.1


def labels_or_numbers(labels: Sequence[str] | None, count: int, what: str) -> list[str]:
    """The labels given, one for each of `count`; or numbers from 0.

    Raises:
        ShapeError: more or fewer labels than there are.
    """
    if labels is None:
        return [str(number) for number in range(count)]
    if len(labels) != count:
        raise ShapeError(
            f"{len(labels)} labels were given for {count} {what}; give one label for each, or none for numbers"
        )
    return list(labels)


def draw_grid(
    axes: Axes,
    cells: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    lettering: Lettering,
    colours: Colormap,
) -> AxesImage:
    """Draw cells (rows, columns) of numbers from 0 to 1, row 0 at the top, as squares, with labels that fit."""
    image = axes.imshow(
        cells.numpy(), cmap=colours, vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest", origin="upper"
    )
    axes.set_anchor("N")
    _name(axes, "x", columns, lettering)
    _name(axes, "y", rows, lettering)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    if max(cells.shape) <= MOST_LABELS:
        axes.set_xticks(np.arange(0.5, len(columns) - 1), minor=True)
        axes.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor", color="white", linewidth=0.8)
    return image


def _name(axes: Axes, side: str, labels: Sequence[str], lettering: Lettering) -> None:
    """Name every row or column, or every second or third where there are too many to read."""
    every = -(-len(labels) // MOST_LABELS)
    places = range(0, len(labels), every)
    shown = [lettering.label(labels[place]) for place in places]
    size = 8 if len(labels) <= MOST_LABELS // 2 else 6
    if side == "y":
        axes.set_yticks(places, shown, fontsize=size, **lettering.style)
        return
    upright = all(len(label) <= 2 for label in shown)
    axes.set_xticks(places, shown, fontsize=size, rotation=0 if upright else 90, **lettering.style)
