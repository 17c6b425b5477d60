"""Draws what a beam search looked at: a column for each step, a line from each candidate to what it goes on with."""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pellucid.decoding.trace import FINISHED, LIVED, Trace, Tried
from pellucid.view.figure import BLUE, INK, SOFT, VERMILLION, entitle, sheet
from pellucid.view.labels import Lettering, letter

__all__ = ["search"]

COLUMN, ROW = 2.1, 0.36  # inches of a step, and of a candidate
SHOWN = 12  # letters of a token
NOWHERE = "∅"  # no token to go on with


def search(trace: Trace, words: Callable[[int], str] = str, title: str | None = None) -> Figure:
    """Draw a search, step by step from left to right, each step's candidates best first.

    Those that lived on are blue, those that finished vermillion, those that died grey, each with its sum of
    log-probabilities in nats. Each is tied to the hypothesis that it goes on with.

    Args:
        trace: of `beam_search(..., trace=True)`.
        words: what a token is called.
        title: stands over the picture.

    >>> steps = [(Tried(0, 5, -0.7, LIVED), Tried(0, 6, -1.2, "outside the beam")), (Tried(0, 7, -0.9, FINISHED),)]
    >>> len(search(Trace(steps)).axes[0].texts)
    6
    """
    names = [[NOWHERE if tried.token is None else words(tried.token) for tried in step] for step in trace.steps]
    lettering = letter([title or "", *(name for step in names for name in step)])
    tallest = max((len(step) for step in trace.steps), default=1)
    figure = sheet(max(4.0, 0.6 + COLUMN * len(trace.steps)), max(1.8, 1.1 + ROW * tallest))
    axes = figure.subplots()
    for number, step in enumerate(trace.steps):
        parents = _places(trace, number - 1)
        for place, tried in enumerate(step):
            if number:
                _tie(axes, number, parents[tried.parent], place, tried)
            _write(axes, number, place, tried, names[number][place], lettering)
    axes.set_xlim(-0.5, max(len(trace.steps) - 0.35, 0.5))
    axes.set_ylim(tallest - 0.4, -0.6)
    axes.set_xticks(range(len(trace.steps)), [f"step {number + 1}" for number in range(len(trace.steps))], ha="left")
    axes.set_xlabel(_legend(trace), color=SOFT, fontsize=9)
    axes.set_yticks([])
    axes.tick_params(length=0, labelcolor=SOFT)
    axes.spines[:].set_visible(False)
    entitle(figure, title, lettering)
    return figure


def _places(trace: Trace, step: int) -> list[int]:
    """Where the candidates that lived after a step stand in its column."""
    return [] if step < 0 else [place for place, tried in enumerate(trace.steps[step]) if tried.fate == LIVED]


def _colour(tried: Tried) -> str:
    colours: Mapping[str, str] = {LIVED: BLUE, FINISHED: VERMILLION}
    return colours.get(tried.fate, SOFT)


def _tie(axes: Axes, step: int, parent: int, place: int, tried: Tried) -> None:
    """The line from a hypothesis to a way to go on with it."""
    dead = tried.fate not in (LIVED, FINISHED)
    axes.plot(
        [step - 0.38, step - 0.2, step - 0.06],
        [parent, place, place],
        color=_colour(tried),
        linewidth=0.7 if dead else 1.5,
        alpha=0.45 if dead else 1.0,
        solid_capstyle="round",
        zorder=1 if dead else 2,
    )


def _write(axes: Axes, step: int, place: int, tried: Tried, name: str, lettering: Lettering) -> None:
    """A candidate: its token, and its sum."""
    weight = "bold" if tried.fate == FINISHED else "normal"
    ink = SOFT if tried.fate not in (LIVED, FINISHED) else INK
    style: dict[str, Any] = {"verticalalignment": "center", "zorder": 3}
    shown = lettering.label(name, SHOWN)
    axes.text(step, place, shown, color=ink, fontsize=9.5, fontweight=weight, **style, **lettering.style)
    axes.text(step + 0.6, place, f"{tried.sum:.2f}", color=_colour(tried), fontsize=7.5, ha="right", **style)


def _legend(trace: Trace) -> str:
    """What the colours mean, and how it ended."""
    return "\n".join(
        ["blue lives on, vermillion finished, grey died; sums in nats", *([trace.ending] * bool(trace.ending))]
    )
