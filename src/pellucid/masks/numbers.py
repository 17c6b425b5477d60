"""Whole numbers from wherever users have them: plain, in a sequence, or in a tensor."""

import operator
from typing import Any

from torch import Tensor

__all__ = ["whole_numbers"]


def whole_numbers(given: Any) -> tuple[int, ...] | None:
    """The numbers in a sequence or a 1-D tensor, or None where they are not whole, or one is below 0.

    >>> whole_numbers([5, 3]), whole_numbers([5, -1]), whole_numbers(0.5)
    ((5, 3), None, None)
    """
    try:
        numbers = tuple(operator.index(number) for number in (given.tolist() if isinstance(given, Tensor) else given))
    except TypeError:
        return None
    return None if any(number < 0 for number in numbers) else numbers
