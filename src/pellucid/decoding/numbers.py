"""What counts as a number in what a user gives: True is none, and 2.0 counts nothing."""

from pellucid.errors import DecodingError

__all__ = ["is_number", "is_whole", "require_number", "require_whole"]


def is_whole(value: object) -> bool:
    """Whether it is a whole number, written as one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a number."""
    return is_whole(value) or isinstance(value, float)


def require_whole(name: str, value: object, least: int, what: str) -> None:
    """Refuse what is no whole number from `least` up.

    Raises:
        DecodingError: it is not.
    """
    if not (isinstance(value, int) and is_whole(value) and value >= least):
        raise DecodingError(f"{name} was given {value!r}, but {what}; give a whole number from {least} up")


def require_number(name: str, value: object, least: float | int, most: float | int, what: str) -> None:
    """Refuse what is no number from `least` to `most`.

    Raises:
        DecodingError: it is not.
    """
    if not (isinstance(value, int | float) and is_number(value) and least <= value <= most):
        raise DecodingError(f"{name} was given {value!r}, but {what}; give a number from {least:g} to {most:g}")
