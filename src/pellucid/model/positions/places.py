"""Where tokens stand, as tensors: absolute positions for the first two doors, offsets k - q for the third."""

from typing import SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.errors import ShapeError
from pellucid.model.positions.interface import First

__all__ = ["offsets", "places", "require_place"]


def require_place(first: First) -> None:
    """Refuse a position, given as one number, that is not whole.

    Raises:
        ShapeError: it is not.
    """
    if isinstance(first, bool) or not isinstance(first, int | torch.SymInt | SupportsIndex):
        raise ShapeError(
            f"`first` was given as {first!r}, but a token stands at a whole number; give one number for all samples, "
            "or a tensor of one whole number for each sample"
        )


def places(
    first: First, given: Float[Tensor, "batch *axes length width"]
) -> Int[Tensor, " length"] | Int[Tensor, "batch length"]:
    """The absolute positions first, first + 1, ... of what is given: one row for all samples, or one for each.

    Args:
        first: the position of the first: one number, or a tensor (B,).
        given: states (B, L, d_model) or heads (B, H, L, head_dim); only its shape and its device are read.

    Returns:
        (L,) where `first` is a number, (B, L) where it is a tensor.

    Raises:
        ShapeError: `first` is neither a whole number nor a tensor of one for each sample.

    >>> places(torch.tensor([0, -1]), torch.zeros(2, 3, 5)).tolist()
    [[0, 1, 2], [-1, 0, 1]]
    """
    steps = torch.arange(given.shape[-2], device=given.device)
    if not isinstance(first, Tensor):
        require_place(first)
        return steps + first
    if first.shape != given.shape[:1] or first.dtype == torch.bool or first.dtype.is_floating_point:
        raise ShapeError(
            f"`first` was given as a tensor of shape {tuple(first.shape)} and {first.dtype} for {len(given)} samples; "
            "give one number for all, or a tensor of one whole number for each sample"
        )
    return first.to(given.device)[:, None] + steps


def offsets(
    queries: int, keys: int, first_query: int = 0, device: torch.device | None = None
) -> Int[Tensor, " _offsets"]:
    """The queries + keys - 1 offsets k - q between those queries and the keys from 0 on, the most negative first.

    >>> offsets(queries=2, keys=3).tolist(), offsets(queries=1, keys=3, first_query=2).tolist()
    ([-1, 0, 1, 2], [-2, -1, 0])
    """
    least = 1 - queries - first_query
    return torch.arange(least, max(least, keys - first_query), device=device)
