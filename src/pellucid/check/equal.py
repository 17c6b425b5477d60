"""Whether two ways to the same numbers give them: step by step against all at once, one module against another."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from pellucid.check.copies import Call, double, plain_call, seen
from pellucid.check.report import Report
from pellucid.errors import CheckError

__all__ = ["cache", "parity"]


def cache(
    model: Any, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"], *, tolerance: float = 1e-9
) -> Report:
    """Whether decoding step by step with a cache gives what decoding all at once does.

    Measured on a float64 copy in evaluation mode.

    Args:
        model: has `model(source, target)`, `encode(source)` and `decode(target, memory, cache=...)`, as `Transformer`.
        source: (B, S) ids without padding.
        target: (B, T) ids without padding, two at least: the first step has no cache.
        tolerance: how far apart float64 logits may lie.

    Raises:
        CheckError: the targets are shorter than two ids, or the model cannot be copied.
    """
    if target.shape[1] < 2:
        raise CheckError(f"cache was given targets of length {target.shape[1]}; give two ids at least, to take a step")
    probed = seen(model)
    with torch.no_grad():
        whole = probed(source, target)
        memory = probed.encode(source)
        past, steps = None, []
        for position in range(target.shape[1]):
            logits, past = probed.decode(target[:, position : position + 1], memory, cache=past)
            steps.append(logits)
    asked = "decoding step by step must equal decoding all at once"
    return _compared("cache", asked, torch.cat(steps, dim=1), whole, tolerance)


def parity(
    ours: Any,
    theirs: Any,
    inputs: Sequence[Any] | Tensor,
    *,
    call: Call | None = None,
    their_call: Call | None = None,
    tolerance: float = 1e-10,
) -> Report:
    """Whether two modules give the same outputs on the same inputs, element by element.

    Measured on float64 copies in evaluation mode, so without dropout. Where a module gives several outputs, the first
    is compared.

    Args:
        ours: one module or function.
        theirs: the other.
        inputs: what both are called with, or the only input; float tensors are taken as float64.
        call: call(ours, *inputs), where calling is not plain.
        their_call: call(theirs, *inputs); the same as `call` where it is not given.
        tolerance: how far apart the outputs may lie.

    Raises:
        CheckError: a module cannot be copied, or gives no tensor.

    >>> print(parity(torch.sin, torch.cos, torch.zeros(2)))
    parity: FAILED: both must give the same outputs
      element (0,) is 0 in one and 1 in the other
      2 of 2 elements lie more than 1e-10 apart
      largest difference = 1
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    doubled = [double(value) for value in given]
    first, second = _given(ours, call, doubled), _given(theirs, their_call or call, doubled)
    return _compared("parity", "both must give the same outputs", first, second, tolerance)


def _given(module: Any, call: Call | None, inputs: Sequence[Any]) -> Tensor:
    """What one side gives of float64 inputs."""
    try:
        return plain_call(call)(seen(module), *inputs)
    except RuntimeError as error:
        if "dtype" not in str(error) and "type" not in str(error):
            raise
        raise CheckError(
            f"{getattr(module, '__name__', type(module).__name__)} does not take float64 ({error}); "
            "give the module itself, or a function over modules that are .double()"
        ) from None


def _compared(name: str, asked: str, ours: Tensor, theirs: Tensor, tolerance: float) -> Report:
    """A report on the element that lies farthest apart; NaN on either side lies infinitely far."""
    if ours.shape != theirs.shape:
        return Report(name, asked, (f"the shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}",))
    ours, theirs = ours.detach().double(), theirs.detach().double()
    apart = (ours - theirs).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = float(apart.max()) if apart.numel() else 0.0
    findings: list[str] = []
    if worst > tolerance:
        place = tuple(int(index) for index in torch.unravel_index(apart.argmax(), apart.shape))
        findings.append(
            f"element {place} is {float(ours[place]):.6g} in one and {float(theirs[place]):.6g} in the other"
        )
        findings.append(
            f"{int((apart > tolerance).sum())} of {apart.numel()} elements lie more than {tolerance:g} apart"
        )
    return Report(name, asked, tuple(findings), {"largest difference": worst})
