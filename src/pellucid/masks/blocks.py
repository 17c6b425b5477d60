"""A large mask looked at in parts: how much of each block is seen, told by its ends or else by its cells; and counts."""

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask
from pellucid.masks.numbers import whole_numbers
from pellucid.masks.sizes import PARTIAL, UNKNOWN, BlockKinds, Blocks, Device, graded, row_strips, tile

__all__ = ["blocks", "counts", "document_kinds", "prefix_kinds"]

Size = tuple[int, int, int]
"""Queries, keys, and the position of the first query."""


def counts(mask: Mask, size: Size) -> Int[Tensor, "batch heads query"]:
    """The numbers that `Mask.counts` promises."""
    queries, keys, first_query = size
    batch, heads, found = mask.batch or 1, mask.heads or 1, []
    mask.require(*size)
    for rows, row in row_strips(batch * heads * keys, queries, first_query):
        look = mask.broadcast(rows, keys, row)  # what speaks of keys alone is counted once for all queries
        seen = look.count_nonzero(dim=-1) * (keys if look.shape[-1] == 1 else 1)
        found.append(seen.expand(batch, heads, rows))
    return torch.cat(found, dim=-1)


def prefix_kinds(mask: Mask, cut: Blocks) -> BlockKinds:
    """Which blocks a mask shows that shows each sample's first keys: by the last column of each, and the first."""
    last, first = (mask.see(cut.b, cut.h, cut.q0, column) for column in (cut.k1, cut.k0))
    return graded(last, ~first)


def document_kinds(ids: Int[Tensor, "batch _length"], cut: Blocks) -> BlockKinds:
    """Which blocks are seen by rows and columns of the same document, by the first and last document of each side.

    Documents that nothing interrupts are numbered in their order, and then these two tell all; where a sample has others,
    a block may be unknown.
    """
    runs = torch.nn.functional.pad((ids.diff() != 0).cumsum(-1), (1, 0))
    unbroken = (ids.sort().values.diff() != 0).sum(-1, keepdim=True) == runs[:, -1:]
    ids = torch.where(unbroken, runs, ids)
    low, high = _ends(ids, cut.b, cut.q0, cut.q1)
    least, most = (end.mT for end in _ends(ids, cut.b, cut.k0.mT, cut.k1.mT))
    kinds = graded((low == most) & (high == least), (high < least) | (most < low))
    return torch.where((kinds == PARTIAL) & ~unbroken[cut.b, 0], UNKNOWN, kinds)


def _ends(
    ids: Int[Tensor, "batch _length"], b: Int[Tensor, "batch 1 1 1"], first: Index, last: Index
) -> tuple[Int[Tensor, "batch 1 _blocks 1"], Int[Tensor, "batch 1 _blocks 1"]]:
    """The least and the greatest of each sample's ids between the first and the last position of each block."""
    longest = int((last - first).max()) + 1
    inside = ids[b, torch.minimum(first + torch.arange(longest, device=ids.device), last)]
    return inside.amin(-1, keepdim=True), inside.amax(-1, keepdim=True)


def blocks(
    mask: Mask, size: Size, block: int | tuple[int, int], device: Device = None
) -> Int8[Tensor, "batch heads rows columns"]:
    """The kinds of blocks that `Mask.blocks` promises.

    Raises:
        MaskError: a block has no cells, a size is negative, or past what the mask knows.
    """
    tall, wide = _sides(block)
    mask.require(*size)
    shape = (mask.batch or 1, mask.heads or 1, -(-size[0] // tall), -(-size[1] // wide))
    if 0 in shape:
        return torch.zeros(shape, dtype=torch.int8, device=device)
    simple = mask.within(*size)
    cut = Blocks.cut(simple.batch or 1, simple.heads or 1, size, (tall, wide), device)
    return _looked_up(simple, cut, simple.block_kinds(cut)).expand(shape).contiguous()


def _sides(block: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a block.

    Raises:
        MaskError: they are not numbers from 1 up.
    """
    numbers = whole_numbers(block if isinstance(block, tuple) else (block, block), least=1)
    if numbers is None or len(numbers) != 2:
        raise MaskError(
            f"blocks of size {block!r} were asked for, but a block has a row and a column or more; give a number from "
            "1 up for both, or two of them"
        )
    return numbers[0], numbers[1]


def _looked_up(mask: Mask, cut: Blocks, kinds: BlockKinds) -> BlockKinds:
    """The kinds, those that are unknown found out from their cells."""
    unknown = (kinds == UNKNOWN).nonzero()
    if not len(unknown):
        return kinds
    # Along an axis of size 1 no cell changes, so that its first block speaks of all.
    sample, head, row, column = unknown.unbind(-1)
    at = (cut.b[sample, 0, 0], cut.h[0, head, 0])
    ends = (cut.q0[0, 0, row], cut.q1[0, 0, row], cut.k0[0, 0, 0, column, None], cut.k1[0, 0, 0, column, None])
    tall, wide = (int((last - first).max()) + 1 for first, last in (ends[:2], ends[2:]))
    pieces = zip(*(torch.split(end, tile(tall, wide)[0]) for end in (*at, *ends)), strict=True)
    found = [_seen(mask, (tall, wide), *piece) for piece in pieces]
    return kinds.index_put((sample, head, row, column), torch.cat(found))


def _seen(
    mask: Mask,
    sides: tuple[int, int],
    b: Int[Tensor, "some 1"],
    h: Int[Tensor, "some 1"],
    q0: Int[Tensor, "some 1"],
    q1: Int[Tensor, "some 1"],
    k0: Int[Tensor, "some 1"],
    k1: Int[Tensor, "some 1"],
) -> Int8[Tensor, " some"]:
    """The kinds of some blocks, from all their cells, tile by tile."""
    (tall, wide), (_, rows, columns) = sides, tile(*sides)
    full = torch.ones(len(b), dtype=torch.bool, device=b.device)
    empty = full.clone()
    for row in range(0, tall, rows):
        for column in range(0, wide, columns):
            # A block that is cut short has its last row and column looked at again, which changes nothing.
            q = torch.minimum(q0 + torch.arange(row, min(row + rows, tall), device=b.device), q1)
            k = torch.minimum(k0 + torch.arange(column, min(column + columns, wide), device=b.device), k1)
            look = mask.see(b[..., None], h[..., None], q[:, :, None], k[:, None, :])
            shown = look.view(torch.uint8)  # of which least and greatest are found many times faster than all and any
            full &= shown.amin((1, 2)) == 1
            empty &= shown.amax((1, 2)) == 0
    return graded(full, empty)
