"""Draws training curves from the records that a run writes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pellucid.view.figure import BLUE, INK, ORANGE, SOFT, VERMILLION, entitle, sheet
from pellucid.view.labels import letter

__all__ = ["curves"]


def curves(metrics: Iterable[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Draw the loss of a run on the left, and the scores of its translations on the right.

    Args:
        metrics: records as in metrics.jsonl: of kind "step" with step and loss (nats per target token), of kind
            "validation" with step, loss, chrf and bleu. What a record lacks is left out; where a step was
            recorded twice, as after a resumption, the later record counts.
        title: stands over the picture.

    >>> records = [{"kind": "step", "step": 50, "loss": 6.1}, {"kind": "step", "step": 100, "loss": 5.2}]
    >>> [line.get_ydata().tolist() for line in curves(records).axes[0].lines]
    [[6.1, 5.2]]
    """
    records = list(metrics)
    figure = sheet(9.5, 3.8)
    lettering = letter([title or ""])
    left, right = figure.subplots(1, 2)
    _draw(left, _points(records, "step", "loss"), "training", SOFT, dense=True)
    _draw(left, _points(records, "validation", "loss"), "validation", BLUE)
    _draw(right, _points(records, "validation", "chrf"), "chrF", VERMILLION)
    _draw(right, _points(records, "validation", "bleu"), "BLEU", ORANGE)
    _finish(left, "loss", "nats per target token")
    _finish(right, "validation translations", "score (of 100)")
    if right.lines:
        right.set_ylim(bottom=0.0)
    entitle(figure, title, lettering)
    return figure


def _points(records: Sequence[Mapping[str, Any]], kind: str, name: str) -> list[tuple[int, float]]:
    """Steps and finite values of one name in one kind of record, in order of steps."""
    values: dict[int, float] = {}
    for record in records:
        value = record.get(name)
        if record.get("kind") == kind and record.get("step") is not None and value is not None:
            values[int(record["step"])] = float(value)
    return sorted((step, value) for step, value in values.items() if math.isfinite(value))


def _draw(axes: Axes, points: Sequence[tuple[int, float]], name: str, colour: str, dense: bool = False) -> None:
    """Draw one curve with its last value in its name; many points as a thin line, few as marks on a line."""
    if not points:
        return
    steps, values = zip(*points, strict=True)
    axes.plot(
        steps,
        values,
        color=colour,
        linewidth=1.0 if dense else 1.8,
        marker="o" if not dense or len(points) == 1 else "",
        markersize=3.5,
        label=f"{name} (last {values[-1]:.{2 if dense or name == 'validation' else 1}f})",
    )


def _finish(axes: Axes, title: str, unit: str) -> None:
    """Name a panel and its axes, with only the lines that help."""
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E8E8E8", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.lines:
        axes.locator_params(axis="x", integer=True)
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", va="center", color=SOFT)
