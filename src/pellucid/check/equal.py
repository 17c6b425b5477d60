"""Whether two modules give the same numbers, element by element."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from pellucid.check.apart import allowed_distance, apart, farthest, scale
from pellucid.check.calling import Call, title
from pellucid.check.report import Report
from pellucid.check.ways import ways
from pellucid.errors import CheckError

__all__ = ["parity"]

SINGLE = 2.5e-6
"""Relative: a few dozen roundings of float32, as far as a step in that precision moves what comes of it."""

SMALL = 1e-2
"""Relative: as far as an eps, or an approximation of a function, moves what comes of it."""


def parity(
    ours: Any,
    theirs: Any,
    inputs: Sequence[Any] | Tensor,
    *,
    call: Call | None = None,
    their_call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether two modules give the same outputs on the same inputs, element by element.

    Measured on float64 copies in evaluation mode, so without dropout; functions are called as they are, with float64
    inputs. Where a module gives several outputs, the first is compared. What is no number, or infinite, on either side
    equals nothing.

    Args:
        ours: one module or function.
        theirs: the other.
        inputs: what both are called with, or the only input; float tensors are taken as float64.
        call: call(ours, *inputs), where calling is not plain.
        their_call: call(theirs, *inputs); the same as `call` where it is not given.
        tolerance: how far apart the outputs may lie; if not given 1e-10, or that part of the largest number above 1.

    Raises:
        CheckError: a module cannot be copied or called so, takes no float64, or gives no tensor, or chance still decides
            what it gives, as it does where dropout was left on.

    >>> print(parity(torch.sin, torch.cos, torch.zeros(2)))
    parity: FAILED: both must give the same outputs
      element (0,) is 0 in one and 1 in the other
      2 of 2 elements lie more than 1e-10 apart
      elements = 2
      largest difference = 1
      largest relative difference = 1
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    first, second = _given(ours, call, given), _given(theirs, their_call or call, given)
    allowed = allowed_distance(tolerance, 1e-10 * max(scale(first), scale(second)))
    return _compared("parity", "both must give the same outputs", first, second, allowed)


def _given(module: Any, call: Call | None, inputs: Sequence[Any]) -> Tensor:
    """What one side gives of float64 inputs, where chance has no part in it."""
    doubled = tuple(_double(value) for value in inputs)
    reason: Any = "it has numbers of another precision written into it"
    try:
        probe = next(ways(module, doubled, call))
    except CheckError as error:
        reason = error.__cause__
        if reason is None or "type" not in str(reason):
            raise
        probe = None
    if probe is None or probe.way.dtype not in (None, torch.float64):
        raise CheckError(
            f"{title(module)} does not take float64 ({reason}); "
            "give the module itself, or a function over modules that are .double()"
        )
    # each run has its own inputs, for a module that changes what it is given
    once, again, otherwise = (probe(*(_double(value) for value in doubled), seed=seed).detach() for seed in (0, 0, 1))
    if not all(_same(once, other) for other in (again, otherwise)):
        raise CheckError(
            f"chance decides what {title(module)} gives, so there is nothing to compare; turn dropout off: "
            "F.dropout(x, training=self.training) inside a module, and .eval() for modules that a function holds"
        )
    return once


def _double(value: Any) -> Any:
    """A copy of a tensor, as float64 where it has floats; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().double() if value.is_floating_point() else value.detach().clone()


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same bit for bit; what is no number is the same as itself."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _compared(name: str, asked: str, ours: Tensor, theirs: Tensor, tolerance: float) -> Report:
    """A report on the element that lies farthest apart; NaN on either side lies infinitely far."""
    if ours.shape != theirs.shape:
        found = f"the shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        return Report(name, asked, (found,), advice=_swapped(ours, theirs, tolerance))
    distance = apart(ours, theirs)
    place, worst = farthest(distance)
    relative = distance / theirs.detach().double().abs().clamp_min(torch.finfo(torch.float64).tiny)
    largest = float(torch.where(distance == 0, 0.0, relative.nan_to_num(nan=float("inf"))).max()) if worst else 0.0
    figures: dict[str, float | int | str] = {
        "elements": distance.numel(),
        "largest difference": worst,
        "largest relative difference": largest,
    }
    if worst <= tolerance:
        return Report(name, asked, figures=figures)
    findings = (
        f"element {place} is {float(ours[place]):.6g} in one and {float(theirs[place]):.6g} in the other",
        f"{int((distance > tolerance).sum())} of {distance.numel()} elements lie more than {tolerance:.3g} apart",
    )
    return Report(name, asked, findings, figures, advice=_likely(ours, theirs, tolerance))


def _likely(ours: Tensor, theirs: Tensor, tolerance: float) -> str:
    """What may lie behind a difference, from what the two have in common."""
    one, other = ours.detach().double(), theirs.detach().double()
    odd = [side for side, output in (("the first", one), ("the second", other)) if not output.isfinite().all()]
    if odd:
        return (
            f"{' and '.join(odd)} gave NaN or infinity: look for a row whose keys are all hidden, a log or a root of 0"
        )
    part = farthest(apart(one, other))[1] / float(torch.maximum(one.abs(), other.abs()).max())
    if part <= SINGLE:
        return (
            "precision: both are equal once rounded to float32, so one of them takes a step in float32; give "
            "tolerance=1e-5 where that is meant"
        )
    factor = float((one * other).sum() / other.square().sum()) if other.any() else 0.0
    if factor and farthest(apart(one, factor * other))[1] <= max(tolerance, SINGLE * scale(one)):
        return f"the first is {factor:.6g} times the second{_root(factor)}"
    if part <= SMALL:
        return "both are equal but for a little: the eps of a norm, an approximate gelu or a step in bfloat16 differs"
    return _swapped(one, other, tolerance)


def _root(factor: float) -> str:
    """The square root that a factor is, as a scale by sqrt(d) would be."""
    for side, square in (("", factor**2), ("1 / ", factor**-2)):
        if factor > 0 and square > 1.5 and abs(square - round(square)) < 1e-4 * square:
            return f", {side}sqrt({round(square)}): one of them is without a scale by the root of a width"
    return ": one of them is without a scale"


def _swapped(ours: Tensor, theirs: Tensor, tolerance: float) -> str:
    """The two axes that stand the other way round, or nothing."""
    for left, right in combinations(range(ours.dim()), 2):
        turned = ours.transpose(left, right)
        if turned.shape != theirs.shape:
            continue
        equal = farthest(apart(turned, theirs))[1] <= max(tolerance, SINGLE * scale(theirs))
        if equal or ours.shape != theirs.shape:
            so = "the numbers are equal" if equal else "the shapes are equal, if not the numbers,"
            return (
                f"axes {left} and {right} are swapped: {so} once they are turned; look for a transpose that is missing, or "
                "batch_first= that differs"
            )
    return ""
