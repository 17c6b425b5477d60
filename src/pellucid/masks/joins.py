"""What the operators make of masks: the inverse of one, and several joined by and, or by or."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Never

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask
from pellucid.masks.kinds import Causal, Window
from pellucid.masks.numbers import FARTHEST
from pellucid.masks.sizes import EMPTY, FULL, UNKNOWN, BlockKinds, Blocks

__all__ = ["And", "Join", "Not", "Or", "agreed", "combine", "is_mask", "least_known"]


@dataclass(frozen=True, slots=True)
class Not(Mask):
    """What the part hides: `~part`."""

    part: Mask
    _binds = 2

    @property
    def batch(self) -> int | None:
        """Samples that the part tells apart."""
        return self.part.batch

    @property
    def heads(self) -> int | None:
        """Heads that the part tells apart."""
        return self.part.heads

    @property
    def known(self) -> tuple[int | None, int | None]:
        """What the part knows."""
        return self.part.known

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """Not what the part sees."""
        return ~self.part.see(b, h, q, k)

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """Full where the part's are empty, and empty where they are full."""
        return _inverted(self.part.block_kinds(blocks))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The inverse of the part, simplified."""
        return ~self.part.within(queries, keys, first_query)

    def told(self, batch: int | None, heads: int | None) -> Mask:
        """The inverse of the part that was told."""
        return ~self.part.told(batch, heads)

    def __invert__(self) -> Mask:
        return self.part

    def __repr__(self) -> str:
        return f"~{_bracketed(self.part, self._binds)}"


class Join(Mask):
    """Several masks joined by one operator; equal whatever the order of its parts."""

    __slots__ = ("parts",)
    _sign: str

    def __init__(self, *parts: Mask) -> None:
        object.__setattr__(self, "parts", tuple(dict.fromkeys(parts)))
        agreed("samples", [part.batch for part in parts], parts)
        agreed("heads", [part.heads for part in parts], parts)

    parts: tuple[Mask, ...]

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"masks are values: '{name}' cannot be set; build another mask")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"masks are values: '{name}' cannot be deleted; build another mask")

    def __reduce__(self) -> tuple[type["Join"], tuple[Mask, ...]]:
        return type(self), self.parts

    @property
    def batch(self) -> int | None:
        """Samples that the parts tell apart."""
        return agreed("samples", [part.batch for part in self.parts], self.parts)

    @property
    def heads(self) -> int | None:
        """Heads that the parts tell apart."""
        return agreed("heads", [part.heads for part in self.parts], self.parts)

    @property
    def known(self) -> tuple[int | None, int | None]:
        """What every part knows."""
        return least_known(self.parts)

    def told(self, batch: int | None, heads: int | None) -> Mask:
        """The parts, each of them told."""
        return type(self)(*(part.told(batch, heads) for part in self.parts))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and set(self.parts) == set(getattr(other, "parts", ()))

    def __hash__(self) -> int:
        return hash((type(self), frozenset(self.parts)))

    def __repr__(self) -> str:
        return f" {self._sign} ".join(_bracketed(part, self._binds) for part in self.parts)


class And(Join):
    """What every part lets a query see: `a & b`."""

    __slots__ = ()
    _binds, _sign = 1, "&"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What all parts see."""
        return reduce(torch.logical_and, (part.see(b, h, q, k) for part in self.parts))

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """Unknown where two parts or more hide something: together they may hide all."""
        return _all_seen([part.block_kinds(blocks) for part in _one_band(self.parts, min)])

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The parts that still hide something in this window."""
        return reduce(Mask.__and__, (part.within(queries, keys, first_query) for part in self.parts))


class Or(Join):
    """What any part lets a query see: `a | b`."""

    __slots__ = ()
    _binds, _sign = 0, "|"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What any part sees."""
        return reduce(torch.logical_or, (part.see(b, h, q, k) for part in self.parts))

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """Unknown where two parts or more show something: together they may show all."""
        kinds = [_inverted(part.block_kinds(blocks)) for part in _one_band(self.parts, max)]
        return _inverted(_all_seen(kinds))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The parts, simplified; everything, where one of them sees everything in this window."""
        return reduce(Mask.__or__, (part.within(queries, keys, first_query) for part in self.parts))


def combine(join: type[And] | type[Or], a: Mask, b: Mask) -> Mask:
    """Join two masks, flattening nested joins and leaving out what changes nothing."""
    if a == b:
        return a
    for one, other in ((a, b), (b, a)):
        if one.sees_everything:
            return other if join is And else one
        if isinstance(one, Not) and one.part.sees_everything:
            return one if join is And else other
    parts = chain.from_iterable(part.parts if isinstance(part, join) else (part,) for part in (a, b))
    return join(*parts)


def agreed(what: str, counts: list[int | None], parts: tuple[Mask, ...]) -> int | None:
    """The one number that all parts speak of, or None where none of them names one.

    Raises:
        MaskError: two of them name different ones.
    """
    named = {count for count in counts if count is not None}
    if len(named) > 1:
        raise MaskError(
            f"masks of {' and '.join(str(count) for count in sorted(named))} {what} were combined in "
            f"{' with '.join(repr(part) for part in parts)}; combine masks of one batch"
        )
    return next(iter(named), None)


def least_known(parts: tuple[Mask, ...]) -> tuple[int | None, int | None]:
    """The queries and keys that all parts know."""
    sides = ([part.known[side] for part in parts] for side in (0, 1))
    queries, keys = (min((count for count in side if count is not None), default=None) for side in sides)
    return queries, keys


def _inverted(kinds: BlockKinds) -> BlockKinds:
    return torch.where(kinds == UNKNOWN, kinds, FULL - kinds)


def _all_seen(parts: list[BlockKinds]) -> BlockKinds:
    """What all parts together come to: what is left of one where no other hides anything."""
    first, *rest = parts
    for kinds in rest:
        one = torch.where(first == FULL, kinds, torch.where(kinds == FULL, first, UNKNOWN))
        first = one.masked_fill((first == EMPTY) | (kinds == EMPTY), EMPTY)
    return first


def _one_band(parts: tuple[Mask, ...], pick: Callable[..., int]) -> list[Mask]:
    """The parts, Causal and all windows made one window: each holds its diagonal, so both joins of them do."""
    reach = [(part.before, part.after) for part in parts if isinstance(part, Window)]
    reach += [(FARTHEST - 1, 0) for part in parts if isinstance(part, Causal)]
    if len(reach) < 2:
        return list(parts)
    before, after = (pick(side) for side in zip(*reach, strict=True))
    return [Window(before, after), *(part for part in parts if not isinstance(part, Causal | Window))]


def _bracketed(mask: Mask, binds: int) -> str:
    return f"({mask!r})" if mask._binds < binds else repr(mask)


def is_mask(other: object) -> bool:
    """Whether it can be joined; a tensor is refused with advice.

    Raises:
        MaskError: it is a tensor.
    """
    if isinstance(other, Tensor):
        raise MaskError(
            f"a mask was joined with a tensor of shape {tuple(other.shape)}, but masks are joined with masks; wrap it in "
            "Dense(...), or read it with masks.read(...)"
        )
    return isinstance(other, Mask)
