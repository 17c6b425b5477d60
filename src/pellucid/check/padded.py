"""Whether padding is really ignored: neither what stands in it nor how much of it there is may change anything."""

import inspect
from typing import Any

import torch
from jaxtyping import Num
from torch import Tensor, nn

from pellucid.check.copies import Call, matching, plain_call, seen
from pellucid.check.report import Report
from pellucid.errors import CheckError
from pellucid.shapes import Lengths

__all__ = ["padding"]

NAMES = ("lengths", "source_lengths", "src_lengths", "input_lengths")
"""Arguments by which modules are known to take lengths."""


def padding(
    module: Any,
    x: Num[Tensor, "batch length *width"],
    lengths: Lengths,
    *,
    call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether the outputs at real positions are the same whatever stands in the padding, and however much there is.

    Measured on a float64 copy in evaluation mode; a function is called as it is, with the input as it is.

    Args:
        module: any module or function whose outputs stand at its inputs' positions.
        x: (B, T, D) states or (B, T) ids, padded at the end.
        lengths: real positions of each sample; the module is given them as they are.
        call: call(module, x, lengths); needed where the module takes lengths by a name that is not known.
        tolerance: how far apart outputs may lie; where it is not given, 1e-9 in float64, and a hundred roundings of 1
            in the lower precision that a function may have.

    Raises:
        CheckError: no way is known to tell the module the lengths, lengths do not fit x or leave nothing to check, or
            outputs do not stand at the inputs' positions.

    >>> print(padding(lambda x, lengths: x - x.mean(dim=1, keepdim=True), torch.ones(1, 3, 1), (2,)).findings[-1])
    more padding changes sample 0 at position 0 by 0.5
    """
    called = plain_call(call or _by_name(module))
    numbers = _fitting(x, lengths)
    probed, given = seen(module), matching(x, module)
    wanted = called(probed, given, lengths)
    rounding = torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0.0
    allowed = tolerance if tolerance is not None else max(1e-9, 100 * rounding)
    findings, worst = [], 0.0
    for what, changed in (("other content in the", _refilled(given, numbers)), ("more", _longer(given))):
        output = called(probed, changed, lengths)
        if wanted.shape[:2] != x.shape[:2] or output.shape[:2] != changed.shape[:2]:
            raise CheckError(
                f"the module gave {tuple(output.shape)} for an input of {tuple(changed.shape)}; give one, or call=, whose "
                "outputs stand at the inputs' positions"
            )
        for sample, length in enumerate(numbers):
            if not length:
                continue
            apart = (output[sample, :length] - wanted[sample, :length]).detach().abs().reshape(length, -1).amax(dim=1)
            place = int(apart.nan_to_num(nan=float("inf")).argmax())
            change = float(apart[place])
            worst = max(worst, float("inf") if change != change else change)
            if not change <= allowed:
                findings.append(f"{what} padding changes sample {sample} at position {place} by {change:.3g}")
    figures = {"largest change": worst}
    return Report("padding", "padding must change nothing at real positions", tuple(findings), figures)


def _by_name(module: Any) -> Call:
    """Call a module with its lengths under the name that it has for them."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        known = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # functions written in C have none
        known = []
    for name in NAMES:
        if name in known:
            return lambda module, x, lengths: module(x, **{name: lengths})
    raise CheckError(
        f"{type(module).__name__} has no argument among {', '.join(NAMES)}; "
        "give call=lambda module, x, lengths: ... that tells it the lengths"
    )


def _fitting(x: Tensor, lengths: Lengths) -> list[int]:
    """The lengths as numbers, where they fit the input and leave something to check."""
    numbers = [int(length) for length in lengths]
    if len(numbers) != len(x) or not numbers or min(numbers) < 0 or max(numbers) > x.shape[1]:
        raise CheckError(f"lengths {numbers} do not fit an input of shape {tuple(x.shape)}; give one for each sample")
    if min(numbers) == x.shape[1]:
        raise CheckError("no sample has any padding, so there is nothing to check; give a sample that is shorter")
    if max(numbers) == 0:
        raise CheckError("all samples are padding, so there is nothing to check; give a sample of some length")
    return numbers


def _refilled(x: Tensor, lengths: list[int]) -> Tensor:
    """The same input with other numbers in its padding."""
    changed = x.clone()
    for sample, length in enumerate(lengths):
        tail = changed[sample, length:]
        if x.is_floating_point():
            tail.copy_(torch.randn(tail.shape, generator=torch.Generator().manual_seed(sample)) * 10)
        else:
            # Ids that surely exist: those of the real tokens.
            tail.copy_(x[sample, :1].expand_as(tail) if length else x.max().expand_as(tail))
    return changed


def _longer(x: Tensor) -> Tensor:
    """The same input with three more positions of padding, filled as a batcher would: with zeros."""
    return torch.cat([x, x.new_zeros(len(x), 3, *x.shape[2:])], dim=1)
