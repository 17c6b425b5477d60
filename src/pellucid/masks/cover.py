"""Which cells each of several masks hides, and the cheapest of them that hide all that can be hidden together.

A cell is looked at once: the masks that hide it are the bits of one number, and only how often each number occurs is
kept. So choosing among the masks costs nothing that grows with the tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch

from pellucid.masks.algebra import Mask
from pellucid.masks.candidates import Cells, first_seen
from pellucid.masks.joins import Join, Not

__all__ = ["Cover", "kinds_in", "seen_by", "wrong_cells"]

STRIP = 2**18  # cells that are looked at together: as many as stay near the processor


@dataclass(frozen=True, slots=True)
class Cover:
    """Which of some masks hide the cells that should be hidden, and how many cells each set of masks hides.

    Attributes:
        parts: the masks. One that hides a cell that should be seen hides nothing here.
        counts: how many cells are hidden by exactly the parts whose bits are set in the number.
    """

    parts: Sequence[Mask]
    counts: dict[int, int]

    @classmethod
    def of(cls, parts: Sequence[Mask], seen: Cells, hidden: Cells, first: int) -> "Cover":
        """Look at all the cells.

        Args:
            parts: the masks.
            seen: cells that no part may hide.
            hidden: cells that should be hidden; of the others nothing is asked.
            first: the position of the first query.
        """
        every = 2 ** len(parts) - 1
        counts = torch.zeros(4, every + 1, dtype=torch.long)  # of cells of no matter, seen and hidden, by the parts
        for rows in _strips(seen):
            codes = torch.full_like(seen[:, :, rows], every, dtype=torch.int32)
            for bit, part in enumerate(parts):
                shows = part.broadcast(rows.stop - rows.start, seen.shape[3], first + rows.start)
                codes.add_(shows, alpha=-(1 << bit))
            codes.add_(seen[:, :, rows], alpha=every + 1).add_(hidden[:, :, rows], alpha=2 * (every + 1))
            counts += codes.flatten().bincount(minlength=counts.numel()).view_as(counts)
        spoiling = reduce(or_, counts[1].nonzero()[:, 0].tolist(), 0)
        found: dict[int, int] = {}
        for code in counts[2].nonzero()[:, 0].tolist():
            used = code & ~spoiling
            found[used] = found.get(used, 0) + int(counts[2, code])
        return cls(parts, found)

    def missed(self, bits: int) -> int:
        """How many cells none of these parts hides."""
        return sum(count for code, count in self.counts.items() if not code & bits)

    def cost(self, bits: int) -> int:
        """The kinds that these parts name, and among equals the letters they take."""
        return sum(price for bit, price in enumerate(self._prices()) if bits >> bit & 1)

    def cheapest(self, among: int = -1) -> int:
        """The bits of the cheapest parts, of those `among`, that hide all that those hide together."""
        needed: list[int] = []
        for code in sorted({code & among for code in self.counts} - {0}, key=int.bit_count):
            if all(code & other != other for other in needed):  # what hides the other hides this one
                needed.append(code)
        prices = self._prices()
        best = (sum(prices) + 1, 0)

        def choose(chosen: int, cost: int) -> None:
            nonlocal best
            open_ = next((code for code in needed if not code & chosen), 0)
            if not open_:
                best = (cost, chosen)
            for bit, price in enumerate(prices):
                if open_ >> bit & 1 and cost + price < best[0]:
                    choose(chosen | 1 << bit, cost + price)

        choose(0, 0)
        return best[1]

    def chosen(self, bits: int) -> list[Mask]:
        """The parts that these bits stand for."""
        return [part for bit, part in enumerate(self.parts) if bits >> bit & 1]

    def _prices(self) -> list[int]:
        return [(kinds_in(part) << 40) + len(repr(part)) for part in self.parts]


def kinds_in(mask: Mask) -> int:
    """How many kinds an expression names.

    >>> from pellucid.masks import Causal, Padding
    >>> kinds_in(~(Causal() & ~Padding((2, 1))))
    2
    """
    if isinstance(mask, Not):
        return kinds_in(mask.part)
    return sum(map(kinds_in, mask.parts)) if isinstance(mask, Join) else 1


def seen_by(mask: Mask, cells: Cells, first: int) -> Cells:
    """What a mask sees, in the shape of the cells."""
    seen = torch.empty_like(cells)
    for rows in _strips(cells):
        seen[:, :, rows] = mask.broadcast(rows.stop - rows.start, cells.shape[3], first + rows.start)
    return seen


def wrong_cells(mask: Mask, cells: Cells, first: int) -> tuple[int, tuple[int, int, int]]:
    """In how many cells a mask is wrong, and the first of them: sample, query position and key."""
    count, places, keys = 0, [], cells.shape[3]
    for rows in _strips(cells):
        seen = mask.broadcast(rows.stop - rows.start, keys, first + rows.start)
        wrong = (seen != cells[:, :, rows]).flatten(1)
        count += int(wrong.count_nonzero())
        for sample, cell in enumerate(first_seen(wrong).tolist()):
            if cell < wrong.shape[1]:
                places.append((sample, first + rows.start + cell // keys, cell % keys))
    return count, min(places, default=(0, first, 0))


def _strips(cells: Cells) -> Iterator[slice]:
    """Rows of the cells, a few at a time."""
    batch, _, queries, keys = cells.shape
    rows = max(1, STRIP // (batch * keys))
    return (slice(row, min(row + rows, queries)) for row in range(0, queries, rows))
