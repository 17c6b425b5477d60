"""The kinds of mask that are somebody's tensor or somebody's function: Dense and Predicate."""

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask
from pellucid.masks.numbers import any_tensor
from pellucid.masks.sizes import UNKNOWN, BlockKinds, Blocks, graded

__all__ = ["Dense", "MaskMod", "Predicate"]

MaskMod = Callable[[Any, Any, Any, Any], Any]
"""FlexAttention's `mask_mod`: sample, head, query and key position, each a tensor of one number, to one truth value."""


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Dense(Mask):
    """A mask that is a tensor, copied: True = may look. Equal to another of the same shape and content.

    Args:
        cells: a tensor or an array (Q, K), (batch, Q, K) or (batch, heads, Q, K), bool; row 0 is the query at position 0.
            An axis of size 1 speaks of every sample, head, query or key alike.

    Raises:
        MaskError: not a bool tensor of such a shape.

    >>> Dense(torch.tensor([[True, False], [True, True]])).draw(queries=2, keys=2).splitlines()[0].split("   ")[0]
    'Dense(2 x 2, 3 of 4 seen)'
    """

    _cells: Bool[Tensor, "batch heads query key"]
    note: str
    """What was near it, where `recognise` found no expression; it plays no part in equality."""

    def __init__(self, cells: Any, note: str = "") -> None:
        cells = any_tensor(cells, "Dense")
        if cells.dtype != torch.bool:
            raise MaskError(
                f"Dense was given a tensor of {cells.dtype}, but a mask is bool, True = may look; convert it with "
                "masks.read(...), which knows what each library means"
            )
        if not 2 <= cells.dim() <= 4 or 0 in cells.shape[:-2]:
            raise MaskError(
                f"Dense was given a tensor of shape {tuple(cells.shape)}, but it takes (Q, K), (batch, Q, K) or "
                "(batch, heads, Q, K) of one sample and head or more; give two to four axes"
            )
        full = cells if cells.dim() == 4 else cells[None, None] if cells.dim() == 2 else cells[:, None]
        object.__setattr__(self, "_cells", full.detach().cpu().clone())
        object.__setattr__(self, "note", note)

    @property
    def cells(self) -> Bool[Tensor, "batch heads query key"]:
        """A copy of the tensor, with four axes: what is done to it does nothing to the mask."""
        return self._cells.clone()

    def __repr__(self) -> str:
        ones = next(place for place, size in enumerate((*self._cells.shape[:2], 0)) if size != 1)
        size = " x ".join(str(size) for size in self._cells.shape[ones:])
        seen = f"{int(self._cells.count_nonzero()):,} of {self._cells.numel():,} seen"
        return f"Dense({size}, {seen}{'; ' * bool(self.note)}{self.note})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dense) and torch.equal(self._cells, other._cells)

    def __hash__(self) -> int:
        return hash((self._cells.shape, self._cells.numpy().tobytes()))

    @property
    def batch(self) -> int | None:
        """As many samples as the tensor has; None where it has one, which speaks of all."""
        return None if self._cells.shape[0] == 1 else self._cells.shape[0]

    @property
    def heads(self) -> int | None:
        """As many heads as the tensor has; None where it has one, which speaks of all."""
        return None if self._cells.shape[1] == 1 else self._cells.shape[1]

    @property
    def known(self) -> tuple[int | None, int | None]:
        """The tensor's rows and columns; None where it has one, which speaks of all."""
        queries, keys = self._cells.shape[2:]
        return None if queries == 1 else queries, None if keys == 1 else keys

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """The tensor's own cells."""
        return self._cells.to(k.device)[self._places(b, h, q, k)]

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By counting, where nothing changes along the queries or along the keys; unknown otherwise."""
        low = self._places(blocks.b, blocks.h, blocks.q0, blocks.k0)
        high = self._places(blocks.b, blocks.h, blocks.q1, blocks.k1)
        cells = self._cells.to(blocks.k0.device)
        if 1 not in cells.shape[2:]:
            return torch.full_like(cells[low], UNKNOWN, dtype=torch.int8)
        axis = 3 if cells.shape[2] == 1 else 2
        before = cells.cumsum(axis) - cells.long()  # seen before each position
        seen = before[high] + cells[high] - before[low]
        return graded(seen == high[axis] - low[axis] + 1, seen == 0)

    def _places(self, *indices: Index) -> tuple[Index, ...]:
        """Where in the tensor the cells of these samples, heads, queries and keys stand."""
        return tuple(
            index.new_zeros((1,) * index.dim()) if size == 1 else index  # nothing changes along that axis
            for index, size in zip(indices, self._cells.shape, strict=True)
        )


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Predicate(Mask):
    """A mask that is a function, as FlexAttention takes it: `mask_mod(b, h, q, k)` says whether q may look at k.

    The function is called as FlexAttention calls it, with tensors of one number each, through `torch.vmap`. Two of them
    are equal where their functions are the same object.

    Args:
        mask_mod: the function.
        batch: samples that it tells apart, if it does; left out, `dense` asks it of sample 0 alone.
        heads: heads that it tells apart, likewise.

    Raises:
        MaskError: when it is asked for cells, that the function gives something else than one truth value for each.

    >>> Predicate(lambda b, h, q, k: q >= k).dense(queries=2, keys=2).int().tolist()
    [[[[1, 0], [1, 1]]]]
    """

    mask_mod: MaskMod
    samples: int | None
    heads_apart: int | None

    def __init__(self, mask_mod: MaskMod, batch: int | None = None, heads: int | None = None) -> None:
        if not callable(mask_mod):
            raise MaskError(
                f"Predicate was given {mask_mod!r}, but it takes a function of (b, h, q, k); give a mask_mod"
            )
        for name, count in (("batch", batch), ("heads", heads)):
            if count is not None and count < 1:
                raise MaskError(
                    f"Predicate was given {name}={count}, but it counts what the function tells apart; give a number "
                    "from 1 up, or leave it out"
                )
        for name, value in (("mask_mod", mask_mod), ("samples", batch), ("heads_apart", heads)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        told = [f", {name}={count}" for name, count in (("batch", self.batch), ("heads", self.heads)) if count]
        return f"Predicate({getattr(self.mask_mod, '__name__', type(self.mask_mod).__name__)}{''.join(told)})"

    @property
    def batch(self) -> int | None:
        """Samples that the function was said to tell apart."""
        return self.samples

    @property
    def heads(self) -> int | None:
        """Heads that the function was said to tell apart."""
        return self.heads_apart

    def told(self, batch: int | None, heads: int | None) -> Mask:
        """The same function, for so many samples and heads where it was not said how many."""
        return Predicate(self.mask_mod, self.samples or batch, self.heads_apart or heads)

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What the function says, asked one cell at a time."""
        indices = (b, h, q, k)
        rank = max(index.dim() for index in indices)
        shapes = [(1,) * (rank - index.dim()) + tuple(index.shape) for index in indices]
        wanted = [0 if 0 in sizes else max(sizes) for sizes in zip(*shapes, strict=True)]
        # An axis is mapped over in those indices that vary along it; in the others it has size 1 and is dropped.
        varies = [[shape[axis] != 1 for shape in shapes] for axis in range(rank)]
        if 0 in wanted:
            return torch.zeros(wanted, dtype=torch.bool, device=k.device)
        mapped = self._one_truth_value
        for axis in reversed(range(rank)):
            if any(varies[axis]):
                mapped = torch.vmap(mapped, in_dims=tuple(0 if moves else None for moves in varies[axis]))
        given = [
            index.reshape([size for size in shape if size != 1]) for index, shape in zip(indices, shapes, strict=True)
        ]
        return mapped(*given).reshape(wanted)

    def _one_truth_value(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, ""]:
        """What the function says of one cell."""
        seen = self.mask_mod(b, h, q, k)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool or seen.dim():
            what = f"{seen.dtype} of shape {tuple(seen.shape)}" if isinstance(seen, Tensor) else reprlib.repr(seen)
            raise MaskError(
                f"{self!r} gave {' '.join(what.split())}, but FlexAttention takes one bool for each cell; "
                "return a comparison of the indices"
            )
        return seen
