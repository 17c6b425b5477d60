"""The kinds of mask that expressions begin from: Full, Causal, Window and Padding, one formula each."""

import operator
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask

__all__ = ["Causal", "Full", "Padding", "Window"]


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


@dataclass(frozen=True, slots=True)
class Causal(Mask):
    """A query may look at its own position and those before it: k <= q (Vaswani et al. 2017, section 3.2.3)."""

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing ahead of the query."""
        return k <= q

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where the first query already stands at the last key: a cached step."""
        return Full() if first_query >= keys - 1 else self


@dataclass(frozen=True, slots=True)
class Window(Mask):
    """A query may look at so many keys before and after itself, and at itself: q - before <= k <= q + after.

    >>> Window(before=1, after=0).dense(queries=3, keys=3).int().tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    """

    before: int
    after: int

    def __post_init__(self) -> None:
        if self.before < 0 or self.after < 0:
            raise MaskError(
                f"Window was given before={self.before}, after={self.after}, but both count keys beside the query; "
                "give numbers from 0 up"
            )

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing farther than the window reaches."""
        return (q - self.before <= k) & (k <= q + self.after)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """Everything, where the window reaches both ends from every query."""
        reaches_back = first_query + queries - 1 - self.before <= 0
        return Full() if reaches_back and first_query + self.after >= keys - 1 else self


@dataclass(frozen=True, slots=True, init=False)
class Padding(Mask):
    """A query may look at the real keys of its sample, which stand before the padding: k < lengths[b].

    Args:
        lengths: real tokens of each sample, as numbers or a 1-D tensor of integers.

    Raises:
        MaskError: lengths are not one whole number from 0 up for each sample.

    >>> Padding((2, 1)).dense(queries=1, keys=3).int().tolist()
    [[[[1, 1, 0]]], [[[1, 0, 0]]]]
    """

    lengths: tuple[int, ...]

    def __init__(self, lengths: Sequence[int] | Int[Tensor, " batch"]) -> None:
        given = lengths.tolist() if isinstance(lengths, Tensor) else lengths
        try:
            numbers = tuple(operator.index(length) for length in given)
        except TypeError:
            numbers = ()
        if not numbers or min(numbers) < 0:
            raise MaskError(
                f"Padding was given the lengths {reprlib.repr(given)}, but it needs a whole number from 0 up for each "
                "sample; count the real tokens of each"
            )
        object.__setattr__(self, "lengths", numbers)

    def __repr__(self) -> str:
        return f"Padding({self.lengths})"

    @property
    def batch(self) -> int | None:
        """One sample for each length."""
        return len(self.lengths)

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing past the sample's end."""
        return k < torch.tensor(self.lengths, device=k.device)[b]

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where no sample is shorter than the window."""
        return Full() if min(self.lengths) >= keys else self
