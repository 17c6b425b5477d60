"""For each kind of mask, the tightest one that sees all the cells of a tensor: the parts `recognise` chooses from.

Each kind is looked at in both polarities: the smallest that holds the seen cells, and the largest that holds none of
them, inverted. So whatever the tensor is, each part given here sees all that it sees, and may see more.
"""

from collections.abc import Iterator
from math import gcd

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.masks.algebra import Mask
from pellucid.masks.kinds import Causal, Chunked, Dilated, Global, Window
from pellucid.masks.samples import Padding, Segments

__all__ = ["Cells", "first_seen", "offsets", "prefixes", "scattered", "seen_along", "tightest"]

Cells = Bool[Tensor, "batch 1 query key"]
"""What the queries of one head see; row 0 is the query at position `first`, which every function here is told."""

SIZES = 2  # of a chunk or a step, none of them made of another, that are worth looking at


def tightest(cells: Cells, first: int) -> list[Mask]:
    """The tightest mask of each kind that sees all the seen cells, in the order in which they are written.

    Args:
        cells: (batch, 1, Q, K), of which one at least is seen.
        first: the position of the first query.
    """
    any_sample = seen_along(cells[:, 0], 0)
    return [
        *_by_distance(offsets(any_sample, first), (any_sample.shape[0], any_sample.shape[1], first)),
        *_by_chunks(cells, first),
        *_by_positions(any_sample, first),
        *_by_ends(cells),
    ]


def offsets(look: Bool[Tensor, "query key"], first: int) -> list[int]:
    """Every distance q - k at which a query sees a key, in order."""
    queries, keys = look.shape
    found = torch.zeros(queries + keys - 1, dtype=torch.bool)
    # Along the shorter side, one vector operation a line.
    if queries <= keys:
        mirrored = look.flip(1)
        for row in range(queries):
            found[row : row + keys] |= mirrored[row]
    else:
        columns = look.T
        for key in range(keys):
            found[keys - 1 - key : keys - 1 - key + queries] |= columns[key]
    places: list[int] = found.nonzero()[:, 0].tolist()
    return [place - (keys - 1) + first for place in places]


def prefixes(cells: Cells) -> tuple[int, ...]:
    """The keys of each sample up to the last that is seen."""
    return tuple((_last(seen_along(cells[:, 0], 1)) + 1).tolist())


def seen_along(look: Bool[Tensor, "..."], axis: int) -> Bool[Tensor, "..."]:
    """Whether anything is seen along an axis that is not empty: `any`, several times as fast."""
    return look.view(torch.uint8).amax(axis).view(torch.bool)


def _by_distance(distances: list[int], size: tuple[int, int, int]) -> Iterator[Mask]:
    """Causal, Window and Dilated, all of which speak of q - k."""
    queries, keys, first = size
    behind, ahead = first + queries - 1, max(0, keys - 1 - first)  # how far the tensor reaches
    back, forth = [far for far in distances if far > 0], [-far for far in distances if far < 0]
    if not forth:
        yield Causal()
    elif len(forth) == len(distances):
        yield ~Causal()
    yield Window(max(back, default=0), max(forth, default=0))
    if 0 not in distances:
        yield ~Window(min(back, default=behind + 1) - 1, min(forth, default=ahead + 1) - 1)
    step = gcd(*distances)
    if step > 1:
        yield Dilated(step)
    taken = {abs(far) for far in distances}
    most = max(taken)
    free = (step for step in range(2, most + 1) if taken.isdisjoint(range(0, most + 1, step)))
    yield from (~Dilated(step) for step in _not_made_of_another(free))


def _by_chunks(cells: Cells, first: int) -> Iterator[Mask]:
    """Chunked and Segments: what is seen crosses no border."""
    queries, keys = cells.shape[2:]
    length = max(first + queries, keys)
    crossed = _crossed(cells, first, length)
    borders = bytes(crossed.any(0).to(torch.uint8).tolist())
    longest = max(map(len, borders.split(b"\0")))  # as many borders in a row hold a multiple of every smaller size
    sizes = (size for size in range(longest + 1, length) if not any(borders[size::size]))
    yield from map(Chunked, _not_made_of_another(sizes))
    largest = _free_chunks(seen_along(cells[:, 0], 0), first)
    yield from (~Chunked(size) for size in largest)
    if first < keys and not bool(crossed[:, 1:].all()):
        ids = (~crossed).cumsum(-1) - 1
        yield Segments(ids)


def _crossed(cells: Cells, first: int, length: int) -> Bool[Tensor, "batch length"]:
    """For each sample and position, whether a query sees a key on the other side of the border before it."""
    look, at = cells[:, 0], torch.arange(first, first + cells.shape[2])
    blind = ~seen_along(look, -1)
    low = torch.minimum(torch.where(blind, at, first_seen(look)), at)
    high = torch.maximum(torch.where(blind, at, _last(look)), at)
    one = torch.ones_like(low)
    change = torch.zeros(len(look), length + 1, dtype=torch.long)
    change.scatter_add_(1, low + 1, one).scatter_add_(1, high + 1, -one)
    return change.cumsum(-1)[:, :length] > 0


def _free_chunks(look: Bool[Tensor, "query key"], first: int) -> list[int]:
    """The largest sizes of chunk within which no query sees a key."""
    queries, keys = look.shape
    at = torch.arange(first, first + queries)
    if bool(look.diagonal(first).any()):
        return []
    ahead, behind = first_seen(look.triu(first + 1)), _last(look.tril(first - 1))
    nearest = torch.cat([ahead[ahead < keys], behind[behind >= 0]])
    seen_from = torch.cat([at[ahead < keys], at[behind >= 0]])
    low, high = torch.minimum(nearest, seen_from), torch.maximum(nearest, seen_from)
    found: list[int] = []
    # A border lies between each of these pairs, so chunks are no larger than where the last of the pairs begins.
    for size in range(int(high.min()), 1, -1):
        if all(larger % size for larger in found) and not bool((low // size == high // size).any()):
            found.append(size)
            if len(found) == SIZES:
                break
    return found


def _by_positions(look: Bool[Tensor, "query key"], first: int) -> Iterator[Mask]:
    """Global, inverted: the positions that see nothing and are seen by none."""
    alone = _alone(look, first)
    alone[look.shape[1] : first] = False  # these are in no row and in no column
    if bool(alone.any()):
        yield ~Global(alone.nonzero()[:, 0])


def _alone(look: Bool[Tensor, "query key"], first: int) -> Bool[Tensor, " length"]:
    """The positions that see nothing and are seen by none."""
    queries, keys = look.shape
    alone = torch.ones(max(first + queries, keys), dtype=torch.bool)
    alone[:keys] &= ~seen_along(look, 0)
    alone[first : first + queries] &= ~seen_along(look, 1)
    return alone


def _by_ends(cells: Cells) -> Iterator[Mask]:
    """Padding, on the right and on the left."""
    yield Padding(prefixes(cells))
    yield ~Padding(first_seen(seen_along(cells[:, 0], 1)))


def scattered(cells: Cells, first: int) -> Segments | None:
    """Segments whose positions may lie apart: all that hang together by what is seen; None where all do."""
    queries, keys = cells.shape[2:]
    if first >= keys:
        return None
    ids = [_together(look, first, max(first + queries, keys)) for look in cells[:, 0]]
    return Segments(ids) if any(len(set(row)) > 1 for row in ids) else None


def _together(look: Bool[Tensor, "query key"], first: int, length: int) -> list[int]:
    """The connected parts of one sample's positions, numbered as they appear."""
    queries, keys = look.shape
    rows, columns = slice(first, first + queries), slice(keys)
    # Neighbours that see one key, or are seen by one query, hang together: so long bands take one step, not hundreds.
    joined = torch.zeros(length, dtype=torch.bool)
    joined[1:keys] |= (look[:, 1:] & look[:, :-1]).any(0)
    joined[first + 1 : first + queries] |= (look[1:] & look[:-1]).any(1)
    run = (~joined).cumsum(0) - 1
    number = torch.arange(int(run[-1]) + 1)
    number[run[~_alone(look, first)]] = -1
    for start in range(len(number)):
        if number[start] >= 0:
            continue
        fresh = torch.zeros(len(number), dtype=torch.bool)
        fresh[start] = True
        while bool(fresh.any()):
            number[fresh] = start
            inside = fresh[run]
            touched = torch.zeros(length, dtype=torch.bool)
            touched[columns] |= look[inside[rows]].any(0)
            touched[rows] |= look[:, inside[columns]].any(1)
            fresh = torch.zeros_like(fresh).index_fill_(0, run[touched], True) & (number < 0)
    names: dict[int, int] = {}
    return [names.setdefault(one, len(names)) for one in number[run].tolist()]


def _not_made_of_another(sizes: Iterator[int]) -> list[int]:
    """The first sizes, of those in rising order, that are no multiple of another."""
    found: list[int] = []
    for size in sizes:
        if all(size % smaller for smaller in found):
            found.append(size)
            if len(found) == SIZES:
                break
    return found


def first_seen(look: Bool[Tensor, "*lines cell"]) -> Int[Tensor, "*lines"]:
    """The place of each line's first seen cell; past the end where there is none."""
    return torch.where(seen_along(look, -1), look.view(torch.uint8).argmax(-1), look.shape[-1])


def _last(look: Bool[Tensor, "*lines cell"]) -> Int[Tensor, "*lines"]:
    """The place of each line's last seen cell; -1 where there is none."""
    return look.shape[-1] - 1 - first_seen(look.flip(-1))
