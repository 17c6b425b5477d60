"""`torch.nn.MultiheadAttention`: True = blocked, and what speaks of keys alone is split off as `key_padding_mask`."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import (
    as_mask,
    as_tensor,
    check_shape,
    kept,
    kept_of_additive,
    top_left,
)
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.joins import And
from pellucid.masks.kinds import Causal, Full
from pellucid.masks.samples import Padding
from pellucid.shapes import Look

__all__ = ["MULTIHEAD", "Names", "arguments", "read_attention"]

BLIND_BOOL = (
    "nn.MultiheadAttention gives it NaN with need_weights=True; with need_weights=False zeros before the output "
    "projection, or NaN on the fast path (eval mode without gradients)"
)
BLIND_FLOAT = (
    "numbers that are added to all of its scores hide none, so nn.MultiheadAttention averages over keys that are hidden"
)


@dataclass(frozen=True, slots=True)
class Names:
    """What a module calls the three arguments of one attention."""

    mask: str = "attn_mask"
    padding: str = "key_padding_mask"
    causal: str = "is_causal"


def arguments(mask: Mask, target: Target, names: Names) -> dict[str, Any]:
    """The arguments of one attention, and no more than it needs.

    Raises:
        MaskError: torch's mask must have a part for each sample and head, and how many there are is not known.
    """
    simple = mask.within(*target.size)
    if simple.sees_everything:
        return {}
    batch = target.batch if mask.batch is None else mask.batch
    parts = simple.parts if isinstance(simple, And) else (simple,)
    looks = [_narrowed(part.broadcast(*target.size, target.device)) for part in parts]
    split = [batch is not None and look.shape[1] == look.shape[2] == 1 for look in looks]
    of_keys = [look for look, alone in zip(looks, split, strict=True) if alone]
    others = [look for look, alone in zip(looks, split, strict=True) if not alone]
    found: dict[str, Any] = {}
    if others:
        seen = _narrowed(reduce(torch.logical_and, others))
        if batch is not None and seen.shape[0] > 1 and seen.shape[1] == 1:
            keys, rest = seen.any(dim=2, keepdim=True), seen.any(dim=0, keepdim=True)
            if torch.equal(keys & rest, seen):  # a tensor that is somebody's causal mask and padding
                of_keys, seen = [*of_keys, keys], rest
        if not bool(seen.all()):
            cells = _two_or_three_axes(mask, seen, target)
            found[names.mask] = _blocked(cells, target)
            if torch.equal(cells, top_left(target.queries, target.keys, target.device)):
                found[names.causal] = True
    if of_keys and batch is not None:
        seen = reduce(torch.logical_and, of_keys)
        if not bool(seen.all()):
            found[names.padding] = _blocked(seen[:, 0, 0].expand(batch, target.keys), target)
    return found


def _narrowed(look: Look) -> Look:
    """With size 1 along each of samples, heads and queries where nothing changes."""
    for axis in range(3):
        first = look.narrow(axis, 0, min(1, look.shape[axis]))
        if look.shape[axis] > 1 and bool((look == first).all()):
            look = first
    return look


def _two_or_three_axes(mask: Mask, seen: Look, target: Target) -> Bool[Tensor, "..."]:
    """(Q, K) where all samples and heads are alike, else (batch * heads, Q, K), the head changing fastest."""
    if seen.shape[:2] == (1, 1):
        return seen[0, 0].expand(target.queries, target.keys)
    batch = target.batch if mask.batch is None else mask.batch
    heads = target.heads if mask.heads is None else mask.heads
    if batch is None or heads is None:
        what = "batch" if batch is None else "heads"
        raise MaskError(
            f"{mask!r} needs a mask of (batch * heads, {target.queries}, {target.keys}) in torch, and nothing tells "
            f"{what}; give {what}="
        )
    return seen.expand(batch, heads, target.queries, target.keys).flatten(0, 1)


def _blocked(seen: Bool[Tensor, "..."], target: Target) -> Shaped[Tensor, "..."]:
    """As torch wants it: True = blocked, or a number that is added to the score."""
    if target.dtype is None:
        return ~seen
    numbers = torch.zeros(seen.shape, dtype=target.dtype, device=target.device)
    # A quarter of the lowest: torch adds the two masks, and their sum must be finite.
    return numbers.masked_fill_(~seen, torch.finfo(target.dtype).min / 4)


def read_attention(given: Given, names: Names) -> Mask:
    """The mask that the arguments of one attention mean.

    Raises:
        MaskError: they can mean two things, or do not fit together.
    """
    mask, padding = as_tensor(given, names.mask), as_tensor(given, names.padding)
    causal = bool(given.arguments.get(names.causal))
    found: Mask = Full()
    if padding is not None:
        check_shape(given, names.padding, padding, (given.batch, given.keys), "(batch, keys)")
        found = Padding.from_keep(_seen(given, names.padding, padding))
    if mask is None:
        if causal:
            raise MaskError(
                f"{given.convention} was read with {names.causal}=True and no {names.mask}, beside which alone torch "
                f"takes it; give {names.mask} too"
            )
        return found
    _check_mask(given, names, mask, padding)
    cells = _seen(given, names.mask, mask)
    if causal:
        _check_causal(given, names, cells)
        if given.first_query == 0:
            return Causal() & found
    if cells.dim() == 3:
        cells = cells.view(-1, given.heads or 1, *cells.shape[1:])
    return as_mask(cells, given.first_query) & found


def _seen(given: Given, name: str, tensor: Tensor) -> Bool[Tensor, "..."]:
    """A mask of either type as cells, True = may look."""
    if tensor.dtype.is_floating_point:
        return kept_of_additive(given, name, tensor, true_keeps=False)
    return kept(given, name, tensor, true_keeps=False)


def _check_mask(given: Given, names: Names, mask: Tensor, padding: Tensor | None) -> None:
    """Refuse an `attn_mask` of another rank or size than the rest tells of."""
    batch = given.batch if padding is None else padding.shape[0]
    if mask.dim() != 3:
        wanted, axes = [given.queries, given.keys], "(queries, keys), or (batch * heads, queries, keys) beside heads="
    elif given.heads is None:
        raise MaskError(
            f"{given.convention} was read with {names.mask} of shape {tuple(mask.shape)}, which is (batch * heads, "
            "queries, keys) in torch and (batch, queries, keys) elsewhere; give heads= to read it as torch does"
        )
    elif batch is None and mask.shape[0] % given.heads:
        raise MaskError(
            f"{given.convention} was read with {names.mask} of shape {tuple(mask.shape)} and {given.heads} heads, but "
            f"its first axis is batch * heads, and {mask.shape[0]} does not divide by {given.heads}; give the heads of "
            "the module"
        )
    else:
        first = None if batch is None else batch * given.heads
        wanted, axes = [first, given.queries, given.keys], "(batch * heads, queries, keys)"
    check_shape(given, names.mask, mask, wanted, axes)
    if padding is not None and mask.shape[-1] != padding.shape[-1]:
        raise MaskError(
            f"{given.convention} was read with {names.mask} of shape {tuple(mask.shape)} and {names.padding} of shape "
            f"{tuple(padding.shape)}, which end in different numbers of keys; give masks for the same keys"
        )


def _check_causal(given: Given, names: Names, cells: Bool[Tensor, "..."]) -> None:
    """Refuse the flag beside a tensor that says otherwise."""
    queries, keys = cells.shape[-2:]
    spoiled = cells != top_left(queries, keys, cells.device)
    if bool(spoiled.any()):
        *_, query, key = spoiled.nonzero()[0].tolist()
        raise MaskError(
            f"{given.convention} was read with {names.causal}=True and {names.mask} of shape {tuple(cells.shape)}, which "
            f"is not causal at row {query}, key {key}, and torch follows one or the other as it finds faster; leave the "
            "flag out, or give a causal tensor"
        )


def _export(mask: Mask, target: Target) -> dict[str, Any]:
    """`attn_mask`, `key_padding_mask` and `is_causal`, those that are needed."""
    target.look_for_blind_rows(mask, BLIND_BOOL if target.dtype is None else BLIND_FLOAT)
    return arguments(mask, target, Names())


def _read(given: Given) -> Mask:
    """The mask that the arguments mean."""
    return read_attention(given, Names())


MULTIHEAD = Convention(
    taker="torch.nn.MultiheadAttention",
    meaning="bool: True = blocked; float: added to the scores; is_causal is a hint beside a causal attn_mask; a 3-D "
    "mask is (batch * heads, Q, K), row b * heads + h",
    arguments=("attn_mask", "key_padding_mask", "is_causal"),
    export=_export,
    read=_read,
)
