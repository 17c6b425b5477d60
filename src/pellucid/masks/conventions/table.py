"""The table of conventions by name, and the two ways through it: `export` and `read`."""

import difflib
from typing import Any

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.sdpa import SDPA
from pellucid.masks.conventions.terms import Convention, Given, Target

__all__ = ["CONVENTIONS", "export", "read"]

CONVENTIONS: dict[str, Convention] = {
    "sdpa": SDPA,
}


def export(mask: Mask, convention: str, target: Target) -> dict[str, Any]:
    """A mask as the keyword arguments of a convention.

    Raises:
        MaskError: there is no such convention, or it has no such mask.
    """
    for what, told, asked in (("samples", mask.batch, target.batch), ("heads", mask.heads, target.heads)):
        if None not in (told, asked) and told != asked:
            raise MaskError(f"{mask!r} speaks of {told} {what} and was asked for {asked}; ask for as many, or for none")
    return _named(convention).export(mask, target)


def read(
    convention: str,
    *,
    queries: int | None = None,
    keys: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    first_query: int = 0,
    **arguments: Any,
) -> Mask:
    """The mask that somebody's keyword arguments mean.

    Args:
        convention: whose arguments these are, as in `Mask.to`.
        queries: how many rows they are for; where it is given, tensors are held to it.
        keys: how many columns, likewise.
        batch: how many samples, likewise.
        heads: how many heads, likewise; a tensor of (batch * heads, Q, K) needs it.
        first_query: the position of the tensors' first row.
        arguments: the library's own, by its own names.

    Raises:
        MaskError: the arguments can mean two things, or do not fit together.

    >>> import torch
    >>> read("sdpa", attn_mask=torch.tensor([[True, False]]))
    Dense(1 x 2, 1 of 2 seen)
    """
    found = _named(convention)
    for name in arguments:
        if name not in found.arguments:
            near = difflib.get_close_matches(name, found.arguments, n=1)
            meant = f"did you mean '{near[0]}'?" if near else f"it takes {', '.join(found.arguments)}"
            raise MaskError(f"{convention} has no argument '{name}'; {meant}")
    return found.read(Given(convention, arguments, queries, keys, batch, heads, first_query))


def _named(convention: str) -> Convention:
    """The convention of that name.

    Raises:
        MaskError: there is none.
    """
    if convention not in CONVENTIONS:
        near = difflib.get_close_matches(convention, CONVENTIONS, n=1)
        raise MaskError(
            f"unknown convention '{convention}'; {f'did you mean {near[0]!r}?' if near else 'choose'} "
            f"{'' if near else ', '.join(CONVENTIONS)}".rstrip()
        )
    return CONVENTIONS[convention]
