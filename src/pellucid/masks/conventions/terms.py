"""What conversions speak of: a convention, the sizes a mask is wanted for, and what was given to be read."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.seq2seq import Seq2SeqMasks

__all__ = ["BlindRows", "Convention", "Given", "Target"]


class BlindRows(UserWarning):
    """A mask was exported with rows that see nothing, and what the library does with them is worth knowing."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a mask is wanted for; the arguments of `Mask.to`, which explains them."""

    queries: int
    keys: int
    first_query: int = 0
    batch: int | None = None
    heads: int | None = None
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    causal_model: bool = False
    blind: str = "warn"

    def __post_init__(self) -> None:
        if self.blind not in ("warn", "refuse", "ignore"):
            raise MaskError(f"blind={self.blind!r} was given; choose 'warn', 'refuse' or 'ignore'")
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise MaskError(f"a mask of dtype {self.dtype} was asked for; give a float type, or none for bool")

    @property
    def size(self) -> tuple[int, int, int]:
        """Queries, keys and the first query's position, as `dense` takes them."""
        return self.queries, self.keys, self.first_query

    def look_for_blind_rows(self, mask: Mask, answer: str) -> None:
        """Warn of rows that see nothing, or refuse them, as was asked for.

        Args:
            mask: what is exported.
            answer: what the library does with such a row, as the end of "for it, ...".

        Warns:
            BlindRows: there are some.

        Raises:
            MaskError: there are some, and `blind` is "refuse".
        """
        if self.blind == "ignore":
            return
        blind = mask.blind(*self.size)
        if not bool(blind.any()):
            return
        sample, head, row = blind.nonzero()[0].tolist()
        found = f"{mask!r} lets query {self.first_query + row} of sample {sample}, head {head} look at nothing"
        if self.blind == "refuse":
            raise MaskError(f"{found}, and {answer}; let each query see a key, or choose blind='warn'")
        warnings.warn(f"{found} ({int(blind.sum())} such rows); {answer}", BlindRows, stacklevel=5)


@dataclass(frozen=True, slots=True)
class Given:
    """What `read` was given: somebody's arguments by name, and the sizes that it was told."""

    convention: str
    arguments: Mapping[str, Any]
    queries: int | None = None
    keys: int | None = None
    batch: int | None = None
    heads: int | None = None
    first_query: int = 0


@dataclass(frozen=True, slots=True)
class Convention:
    """One library's way with masks.

    Attributes:
        taker: the function or module that takes the arguments.
        meaning: which way round True is, and what else must be known, in a line.
        arguments: the names of its arguments, all that `read` takes.
        export: makes the arguments from a mask.
        read: makes a mask from the arguments; three, where the arguments are an encoder-decoder's.
        unread: arguments of the library that `read` does not take, each with the reason.
    """

    taker: str
    meaning: str
    arguments: tuple[str, ...]
    export: Callable[[Mask, Target], dict[str, Any]]
    read: Callable[[Given], Mask | Seq2SeqMasks]
    unread: Mapping[str, str] = field(default_factory=dict)
