"""Rows of hypotheses sorted into groups: those of one sentence stand in one row of a grid, and share what is kept of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Where each row stands: in which group, and at which place of it.

    Attributes:
        groups: the group of each row; groups are 0, 1, ... and none is empty.
        device: where the rows' tensors are.
    """

    groups: tuple[int, ...]
    device: torch.device

    @staticmethod
    def alone(rows: int, device: torch.device) -> "Grid":
        """Each row in a group of its own."""
        return Grid(tuple(range(rows)), device)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The place of each row within its group, in the order of the rows."""
        met: dict[int, int] = {}
        places = []
        for group in self.groups:
            places.append(met.get(group, 0))
            met[group] = places[-1] + 1
        return tuple(places)

    @cached_property
    def count(self) -> int:
        """How many groups there are."""
        return max(self.groups, default=-1) + 1

    @cached_property
    def width(self) -> int:
        """Rows of the largest group."""
        return max(self.places, default=0) + 1

    @cached_property
    def _cells(self) -> Int[Tensor, " rows"] | None:
        """The cell of each row, counted along the groups; None where row i is cell i, and no cell is left."""
        cells = [group * self.width + place for group, place in zip(self.groups, self.places, strict=True)]
        if cells == list(range(self.count * self.width)):
            return None
        return torch.tensor(cells, dtype=torch.long, device=self.device)

    def spread(self, rows: Float[Tensor, " rows *width"]) -> Float[Tensor, "groups places *width"]:
        """Rows -> the grid, with zeros where no row stands."""
        if self._cells is not None:
            rows = rows.new_zeros(self.count * self.width, *rows.shape[1:]).index_copy(0, self._cells, rows)
        return rows.view(self.count, self.width, *rows.shape[1:])

    def gather(self, cells: Float[Tensor, "groups places *width"]) -> Float[Tensor, " rows *width"]:
        """The grid -> rows."""
        flat = cells.flatten(0, 1)
        return flat if self._cells is None else flat.index_select(0, self._cells)

    def select(self, rows: Sequence[int]) -> tuple["Grid", list[int]]:
        """The grid of those rows, in their order and with repeats, and which of the old groups are the new ones."""
        kept: dict[int, int] = {}
        groups = tuple(kept.setdefault(self.groups[row], len(kept)) for row in rows)
        return Grid(groups, self.device), list(kept)
