"""A mask as a value: what each query may look at, an expression that can be combined, drawn, converted and lowered.

This is the one place that knows which way round a mask is: **True = the query may look at the key**. A mask is made
once and passed; it is immutable, equal to any mask written alike, and prints as the expression that rebuilds it.
Queries and keys are counted in absolute positions, so the mask of one cached decoding step (`first_query=t`) is row t
of the whole one. Queries x keys cells are held by `dense` and `additive`, and by `broadcast` where both matter, alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Never

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.sizes import BlockKinds, Blocks, Device, check_size, far_below, positions, row_strips
from pellucid.shapes import Look

__all__ = ["Index", "Mask"]

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
    def known(self) -> tuple[int | None, int | None]:
        """Queries and keys, from position 0, that the mask speaks of; None where it speaks of all."""
        return None, None

    @property
    def sees_everything(self) -> bool:
        """Whether the expression is plainly `Full()`, at any size."""
        return False

    @abstractmethod
    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """The formula: may query position `q` of sample `b` and head `h` look at key position `k`?"""

    def within(self, queries: int, keys: int, first_query: int = 0) -> "Mask":  # noqa: ARG002
        """A mask equal to this one in a window of that size from key 0, and simpler where the window allows."""
        return self

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """How much of each block is seen, as far as its ends tell by themselves: FULL, EMPTY, PARTIAL, or UNKNOWN."""
        return blocks.unknown()

    def broadcast(self, queries: int, keys: int, first_query: int = 0, device: Device = None) -> Look:
        """The mask as a tensor whose axes have size 1 wherever nothing changes along them.

        This is what kernels take: `Padding` costs batch x keys cells, never batch x queries x keys.

        Raises:
            MaskError: a size is negative, or past what the mask knows.
        """
        self.require(queries, keys, first_query)
        return self.see(*positions(self.batch or 1, self.heads or 1, (queries, keys, first_query), device))

    def dense(
        self, queries: int, keys: int, first_query: int = 0, device: Device = None
    ) -> Bool[Tensor, "batch heads query key"]:
        """The whole mask as a tensor: Bool (batch or 1, heads or 1, queries, keys), True = may look.

        Args:
            queries: how many rows.
            keys: how many columns, from key 0.
            first_query: the absolute position of row 0; a cached step at position t is `queries=1, first_query=t`.
            device: where the tensor is made.

        Raises:
            MaskError: a size is negative, or past what the mask knows.

        >>> from pellucid.masks import Causal
        >>> Causal().dense(queries=1, keys=4, first_query=2).tolist()
        [[[[True, True, True, False]]]]
        """
        look = self.broadcast(queries, keys, first_query, device)
        whole = look.expand(self.batch or 1, self.heads or 1, queries, keys)
        return look if look.shape == whole.shape else whole.contiguous()

    def additive(
        self,
        queries: int,
        keys: int,
        first_query: int = 0,
        device: Device = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "batch heads query key"]:
        """The whole mask as numbers to be added to scores: 0 where the query may look, far below zero elsewhere.

        The number is a quarter of the lowest that `dtype` holds: its softmax is 0, and two such masks may be added to
        each other and to scores and stay finite, in float16 too.

        >>> from pellucid.masks import Causal
        >>> Causal().additive(queries=2, keys=2, dtype=torch.float16).tolist()
        [[[[0.0, -16376.0], [0.0, 0.0]]]]
        """
        lowest, look = far_below(dtype), self.dense(queries, keys, first_query, device)
        return torch.zeros(look.shape, dtype=dtype, device=device).masked_fill_(~look, lowest)

    def blind(self, queries: int, keys: int, first_query: int = 0) -> Bool[Tensor, "batch heads query"]:
        """The rows that may look at nothing: True = blind. Attention gives them zeros, and finite gradients, always.

        >>> from pellucid.masks import Causal, Padding
        >>> (Causal() & Padding((2, 0))).blind(queries=2, keys=2).tolist()
        [[[False, False]], [[True, True]]]
        """
        return self.counts(queries, keys, first_query) == 0

    def counts(self, queries: int, keys: int, first_query: int = 0) -> Int[Tensor, "batch heads query"]:
        """How many keys each query may look at.

        >>> from pellucid.masks import Window
        >>> Window(before=1, after=1).counts(queries=4, keys=4).tolist()
        [[[2, 3, 3, 2]]]
        """
        from pellucid.masks.blocks import counts

        return counts(self, (queries, keys, first_query))

    def density(self, queries: int, keys: int, first_query: int = 0) -> float:
        """The share of all cells in which the query may look; 0 where there is no cell.

        >>> from pellucid.masks import Causal
        >>> Causal().density(queries=4, keys=4)
        0.625
        """
        counts = self.counts(queries, keys, first_query)
        return counts.sum().item() / max(1, counts.numel() * keys)

    def blocks(
        self, queries: int, keys: int, first_query: int = 0, size: int | tuple[int, int] = 128, device: Device = None
    ) -> Int[Tensor, "batch heads rows columns"]:
        """How much of each block of `dense` is seen: int8, 0 = nothing, 1 = a part, 2 = all the cells that it has.

        Exact, and read off the expression; cells are looked at, some million at once, where that does not tell. Blocks
        are cut from the first row and key on, with `size` rows and columns, or as many of each as its two numbers say.

        Raises:
            MaskError: a block has no cell, a size is negative, or past what the mask knows.

        >>> from pellucid.masks import Causal
        >>> Causal().blocks(queries=5, keys=6, size=2).tolist()
        [[[[1, 0, 0], [2, 1, 0], [2, 2, 1]]]]
        """
        from pellucid.masks.blocks import blocks

        return blocks(self, (queries, keys, first_query), size, device)

    def strips(self, queries: int, keys: int, first_query: int = 0) -> Iterator[Bool[Tensor, "batch heads _rows key"]]:
        """The rows of `dense`, a few at a time, so that no more than some million cells are ever held."""
        self.require(queries, keys, first_query)
        for rows, row in row_strips((self.batch or 1) * (self.heads or 1) * keys, queries, first_query):
            yield self.dense(rows, keys, row)

    def require(self, queries: int, keys: int, first_query: int) -> None:
        """Refuse sizes that no mask has, and those past what this one knows."""
        check_size(lambda: repr(self), self.known, (queries, keys, first_query))

    def told(self, batch: int | None, heads: int | None) -> "Mask":  # noqa: ARG002
        """The same mask, any function in it told how many samples and heads there are where it was not."""
        return self

    def draw(
        self,
        queries: int,
        keys: int,
        first_query: int = 0,
        query_tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
    ) -> str:
        """A picture for the terminal: a row for each query, a column for each key, ■ = may look.

        Args:
            queries: how many rows.
            keys: how many columns.
            first_query: the absolute position of row 0.
            query_tokens: labels of the rows; their positions where left out.
            key_tokens: labels of the columns; their positions where left out.

        A mask of more than 64 rows or columns is drawn by blocks: full, partial, empty; tokens are then left out.

        >>> from pellucid.masks import Causal
        >>> print(Causal().draw(queries=3, keys=3))
        Causal()   rows: queries, columns: keys, ■ may look, · may not
          0 1 2
        0 ■ · ·
        1 ■ ■ ·
        2 ■ ■ ■
        """
        from pellucid.masks.picture import draw

        return draw(self, (queries, keys, first_query), query_tokens, key_tokens)

    def to(
        self,
        convention: str,
        *,
        queries: int,
        keys: int,
        first_query: int = 0,
        batch: int | None = None,
        heads: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        causal_model: bool = False,
        blind: str = "warn",
    ) -> dict[str, Any]:
        """The mask as keyword arguments for somebody else's attention; see `pellucid.masks.conventions`.

        Args:
            convention: "sdpa", "multihead_attention", "flex", "transformers", "keras", "flax", "jax" or "band_part";
                `masks.seq2seq(...).to("transformer", ...)` converts three at once.
            queries: rows of the attention.
            keys: columns of the attention.
            first_query: the absolute position of row 0, as of a cached step.
            batch: samples, where the library must be told and the mask treats all alike.
            heads: heads, likewise.
            dtype: a float type for an additive mask, where the library takes both; None gives what it takes first.
            device: where tensors are made.
            causal_model: for "transformers", whether the model hides the future by itself.
            blind: what to do where a row sees nothing: "warn" says what the library does with it, "refuse" raises,
                "ignore" does not look.

        Raises:
            MaskError: the library has no such mask, or a row is blind and `blind` is "refuse".

        >>> from pellucid.masks import Causal
        >>> Causal().to("sdpa", queries=5, keys=5)
        {'is_causal': True}
        """
        from pellucid.masks.conventions import Target, export

        target = Target(queries, keys, first_query, batch, heads, dtype, device, causal_model, blind)
        return export(self, convention, target)

    def __and__(self, other: "Mask") -> "Mask":
        """What both let a query see."""
        from pellucid.masks.joins import And, combine, is_mask

        return combine(And, self, other) if is_mask(other) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        """What either lets a query see."""
        from pellucid.masks.joins import Or, combine, is_mask

        return combine(Or, self, other) if is_mask(other) else NotImplemented

    def __invert__(self) -> "Mask":
        """What this one hides."""
        from pellucid.masks.joins import Not

        return Not(self)

    def __sub__(self, other: "Mask") -> "Mask":
        """What this one lets a query see and the other does not."""
        return self & ~other if isinstance(other, Mask) else self.__and__(other)

    def __xor__(self, other: "Mask") -> "Mask":
        """What exactly one of the two lets a query see."""
        return (self - other) | (other - self) if isinstance(other, Mask) else self.__and__(other)

    def __le__(self, other: "Mask") -> bool:
        """Whether this one lets no query see more than the other does, at any size.

        Raises:
            MaskError: the expressions do not tell; compare them at a size.
        """
        from pellucid.masks.order import sees_no_more

        return sees_no_more(self, other) if isinstance(other, Mask) else NotImplemented

    def __bool__(self) -> Never:
        raise MaskError(
            "a mask has no truth value: it was used with `and`, `or`, `not` or `if`; "
            "write a & b, a | b or ~a to combine masks, or ask mask.dense(...).any()"
        )
