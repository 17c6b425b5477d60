"""Draws what schemes of positions tell: by position, against the distance, and past the length that was trained."""

from collections.abc import Mapping, Sequence

import matplotlib
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from pellucid.errors import ConfigError
from pellucid.model.positions import Positions
from pellucid.view.figure import BLUE, INK, SOFT, VERMILLION, entitle, sheet
from pellucid.view.labels import Lettering, letter
from pellucid.view.table import draw_table
from pellucid.view.told import Biases, Vectors, ask, likeness, named

__all__ = ["positions"]

MOST_BESIDE = 3  # columns side by side; more would leave none of them readable on a page
MOST_NAMED = 4  # heads that a legend names
OFFSET = "key − query (positions)"


def positions(
    schemes: Mapping[str, Positions] | Sequence[Positions] | Positions,
    length: int,
    trained: int | None = None,
    title: str | None = None,
    *,
    width: int = 64,
) -> Figure:
    """Draw schemes of positions beside each other, two panels each: a table, and how it fades with the distance.

    - What is added to embeddings: position by dimension; below it the cosine of the vectors of two positions, over all
      pairs so far apart their mean, and a band from the least to the most.
    - What turns queries and keys: what is left of each dimension, the cosine of its turn; below it the score of a query
      and a key of ones so far apart, as a share of their score at distance 0.
    - What is added to scores: head by offset, key - query; below it the same as a line for each head.

    A scheme that opens several doors has a column for each. Positions that a scheme refuses to tell are hatched.

    Args:
        schemes: by name, or one, or several, which are then named after their classes.
        length: positions drawn, 0 to length - 1, from 2 up.
        trained: how many positions a model was trained on; a line is drawn where they end, if that is within `length`.
        title: stands over the picture.
        width: numbers in the states, or in a head, given to a scheme that has neither `d_model` nor `head_dim`.

    Raises:
        ConfigError: there are no schemes, one of them is none, or a number is too small.
        ShapeError: a scheme cannot take states of its width, or hands them back in another shape.

    >>> from pellucid.model.positions import ALiBi, Sinusoidal
    >>> picture = positions({"the paper's": Sinusoidal(d_model=6), "ALiBi": ALiBi(num_heads=2)}, length=5)
    >>> [axes.get_title() for axes in picture.axes if axes.images]
    ["the paper's", 'ALiBi']
    """
    if length < 2 or (trained is not None and trained < 1) or width < 1:
        raise ConfigError(
            f"positions were to be drawn with length={length}, trained={trained} and width={width}; give a length from "
            "2 up, and the others from 1 up"
        )
    told = [one for name, scheme in named(schemes) for one in ask(name, scheme, length, width)]
    rows = -(-len(told) // MOST_BESIDE)
    beside = -(-len(told) // rows)
    figure = sheet(max(3.5 * beside, 5.0), 5.4 * rows + 0.6)
    grid = figure.add_gridspec(2 * rows, beside, height_ratios=[1.25, 1.0] * rows)
    lettering = letter([title or "", *(one.name for one in told)])
    for place, one in enumerate(told):
        row, column = divmod(place, beside)
        upper, lower = (figure.add_subplot(grid[2 * row + panel, column]) for panel in (0, 1))
        if isinstance(one, Vectors):
            _draw_vectors(upper, lower, one, length, trained)
        else:
            _draw_biases(upper, lower, one, length, trained)
        _head(upper, one, length, lettering)
    _explain(figure, trained if trained and trained <= length else None, any(one.known < length for one in told))
    entitle(figure, title, lettering)
    return figure


def _draw_vectors(upper: Axes, lower: Axes, told: Vectors, length: int, trained: int | None) -> None:
    """Draw a row for each position, and how alike two positions are by their distance."""
    table = F.pad(told.table, (0, 0, 0, length - told.known), value=torch.nan)
    draw_table(upper, table, "dimension", told.meaning)
    mean, least, most = likeness(told.vectors).tolist()
    lower.plot(range(told.known), mean, color=BLUE, linewidth=1.8, label="mean")
    if any(high - low > 1e-6 for low, high in zip(least, most, strict=True)):
        lower.fill_between(range(told.known), least, most, color=BLUE, alpha=0.2, linewidth=0, label="least to most")
        _legend(lower)
    _finish(lower, (-0.5, length - 0.5), "distance (positions)", told.likeness)
    lower.set_ylim(min([-0.25, *(low - 0.1 for low in least)]), 1.1)
    if told.known < length:
        _hatch(upper, (-0.5, told.table.shape[1] - 0.5), (told.known - 0.5, length - 0.5))
        _hatch(lower, (told.known - 0.5, length - 0.5), lower.get_ylim())
    if trained is not None and trained <= length:
        _end(upper.axhline(trained - 0.5))
        _end(lower.axvline(trained - 0.5))


def _draw_biases(upper: Axes, lower: Axes, told: Biases, length: int, trained: int | None) -> None:
    """Draw a row for each head, and the same numbers as a line for each."""
    heads, farthest = len(told.scores), length - 1
    table = F.pad(told.scores, (length - told.known, length - told.known), value=torch.nan)
    edges = (-farthest - 0.5, farthest + 0.5, heads - 0.5, -0.5)
    draw_table(upper, table, OFFSET, "added to the score", down="head", edges=edges)
    named = range(0, heads, -(-heads // MOST_NAMED))
    for head, numbers in enumerate(told.scores.tolist()):
        colour = matplotlib.colormaps["cividis"](0.85 * head / max(heads - 1, 1))
        label = f"head {head}" if head in named else None
        lower.plot(range(1 - told.known, told.known), numbers, color=colour, linewidth=1.5, label=label)
    _legend(lower)
    _finish(lower, edges[:2], OFFSET, "added to the score")
    unknown = ((edges[0], 0.5 - told.known), (told.known - 0.5, edges[1])) if told.known < length else ()
    height = lower.get_ylim()
    for across in unknown:
        _hatch(upper, across, (-0.5, heads - 0.5))
        _hatch(lower, across, height)
    for axes in (upper, lower):
        for side in (0.5 - trained, trained - 0.5) if trained is not None and trained <= length else ():
            _end(axes.axvline(side))


def _end(line: Line2D) -> Line2D:
    """A line where the trained positions end, edged with white so that it is seen on any colour."""
    line.set(
        color=VERMILLION, linestyle="--", linewidth=1.4, path_effects=[withStroke(linewidth=3, foreground="white")]
    )
    return line


def _legend(axes: Axes) -> None:
    """Name the lines of a panel above it, where no line runs."""
    names = axes.legend(
        frameon=False,
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.98),
        ncols=MOST_NAMED,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0.0,
    )
    axes.set_title(" ", fontsize=8, pad=4)  # keeps its height free; its width may reach over the panel's
    names.set_in_layout(False)


def _hatch(axes: Axes, across: tuple[float, float], down: tuple[float, float]) -> None:
    """Hatch a part of a panel of which nothing is known."""
    (left, right), (low, high) = across, down
    axes.add_patch(
        Rectangle((left, low), right - left, high - low, fill=False, hatch="////", edgecolor=SOFT, linewidth=0)
    )


def _finish(axes: Axes, across: tuple[float, float], what: str, unit: str) -> None:
    """Name a lower panel's axes, with only the lines that help."""
    axes.set_xlim(across)
    axes.set_xlabel(what, color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E8E8E8", linewidth=0.8)
    axes.set_axisbelow(True)


def _head(axes: Axes, told: Vectors | Biases, length: int, lettering: Lettering) -> None:
    """Put over a column the scheme's name, its door, and how far it knows where that is not all the way."""
    axes.set_title(lettering.label(told.name, longest=30), fontsize=11, color=INK, pad=18, **lettering.style)
    door = told.door if told.known == length else f"{told.door}, positions 0 to {told.known - 1} only"
    axes.text(0.5, 1.02, door, transform=axes.transAxes, ha="center", va="bottom", fontsize=9, color=INK).set_in_layout(
        False
    )


def _explain(figure: Figure, trained: int | None, hatched: bool) -> None:
    """Say below the picture what the lines and hatches in it mean."""
    meanings: list[Line2D | Patch] = []
    if trained is not None:
        name = f"end of the {trained} positions trained on"
        meanings.append(_end(Line2D([], [], label=name)))
    if hatched:
        name = "positions that the scheme does not know"
        meanings.append(Patch(facecolor="white", hatch="////", edgecolor=SOFT, linewidth=0, label=name))
    if meanings:
        beside = 2 if figure.get_figwidth() > 6.5 else 1
        figure.legend(handles=meanings, loc="outside lower center", ncols=beside, frameon=False, fontsize=9)
