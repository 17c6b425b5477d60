"""Draws a table of position vectors, and how alike the positions are."""

import matplotlib
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pellucid.errors import ShapeError
from pellucid.view.figure import INK, entitle, sheet
from pellucid.view.labels import letter

__all__ = ["draw_table", "position_table"]


def position_table(
    table: Float[Tensor, "*table"],
    similarity: Float[Tensor, "*similarity"] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a position table: a row for each position, a column for each dimension, zero in white.

    Args:
        table: (length, d_model), as added to the embeddings.
        similarity: (length, length), how alike two positions are (their dot products or cosines, say); a second
            panel where given.
        title: stands over the picture.

    Raises:
        ShapeError: a table that is not a matrix, or a similarity of another length.

    >>> import torch
    >>> len(position_table(torch.zeros(7, 11)).axes)  # the table and its colour bar
    2
    """
    shape = tuple(table.shape)
    if table.dim() != 2 or not table.numel():
        raise ShapeError(
            f"the position table has shape {shape}, but it is (length, d_model) with at least one of each; "
            "choose one table"
        )
    square = (len(table), len(table))
    if similarity is not None and tuple(similarity.shape) != square:
        raise ShapeError(
            f"the similarity has shape {tuple(similarity.shape)}, but the table's shape {shape} "
            f"needs {square}; compare each position with each, as table @ table.T does"
        )
    figure = sheet(6.0 if similarity is None else 10.5, 4.4)
    lettering = letter([title or ""])
    panels = figure.subplots(1, 1 if similarity is None else 2, squeeze=False)[0]
    draw_table(panels[0], table, "dimension", "value")
    panels[0].set_title("" if similarity is None else "table", fontsize=10, color=INK)
    if similarity is not None:
        draw_table(panels[1], similarity, "position", "similarity")
        panels[1].set_title("similarity of positions", fontsize=10, color=INK)
    entitle(figure, title, lettering)
    return figure


def draw_table(
    axes: Axes,
    values: Tensor,
    across: str,
    meaning: str,
    down: str = "position",
    edges: tuple[float, float, float, float] | None = None,
) -> None:
    """Draw a matrix on a scale that is even about zero, with its colour bar; what is NaN stays white.

    Args:
        axes: drawn on.
        values: (rows, columns), the first row at the top.
        across: what the columns count.
        meaning: what a value is.
        down: what the rows count.
        edges: what the left, right, bottom and top edge count; half a cell beyond rows and columns from 0 on by default.
    """
    shown = values.detach().cpu().double()
    finite = shown[shown.isfinite()]
    reach = float(finite.abs().max()) if len(finite) else 0.0
    image = axes.imshow(
        shown.numpy(),
        cmap=matplotlib.colormaps["RdBu_r"],
        vmin=-(reach or 1.0),
        vmax=reach or 1.0,
        aspect="auto",
        interpolation="nearest",
        extent=edges,
    )
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(down, color=INK)
    axes.locator_params(integer=True)
    axes.spines[:].set_visible(False)
    bar = axes.get_figure().colorbar(image, ax=axes, aspect=30, pad=0.02)  # type: ignore[union-attr]
    bar.set_label(meaning, color=INK)
    bar.outline.set_visible(False)
