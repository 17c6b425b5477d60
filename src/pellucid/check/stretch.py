"""Inputs with other numbers of samples and positions, to see which axes of what comes out follow them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CheckError

__all__ = ["Stretch", "stretches"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Inputs in which one number is another.

    Attributes:
        name: what that number is called: B, S or T.
        what: what it counts, in words.
        size: what it was.
        sizes: what it is in each of the inputs.
        inputs: whole sets of inputs, the others as they were.
    """

    name: str
    what: str
    size: int
    sizes: tuple[int, ...]
    inputs: tuple[tuple[Any, ...], ...]


def stretches(inputs: Sequence[Any], axis: int) -> tuple[list[list[Stretch]], list[str]]:
    """Ways to stretch the inputs, the likeliest first, and notes on what was taken for what.

    Inputs with samples and positions are floats or whole numbers of two axes or more. Where there are several, positions
    of the first are S and those of the others T, or all are T where a module takes only as many of each. What else is
    given, masks and lengths, goes along where it has as many.

    Raises:
        CheckError: no input has samples and positions.
    """
    main = [place for place, value in enumerate(inputs) if _is_main(value)]
    flat = [place for place, value in enumerate(inputs) if isinstance(value, Tensor) and value.dim() == 2]
    if not main and not flat:
        told = ", ".join(str(tuple(one.shape)) if isinstance(one, Tensor) else type(one).__name__ for one in inputs)
        raise CheckError(
            f"shapes was given {told or 'nothing'}; give a tensor with samples and positions, as (B, T, D) or (B, T)"
        )
    axis, alone = (axis, False) if main else (1, True)
    main = main or flat[:1]
    beside = 1 - axis
    samples = inputs[main[0]].shape[beside]
    along = [place for place in main if inputs[place].shape[beside] == samples]

    def batch(size: int) -> tuple[Any, ...]:
        return tuple(
            _resized(value, beside, size) if place in along
            else _resized(value, 0, size) if _goes_along(value, place, main) and value.dim() and value.shape[0] == samples
            and not (value.dim() == 2 and value.shape[0] == value.shape[1])
            else value
            for place, value in enumerate(inputs)
        )  # fmt: skip

    first = Stretch("B", "samples", samples, _others(samples), tuple(batch(size) for size in _others(samples)))
    if alone:
        return [[first]], ["the input was taken for samples without positions"]
    groups = [[("S", main[:1]), ("T", main[1:])]] if len(main) > 1 else []
    groups.append([("T", main)])
    choices = [[first, *(_longer(inputs, axis, name, own, main) for name, own in group)] for group in groups]
    return choices, []


def _longer(inputs: Sequence[Any], axis: int, name: str, own: list[int], main: list[int]) -> Stretch:
    """The inputs with other numbers of positions in some of them."""
    length = inputs[own[0]].shape[axis]

    def stretched(size: int) -> tuple[Any, ...]:
        given = []
        for place, value in enumerate(inputs):
            if place in own and value.shape[axis] == length:
                value = _resized(value, axis, size)
            elif _goes_along(value, place, main):
                square = value.dim() == 2 and value.shape[0] == value.shape[1] == length
                axes = [at for at in range(0 if square else 1, value.dim()) if value.shape[at] == length]
                for at in axes:
                    value = _resized(value, at, size)
            given.append(value)
        return tuple(given)

    sizes = _others(length)
    return Stretch(name, "positions", length, sizes, tuple(stretched(size) for size in sizes))


def _others(size: int) -> tuple[int, ...]:
    """One more, and twice as many."""
    return (size + 1, 2 * size) if size > 1 else (2, 3)


def _is_main(value: Any) -> bool:
    """Whether an input has samples and positions itself, rather than to say something of them."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.dtype == torch.bool:
        return False
    return not (value.is_floating_point() and value.dim() == 2)


def _goes_along(value: Any, place: int, main: list[int]) -> bool:
    return isinstance(value, Tensor) and place not in main


def _resized(value: Tensor, axis: int, size: int) -> Tensor:
    """A tensor with so many along an axis, repeated from the beginning."""
    many = torch.arange(size, device=value.device) % value.shape[axis]
    return value.index_select(axis, many)
