"""What a scheme counts, checked when it is made: widths, heads, buckets and positions are whole numbers from 1 up."""

import reprlib

from pellucid.errors import ConfigError
from pellucid.masks.numbers import whole_numbers

__all__ = ["count"]


def count(given: object, name: str, reason: str, wanted: str) -> int:
    """The number that was given, where it is a whole one from 1 up and no farther than positions go.

    Args:
        given: what the user wrote.
        name: the scheme and its argument, as in "ALiBi was given num_heads".
        reason: what the number is for.
        wanted: what to give.

    Raises:
        ConfigError: it is no such number.

    >>> count(4, "ALiBi was given num_heads", "each head has its slope", "the attention's own number of heads")
    4
    """
    numbers = whole_numbers((given,), least=1)
    if numbers is None:
        raise ConfigError(
            f"{name}={reprlib.repr(given)}, but {reason}; give {wanted}, a whole number from 1 up and below 2**62"
        )
    return numbers[0]
