"""A mask as a value: what each query may look at, an expression that can be combined, drawn and lowered.

This is the one place that knows which way round a mask is: **True = the query may look at the key**. A mask is made
once and passed; it is immutable, equal to any mask written alike, and prints as the expression that rebuilds it.
Queries and keys are counted in absolute positions, so the mask of one cached decoding step (`first_query=t`) is row t
of the whole one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Never

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.shapes import Look

__all__ = ["And", "Mask", "Not", "Or"]

Index = Int[Tensor, "..."]
"""Positions of samples, heads, queries or keys, shaped so that the four broadcast against each other."""


class Mask(ABC):
    """What each query may look at. Subclasses give `see`, one formula; everything else follows from it.

    `batch` and `heads` are the numbers of samples and heads that the mask speaks of, None where all are alike.
    """

    __slots__ = ()
    _binds = 3  # how tightly the expression binds when printed: | 0, & 1, ~ 2, a name 3

    @property
    def batch(self) -> int | None:
        """Samples that the mask tells apart, or None where it treats all alike."""
        return None

    @property
    def heads(self) -> int | None:
        """Heads that the mask tells apart, or None where it treats all alike."""
        return None

    @property
    def sees_everything(self) -> bool:
        """Whether the expression is plainly `Full()`, at any size."""
        return False

    @abstractmethod
    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """The formula: may query position `q` of sample `b` and head `h` look at key position `k`?"""

    def within(self, queries: int, keys: int, first_query: int = 0) -> "Mask":  # noqa: ARG002
        """A mask equal to this one in a window of that size, and simpler where the window allows.

        Args:
            queries: rows of the window.
            keys: columns of the window, from key 0.
            first_query: the absolute position of the first row.
        """
        return self

    def broadcast(
        self, queries: int, keys: int, first_query: int = 0, device: torch.device | str | None = None
    ) -> Look:
        """The mask as a tensor whose axes have size 1 wherever nothing changes along them.

        This is what kernels take: `Padding` costs batch x keys cells, never batch x queries x keys.
        """
        return self.see(
            torch.arange(self.batch or 1, device=device).view(-1, 1, 1, 1),
            torch.arange(self.heads or 1, device=device).view(1, -1, 1, 1),
            torch.arange(first_query, first_query + queries, device=device).view(1, 1, -1, 1),
            torch.arange(keys, device=device).view(1, 1, 1, -1),
        )

    def dense(
        self, queries: int, keys: int, first_query: int = 0, device: torch.device | str | None = None
    ) -> Bool[Tensor, "batch heads query key"]:
        """The whole mask as a tensor: Bool (batch or 1, heads or 1, queries, keys), True = may look.

        Args:
            queries: how many rows.
            keys: how many columns, from key 0.
            first_query: the absolute position of row 0; a cached step at position t is `queries=1, first_query=t`.
            device: where the tensor is made.

        >>> from pellucid.masks import Causal
        >>> Causal().dense(queries=1, keys=4, first_query=2).tolist()
        [[[[True, True, True, False]]]]
        """
        if queries < 0 or keys < 0 or first_query < 0:
            raise MaskError(
                f"a mask was asked for {queries} queries from position {first_query} and {keys} keys, "
                "but sizes and positions are never negative; give counts from 0 up"
            )
        look = self.broadcast(queries, keys, first_query, device)
        return look.expand(self.batch or 1, self.heads or 1, queries, keys).clone()

    def blind(self, queries: int, keys: int, first_query: int = 0) -> Bool[Tensor, "batch heads query"]:
        """The rows that may look at nothing: True = blind.

        Attention gives such a row zeros, and finite gradients, on every backend.

        >>> from pellucid.masks import Causal, Padding
        >>> (Causal() & Padding((2, 0))).blind(queries=2, keys=2).tolist()
        [[[False, False]], [[True, True]]]
        """
        return ~self.dense(queries, keys, first_query).any(-1)

    def draw(self, queries: int, keys: int, first_query: int = 0) -> str:
        """A picture for the terminal: a row for each query, a column for each key, ■ = may look.

        >>> from pellucid.masks import Causal
        >>> print(Causal().draw(queries=3, keys=3))
        Causal()   rows: queries, columns: keys, ■ may look, · may not
          0 1 2
        0 ■ · ·
        1 ■ ■ ·
        2 ■ ■ ■
        """
        pictures = self.dense(queries, keys, first_query)
        lines = [f"{self!r}   rows: queries, columns: keys, ■ may look, · may not"]
        for b, h in ((b, h) for b in range(len(pictures)) for h in range(len(pictures[0]))):
            names = [f"sample {b}"] * (len(pictures) > 1) + [f"head {h}"] * (len(pictures[0]) > 1)
            lines += [", ".join(names)] * bool(names) + _rows(pictures[b, h], first_query)
        return "\n".join(lines)

    def __and__(self, other: "Mask") -> "Mask":
        """What both let a query see."""
        return _combine(And, self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        """What either lets a query see."""
        return _combine(Or, self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> "Mask":
        """What this one hides."""
        return Not(self)

    def __sub__(self, other: "Mask") -> "Mask":
        """What this one lets a query see and the other does not."""
        return self & ~other if isinstance(other, Mask) else NotImplemented

    def __xor__(self, other: "Mask") -> "Mask":
        """What exactly one of the two lets a query see."""
        return (self - other) | (other - self) if isinstance(other, Mask) else NotImplemented

    def __bool__(self) -> Never:
        raise MaskError(
            "a mask has no truth value: it was used with `and`, `or`, `not` or `if`; "
            "write a & b, a | b or ~a to combine masks, or ask mask.dense(...).any()"
        )


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

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """Not what the part sees."""
        return ~self.part.see(b, h, q, k)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The inverse of the part, simplified."""
        return ~self.part.within(queries, keys, first_query)

    def __invert__(self) -> Mask:
        return self.part

    def __repr__(self) -> str:
        return f"~{_bracketed(self.part, self._binds)}"


class _Join(Mask):
    """Several masks joined by one operator; equal whatever the order of its parts."""

    __slots__ = ("parts",)
    _sign: str

    def __init__(self, *parts: Mask) -> None:
        object.__setattr__(self, "parts", tuple(dict.fromkeys(parts)))
        _agreed("samples", [part.batch for part in parts], parts)
        _agreed("heads", [part.heads for part in parts], parts)

    parts: tuple[Mask, ...]

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"masks are values: '{name}' cannot be set; build another mask")

    def __reduce__(self) -> tuple[type["_Join"], tuple[Mask, ...]]:
        return type(self), self.parts

    @property
    def batch(self) -> int | None:
        """Samples that the parts tell apart."""
        return _agreed("samples", [part.batch for part in self.parts], self.parts)

    @property
    def heads(self) -> int | None:
        """Heads that the parts tell apart."""
        return _agreed("heads", [part.heads for part in self.parts], self.parts)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and set(self.parts) == set(getattr(other, "parts", ()))

    def __hash__(self) -> int:
        return hash((type(self), frozenset(self.parts)))

    def __repr__(self) -> str:
        return f" {self._sign} ".join(_bracketed(part, self._binds) for part in self.parts)


class And(_Join):
    """What every part lets a query see: `a & b`."""

    __slots__ = ()
    _binds, _sign = 1, "&"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What all parts see."""
        return reduce(torch.logical_and, (part.see(b, h, q, k) for part in self.parts))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The parts that still hide something in this window."""
        return reduce(Mask.__and__, (part.within(queries, keys, first_query) for part in self.parts))


class Or(_Join):
    """What any part lets a query see: `a | b`."""

    __slots__ = ()
    _binds, _sign = 0, "|"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What any part sees."""
        return reduce(torch.logical_or, (part.see(b, h, q, k) for part in self.parts))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The parts, simplified; everything, where one of them sees everything in this window."""
        return reduce(Mask.__or__, (part.within(queries, keys, first_query) for part in self.parts))


def _combine(join: type[And] | type[Or], a: Mask, b: Mask) -> Mask:
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


def _agreed(what: str, counts: list[int | None], parts: tuple[Mask, ...]) -> int | None:
    """The one number that all parts speak of, or None where none of them names one."""
    named = {count for count in counts if count is not None}
    if len(named) > 1:
        raise MaskError(
            f"masks of {' and '.join(str(count) for count in sorted(named))} {what} were combined in "
            f"{' with '.join(repr(part) for part in parts)}; combine masks of one batch"
        )
    return next(iter(named), None)


def _bracketed(mask: Mask, binds: int) -> str:
    return f"({mask!r})" if mask._binds < binds else repr(mask)


def _rows(picture: Bool[Tensor, "query key"], first_query: int) -> list[str]:
    """The lines of one picture, with positions on both axes and a word beside each row that sees nothing."""
    queries, keys = picture.shape
    wide = len(str(max(first_query + queries, keys) - 1))
    lines = [" ".join([" " * wide, *(f"{key:>{wide}}" for key in range(keys))])]
    for row, cells in enumerate(picture.tolist()):
        marks = (f"{'■' if cell else '·':>{wide}}" for cell in cells)
        lines.append(" ".join([f"{first_query + row:>{wide}}", *marks]) + ("" if any(cells) else "  sees nothing"))
    return lines
