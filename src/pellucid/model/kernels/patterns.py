"""Rows of blocks, each empty, partial or full, made into rectangles that are worth a kernel's call."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from pellucid.masks.sizes import EMPTY, FULL

__all__ = ["BLOCK", "DIAGONAL", "Pattern", "Seen", "Span", "rectangles", "triangles"]

BLOCK = 128  # queries and keys of a block; smaller ones cost more calls, larger ones more hidden cells
DIAGONAL = 3  # a partial block that hides exactly the future
LONG = 8  # full blocks side by side that are worth a tile without a mask
TALL = 2**20  # cells of a tile that has a mask

Span = tuple[int, int]
"""The first of several, and the one past the last."""

Seen = Literal["all", "past", "some"]
"""What of a tile is seen."""

Pattern = tuple[tuple[int, ...], ...]
"""What each block of a sample and head is, row by row."""


def triangles(pattern: Pattern) -> list[tuple[int, int, int]]:
    """First row, row past the last and first column of each staircase of full blocks that ends on the diagonal."""
    found: list[tuple[int, int, int]] = []
    for row, kinds in enumerate(pattern):
        if DIAGONAL not in kinds:
            continue
        column = kinds.index(DIAGONAL)
        top, bottom, left = found[-1] if found else (-1, -1, -1)
        if row == bottom and column - left == row - top and all(kind == FULL for kind in kinds[left:column]):
            found[-1] = (top, row + 1, left)
        else:
            found.append((row, row + 1, column))
    return found


def rectangles(pattern: Pattern, staircases: Sequence[tuple[int, int, int]]) -> Iterator[tuple[Span, Span, Seen]]:
    """Rectangles of blocks: the triangles, and what is left of each row, together with the rows below that are alike."""
    left_over = [list(row) for row in pattern]
    for top, bottom, left in staircases:
        yield (top, bottom), (left, left + bottom - top), "past"
        for row in range(top, bottom):
            left_over[row][left : left + row - top + 1] = [EMPTY] * (row - top + 1)
    growing: dict[tuple[Span, Seen], int] = {}
    for row, kinds in enumerate([*left_over, []]):
        parts = dict.fromkeys(_stretches(kinds))  # in order: sums must come out the same to the bit each time
        for part, top in list(growing.items()):
            (left, right), seen = part
            full = seen == "some" and (row + 1 - top) * (right - left) * BLOCK**2 > TALL
            if part not in parts or full:
                yield (top, row), (left, right), seen
                del growing[part]
        for part in parts:
            growing.setdefault(part, row)


def _stretches(kinds: Sequence[int]) -> list[tuple[Span, Seen]]:
    """The stretches of a row of blocks that are seen: whole ones where many stand together, the others with a mask."""
    stretches: list[tuple[Span, Seen]] = []
    column = 0
    for seen, same in groupby(kinds, key=lambda kind: {EMPTY: None, FULL: "all"}.get(kind, "some")):
        start, column = column, column + len(list(same))
        if seen is not None:
            stretches.append(((start, column), "all" if seen == "all" else "some"))
    return _joined(stretches)


def _joined(stretches: Sequence[tuple[Span, Seen]]) -> list[tuple[Span, Seen]]:
    """Neighbours made one where a whole stretch is too short to pay for itself."""
    joined: list[tuple[Span, Seen]] = []
    for (start, end), seen in stretches:
        if joined and joined[-1][0][1] == start:
            (before, middle), other = joined[-1]
            short = (middle - before if other == "all" else end - start if seen == "all" else 0) < LONG
            if short:
                joined[-1] = (before, end), "some"
                continue
        joined.append(((start, end), seen))
    return joined
