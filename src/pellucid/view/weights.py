"""Draws the attention of one translation: which source tokens each target token looked at."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpecBase
from torch import Tensor

from pellucid.errors import ShapeError
from pellucid.view.figure import INK, entitle, sheet
from pellucid.view.grid import cell_size, draw_grid, margin
from pellucid.view.labels import Lettering, letter

__all__ = ["attention"]


def attention(
    weights: Float[Tensor, "*heads target source"],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Draw cross-attention: a row for each target token produced, a column for each source token.

    Several heads are drawn as their mean, large, and each by itself beside it, all on one scale from 0 to 1.

    Args:
        weights: (H, T, S) or (T, S), each row over the source.
        source_tokens: S labels.
        target_tokens: T labels, of the tokens that were produced, in their order.
        title: stands over the picture.

    Raises:
        ShapeError: weights that do not match the tokens.

    >>> import torch
    >>> picture = attention(torch.eye(3).expand(2, 3, 3), ["a", "b", "c"], ["x", "y", "z"])
    >>> [axes.get_title() for axes in picture.axes[:3]]
    ['mean of 2 heads', 'head 0', 'head 1']
    """
    shape, needed = tuple(weights.shape), (len(target_tokens), len(source_tokens))
    if len(shape) not in (2, 3) or shape[-2:] != needed or not weights.numel():
        raise ShapeError(
            f"the weights have shape {shape}, but {needed[0]} target and {needed[1]} source tokens need "
            f"{needed} or {('heads', *needed)}, none of them 0; give one sentence with its own tokens"
        )
    lettering = letter([*source_tokens, *target_tokens, title or ""])
    heads = weights.detach().cpu().double().reshape(-1, *needed)
    return _draw(heads, list(source_tokens), list(target_tokens), lettering, title)


def _draw(heads: Tensor, source: list[str], target: list[str], lettering: Lettering, title: str | None) -> Figure:
    """Draw the mean with its tokens, the heads in a block beside it, and the scale."""
    count, rows, columns = heads.shape
    cell = cell_size(max(rows, columns))
    width, height = cell * columns, max(cell * rows, 1.5) + margin(source) + 0.5
    block = _block(count, (height / rows, max(width, 2.5) / columns))
    beside = block.columns * (min(block.cell, 0.7 * cell) * columns + 0.25)
    widths = [width, beside, 0.12] if count > 1 else [width, 0.12]
    figure = sheet(sum(widths) + margin(target) + 1.5, height + 0.4 * bool(title))
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths)
    axes = figure.add_subplot(grid[0])
    image = draw_grid(axes, heads.mean(dim=0), target, source, lettering, matplotlib.colormaps["Blues"])
    axes.set_xlabel("source token (is looked at)", color=INK)
    axes.set_ylabel("target token (looks)", color=INK)
    if count > 1:
        axes.set_title(f"mean of {count} heads", fontsize=10, color=INK)
        _draw_heads(figure, grid[1].subgridspec(block.rows, block.columns), heads)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[-1]))
    bar.set_label("attention weight", color=INK)
    bar.outline.set_visible(False)
    entitle(figure, title, lettering)
    return figure


class Block(NamedTuple):
    """So many rows and columns of small panels, and the inches of a cell's side in them."""

    rows: int
    columns: int
    cell: float


def _block(count: int, room: tuple[float, float]) -> Block:
    """The block of `count` panels with the largest cells, and of those the squarest.

    `room` is what one panel would have, in inches per cell, down and across.

    >>> _block(8, (0.1, 0.4)), _block(4, (0.2, 0.2))
    (Block(rows=2, columns=4, cell=0.05), Block(rows=2, columns=2, cell=0.1))
    """
    down, across = room
    shapes = [(rows, math.ceil(count / rows)) for rows in range(1, count + 1)]
    rows, columns = max(shapes, key=lambda shape: (min(down / shape[0], across / shape[1]), -abs(shape[0] - shape[1])))
    return Block(rows, columns, min(down / rows, across / columns))


def _draw_heads(figure: Figure, block: GridSpecBase, heads: Tensor) -> None:
    """Draw every head small, row by row."""
    for number, head in enumerate(heads):
        axes = figure.add_subplot(block[number // block.ncols, number % block.ncols])
        axes.imshow(head.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest")
        axes.set_anchor("N")
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"head {number}", fontsize=10, color=INK)
        axes.spines[:].set(color="#BBBBBB", linewidth=0.6)
