"""The table of conventions by name, and the two ways through it: `export` and `read`."""

import difflib
from typing import Any, Literal, overload

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.arrays import BAND_PART, FLAX, JAX, KERAS
from pellucid.masks.conventions.flex import FLEX
from pellucid.masks.conventions.huggingface import TRANSFORMERS
from pellucid.masks.conventions.multihead import MULTIHEAD
from pellucid.masks.conventions.sdpa import SDPA
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.conventions.transformer import TRANSFORMER
from pellucid.masks.seq2seq import Seq2SeqMasks

__all__ = ["CONVENTIONS", "export", "read"]

CONVENTIONS: dict[str, Convention] = {
    "sdpa": SDPA,
    "multihead_attention": MULTIHEAD,
    "transformer": TRANSFORMER,
    "flex": FLEX,
    "transformers": TRANSFORMERS,
    "keras": KERAS,
    "flax": FLAX,
    "jax": JAX,
    "band_part": BAND_PART,
}


OTHER_NAMES = {
    "mha": "multihead_attention",
    "nn.transformer": "transformer",
    "scaled_dot_product_attention": "sdpa",
    "flex_attention": "flex",
    "huggingface": "transformers",
    "hf": "transformers",
    "tensorflow": "band_part",
}
"""What people may call them, for the hint in the message."""


def export(mask: Mask, convention: str, target: Target) -> dict[str, Any]:
    """A mask as the keyword arguments of a convention.

    Raises:
        MaskError: there is no such convention, or it has no such mask.
    """
    for what, told, asked in (("samples", mask.batch, target.batch), ("heads", mask.heads, target.heads)):
        if None not in (told, asked) and told != asked:
            raise MaskError(f"{mask!r} speaks of {told} {what} and was asked for {asked}; ask for as many, or for none")
    named = _named(convention)
    if target.queries and not target.keys:
        target.look_for_blind_rows(mask, "what a library does with no keys at all is not known")
    return named.export(mask.told(target.batch, target.heads), target)


@overload
def read(
    convention: Literal["transformer"],
    *,
    queries: int | None = None,
    keys: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    first_query: int = 0,
    **arguments: Any,
) -> Seq2SeqMasks: ...


@overload
def read(
    convention: str,
    *,
    queries: int | None = None,
    keys: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    first_query: int = 0,
    **arguments: Any,
) -> Mask: ...


def read(
    convention: str,
    *,
    queries: int | None = None,
    keys: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    first_query: int = 0,
    **arguments: Any,
) -> Mask | Seq2SeqMasks:
    """The mask that somebody's keyword arguments mean; for "transformer", the three masks of an encoder-decoder.

    Args:
        convention: whose arguments these are, as in `Mask.to`.
        queries: how many rows they are for; where it is given, tensors are held to it. Target positions, for
            "transformer".
        keys: how many columns, likewise. Source positions, for "transformer".
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
        if name in found.unread:
            raise MaskError(f"{convention} was read with {name}, which {found.unread[name]}; leave it out")
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
        near = difflib.get_close_matches(convention.lower(), [*CONVENTIONS, *OTHER_NAMES], n=1)
        meant = f"did you mean '{OTHER_NAMES.get(near[0], near[0])}'?" if near else f"choose {', '.join(CONVENTIONS)}"
        raise MaskError(f"unknown convention '{convention}'; {meant}")
    return CONVENTIONS[convention]
