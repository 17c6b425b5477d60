"""A sheet to draw on, the colours that every picture shares, and the way to a file."""

import os
import textwrap
import unicodedata
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pellucid.errors import ConfigError
from pellucid.view.labels import Lettering

__all__ = ["BLUE", "GREY", "INK", "ORANGE", "SOFT", "VERMILLION", "entitle", "save", "sheet"]

# Okabe and Ito's palette: told apart with any colour vision, and in grey print.
BLUE, ORANGE, VERMILLION = "#0072B2", "#E69F00", "#D55E00"
GREY, SOFT, INK = "#E4E4E4", "#8A8A8A", "#222222"

FORMATS = (".png", ".svg")


def sheet(width: float, height: float) -> Figure:
    """An empty figure of so many inches, drawn by Agg and known to no global list of figures."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def entitle(figure: Figure, title: str | None, lettering: Lettering) -> None:
    """Put a title over the whole figure, broken into lines that its width can hold."""
    if not title:
        return
    text = lettering.line(title)
    wide = any(unicodedata.east_asian_width(character) in "WF" for character in text)
    columns = max(20, int(figure.get_figwidth() * (5 if wide else 10)))
    figure.suptitle("\n".join(textwrap.wrap(text, columns)), fontsize=12, color=INK, **lettering.style)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a picture as PNG or SVG, as the file's name says: whole or not at all, and each time the same.

    Args:
        figure: what a function of this room drew.
        path: ends in .png or .svg; its folder is there.

    Returns:
        The path written.

    Raises:
        ConfigError: another ending, or a place that cannot be written to.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(f"a picture was to be written to {path}, but it is PNG or SVG; end the name in .png or .svg")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # An SVG's identifiers come from a salt and its date from the clock: both are fixed, so bytes repeat.
        with matplotlib.rc_context({"svg.hashsalt": "pellucid"}):
            figure.savefig(
                unfinished,
                format=suffix[1:],
                dpi=150,
                bbox_inches="tight",
                pad_inches=0.15,
                metadata={"Date": None} if suffix == ".svg" else None,
            )
        os.replace(unfinished, path)
    except OSError as error:
        raise ConfigError(f"the picture {path} cannot be written ({error.strerror}); check the folder") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return path
