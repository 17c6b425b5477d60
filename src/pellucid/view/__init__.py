"""Draws what it is given: masks, positions, attention, searches and training curves; it computes nothing of its own."""

from pellucid.view.figure import save
from pellucid.view.labels import MissingGlyphs
from pellucid.view.look import mask, masks
from pellucid.view.positions import positions
from pellucid.view.progress import curves
from pellucid.view.search import search
from pellucid.view.table import position_table
from pellucid.view.weights import attention

__all__ = ["MissingGlyphs", "attention", "curves", "mask", "masks", "position_table", "positions", "save", "search"]
