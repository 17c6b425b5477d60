"""Sizes that a mask can be asked for, and the strips, blocks and tiles in which a large one is looked at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from pellucid.errors import MaskError

__all__ = ["CELLS", "EMPTY", "FULL", "PARTIAL", "UNKNOWN", "BlockKinds", "Blocks", "Device", "check_size"]
__all__ += ["far_below", "graded", "positions", "row_strips", "tile"]

CELLS = 2**22  # that are looked at together where a mask is counted
EMPTY, PARTIAL, FULL, UNKNOWN = range(4)  # of the cells of a block none, some or all are seen; or nobody knows yet

Device = torch.device | str | None
"""Where tensors are made; None leaves it to PyTorch."""

BlockKinds = Int8[Tensor, "#batch #heads #rows #columns"]
"""EMPTY, PARTIAL, FULL or UNKNOWN for each block; an axis has size 1 wherever no *cell* changes along it."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of cells: which samples and heads, and the absolute positions of their first and last rows and columns."""

    b: Int[Tensor, "batch 1 1 1"]
    h: Int[Tensor, "1 heads 1 1"]
    q0: Int[Tensor, "1 1 rows 1"]
    q1: Int[Tensor, "1 1 rows 1"]
    k0: Int[Tensor, "1 1 1 columns"]
    k1: Int[Tensor, "1 1 1 columns"]

    @classmethod
    def cut(
        cls, batch: int, heads: int, size: tuple[int, int, int], sides: tuple[int, int], device: Device
    ) -> "Blocks":
        """All blocks of so many rows and columns; those at the far edges end where the mask ends."""
        (queries, keys, first_query), (tall, wide) = size, sides
        b, h, _, _ = positions(batch, heads, (0, 0, 0), device)
        q0 = torch.arange(0, queries, tall, device=device).view(1, 1, -1, 1)
        k0 = torch.arange(0, keys, wide, device=device).view(1, 1, 1, -1)
        q1, k1 = (q0 + tall).clamp(max=queries) - 1, (k0 + wide).clamp(max=keys) - 1
        return cls(b, h, q0 + first_query, q1 + first_query, k0, k1)

    def unknown(self) -> BlockKinds:
        """Nothing said about any of them."""
        shape = (len(self.b), self.h.shape[1], self.q0.shape[2], self.k0.shape[3])
        return torch.full(shape, UNKNOWN, dtype=torch.int8, device=self.k0.device)


def check_size(name: Callable[[], str], known: tuple[int | None, int | None], size: tuple[int, int, int]) -> None:
    """Refuse sizes that no mask has, and those past what one knows.

    Args:
        name: the mask in words, asked for only where it is needed.
        known: queries and keys that it speaks of, None where it speaks of all.
        size: queries, keys and the position of the first query.

    Raises:
        MaskError: a size is negative, or too large for this mask.
    """
    queries, keys, first_query = size
    if min(size) < 0:
        raise MaskError(
            f"a mask was asked for {queries} queries from position {first_query} and {keys} keys, "
            "but sizes and positions are never negative; give counts from 0 up"
        )
    for what, limit, asked in zip(("queries", "keys"), known, (first_query + queries, keys), strict=True):
        if limit is not None and asked > limit:
            raise MaskError(
                f"{name()} knows {limit} {what} and was asked for {asked}; ask for fewer, or make it from more"
            )


def row_strips(cells_a_row: int, queries: int, first_query: int) -> Iterator[tuple[int, int]]:
    """How many rows to look at together, and the position of the first of them; one strip of none, where there are none.

    >>> list(row_strips(CELLS // 2, 5, 7))
    [(2, 7), (2, 9), (1, 11)]
    """
    rows = max(1, CELLS // max(1, cells_a_row))
    for row in range(0, queries, rows) or (0,):
        yield min(rows, queries - row), first_query + row


def tile(tall: int, wide: int) -> tuple[int, int, int]:
    """How many blocks of so many rows and columns to look at together, and how many rows and columns of each.

    >>> tile(128, 128), tile(1, 2 * CELLS), tile(CELLS, 8)
    ((256, 128, 128), (1, 1, 4194304), (1, 524288, 8))
    """
    columns = min(wide, CELLS)
    rows = min(tall, CELLS // columns)
    return CELLS // (rows * columns), rows, columns


def positions(
    batch: int, heads: int, size: tuple[int, int, int], device: Device
) -> tuple[Int[Tensor, "b 1 1 1"], Int[Tensor, "1 h 1 1"], Int[Tensor, "1 1 q 1"], Int[Tensor, "1 1 1 k"]]:
    """The numbers of samples and heads, and the absolute positions of queries and keys, that broadcast to all cells."""
    queries, keys, first_query = size
    return (
        torch.arange(batch, device=device).view(-1, 1, 1, 1),
        torch.arange(heads, device=device).view(1, -1, 1, 1),
        torch.arange(first_query, first_query + queries, device=device).view(1, 1, -1, 1),
        torch.arange(keys, device=device).view(1, 1, 1, -1),
    )


def graded(full: Bool[Tensor, "*#axes"], empty: Bool[Tensor, "*#axes"]) -> Int8[Tensor, "*axes"]:
    """FULL, EMPTY, or PARTIAL where a block is neither."""
    return (~empty).to(torch.int8) + full.to(torch.int8)


def far_below(dtype: torch.dtype) -> float:
    """A quarter of the lowest number of a float type: two of them add up to one that is finite.

    Raises:
        MaskError: it is not a type of floats.
    """
    if not dtype.is_floating_point:
        raise MaskError(f"an additive mask of {dtype} was asked for, but it holds floats; ask for dense(...) instead")
    return torch.finfo(dtype).min / 4
