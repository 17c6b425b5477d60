"""Finds the shortest expression of the algebra that gives a tensor, or says what was near it and where it failed.

The tightest mask of each kind that sees all the seen cells is a part of any conjunction that gives the tensor, so those
are asked which hidden cells each of them hides, and the fewest that hide all of them together are the expression. A
union is the same asked of the hidden cells: `a | b` is `~(~a & ~b)`.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.candidates import Cells, offsets, prefixes, scattered, tightest
from pellucid.masks.cover import Cover, kinds_in, seen_by, wrong_cells
from pellucid.masks.joins import Not
from pellucid.masks.kinds import Causal, Chunked, Dilated, Full, Global, Window
from pellucid.masks.numbers import any_tensor
from pellucid.masks.samples import Heads, Padding, Prefix, Segments
from pellucid.masks.tensors import Dense

__all__ = ["recognise"]

# The unions that people use. Were any two or three kinds let in, some union would miss just the one cell that is wrong
# in a tensor, and nothing would ever be spoiled.
UNIONS = {
    (Causal, Padding),
    (Causal, Chunked),
    (Window, Padding),
    (Window, Global),
    (Window, Dilated),
    (Chunked, Global),
}


class Guess(NamedTuple):
    """An expression for a tensor, and in how many cells it is wrong."""

    wrong: int
    mask: Mask

    @property
    def cost(self) -> tuple[int, int, int]:
        """What is least in the best: wrong cells, then kinds named, then letters."""
        return self.wrong, kinds_in(self.mask), len(repr(self.mask))


def recognise(tensor: Any, first_query: int = 0) -> Mask:
    """The shortest expression of the algebra that gives a tensor.

    Of those with the fewest kinds, the one with the fewest letters. What the tensor's size cannot decide is taken as
    small as the seen cells allow.

    Args:
        tensor: a tensor or an array (Q, K), (batch, Q, K) or (batch, heads, Q, K), bool, True = may look.
        first_query: the absolute position of row 0.

    Returns:
        A mask whose `dense(Q, K, first_query)` is the tensor, with size 1 where all its samples or heads are alike.
        Where no expression gives it, a `Dense` mask whose `note` names the nearest expression and the first cell where
        that is wrong.

    Raises:
        MaskError: not a bool tensor of such a shape, or a negative position.

    >>> recognise(torch.tensor([[True, False, False], [True, True, False], [True, True, False]]))
    Causal() & Padding((2,))
    >>> recognise(torch.tensor([[True, False, False], [True, False, False], [True, True, True]])).note
    'nearest Causal(), spoiled first at query 1, key 1'
    """
    cells = _with_four_axes(tensor, first_query)
    if not cells.numel():
        return Full()
    if all(torch.equal(cells[:, head], cells[:, 0]) for head in range(1, cells.shape[1])):
        cells = cells[:, :1]
    guesses = []
    for head in range(cells.shape[1]):
        guesses.append(_guess(cells[:, head : head + 1].contiguous(), first_query))
        if guesses[-1].wrong:
            return _dense(cells, first_query, head, guesses[-1].mask)
    found = tuple(guess.mask for guess in guesses)
    return found[0] if len(found) == 1 else Heads(found)


def _with_four_axes(tensor: Any, first_query: int) -> Bool[Tensor, "batch heads query key"]:
    """The tensor as (batch, heads, Q, K).

    Raises:
        MaskError: it is no mask.
    """
    tensor = any_tensor(tensor, "recognise")
    if tensor.dtype != torch.bool:
        raise MaskError(
            f"recognise was given a tensor of {tensor.dtype}, but it takes bool, True = may look; convert it with "
            "masks.read(...), which knows what each library means"
        )
    if not 2 <= tensor.dim() <= 4:
        raise MaskError(
            f"recognise was given a tensor of shape {tuple(tensor.shape)}, but it takes (Q, K), (batch, Q, K) or "
            "(batch, heads, Q, K); give two to four axes"
        )
    if first_query < 0:
        raise MaskError(
            f"recognise was given first_query={first_query}, but positions are never negative; give the position of row 0"
        )
    cells: Tensor = tensor.detach().cpu()
    return cells[None, None] if cells.dim() == 2 else cells[:, None] if cells.dim() == 3 else cells


def _dense(cells: Bool[Tensor, "batch heads query key"], first: int, head: int, nearest: Mask) -> Dense:
    """The tensor itself, with a note of what was near it in one head."""
    _, (sample, query, key) = wrong_cells(nearest, cells[:, head : head + 1], first)
    where = [f"sample {sample}"] * (cells.shape[0] > 1) + [f"head {head}"] * (cells.shape[1] > 1)
    where += [f"query {query}", f"key {key}"]
    # Rows stand at positions from 0, so those before the first see nothing; a lone row speaks of every position.
    before = first if cells.shape[2] > 1 else 0
    whole = torch.nn.functional.pad(cells, (0, 0, before, 0))
    return Dense(whole, note=f"nearest {nearest!r}, spoiled first at {', '.join(where)}")


# --- expressions that are tried ---------------------------------------------------------------------------------


def _guess(cells: Cells, first: int) -> Guess:
    """The best expression for what one head sees."""
    if not bool(cells.any()):
        return Guess(0, ~Full())
    if bool(cells.all()):
        return Guess(0, Full())
    parts = tightest(cells, first)
    plain = _conjunction(parts, cells, first)
    if plain.wrong == 0 and kinds_in(plain.mask) == 1:
        return plain
    tried = [plain, _union(tightest(~cells, first), cells, ~cells, first)]
    if plain.wrong or kinds_in(plain.mask) > 2:
        tried += _with_unions(parts, cells, first)
    if all(guess.wrong for guess in tried):
        tried += _at_last(parts, cells, first)
    return min(tried, key=lambda guess: guess.cost)


def _with_unions(parts: list[Mask], cells: Cells, first: int) -> Iterator[Guess]:
    """Conjunctions of the parts with a union that gives the cells among those that some of the parts leave."""
    ends = [part for part in parts if isinstance(part, Causal | Padding) or (isinstance(part, Not) and part.batch)]
    unions: list[Mask] = []
    for outer in (ends, parts):
        rest = seen_by(reduce(and_, outer, Full()), cells, first) & ~cells
        if bool(rest.any()):
            union = _union(tightest(rest, first), cells, rest, first, inside=True)
            unions += [union.mask] * (union.wrong == 0)
    if unions:
        kinds = [part for part in parts[:-2] if not isinstance(part, Segments)]
        yield _conjunction([*kinds, *unions, *parts[-2:]], cells, first)


def _at_last(parts: list[Mask], cells: Cells, first: int) -> Iterator[Guess]:
    """What takes longer, or is only near: documents in pieces, a causal mask that sees some of the future, one colour."""
    yield from (Guess(wrong_cells(mask, cells, first)[0], mask) for mask in (Full(), ~Full()))
    pieces = scattered(cells, first)
    if pieces is not None:
        yield _conjunction([*parts[:-2], pieces, *parts[-2:]], cells, first)
    pieces = scattered(~cells, first)
    if pieces is not None:
        yield _union([pieces], cells, ~cells, first)
    past = cells & seen_by(Causal(), cells, first)
    if bool(past.any()):
        mask = _conjunction(tightest(past, first), past, first).mask
        yield Guess(wrong_cells(mask, cells, first)[0], mask)


def _conjunction(parts: Sequence[Mask], cells: Cells, first: int) -> Guess:
    """The fewest parts that together hide what any of them hides of the hidden cells."""
    cover = Cover.of(parts, cells, ~cells, first)
    bits = cover.cheapest()
    return Guess(cover.missed(bits), reduce(and_, cover.chosen(bits), Full()))


def _union(parts: Sequence[Mask], cells: Cells, rest: Cells, first: int, *, inside: bool = False) -> Guess:
    """The union that sees most of the cells: of two kinds, or the inverse of a conjunction.

    Args:
        parts: masks that see all of `rest`.
        cells: what should be seen.
        rest: what should be hidden; of the other cells nothing is asked.
        first: the position of the first query.
        inside: whether it is to stand in a conjunction, where the inverse of one kind is all that is looked for.

    Returns:
        The mask, and how many of the cells it misses.
    """
    cover = Cover.of([part for part in parts if not _is_most(part, cells.shape[3])], rest, cells, first)
    ways = [1 << bit for bit in range(len(cover.parts))]
    if not inside:
        ways.append(cover.cheapest(sum(way for way, part in zip(ways, cover.parts, strict=True) if _plain(part))))
    for one, other in combinations(enumerate(cover.parts), 2):
        kinds = tuple(type(part.part) for _, part in (one, other) if isinstance(part, Not))
        if kinds in UNIONS:
            ways.append(1 << one[0] | 1 << other[0])
    for bits in sorted(ways, key=lambda way: (cover.missed(way), cover.cost(way))):
        members = _fitted([~part for part in cover.chosen(bits)], cells, first)
        if members:
            return Guess(cover.missed(bits), _joined(members))
    return Guess(int(cells.count_nonzero()), ~Full())


def _is_most(part: Mask, keys: int) -> bool:
    """Whether a part is the inverse of global positions that are most of all: all but a few had better be named."""
    return isinstance(part, Not) and isinstance(part.part, Global) and 2 * len(part.part.at) > keys


def _plain(part: Mask) -> bool:
    """Whether a part of a conjunction is as it mostly is: inverted only where it is padding on the left."""
    return not isinstance(part, Not) or isinstance(part.part, Padding)


def _fitted(members: list[Mask], cells: Cells, first: int) -> list[Mask]:
    """The members of a union, each no larger than the cells ask that the others do not see.

    They are none where a prefix would have to differ between samples beside a window, which is nobody's mask.
    """
    plain = not any(isinstance(member, Not) for member in members)
    for place, member in enumerate(members):
        prefix = isinstance(member, Padding) and plain and len(members) > 1
        if not prefix and not isinstance(member, Window):
            continue
        others = reduce(or_, [*members[:place], *members[place + 1 :]], ~Full())
        alone = cells & ~seen_by(others, cells, first)
        if prefix:
            lengths = prefixes(alone)
            members[place] = Prefix(lengths if len(set(lengths)) > 1 else lengths[0])
            if members[place].batch and Causal() not in members:
                return []
        else:
            distances = offsets(alone[:, 0].any(0), first)
            members[place] = Window(max(0, *distances), -min(0, *distances))
    return members


def _joined(members: list[Mask]) -> Mask:
    """The union, written with as few inversions as can be."""
    inverted = sum(isinstance(member, Not) for member in members)
    if inverted > 1 + len(members) - inverted:
        return ~reduce(and_, (~member for member in members))
    return reduce(or_, members, ~Full())
