"""How far apart two outputs lie, and where; a number that is none lies infinitely far from any."""

import torch
from torch import Tensor

from pellucid.errors import CheckError

__all__ = ["allowed_distance", "apart", "farthest", "moved", "scale"]


def apart(one: Tensor, other: Tensor) -> Tensor:
    """The distance of two tensors of one shape, element by element, in float64.

    What is no number on both sides is as far apart as what is none on one.
    """
    distance = (one.detach().double() - other.detach().double()).abs()
    return distance.nan_to_num(nan=float("inf"), posinf=float("inf"))


def moved(one: Tensor, other: Tensor) -> Tensor:
    """The distance by which what is no number on both sides has not moved."""
    return torch.where(one.isnan() & other.isnan(), 0.0, apart(one, other))


def allowed_distance(tolerance: float | None, usual: float) -> float:
    """The tolerance that was given, or the usual one.

    Raises:
        CheckError: it is no distance, so that a check by it could not fail, or not pass.
    """
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise CheckError(f"a tolerance of {tolerance} was given, but it is a distance; give a number from 0 on")
    return usual if tolerance is None else tolerance


def scale(output: Tensor) -> float:
    """The size of the largest number in it that is finite, 1 at least: roundings grow with the numbers."""
    sizes = output.detach().double().abs()
    sizes = sizes[sizes.isfinite()]
    return max(1.0, float(sizes.max())) if sizes.numel() else 1.0


def farthest(distance: Tensor) -> tuple[tuple[int, ...], float]:
    """The index of the largest distance, and how large it is; ((), 0) where there is none."""
    if not distance.numel():
        return (), 0.0
    place = torch.unravel_index(distance.argmax(), distance.shape)
    index = tuple(int(one) for one in place)
    return index, float(distance[index])
