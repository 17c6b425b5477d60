"""Slopes by difference quotients, against which those of the backward pass are held."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["Wrong", "wrong_slopes"]

STEPS = (1e-4, 1e-3, 1e-5, 1e-2, 1e-6)
"""How far to go, the likeliest first: steps inside a module that are rounded to float32 need a long one."""

CLOSE = 1e-3  # relative: as close as a quotient must come
FLOOR = 1e-8  # of the value's size: slopes below this are rounding
CLEAR = 20  # errors of a quotient: a gradient that is farther off is wrong
DIRECTIONS = 2
TOGETHER = 8
"""Tensors that move together where there are more; those of a group that is wrong are then moved one by one."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A gradient that is not the slope.

    Attributes:
        name: of the tensor.
        gradient: along a random direction of length 1, by the backward pass.
        slope: along the same direction, by difference quotients.
    """

    name: str
    gradient: float
    slope: float


def wrong_slopes(
    value: Callable[[], float], tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> list[Wrong]:
    """The gradients that are not the slopes of a value.

    Each tensor goes a little along random directions, both ways; where the value has a kink or a step there, or is
    rounded too coarsely to tell, nothing is said.

    Args:
        value: measured anew at each call; it depends on the tensors, which are moved in place and put back.
        tensors: float64, by name.
        gradients: of the value by each tensor.
    """
    names = list(tensors)
    size = TOGETHER if len(names) > TOGETHER else 1
    wrong: list[Wrong] = []
    for group in (names[start : start + size] for start in range(0, len(names), size)):
        found = _wrong(value, group, tensors, gradients)
        if found is None:
            continue
        each = [_wrong(value, [name], tensors, gradients) for name in group] if size > 1 else []
        wrong += [one for one in each if one is not None] or [found]
    return wrong


def _wrong(
    value: Callable[[], float], group: list[str], tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> Wrong | None:
    """What is wrong with the gradients of some tensors together, if it is in every direction."""
    gradient = slope = 0.0
    for draw in range(DIRECTIONS):
        generator = torch.Generator().manual_seed(draw)
        directions = {}
        for name in group:
            drawn = torch.randn(tensors[name].shape, generator=generator, dtype=torch.float64).to(tensors[name])
            directions[name] = drawn / drawn.norm().clamp_min(1e-12)
        gradient = sum(float((gradients[name] * one).sum()) for name, one in directions.items())
        clear = _slope(value, {name: (tensors[name], one) for name, one in directions.items()}, gradient)
        if clear is None:
            return None
        slope = clear
    return Wrong(" and ".join(group), gradient, slope)


def _slope(value: Callable[[], float], moved: Mapping[str, tuple[Tensor, Tensor]], gradient: float) -> float | None:
    """The slope, where it is clearly another than the gradient."""
    here = value()
    floor = FLOOR * max(1.0, abs(here))
    quotients: dict[float, float] = {}
    for step in STEPS:
        ahead, behind = (_at(value, moved, far) for far in (step, -step))
        quotients[step] = slope = (ahead - behind) / (2 * step)
        size = max(abs(slope), abs(gradient))
        if not abs(slope - gradient) > CLOSE * size + floor:  # also where nothing is a number
            return None
        bend = abs((ahead - here) - (here - behind)) / step
        if step == STEPS[-1] and bend > 0.05 * size + floor:  # a kink, or rounding
            return None
    steps = [step for step in sorted(quotients) if quotients[step]]  # rounding to steps gives zeros that agree
    if len(steps) < 2:
        return None
    error, best = min((abs(quotients[one] - quotients[other]), quotients[one]) for one, other in pairwise(steps))
    clear = CLEAR * error + CLOSE * max(abs(best), abs(gradient)) + floor
    return best if abs(gradient - best) > clear else None


@torch.no_grad()
def _at(value: Callable[[], float], moved: Mapping[str, tuple[Tensor, Tensor]], far: float) -> float:
    """The value a little away from here."""
    kept = [(tensor, tensor.detach().clone()) for tensor, _ in moved.values()]
    try:
        for tensor, direction in moved.values():
            tensor.add_(direction, alpha=far)
        return value()
    finally:
        for tensor, before in kept:
            tensor.copy_(before)
