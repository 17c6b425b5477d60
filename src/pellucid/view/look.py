"""Draws masks: one, or the three of a sentence pair beside each other."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Shaped
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from pellucid.errors import ConfigError, MaskError, ShapeError
from pellucid.masks import Mask
from pellucid.view.figure import BLUE, GREY, INK, VERMILLION, entitle, sheet
from pellucid.view.grid import cell_size, draw_grid, labels_or_numbers, margin
from pellucid.view.labels import Lettering, letter

__all__ = ["mask", "masks"]

TITLES = {
    "encoder": "encoder: source looks at source",
    "decoder": "decoder: target looks at target",
    "cross": "cross: target looks at source",
}


def mask(
    look: Shaped[Tensor, "*ones query key"] | Mask,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    *,
    queries: int | None = None,
    keys: int | None = None,
) -> Figure:
    """Draw one mask: a row for each query, a column for each key, blue where the query may look.

    Args:
        look: (Q, K) or (1, 1, Q, K), bool, True = may look; or a mask of one sample and head, with its size.
        rows: Q labels of the queries; numbers where left out.
        columns: K labels of the keys; numbers where left out.
        title: stands over the picture; of a mask, the mask itself where left out.
        queries: how many rows of a mask to draw.
        keys: how many columns.

    Raises:
        MaskError: a tensor that is not bool, or a mask without its size.
        ShapeError: several masks in one tensor, or labels that do not match it.

    >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
    >>> mask(causal, rows=list("abcde"), title="causal").axes[0].get_ylabel()
    'query (looks)'
    """
    if isinstance(look, Mask):
        if queries is None or keys is None:
            raise MaskError(f"{look!r} was to be drawn without its size; give queries and keys")
        look, title = look.dense(queries, keys), title or repr(look)
    panel = _panel("mask", look, rows, columns)
    lettering = letter([*panel[1], *panel[2], title or ""])
    return _draw([("", *panel)], lettering, title)


def masks(
    looks: Mapping[str, Shaped[Tensor, "..."]],
    rows: Mapping[str, Sequence[str]] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the masks of one sentence pair beside each other, in the order given and on one scale.

    Args:
        looks: by name, as "encoder", "decoder" and "cross": each (Q, K) or (1, 1, Q, K), bool, True = may look.
        rows: by the same names, labels of the queries; numbers where left out.
        columns: by the same names, labels of the keys; numbers where left out.
        title: stands over the picture.

    Raises:
        ConfigError: no masks, or labels for one that is not there.
        MaskError: a mask that is not bool.
        ShapeError: several samples in one mask, or labels that do not match it.
    """
    rows, columns = rows or {}, columns or {}
    strangers = [name for name in (*rows, *columns) if name not in looks]
    if strangers or not looks:
        raise ConfigError(
            f"labels were given for '{strangers[0]}', but the masks are {', '.join(looks)}; use the same names"
            if strangers
            else "no masks were given, but a picture needs one; give {'encoder': look, ...}"
        )
    panels = [_panel(name, look, rows.get(name), columns.get(name)) for name, look in looks.items()]
    lettering = letter([title or "", *looks, *(text for panel in panels for text in (*panel[1], *panel[2]))])
    titles = [TITLES.get(name, name) for name in looks]
    return _draw([(name, *panel) for name, panel in zip(titles, panels, strict=True)], lettering, title)


def _panel(
    name: str, look: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> tuple[Tensor, list[str], list[str]]:
    """One mask as (Q, K) and its labels, checked."""
    if look.dtype != torch.bool:
        raise MaskError(f"{name} is a tensor of {look.dtype}, but a mask is bool, True = may look; compare first")
    shape = tuple(look.shape)
    if look.dim() < 2 or not look.numel() or look.numel() != look.size(-2) * look.size(-1):
        raise ShapeError(
            f"{name} has shape {shape}, but one mask is (Q, K) or (1, 1, Q, K) with at least one of each; "
            "choose one sample and one head"
        )
    cells = look.detach().cpu().reshape(look.shape[-2:])
    queries, keys = cells.shape
    return (
        cells,
        labels_or_numbers(rows, queries, f"queries of {name}, whose shape is {shape}"),
        labels_or_numbers(columns, keys, f"keys of {name}, whose shape is {shape}"),
    )


def _draw(
    panels: Sequence[tuple[str, Tensor, list[str], list[str]]], lettering: Lettering, title: str | None
) -> Figure:
    """Draw the panels from left to right with cells of one size, and what their colours mean below."""
    cell = cell_size(max(size for _, cells, _, _ in panels for size in cells.shape))
    widths = [cell * cells.size(1) for _, cells, _, _ in panels]
    height = max(cell * cells.size(0) + margin(columns) for _, cells, _, columns in panels)
    width = sum(widths) + sum(margin(rows) + 0.5 for _, _, rows, _ in panels)
    figure = sheet(max(width, 5.0), height + 1.2)
    grid = figure.add_gridspec(1, len(panels), width_ratios=widths)
    blind = False
    for place, (name, cells, rows, columns) in enumerate(panels):
        axes = figure.add_subplot(grid[place])
        draw_grid(axes, cells, rows, columns, lettering, ListedColormap([GREY, BLUE]))
        blind |= _mark_blind(axes, cells)
        axes.set_xlabel("key (is looked at)", color=INK)
        axes.set_ylabel("query (looks)", color=INK)
        axes.set_title(lettering.line(name), fontsize=10, color=INK, **lettering.style)
    meanings = [Patch(facecolor=BLUE, label="may look"), Patch(facecolor=GREY, label="may not look")]
    if blind:
        meanings.append(
            Patch(
                facecolor=GREY,
                hatch="////",
                edgecolor=VERMILLION,
                linewidth=0,
                label="blind: may look at nothing",
            )
        )
    figure.legend(handles=meanings, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    entitle(figure, title, lettering)
    return figure


def _mark_blind(axes: Axes, cells: Tensor) -> bool:
    """Hatch the rows that may look at nothing, and say whether there are any."""
    blind = [row for row, looks in enumerate(cells.any(dim=1).tolist()) if not looks]
    for row in blind:
        axes.add_patch(
            Rectangle((-0.5, row - 0.5), cells.size(1), 1, fill=False, hatch="////", edgecolor=VERMILLION, linewidth=0)
        )
    return bool(blind)
