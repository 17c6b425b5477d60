"""Whether two ways to the same numbers give them: step by step against all at once, one module against another."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.copies import Call, double, plain_call, seen
from pellucid.check.report import Report
from pellucid.errors import CheckError
from pellucid.shapes import Ids

__all__ = ["cache", "parity"]


def cache(model: Any, source: Ids, target: Ids, *, tolerance: float = 1e-9) -> Report:
    """Whether decoding step by step with a cache gives what decoding all at once does.

    Args:
        model: has `model(source, target)`, `encode(source)` and `decode(target, memory, cache=...)` as `Transformer` has.
        source: (B, S) ids without padding.
        target: (B, T) ids without padding.
        tolerance: how far apart float64 logits may lie.
    """
    probed = seen(model)
    with torch.no_grad():
        whole = probed(source, target)
        memory = probed.encode(source)
        past, steps = None, []
        for position in range(target.shape[1]):
            logits, past = probed.decode(target[:, position : position + 1], memory, cache=past)
            steps.append(logits)
    return _compared(
        "cache", "decoding step by step must equal decoding all at once", torch.cat(steps, 1), whole, tolerance
    )


def parity(
    ours: Any,
    theirs: Any,
    inputs: Sequence[Any],
    *,
    call: Call | None = None,
    their_call: Call | None = None,
    tolerance: float = 1e-10,
) -> Report:
    """Whether two modules give the same outputs on the same inputs, element by element, in float64.

    Args:
        ours: one module or function.
        theirs: the other.
        inputs: what both are called with; float tensors are taken as float64.
        call: call(ours, *inputs), where calling is not plain.
        their_call: call(theirs, *inputs); the same as `call` where it is not given.
        tolerance: how far apart the outputs may lie.

    Raises:
        CheckError: dropout is on in either, so that not even a module equals itself.
    """
    for module in (ours, theirs):
        if isinstance(module, nn.Module) and module.training and _drops(module):
            raise CheckError(
                f"{type(module).__name__} is in training mode with dropout on, so outputs are random; call .eval() first"
            )
    given = [double(value) for value in inputs]
    first = plain_call(call)(seen(ours), *given)
    second = plain_call(their_call or call)(seen(theirs), *given)
    return _compared("parity", "both modules must give the same outputs", first, second, tolerance)


def _compared(name: str, asked: str, ours: Tensor, theirs: Tensor, tolerance: float) -> Report:
    """A report on the element that lies farthest apart; NaN on either side lies infinitely far."""
    if ours.shape != theirs.shape:
        return Report(name, asked, (f"the shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}",))
    apart = (ours.detach() - theirs.detach()).abs().nan_to_num(nan=float("inf"))
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


def _drops(module: nn.Module) -> bool:
    """Whether any part of a module drops something at random."""
    rates = (getattr(part, name, 0.0) for part in module.modules() for name in ("p", "rate", "dropout"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
