"""What each hypothesis has said, as keys and values of every layer: kept once, reordered by index, grown in blocks.

The hypotheses of a beam share most of their past. So a group keeps the keys and values of all steps of all its
hypotheses side by side, in *slots*, and each row knows which slots it comes from. To reorder a beam changes that table
and nothing else; attention masks the slots that are another's. When a room is full, slots that no row comes from any
more stay behind. Where many rows stand in a group, a copy for each is cheaper than a mask over all, and each row
becomes a group of its own.

States are values: a room is written only behind what its state has used, and by one state. Another that stands at the
same place copies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.decoding.grid import Grid

__all__ = ["Past"]

WIDE = 8  # rows of a group from which each gets a copy
BLOCK = 8  # steps that a room is made longer by


class Room:
    """Memory for keys and values, some of it written: (layers, 2, groups, heads, capacity, head_dim)."""

    def __init__(self, tensor: Float[Tensor, "layers two groups heads capacity head_dim"], used: int) -> None:
        self.tensor = tensor
        self.used = used


@dataclass(frozen=True, slots=True)
class Past:
    """The keys and values of the steps so far.

    Attributes:
        room: where they are kept.
        grid: which group each row stands in.
        length: steps so far, which is the absolute position of the next.
        early: of each group's first slots, which were chosen among more, at which step each was written.
        late: the same of the slots behind them, in which all groups are alike.
        seen: which slots each row comes from, or None where each row is a group and comes from all.
    """

    room: Room
    grid: Grid
    length: int = 0
    early: Int[Tensor, "groups early"] | None = None
    late: tuple[int, ...] = ()
    seen: Bool[Tensor, "rows slots"] | None = None

    @staticmethod
    def empty(rows: int, like: Float[Tensor, "layers two groups heads keys head_dim"]) -> "Past":
        """The past of rows that have said nothing, for as many layers and heads as `like` has."""
        layers, _, _, heads, _, head_dim = like.shape
        grid = Grid.alone(rows, like.device)
        return Past(Room(like.new_empty(layers, 2, rows, heads, BLOCK, head_dim), 0), grid)

    @property
    def used(self) -> int:
        """Slots of each group."""
        return len(self.late) + (0 if self.early is None else self.early.shape[1])

    def steps(self) -> Int[Tensor, "groups slots"] | Int[Tensor, "1 slots"]:
        """At which step each slot was written."""
        late = torch.tensor(self.late, dtype=torch.long, device=self.grid.device)[None]
        return late if self.early is None else torch.cat([self.early, late.expand(len(self.early), -1)], dim=1)

    def longer(self) -> "Past":
        """The past with slots for one more step, which each row sees its own of; what is written there comes after."""
        width, past = self.grid.width, self
        if self.room.used != self.used or self.used + width > self.room.tensor.shape[4]:
            past = self._moved(width * BLOCK)
        used, seen = past.used, past.seen
        past.room.used = used + width
        if seen is not None or width > 1:
            rows = len(self.grid.groups)
            old = seen if seen is not None else torch.ones(rows, used, dtype=torch.bool, device=self.grid.device)
            places = torch.tensor(self.grid.places, device=self.grid.device)
            own = places[:, None] == torch.arange(width, device=self.grid.device)
            seen = torch.cat([old, own], dim=1)
        return replace(past, length=self.length + 1, late=(*past.late, *[self.length] * width), seen=seen)

    def _moved(self, spare: int) -> "Past":
        """The same in a new room with so many free slots, without slots that no row comes from."""
        tensor, kept = self.room.tensor[:, :, :, :, : self.used], self._kept()
        if kept is None:
            return replace(self, room=_copied(tensor, spare))
        assert self.seen is not None
        rows = torch.tensor(self.grid.groups, device=self.grid.device)
        every = torch.arange(self.grid.count, device=self.grid.device)[:, None]
        # advanced indices put their axes, (groups, slots), first
        room = _copied(tensor[:, :, every, :, kept].permute(2, 3, 0, 4, 1, 5), spare)
        early = self.steps().expand(self.grid.count, -1).gather(1, kept)
        return replace(self, room=room, early=early, late=(), seen=self.seen.gather(1, kept[rows]))

    def _kept(self) -> Int[Tensor, "groups kept"] | None:
        """The slots of each group that a row comes from, in their order, others behind where it has fewer; None for all."""
        if self.seen is None:
            return None
        needed = self.grid.spread(self.seen.float()).amax(dim=1)
        most = int(needed.sum(dim=1).max())
        return None if most == self.used else needed.argsort(dim=1, descending=True, stable=True)[:, :most]

    def newest(self) -> tuple[Float[Tensor, "groups places two heads head_dim"], ...]:
        """The slots of the newest step, for each layer, to be written."""
        used = self.used
        return self.room.tensor[:, :, :, :, used - self.grid.width : used].permute(0, 2, 4, 1, 3, 5).unbind()

    def keys(self) -> tuple[Float[Tensor, "groups_heads head_dim slots"], ...]:
        """All keys of each layer, the heads of a group one after another, laid out for a product with queries."""
        return self._all(0).transpose(2, 3).unbind()

    def values(self) -> tuple[Float[Tensor, "groups_heads slots head_dim"], ...]:
        """All values of each layer, the heads of a group one after another."""
        return self._all(1).unbind()

    def _all(self, which: int) -> Float[Tensor, "layers groups_heads slots head_dim"]:
        return self.room.tensor[:, which, :, :, : self.used].flatten(1, 2)

    def hidden(self, dtype: torch.dtype) -> Float[Tensor, "groups 1 places slots"] | None:
        """What is added to scores to hide the slots that are another's; None where there are none."""
        if self.seen is None:
            return None
        added = torch.zeros(self.seen.shape, dtype=dtype, device=self.grid.device)
        return self.grid.spread(added.masked_fill_(~self.seen, -math.inf))[:, None]

    def select(self, rows: Sequence[int]) -> "Past":
        """The past of those rows, in their order and with repeats."""
        grid, groups = self.grid.select(rows)
        seen = None if self.seen is None else self.seen[torch.tensor(rows, device=self.grid.device)]
        if grid.width > WIDE:
            return self._alone(grid, groups, seen)
        if grid.width > 1 and seen is None:
            seen = torch.ones(len(rows), self.used, dtype=torch.bool, device=grid.device)
        if groups == list(range(self.grid.count)):
            return replace(self, grid=grid, seen=seen)
        chosen = torch.tensor(groups, device=grid.device)
        tensor = self.room.tensor[:, :, :, :, : self.used].index_select(2, chosen)
        early = None if self.early is None else self.early.index_select(0, chosen)
        return replace(self, room=Room(tensor, self.used), grid=grid, early=early, seen=seen)

    def _alone(self, grid: Grid, groups: Sequence[int], seen: Bool[Tensor, "rows slots"] | None) -> "Past":
        """The past of rows of `grid`, each copied into a group of its own."""
        rows = len(grid.groups)
        old = torch.tensor([groups[group] for group in grid.groups], device=grid.device)
        if seen is None:
            tensor = self.room.tensor[:, :, :, :, : self.used].index_select(2, old)
        else:
            # each row sees one slot a step; advanced indices put their axes, (rows, steps), first
            slots = seen.nonzero()[:, 1].view(rows, self.length)
            tensor = self.room.tensor[:, :, old[:, None], :, slots].permute(2, 3, 0, 4, 1, 5)
        alone = Grid.alone(rows, grid.device)
        return Past(Room(tensor, self.length), alone, self.length, late=tuple(range(self.length)))


def _copied(used: Tensor, spare: int) -> Room:
    """A room with the same beginning and so many free slots behind it."""
    layers, two, groups, heads, slots, head_dim = used.shape
    tensor = used.new_empty(layers, two, groups, heads, slots + spare, head_dim)
    tensor[:, :, :, :, :slots] = used
    return Room(tensor, slots)
