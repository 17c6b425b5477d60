"""Which rectangles of an attention have to be computed, found from the structure of its mask."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, product

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.masks import Mask
from pellucid.masks.sizes import CELLS, PARTIAL
from pellucid.model.kernels.call import may_be_kept
from pellucid.model.kernels.patterns import BLOCK, DIAGONAL, Pattern, Seen, Span, rectangles, triangles

__all__ = ["COLUMNS", "TILE", "Tile", "cost", "cut", "tiles"]

TILE = 25_000  # cells that a call of the kernel costs beside those that it computes
COLUMNS = 2**11  # keys that the tiles of one call have together at most, which bounds what it holds
KEPT = 2**20  # cells of masks that a plan may hold; what is beyond is found again whenever it is used


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A rectangle of scores that is computed together.

    Attributes:
        rows: its queries, counted from 0 in the attention.
        columns: its keys.
        seen: "all" of it, "past" (a key is seen by its own query and later ones: the tile's diagonal), or "some".
        samples: its samples, None for all.
        heads: its query heads, None for all.
        cells: what is seen, where `seen` is "some" and the plan holds it: (samples, heads, rows, columns), axes of
            size 1 where nothing changes along them.
        first: whether no tile before it has any of its queries, so that there is nothing to be joined with.
    """

    rows: Span
    columns: Span
    seen: Seen
    samples: Span | None = None
    heads: Span | None = None
    cells: Bool[Tensor, "#samples #heads #rows columns"] | None = None
    first: bool = False

    @property
    def area(self) -> int:
        """Cells of one sample and head that are computed; of those past the diagonal, half are."""
        height, width = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        if self.seen != "past":
            return height * width
        seen = min(height, width)
        return seen * (seen + 1) // 2 + (height - seen) * width

    def look(self, mask: Mask, first_query: int, device: torch.device) -> Bool[Tensor, "#samples #heads #rows columns"]:
        """The cells that are seen, from the plan or from the mask."""
        if self.cells is not None:
            return self.cells
        (top, bottom), (left, right) = self.rows, self.columns
        return mask.see(
            torch.arange(*(self.samples or (0, 1)), device=device).view(-1, 1, 1, 1),
            torch.arange(*(self.heads or (0, 1)), device=device).view(1, -1, 1, 1),
            torch.arange(first_query + top, first_query + bottom, device=device).view(1, 1, -1, 1),
            torch.arange(left, right, device=device).view(1, 1, 1, -1),
        )


def tiles(mask: Mask, queries: int, keys: int, first_query: int, device: torch.device) -> tuple[Tile, ...]:
    """The tiles that hold every cell that is seen, each cell in one of them.

    Samples and heads whose blocks are alike share tiles. What was found for a mask is kept for the next call with an
    equal one, where it is a value through and through.
    """
    found = _kept if may_be_kept(mask) else _found
    return found(mask, queries, keys, first_query, device)


@lru_cache(maxsize=64)
def _kept(mask: Mask, queries: int, keys: int, first_query: int, device: torch.device) -> tuple[Tile, ...]:
    """`_found`, once for each mask and size."""
    return _found(mask, queries, keys, first_query, device)


def _found(mask: Mask, queries: int, keys: int, first_query: int, device: torch.device) -> tuple[Tile, ...]:
    """The tiles, from the kinds of the mask's blocks."""
    kinds = mask.blocks(queries, keys, first_query, size=BLOCK)
    if not kinds.numel():
        return ()
    kinds = _with_diagonals(mask, kinds, (queries, keys, first_query))
    apart = [tile for group in _alike(mask, kinds) for tile in _of_pattern(*group, queries, keys)]
    found = apart
    if len(kinds) > 1:
        # Samples together cost fewer calls and more cells.
        united = _united(kinds)
        together = [
            replace(tile, samples=(0, len(kinds)))
            for pattern, _, heads in _alike(mask, united)
            for tile in _of_pattern(pattern, None, heads, queries, keys)
        ]
        found = min(apart, together, key=lambda some: cost(some, len(kinds)))
    return tuple(_with_cells(mask, _ordered(found, *kinds.shape[:3]), first_query, device))


def cut(tile: Tile, cells: int) -> Iterator[Tile]:
    """The tile in pieces of about so many cells of one sample and head, for kernels that write their scores."""
    if tile.seen == "past":
        yield from _cut_past(tile, cells)
        return
    (top, bottom), (left, right) = tile.rows, tile.columns
    height = max(1, min(bottom - top, math.isqrt(cells)))  # no higher than wide, where there is so much width
    width = max(1, cells // height)
    if height >= bottom - top and width >= right - left:
        yield tile
        return
    for row, column in product(range(top, bottom, height), range(left, right, width)):
        piece = replace(
            tile,
            rows=(row, min(bottom, row + height)),
            columns=(column, min(right, column + width)),
            first=tile.first and column == left,
        )
        if tile.cells is not None:
            # Along an axis of size 1 nothing changes.
            rows = slice(row - top, row - top + height) if tile.cells.shape[2] > 1 else slice(None)
            columns = slice(column - left, column - left + width) if tile.cells.shape[3] > 1 else slice(None)
            piece = replace(piece, cells=tile.cells[:, :, rows, columns])
        yield piece


def _cut_past(tile: Tile, cells: int) -> Iterator[Tile]:
    """A triangle in smaller ones along the diagonal, and the rectangles beside them."""
    (top, bottom), (left, right) = tile.rows, tile.columns
    side = max(1, math.isqrt(cells))
    for step in range(0, bottom - top, side):
        rows, diagonal = (top + step, min(bottom, top + step + side)), min(right, left + step)
        if step:
            yield from cut(replace(tile, rows=rows, columns=(left, diagonal), seen="all"), cells)
        if diagonal < right:
            yield replace(
                tile, rows=rows, columns=(diagonal, min(right, diagonal + side)), first=tile.first and not step
            )


def _with_diagonals(
    mask: Mask, kinds: Int[Tensor, "batch heads rows columns"], size: tuple[int, int, int]
) -> Int[Tensor, "batch heads rows columns"]:
    """Mark the partial blocks on the diagonal that hide exactly the future, so that a kernel's own flag may be used."""
    queries, keys, first_query = size
    shift, rest = divmod(first_query, BLOCK)
    if rest or not len(diagonal := range(min(kinds.shape[2], kinds.shape[3] - shift))):
        return kinds
    kinds = kinds.clone()
    blocks = kinds.diagonal(shift, 2, 3)  # (batch, heads, blocks), a view
    samples = torch.arange(len(kinds)).view(-1, 1, 1, 1, 1)
    heads = torch.arange(kinds.shape[1]).view(1, -1, 1, 1, 1)
    together = max(1, CELLS // (blocks.shape[0] * blocks.shape[1] * BLOCK**2))
    for start in range(0, len(diagonal), together):
        some = torch.arange(start, min(len(diagonal), start + together))
        if not (blocks[:, :, some] == PARTIAL).any():
            continue
        # Past the end of a block that is cut short, its last row or column stands again, which changes nothing.
        steps = some[:, None] * BLOCK + torch.arange(BLOCK)
        q = first_query + steps.clamp(max=queries - 1)[:, :, None]
        k = (first_query + steps).clamp(max=keys - 1)[:, None, :]
        exact = (mask.see(samples, heads, q[None, None], k[None, None]) == (k <= q)).flatten(3).all(-1)
        kind = blocks[:, :, some]
        blocks[:, :, some] = torch.where(exact & (kind == PARTIAL), DIAGONAL, kind)
    return kinds


def _united(kinds: Int[Tensor, "batch heads rows columns"]) -> Int[Tensor, "1 heads rows columns"]:
    """What all samples' blocks are together: as each is, where all are the same, else partial."""
    first = kinds[:1]
    return torch.where((kinds == first).all(0, keepdim=True), first, PARTIAL)


def _alike(
    mask: Mask, kinds: Int[Tensor, "batch heads rows columns"]
) -> Iterator[tuple[Pattern, Span | None, Span | None]]:
    """Neighbouring samples and heads whose blocks are the same, None where the mask does not tell them apart."""
    patterns = [[tuple(map(tuple, rows)) for rows in heads] for heads in kinds.tolist()]
    sample = 0
    for heads_patterns, alike in groupby(patterns):
        samples = (sample, sample := sample + len(list(alike)))
        head = 0
        for pattern, same in groupby(heads_patterns):
            heads = (head, head := head + len(list(same)))
            yield pattern, samples if mask.batch else None, heads if mask.heads else None


def _of_pattern(pattern: Pattern, samples: Span | None, heads: Span | None, queries: int, keys: int) -> list[Tile]:
    """The tiles of one pattern of blocks: with triangles along the diagonal or without, whichever costs less."""
    ways = []
    for staircases in (triangles(pattern), []):
        found = [
            Tile(_ends(rows, queries), _ends(columns, keys), seen, samples, heads)
            for rows, columns, seen in rectangles(pattern, staircases)
        ]
        ways.append(found)
    return min(ways, key=lambda some: cost(some, 1))


def _ends(blocks: Span, limit: int) -> Span:
    return blocks[0] * BLOCK, min(blocks[1] * BLOCK, limit)


def cost(found: Sequence[Tile], batch: int) -> float:
    """What tiles cost, in cells of one head and sample that are seen whole, as measured on CPUs with 8 heads of 64."""
    total, alike = 0.0, Counter[tuple[int, int, Seen, Span | None, Span | None]]()
    for tile in found:
        samples = batch if tile.samples is None else tile.samples[1] - tile.samples[0]
        rows, columns = tile.rows[1] - tile.rows[0], tile.columns[1] - tile.columns[0]
        # A triangle's last block is computed whole; each query's part is joined with that of other tiles.
        cells = tile.area * (1.15 if tile.seen == "some" else 1.0) + (rows * BLOCK / 2) * (tile.seen == "past")
        total += samples * (cells + 80 * rows)
        alike[rows, columns, tile.seen, tile.samples, tile.heads] += 1
    # Those that are alike may be a run, which is one call for some thousand keys.
    calls = sum(-(-times * columns // COLUMNS) for (_, columns, *_), times in alike.items())
    return total + TILE * calls


def _ordered(found: Sequence[Tile], batch: int, heads: int, rows: int) -> Iterator[Tile]:
    """The tiles, each told whether it is the first of its queries."""
    reached = torch.zeros(batch, heads, rows, dtype=torch.bool)
    for tile in sorted(found, key=_order):
        place = (
            slice(*(tile.samples or (None,))),
            slice(*(tile.heads or (None,))),
            slice(tile.rows[0] // BLOCK, -(-tile.rows[1] // BLOCK)),
        )
        yield replace(tile, first=not bool(reached[place].any()))
        reached[place] = True


def _order(tile: Tile) -> tuple[int | str, ...]:
    """Low tiles first, which may be runs along the diagonal; high ones are then joined with many of them at once."""
    height, width = tile.rows[1] - tile.rows[0], tile.columns[1] - tile.columns[0]
    diagonal = tile.columns[0] - tile.rows[0]
    return height, tile.seen, width, diagonal, *(tile.samples or ()), *(tile.heads or ()), tile.rows[0]


def _with_cells(mask: Mask, found: Iterable[Tile], first_query: int, device: torch.device) -> Iterator[Tile]:
    """The tiles, their cells looked up once; those that are alike, as all of a window are, share one tensor."""
    kept: dict[tuple[tuple[int, ...], bytes], Tensor] = {}
    room = KEPT
    for tile in found:
        if tile.seen == "some" and room > 0:
            cells = tile.look(mask, first_query, torch.device("cpu"))
            name = (tuple(cells.shape), cells.numpy().tobytes())
            if name not in kept:
                room -= cells.numel()
                kept[name] = cells.to(device)
            tile = replace(tile, cells=kept[name])
        yield tile
