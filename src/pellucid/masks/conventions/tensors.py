"""Tensors from other libraries, looked at before they are believed: their type, their shape, their two values."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.terms import Given
from pellucid.masks.kinds import Causal, Full
from pellucid.masks.tensors import Dense
from pellucid.shapes import Look

__all__ = [
    "as_mask",
    "as_tensor",
    "check_four_axes",
    "check_shape",
    "kept",
    "kept_of_additive",
    "says_it_all",
    "top_left",
]

AS_GOOD_AS_HIDDEN = -1000.0  # added to a score, it leaves a weight of 0 in every float type


def as_tensor(given: Given, name: str) -> Tensor | None:
    """An argument as a tensor, whichever library's array it is; None where it was left out.

    Raises:
        MaskError: it is no array.
    """
    value: Any = given.arguments.get(name)
    if value is None or isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value.__array__().copy() if hasattr(value, "__array__") else value)
    except (TypeError, ValueError, RuntimeError):
        raise MaskError(
            f"{given.convention} was read with {name} of type {type(value).__name__}, but it is a tensor or an array; "
            "give the library's own mask"
        ) from None


def kept(given: Given, name: str, tensor: Tensor, *, true_keeps: bool) -> Bool[Tensor, "..."]:
    """A bool mask's cells with True = may look.

    Raises:
        MaskError: the tensor is not bool: an additive mask, say.
    """
    if tensor.dtype != torch.bool:
        what = "an additive mask of floats" if tensor.dtype.is_floating_point else "numbers"
        raise MaskError(
            f"{given.convention} was read with {name} of {tensor.dtype}, {what}, but it takes bool; compare the tensor "
            "with what its numbers mean, or name the convention that it comes from"
        )
    return tensor if true_keeps else ~tensor


def kept_of_additive(given: Given, name: str, tensor: Tensor, *, true_keeps: bool) -> Bool[Tensor, "..."]:
    """An additive mask's cells with True = may look: 0 keeps, and what is far below hides.

    Raises:
        MaskError: the numbers are those of a 1/0 mask, which adds next to nothing, or of a bias, or not numbers.
    """
    if bool(torch.isnan(tensor).any()):
        raise MaskError(f"{given.convention} was read with {name} that holds NaN; look where it comes from")
    values: Tensor = torch.unique(tensor)
    if bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any()):
        raise MaskError(
            f"{given.convention} was read with {name} of {tensor.dtype} that holds only 0 and 1, but a float mask is "
            "added to the scores, and these hide nothing; where 1 means keep, give tensor == "
            f"{int(true_keeps)} as bool, or "
            "read it as 'band_part'"
        )
    biases = values[(values != 0) & (values > AS_GOOD_AS_HIDDEN)]
    if len(biases):
        raise MaskError(
            f"{given.convention} was read with {name} that adds {biases[0].item():g} to a score, but a mask adds 0 or "
            "hides; give a bias apart from the mask"
        )
    return tensor == 0


def check_shape(given: Given, name: str, tensor: Tensor, wanted: Sequence[int | None], axes: str) -> None:
    """Refuse a tensor of another rank or size than is wanted; where an axis may be broadcast, None must be wanted of it.

    Args:
        given: what was read.
        name: the argument.
        tensor: its value.
        wanted: a size for each axis, None where any will do.
        axes: the axes in words, as "(batch, keys)".

    Raises:
        MaskError: it does not fit; the message has both shapes.
    """
    fits = tensor.dim() == len(wanted) and all(
        want is None or size == want for size, want in zip(tensor.shape, wanted, strict=True)
    )
    if not fits:
        shape = tuple("any" if want is None else want for want in wanted)
        raise MaskError(
            f"{given.convention} was read with {name} of shape {tuple(tensor.shape)}, but it is {axes}, here "
            f"({', '.join(map(str, shape))}); give a tensor that fits"
        )


def says_it_all(look: Look, queries: int, keys: int) -> Full | Causal | None:
    """Whether cells are all seen, or just those that a flag for causal masks shows when it counts from the top left."""
    if bool(look.all()):
        return Full()
    alike = look.shape[:2] == (1, 1)
    causal = alike and torch.equal(look[0, 0].expand(queries, keys), top_left(queries, keys, look.device))
    return Causal() if causal else None


def top_left(queries: int, keys: int, device: torch.device | str | None = None) -> Bool[Tensor, "_query _key"]:
    """What a flag for causal masks lets each row see, whatever the shape is: row r sees keys 0 to r.

    >>> top_left(2, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def check_four_axes(given: Given, name: str, tensor: Shaped[Tensor, "..."]) -> None:
    """Refuse what is not (batch, heads, queries, keys) of the sizes that were told; an axis of size 1 speaks of all.

    Raises:
        MaskError: it does not fit; the message has both shapes.
    """
    told = (given.batch, given.heads, given.queries, given.keys)
    loose = [None if size == 1 else want for want, size in zip(told, tensor.shape, strict=False)]
    check_shape(given, name, tensor, loose if tensor.dim() == 4 else told, "(batch or 1, heads or 1, queries, keys)")


def as_mask(cells: Bool[Tensor, "..."], first_query: int = 0) -> Mask:
    """Cells (Q, K), (batch, Q, K) or (batch, heads, Q, K) as a mask; row 0 is the query at `first_query`.

    Rows before it see nothing; cells that are all True are `Full()`.
    """
    if bool(cells.all()):
        return Full()
    if first_query and cells.shape[-2] > 1:
        before = cells.new_zeros((*cells.shape[:-2], first_query, cells.shape[-1]))
        cells = torch.cat([before, cells], dim=-2)
    return Dense(cells)
