"""Tensors from other libraries, looked at before they are believed: their type, their shape, their two values."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.terms import Given
from pellucid.masks.kinds import Full
from pellucid.masks.tensors import Dense

__all__ = ["as_mask", "as_tensor", "check_shape", "kept", "kept_of_additive"]

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


def kept_of_additive(given: Given, name: str, tensor: Tensor) -> Bool[Tensor, "..."]:
    """An additive mask's cells with True = may look: 0 keeps, and what is far below hides.

    Raises:
        MaskError: the numbers are those of a 1/0 mask, which adds next to nothing, or of a bias, or not numbers.
    """
    if bool(torch.isnan(tensor).any()):
        raise MaskError(f"{given.convention} was read with {name} that holds NaN; look where it comes from")
    values = tensor.unique()
    if bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any()):
        raise MaskError(
            f"{given.convention} was read with {name} of {tensor.dtype} that holds only 0 and 1, but a float mask is "
            "added to the scores, and these hide nothing; give tensor == 1 as bool where 1 means keep, or read it as "
            "'band_part'"
        )
    biases = values[(values != 0) & (values > AS_GOOD_AS_HIDDEN)]
    if len(biases):
        raise MaskError(
            f"{given.convention} was read with {name} that adds {biases[0].item():g} to a score, but a mask adds 0 or "
            "hides; give a bias apart from the mask"
        )
    return tensor == 0


def check_shape(given: Given, name: str, tensor: Tensor, wanted: Sequence[int | None], axes: str) -> None:
    """Refuse a tensor of another rank or size than is wanted; None and 1 fit any size where the axis may be broadcast.

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
