"""The kinds of mask that tell samples or heads apart: Padding, Prefix, Segments and Heads."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Index, Mask
from pellucid.masks.blocks import document_kinds, prefix_kinds
from pellucid.masks.joins import agreed, least_known
from pellucid.masks.kinds import Full
from pellucid.masks.numbers import FARTHEST, any_tensor, whole_numbers
from pellucid.masks.sizes import BlockKinds, Blocks

__all__ = ["Heads", "Padding", "Prefix", "Segments"]

Numbers = Sequence[int] | Int[Tensor, " batch"]


@dataclass(frozen=True, slots=True, init=False)
class Padding(Mask):
    """A query may look at the real keys of its sample, which stand before the padding: k < lengths[b].

    Padding that stands before the text is the inverse: `~Padding(pads)`; `from_tokens` finds out which it is.

    Args:
        lengths: real tokens of each sample, as numbers or a 1-D tensor of integers.

    Raises:
        MaskError: lengths are not one whole number from 0 up for each sample.

    >>> Padding((2, 1)).dense(queries=1, keys=3).int().tolist()
    [[[[1, 1, 0]]], [[[1, 0, 0]]]]
    """

    lengths: tuple[int, ...]

    def __init__(self, lengths: Numbers) -> None:
        object.__setattr__(self, "lengths", _one_for_each_sample("Padding", lengths, "count the real tokens of each"))

    @staticmethod
    def from_tokens(tokens: Any, pad_id: int = 0) -> Mask:
        """The mask that hides every `pad_id`, wherever it stands.

        Args:
            tokens: (batch, keys) ids, in a tensor, an array or lists.
            pad_id: the id that is padding.

        Returns:
            `Padding(lengths)` where all padding is on the right, `~Padding(pads)` where it is on the left, and a
            `Dense` mask where it is scattered.

        >>> Padding.from_tokens(torch.tensor([[7, 8, 0], [9, 0, 0]]))
        Padding((2, 1))
        >>> Padding.from_tokens(torch.tensor([[0, 7, 8], [0, 0, 9]]))
        ~Padding((1, 2))
        """
        return Padding.from_keep(any_tensor(tokens, "Padding.from_tokens") != pad_id)

    @staticmethod
    def from_keep(keep: Bool[Tensor, "batch key"]) -> Mask:
        """The mask that shows the keys that are True; otherwise as `from_tokens`."""
        from pellucid.masks.tensors import Dense

        if keep.dim() != 2 or not len(keep):
            raise MaskError(
                f"padding was given with the shape {tuple(keep.shape)}, but it is (batch, keys) with a row for each "
                "sample; give one row for each"
            )
        real, steps = keep.sum(-1), torch.arange(keep.shape[1], device=keep.device)
        if torch.equal(keep, steps < real[:, None]):
            return Padding(real)
        if torch.equal(keep, steps >= keep.shape[1] - real[:, None]):
            return ~Padding(keep.shape[1] - real)
        return Dense(keep[:, None, None, :])

    def __repr__(self) -> str:
        return f"Padding({self.lengths})"

    @property
    def batch(self) -> int | None:
        """One sample for each length."""
        return len(self.lengths)

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing past the sample's end."""
        return k < torch.tensor(self.lengths, device=k.device)[b]

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By its first and its last column."""
        return prefix_kinds(self, blocks)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where no sample is shorter than the window."""
        return Full() if min(self.lengths) >= keys else self


@dataclass(frozen=True, slots=True, init=False)
class Prefix(Mask):
    """Every query may look at the first keys of its sample: k < lengths[b].

    The prefix language model of T5 (Raffel et al. 2020, section 3.2.1) is `Causal() | Prefix(n)`.

    Args:
        lengths: keys of each sample's prefix, or one number for all samples.

    Raises:
        MaskError: lengths are not whole numbers from 0 up.

    >>> from pellucid.masks import Causal
    >>> (Causal() | Prefix(2)).dense(queries=3, keys=4).int().tolist()
    [[[[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]]]
    """

    lengths: int | tuple[int, ...]

    def __init__(self, lengths: int | Numbers) -> None:
        alike = isinstance(lengths, int) and not isinstance(lengths, bool)
        numbers = _one_for_each_sample("Prefix", (lengths,) if alike else lengths, "count the keys of each prefix")
        object.__setattr__(self, "lengths", numbers[0] if alike else numbers)

    def __repr__(self) -> str:
        return f"Prefix({self.lengths})"

    @property
    def batch(self) -> int | None:
        """One sample for each length; None where one length is all samples'."""
        return None if isinstance(self.lengths, int) else len(self.lengths)

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing past the prefix."""
        if isinstance(self.lengths, int):
            return k < self.lengths
        return k < torch.tensor(self.lengths, device=k.device)[b]

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By its first and its last column."""
        return prefix_kinds(self, blocks)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:  # noqa: ARG002
        """Everything, where every prefix is as long as the window."""
        shortest = self.lengths if isinstance(self.lengths, int) else min(self.lengths)
        return Full() if shortest >= keys else self


@dataclass(frozen=True, slots=True, init=False)
class Segments(Mask):
    """A query may look at the keys of its own document, where several are packed in one row: ids[b][q] == ids[b][k].

    Args:
        ids: (batch, length): the document of each position of each sample, as numbers or a tensor of integers.

    Raises:
        MaskError: ids are not rows of whole numbers, all of one length.

    >>> Segments(((0, 0, 1),)).dense(queries=3, keys=3).int().tolist()
    [[[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]]
    """

    ids: tuple[tuple[int, ...], ...]

    def __init__(self, ids: Sequence[Sequence[int]] | Int[Tensor, "batch length"]) -> None:
        rows = ids.tolist() if isinstance(ids, Tensor) else ids
        try:
            numbers = [whole_numbers(row, least=-FARTHEST) for row in rows]
        except TypeError:
            numbers = []
        whole = tuple(row for row in numbers if row is not None)
        if not whole or len(whole) < len(numbers) or len({len(row) for row in whole}) > 1:
            raise MaskError(
                f"Segments was given the ids {reprlib.repr(rows)}, but it needs a row of whole numbers for each sample, "
                "all of one length; number the documents of each row"
            )
        object.__setattr__(self, "ids", whole)

    @classmethod
    def from_lengths(cls, lengths: Sequence[Sequence[int]]) -> "Segments":
        """From the lengths of the documents of each sample, in order; samples must be equally long in all.

        >>> Segments.from_lengths(((2, 1), (1, 2)))
        Segments(((0, 0, 1), (0, 1, 1)))
        """
        if any(whole_numbers(row) is None for row in lengths):
            raise MaskError(
                f"Segments was given the lengths {reprlib.repr(lengths)}, but each counts the tokens of one document; "
                "give a row of whole numbers from 0 up for each sample"
            )
        return cls([[number for number, length in enumerate(row) for _ in range(length)] for row in lengths])

    def __repr__(self) -> str:
        return f"Segments({self.ids})"

    @property
    def batch(self) -> int | None:
        """One sample for each row of ids."""
        return len(self.ids)

    @property
    def known(self) -> tuple[int | None, int | None]:
        """As many queries and keys as a row has ids."""
        return len(self.ids[0]), len(self.ids[0])

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:  # noqa: ARG002
        """Nothing of another document."""
        ids = torch.as_tensor(np.array(self.ids, np.int64), device=k.device)
        return ids[b, q] == ids[b, k]

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """By the documents of its rows and of its columns."""
        return document_kinds(torch.as_tensor(np.array(self.ids, np.int64), device=blocks.k0.device), blocks)

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """Everything, where each sample's window lies in one document."""
        self.require(queries, keys, first_query)
        alone = all(len({*row[:keys], *row[first_query : first_query + queries]}) <= 1 for row in self.ids)
        return Full() if alone else self


@dataclass(frozen=True, slots=True, init=False)
class Heads(Mask):
    """A mask of its own for each head: head h uses masks[h].

    Raises:
        MaskError: there is none, one of them tells heads apart itself, or they speak of different batches.

    >>> from pellucid.masks import Causal
    >>> Heads((Causal(), Full())).dense(queries=2, keys=2).int().tolist()
    [[[[1, 0], [1, 1]], [[1, 1], [1, 1]]]]
    """

    masks: tuple[Mask, ...]

    def __init__(self, masks: Sequence[Mask]) -> None:
        parts = () if isinstance(masks, Mask) else tuple(masks)
        if not parts or any(not isinstance(part, Mask) or part.heads is not None for part in parts):
            raise MaskError(
                f"Heads was given {reprlib.repr(masks)}, but it needs a mask for each head that treats all heads alike; "
                "give one for each head"
            )
        agreed("samples", [part.batch for part in parts], parts)
        object.__setattr__(self, "masks", parts)

    def __repr__(self) -> str:
        return f"Heads({self.masks})"

    @property
    def batch(self) -> int | None:
        """Samples that the heads' masks tell apart."""
        return agreed("samples", [part.batch for part in self.masks], self.masks)

    @property
    def heads(self) -> int | None:
        """One head for each mask."""
        return len(self.masks)

    @property
    def known(self) -> tuple[int | None, int | None]:
        """What the mask of every head knows."""
        return least_known(self.masks)

    def see(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """What the mask of head `h` sees."""
        seen = torch.zeros_like(h, dtype=torch.bool)
        for head, part in enumerate(self.masks):
            seen = torch.where(h == head, part.see(b, h, q, k), seen)
        return seen

    def block_kinds(self, blocks: Blocks) -> BlockKinds:
        """What each head's mask says of it."""
        kinds = torch.zeros_like(blocks.h, dtype=torch.int8)
        for head, part in enumerate(self.masks):
            kinds = torch.where(blocks.h == head, part.block_kinds(blocks), kinds)
        return kinds

    def within(self, queries: int, keys: int, first_query: int = 0) -> Mask:
        """The heads' masks, simplified; one mask for all, where they come to the same."""
        parts = [part.within(queries, keys, first_query) for part in self.masks]
        return parts[0] if len(set(parts)) == 1 else Heads(parts)

    def told(self, batch: int | None, heads: int | None) -> Mask:  # noqa: ARG002
        """The heads' masks, each told the samples; which head it is they do not ask."""
        return Heads([part.told(batch, None) for part in self.masks])


def _one_for_each_sample(kind: str, given: object, advice: str) -> tuple[int, ...]:
    """Whole numbers from 0 up, one at least; others are refused."""
    numbers = whole_numbers(given)
    if not numbers:
        shown = given.tolist() if isinstance(given, Tensor) else given
        raise MaskError(
            f"{kind} was given the lengths {reprlib.repr(shown)}, but it needs a whole number from 0 up for each "
            f"sample; {advice}"
        )
    return numbers
