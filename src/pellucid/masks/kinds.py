"""The kinds of mask that speak of positions alone: Full, Causal, Window, Chunked, Dilated and Global, one formula each."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask
from pellucid.masks.numbers import whole_numbers
from pellucid.masks.sizes import BlockKinds, Blocks, graded

__all__ = ["Causal", "Chunked", "Dilated", "Full", "Global", "Window"]


@dataclass(frozen=True, slots=True)
class Full(Mask):
    """Every query may look at every key.

    >>> Full() & Causal()
    Causal()
    """

    @property
    def sees_everything(self) -> bool:
        """Always."""
        return True

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """All of it."""
        return torch.ones_like(k, dtype=torch.bool)

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """Full, all of them."""
        return graded(blocks.k0 >= 0, blocks.k0 < 0)


@dataclass(frozen=True, slots=True)
class Causal(Mask):
    """A query may look at its own position and those before it: k <= q (Vaswani et al. 2017, section 3.2.3)."""

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing ahead of the query."""
        return k <= q

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By the corner that sees least and the one that sees most."""
        return graded(blocks.k1 <= blocks.q0, blocks.k0 > blocks.q1)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where the first query already stands at the last key: a cached step."""
        return Full() if first_query >= keys - 1 else self


@dataclass(frozen=True, slots=True)
class Window(Mask):
    """A query may look at so many keys before and after itself, and at itself: q - before <= k <= q + after.

    `before` and `after` count keys beside the query: other libraries' "window of W" may be W, W + 1 or 2 W + 1 keys.

    >>> Window(before=1, after=0).dense(queries=3, keys=3).int().tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    """

    before: int
    after: int

    def __post_init__(self) -> None:
        numbers = whole_numbers((self.before, self.after))
        if numbers is None:
            raise MaskError(
                f"Window was given before={self.before}, after={self.after}, but both count keys beside the query; "
                "give numbers from 0 up"
            )
        for name, number in zip(("before", "after"), numbers, strict=True):
            object.__setattr__(self, name, number)  # a tensor's number would be another value than the number itself

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing farther than the window reaches."""
        return (q - self.before <= k) & (k <= q + self.after)

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By how far keys lie from queries, of which every distance between the corners' occurs."""
        least, most = blocks.k0 - blocks.q1, blocks.k1 - blocks.q0
        full = (least >= -self.before) & (most <= self.after)
        return graded(full, (most < -self.before) | (least > self.after))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """Everything, where the window reaches both ends from every query."""
        reaches_back = first_query + queries - 1 - self.before <= 0
        return Full() if reaches_back and first_query + self.after >= keys - 1 else self


@dataclass(frozen=True, slots=True)
class Chunked(Mask):
    """A query may look at the keys of its own chunk of so many positions: q // size == k // size.

    With `Causal()` it is the local attention that Llama 4 calls chunked.

    >>> Chunked(2).dense(queries=3, keys=4).int().tolist()
    [[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]]]
    """

    size: int

    def __post_init__(self) -> None:
        _counts_positions(self)

    def __repr__(self) -> str:
        return f"Chunked({self.size})"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing outside the query's chunk."""
        return q // self.size == k // self.size

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By the chunks that its rows and its columns begin and end in."""
        q0, q1, k0, k1 = (end // self.size for end in (blocks.q0, blocks.q1, blocks.k0, blocks.k1))
        return graded((q0 == k1) & (q1 == k0), (q1 < k0) | (k1 < q0))

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """Everything, where the whole window lies in the first chunk."""
        return Full() if max(first_query + queries, keys) <= self.size else self


@dataclass(frozen=True, slots=True)
class Dilated(Mask):
    """A query may look at every key that is a multiple of `step` away: (q - k) % step == 0.

    With `Window(...)` it is the dilated sliding window of Longformer (Beltagy et al. 2020, section 3.1).

    >>> Dilated(2).dense(queries=2, keys=5).int().tolist()
    [[[[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]]]]
    """

    step: int

    def __post_init__(self) -> None:
        _counts_positions(self)

    def __repr__(self) -> str:
        return f"Dilated({self.step})"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing between the steps."""
        return (q - k) % self.step == 0

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By the steps among the distances between its corners; two distances in a row are not both steps."""
        least, most = blocks.k0 - blocks.q1, blocks.k1 - blocks.q0
        empty = most // self.step * self.step < least
        return graded(~empty & ((least == most) | (self.step == 1)), empty)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where every key is a step."""
        return Full() if self.step == 1 else self


@dataclass(frozen=True, slots=True, init=False)
class Global(Mask):
    """Queries at these positions see every key, and every query sees the keys there: q in at or k in at.

    With `Window(...)` by or it is Longformer's attention (Beltagy et al. 2020, section 3.1).

    Args:
        at: the positions, from 0; or one position.

    >>> (Global(0) | Window(1, 1)).dense(queries=4, keys=4).int().tolist()
    [[[[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]]]]
    """

    at: tuple[int, ...]

    def __init__(self, at: int | Sequence[int] | Int[Tensor, " positions"]) -> None:
        places = whole_numbers((at,) if isinstance(at, int) else at)
        if places is None:
            raise MaskError(
                f"Global was given the positions {reprlib.repr(at)}, but it needs whole numbers from 0 up; "
                "name the positions that see all and are seen by all"
            )
        object.__setattr__(self, "at", tuple(sorted(set(places))))

    def __repr__(self) -> str:
        return f"Global({self.at})"

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Everything in the rows and columns of the positions."""
        return self._holds(q) | self._holds(k)

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By how many of the positions are among its rows and its columns: full where all rows or all columns are."""
        at = torch.tensor(self.at, dtype=torch.int64, device=blocks.k0.device)
        ends = ((blocks.q0, blocks.q1), (blocks.k0, blocks.k1))
        rows, columns = (torch.searchsorted(at, b, right=True) - torch.searchsorted(at, a) for a, b in ends)
        (tall, wide) = (b - a + 1 for a, b in ends)
        return graded((rows == tall) | (columns == wide), (rows == 0) & (columns == 0))

    def _holds(self, positions: Index) -> Bool[Tensor, "..."]:
        found = torch.zeros_like(positions, dtype=torch.bool)
        for place in self.at:
            found = found | (positions == place)
        return found


def _counts_positions(mask: Chunked | Dilated) -> None:
    """Refuse a size or a step that is not a whole number from 1 up."""
    (field,) = fields(mask)
    given = getattr(mask, field.name)
    numbers = whole_numbers((given,), least=1)
    if numbers is None:
        raise MaskError(
            f"{type(mask).__name__} was given the {field.name} {given!r}, but it counts positions; give a whole number "
            "from 1 up"
        )
    object.__setattr__(mask, field.name, numbers[0])
