"""Which inputs each output really depends on, and whether any of them lies ahead of it."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.check.copies import Call, matching, plain_call, seen
from pellucid.check.report import Report
from pellucid.errors import CheckError

__all__ = ["causality", "influence"]

PROBES = 2
"""Random projections of each output whose gradients are taken, so that a chance zero hides nothing."""


def influence(
    module: Any, x: Float[Tensor, "batch length width"], *, call: Call | None = None
) -> Bool[Tensor, "outputs inputs"]:
    """The mask a module really has: entry (t, s) says whether output position t depends on input position s.

    Measured by gradient on a float64 copy in evaluation mode; the module itself is not touched, and a function is called
    as it is. It speaks of the given input: a path that is zero there, a dead relu say, is not seen.

    Args:
        module: any module or function, (B, T, D) in, (B, T', D') out.
        x: the input to measure at.
        call: call(module, x), where calling is not plain.

    Returns:
        Bool (T', T).

    Raises:
        CheckError: input or output are not (batch, length, width) floats, or no gradient reaches the input.

    >>> influence(lambda x: x.cumsum(dim=1), torch.randn(1, 3, 2)).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if not x.is_floating_point() or x.dim() != 3:
        raise CheckError(
            f"influence was given {x.dtype} of shape {tuple(x.shape)}, but gradients need floats (batch, length, "
            "width); give embedded states rather than ids"
        )
    probed = matching(x, module).requires_grad_(requires_grad=True)
    output = plain_call(call)(seen(module), probed)
    if output.dim() != 3 or not output.requires_grad:
        raise CheckError(
            f"the module gave {tuple(output.shape)}, " + ("" if output.requires_grad else "without a gradient, ")
            + "but influence needs (batch, length, width) that depends on the input; give call= that hands it back"
        )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    rows = []
    for position in range(output.shape[1]):
        reached = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        for _ in range(PROBES):
            probe = torch.randn(output[:, position].shape, generator=generator, dtype=torch.float64).to(x.device)
            projected = (output[:, position] * probe).sum()
            (slope,) = torch.autograd.grad(projected, probed, retain_graph=True, allow_unused=True)
            if slope is None:
                raise CheckError("the module's output does not depend on its input; give call= that hands it the input")
            reached |= (slope != 0).any(dim=2).any(dim=0)
        rows.append(reached)
    return torch.stack(rows)


def causality(module: Any, x: Float[Tensor, "batch length width"], *, call: Call | None = None) -> Report:
    """Whether no output depends on an input ahead of it.

    Args:
        module: any module or function, (B, T, D) in, (B, T, D') out.
        x: the input to measure at.
        call: call(module, x), where calling is not plain.

    Returns:
        A report that names each output position which sees ahead, and what it sees.

    >>> print(causality(lambda x: x.flip(dims=(1,)), torch.ones(1, 3, 1)))
    causality: FAILED: no output position may depend on a later input position
      output 0 depends on input 2
      outputs = 3
      leaking = 1
        0 1 2   (■ depends, ! depends on the future)
      0 · · !
      1 · ■ ·
      2 ■ · ·
    """
    found = influence(module, x, call=call)
    ahead = found.triu(diagonal=1)
    findings = []
    for position in ahead.any(dim=1).nonzero().flatten().tolist():
        inputs = ahead[position].nonzero().flatten().tolist()
        named = ", ".join(map(str, inputs[:5])) + (" ..." if len(inputs) > 5 else "")
        findings.append(f"output {position} depends on input{'s' * (len(inputs) > 1)} {named}")
    return Report(
        "causality",
        "no output position may depend on a later input position",
        tuple(findings),
        {"outputs": len(found), "leaking": len(findings)},
        _picture(found, ahead) if findings else "",
    )


def _picture(found: Bool[Tensor, "outputs inputs"], ahead: Bool[Tensor, "outputs inputs"]) -> str:
    wide = len(str(max(found.shape) - 1))
    head = " ".join([" " * wide, *(f"{column:>{wide}}" for column in range(found.shape[1]))])
    lines = [f"  {head}   (■ depends, ! depends on the future)"]
    for row, (cells, leaks) in enumerate(zip(found.tolist(), ahead.tolist(), strict=True)):
        marks = ("!" if leak else "■" if cell else "·" for cell, leak in zip(cells, leaks, strict=True))
        lines.append("  " + " ".join([f"{row:>{wide}}", *(f"{mark:>{wide}}" for mark in marks)]))
    return "\n".join(lines)
