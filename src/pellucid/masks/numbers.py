"""Whole numbers and tensors from wherever users have them: plain, in a sequence, in an array of any library."""

import operator
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import MaskError

__all__ = ["FARTHEST", "any_tensor", "whole_numbers"]

FARTHEST = 2**62  # a position and a distance from it must fit in a tensor of int64 together


def whole_numbers(given: Any, least: int = 0) -> tuple[int, ...] | None:
    """The numbers in a sequence or a 1-D tensor, or None where they are not whole, below `least` or past all positions.

    >>> whole_numbers([5, 3]), whole_numbers([5, -1]), whole_numbers(0.5), whole_numbers([True])
    ((5, 3), None, None, None)
    """
    try:
        row = list(given.tolist() if isinstance(given, Tensor) else given)
        numbers = tuple(operator.index(number) for number in row)
    except TypeError:
        return None
    sound = all(least <= number < FARTHEST for number in numbers) and not any(isinstance(one, bool) for one in row)
    return numbers if sound else None


def any_tensor(given: Any, what: str) -> Tensor:
    """A tensor as it is, or one made of an array or of nested lists.

    Raises:
        MaskError: there is no tensor in it.
    """
    if isinstance(given, Tensor):
        return given
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise MaskError(
            f"{what} was given something of type {type(given).__name__}, but it takes a tensor or an array; give one"
        ) from None
