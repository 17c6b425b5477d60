"""Where two masks differ: how many cells, the first of them, and a picture that shows both masks in one grid."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.candidates import first_seen
from pellucid.masks.picture import MOST, grid, labels, parts_named
from pellucid.masks.tensors import Dense

__all__ = ["Difference", "difference"]

MARKS = "·-+■"  # what neither sees, only the first, only the second, both


@dataclass(frozen=True, slots=True)
class Difference:
    """What two masks do not have in common at one size; printed, one sentence and the picture.

    Attributes:
        cell: the first cell that differs: sample, head, the query's absolute position, key.
        count: how many cells differ, over all samples and heads.
        total: how many cells there are.
        a_sees: whether the first mask sees that cell; the other does not.
        picture: both masks in one grid, for each sample and head that differs; of a mask of more than 64 rows or columns
            the part around the first difference.
    """

    cell: tuple[int, int, int, int]
    count: int
    total: int
    a_sees: bool
    picture: str

    def __str__(self) -> str:
        cells = f"{self.count:,} of {self.total:,} cells {'differs' if self.count == 1 else 'differ'}"
        place = "sample {}, head {}, query {}, key {}".format(*self.cell)
        return (
            f"{cells}, first {place}, which only the {'first' if self.a_sees else 'second'} may look at\n{self.picture}"
        )


def difference(
    a: Mask | Shaped[Tensor, "..."],
    b: Mask | Shaped[Tensor, "..."],
    *,
    queries: int,
    keys: int,
    first_query: int = 0,
) -> Difference | None:
    """Where two masks differ at that size, or None where they are equal there, however they are written.

    Args:
        a: the first mask, or a bool tensor of (Q, K), (batch, Q, K) or (batch, heads, Q, K), whose row 0 stands at
            `first_query`. What tells no samples or heads apart is compared with each of the other's.
        b: the second, likewise.
        queries: how many rows.
        keys: how many columns.
        first_query: the absolute position of row 0.

    Raises:
        MaskError: they speak of different numbers of samples or heads, or do not reach that size.

    >>> from pellucid.masks import Causal, Window
    >>> print(difference(Causal(), Window(1, 1), queries=3, keys=3))
    3 of 9 cells differ, first sample 0, head 0, query 0, key 1, which only the second may look at
    Causal() and Window(before=1, after=1)
    rows: queries, columns: keys, ■ both, · neither, + only the second, - only the first
      0 1 2
    0 ■ + ·
    1 ■ ■ +
    2 - ■ ■
    """
    one, other = _as_mask(a, first_query), _as_mask(b, first_query)
    for mask in (one, other):
        mask.require(queries, keys, first_query)
    for what, counts in (("samples", (one.batch, other.batch)), ("heads", (one.heads, other.heads))):
        if None not in counts and counts[0] != counts[1]:
            raise MaskError(
                f"difference was given {one!r} of {counts[0]} {what} and {other!r} of {counts[1]}, but it compares cell "
                f"by cell; give masks of as many {what}"
            )
    count, total, cell = _counted(one ^ other, (queries, keys, first_query))
    if not count:
        return None
    picture = _picture(one, other, cell, (queries, keys, first_query))
    a_sees = bool(one.see(*(torch.tensor(index) for index in cell)))
    return Difference(cell, count, total, a_sees, picture)


def _as_mask(given: Mask | Shaped[Tensor, "..."], first: int) -> Mask:
    """A tensor as a mask: its rows begin at the first query, and those before see nothing."""
    if isinstance(given, Mask):
        return given
    dense = Dense(given)
    if not first or dense.cells.shape[2] == 1:
        return dense
    return Dense(torch.nn.functional.pad(dense.cells, (0, 0, first, 0)))


def _counted(mask: Mask, size: tuple[int, int, int]) -> tuple[int, int, tuple[int, int, int, int]]:
    """How many cells are seen, of how many, and the first; a few rows at a time."""
    _, keys, row = size
    count, total, cells = 0, 0, []
    for strip in mask.strips(*size):
        total += strip.numel()
        seen = int(strip.count_nonzero())
        if seen:
            lines = first_seen(strip.flatten(2))
            found = (lines < strip[0, 0].numel()).nonzero().tolist()
            places = [(b, h, int(lines[b, h])) for b, h in found]
            cells += [(b, h, row + place // keys, place % keys) for b, h, place in places]
        count += seen
        row += strip.shape[2]
    return count, total, min(cells, default=(0, 0, 0, 0))


def _picture(a: Mask, b: Mask, cell: tuple[int, int, int, int], size: tuple[int, int, int]) -> str:
    """Both masks in one grid, for each sample and head that differs in the part that is shown."""
    queries, keys, first = size
    rows, columns = _around(cell[2], first, queries), _around(cell[3], 0, keys)
    index = [
        torch.arange(span.start, span.stop).view([-1 if axis == own else 1 for axis in range(4)])
        for own, span in enumerate((range(a.batch or b.batch or 1), range(a.heads or b.heads or 1), rows, columns))
    ]
    shape = [axis.numel() for axis in index]
    sees: list[Bool[Tensor, "batch heads _row _column"]] = [mask.see(*index).expand(shape) for mask in (a, b)]
    kinds = sees[0].int() + 2 * sees[1].int()
    part = ""
    if max(queries, keys) > MOST:
        part = f"; around the first difference, queries {rows[0]} to {rows[-1]}, keys {columns[0]} to {columns[-1]}"
    legend = "rows: queries, columns: keys, ■ both, · neither, + only the second, - only the first"
    lines = [f"{a!r} and {b!r}", legend + part]
    beside, above = labels("rows", None, len(rows), rows[0]), labels("columns", None, len(columns), columns[0])
    for (name, differs), cells in zip(parts_named(sees[0] ^ sees[1]), kinds.flatten(0, 1).tolist(), strict=True):
        if bool(differs.any()):
            marks = [[MARKS[kind] for kind in row] for row in cells]
            lines += [name] * bool(name) + grid(beside, above, marks, [""] * len(rows))
    return "\n".join(lines)


def _around(place: int, start: int, count: int) -> range:
    """All positions, or where they are more than 64, those with the place in their middle as far as the edges allow."""
    low = min(max(place - MOST // 2, start), start + max(0, count - MOST))
    return range(low, low + min(count, MOST))
