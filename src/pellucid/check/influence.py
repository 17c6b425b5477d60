"""The mask a module really has: which input positions each output position depends on."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.check.calling import Call, probed_input, title
from pellucid.check.sight import Axes, Sight
from pellucid.check.ways import Probe, ways
from pellucid.errors import CheckError

__all__ = ["ALL_ROWS", "Method", "SampledRows", "influence", "sampled", "sight_of"]

Method = Literal["auto", "gradient", "perturbation"]
"""How it is measured: by gradient, by changing inputs, or by gradient wherever there is one."""

ALL_ROWS = 256
"""Output positions that are all looked at; of more, `SAMPLE` are."""

SAMPLE = 32
DOUBTED = 16  # rows of which all that they seem not to see is changed
FAINTEST = 1e-30  # of the strongest dependence: less is a mask's exp(-100), not a path
ROUNDED = 20 * torch.finfo(torch.float64).eps  # likewise: less may be the rounding of a Fourier transform


class SampledRows(UserWarning):
    """Not all output positions were looked at: the message says which."""


def influence(
    module: Any,
    *inputs: Any,
    inputs_axis: int = 1,
    outputs_axis: int | None = None,
    of: int | None = None,
    rows: int | Sequence[int] | None = None,
    method: Method = "auto",
    call: Call | None = None,
) -> Bool[Tensor, "rows inputs"]:
    """The mask a module really has: entry (t, s) says whether output position t depends on input position s.

    Measured on a float64 copy in evaluation mode, where it has one; the module itself is not touched, and a function is
    called as it is. By gradient it takes random projections of each output backwards, many at once; token ids are
    followed from their embedding on, which is found as the nn.Embedding that is called with them. Then all that some
    outputs seem not to see gets another content at once: where one of them moves after all, by the choice of a largest
    say, or where there are no gradients, each position is changed by itself. It speaks of the given input: a path that
    is zero there, a dead relu say, may not be seen; nor is what weighs less than a few roundings of what weighs most.

    Args:
        module: any module or function.
        inputs: what it is called with: (B, T, D) states or (B, T) ids, say, and what else it takes.
        inputs_axis: the axis of the input's positions.
        outputs_axis: that of the output's; the same where it is not given.
        of: which input is asked about; if not given, the one called tgt, target or decoder_input_ids, else the last.
        rows: output positions to look at, or how many of them, evenly spaced; all, or 32 of more than 256, if not given.
        method: "gradient", "perturbation", or "auto" for gradients that are then doubted, as above.
        call: call(module, *inputs), where calling is not plain.

    Returns:
        Bool (T', T), or a row for each of those asked for.

    Warns:
        SampledRows: there are more than 256 output positions, and `rows` did not say which to look at.

    Raises:
        CheckError: the module cannot be called so, nothing stands at positions, or it has no gradient where one is asked
            for.

    >>> influence(lambda x: x.cumsum(dim=1), torch.randn(1, 3, 2)).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if method not in get_args(Method):
        raise CheckError(f"method {method!r} was given, but known are {', '.join(get_args(Method))}; choose one")
    with torch.inference_mode(mode=False), torch.enable_grad():
        sight = sight_of(next(ways(module, inputs, call)), of, inputs_axis, outputs_axis)
        return _influence(sight, rows, method)


def _influence(sight: Sight, rows: int | Sequence[int] | None, method: Method) -> Bool[Tensor, "rows inputs"]:
    """What the rows of a module see."""
    outputs = sight.output().shape[1]
    chosen = sampled(outputs, rows)
    if rows is None and len(chosen) < outputs:
        warnings.warn(
            f"{len(chosen)} of {outputs} output positions were looked at, evenly spaced from the first to the last "
            f"({', '.join(map(str, chosen[:3]))} ... {chosen[-1]}); give rows=range({outputs}) for all of them",
            SampledRows,
            stacklevel=3,
        )
    strength = strengths(sight, chosen, method)
    return seen(_doubted(sight, chosen, strength) if method == "auto" else strength)[0]


def strengths(sight: Sight, rows: Sequence[int], method: Method = "auto", *, by_sample: bool = False) -> Tensor:
    """How strongly the rows depend on each input, (samples, rows, inputs), by gradient wherever there is one.

    Raises:
        CheckError: a gradient is asked for, and there is none; or nothing depends on the input.
    """
    found = None if method == "perturbation" else sight.by_gradient(rows, by_sample=by_sample)
    if found is None and method == "gradient":
        raise CheckError(
            "no gradient leads from the module's output to the input that is asked about; give call= that hands it the "
            "input, or method='perturbation'"
        )
    if found is None or (method == "auto" and not found.any()):
        found = sight.by_change(rows, range(sight.length), by_sample=by_sample)
    lost = found.isinf().any(dim=0).any(dim=0).nonzero().flatten().tolist()
    if lost:  # a gradient that is no number, behind an output that is one: 0 times infinity
        changes = sight.by_change(rows, lost, by_sample=by_sample)
        found = found.clone()
        found[..., lost] = torch.where(found[..., lost].isinf(), changes, found[..., lost])
    if not found.any():
        raise CheckError(
            f"the output of {title(sight.probe.module)} does not depend on the input that is asked about at all; give "
            "call= that hands it the input, or of= the place of another"
        )
    return found


def _doubted(sight: Sight, rows: list[int], strength: Float[Tensor, "samples rows inputs"]) -> Tensor:
    """The strengths once all that some rows seem not to see was changed: where one moves, gradients have missed a path."""
    unseen, base = ~seen(strength), sight.output()
    for at in sampled(len(rows), DOUBTED):
        if unseen[:, at].any() and sight.moves(base, unseen[:, at])[:, rows[at]].any():
            columns = unseen.any(dim=0).any(dim=0).nonzero().flatten().tolist()
            strength = strength.clone()
            strength[..., columns] = strength[..., columns].maximum(sight.by_change(rows, columns))
            break
    return strength


def seen(
    strength: Float[Tensor, "samples rows inputs"], faintest: float = ROUNDED
) -> Bool[Tensor, "samples rows inputs"]:
    """Which of the strengths are more than a part of the strongest."""
    strongest = strength[strength.isfinite()]
    return strength > faintest * (float(strongest.max()) if strongest.numel() else 0.0)


def sampled(length: int, rows: int | Sequence[int] | None) -> list[int]:
    """The positions to look at: those named, or so many, evenly spaced with the first and the last among them.

    Raises:
        CheckError: one of them does not exist, or there is none.
    """
    if rows is not None and not isinstance(rows, int | Sequence):
        raise CheckError(f"rows were given as {type(rows).__name__}; give positions in a list, or how many of them")
    if isinstance(rows, Sequence):
        chosen = [int(row) for row in rows]
        if not chosen or min(chosen) < 0 or max(chosen) >= length:
            raise CheckError(f"rows {chosen[:5]} were given for {length} output positions; give some from 0 on")
        return chosen
    many = rows if rows is not None else length if length <= ALL_ROWS else SAMPLE
    if many < 1:
        raise CheckError(f"{many} rows were asked for, but one at least is looked at; give a number from 1 on")
    many = min(many, length)
    return sorted({round(row * (length - 1) / max(1, many - 1)) for row in range(many)})


def sight_of(probe: Probe, of: int | None, inputs_axis: int = 1, outputs_axis: int | None = None) -> Sight:
    """The module as it sees the input that is asked about.

    Raises:
        CheckError: there is no such input, it has no such axis, or neither floats nor ids.
    """
    place = probed_input(probe.module, probe.inputs, of)
    x = probe.inputs[place]
    if x.dim() == 0 or x.dtype == torch.bool or x.is_complex() or not x.numel():
        raise CheckError(
            f"the input that is asked about is {x.dtype} of shape {tuple(x.shape)}; give floats (batch, length, width) or "
            "ids (batch, length)"
        )
    if x.dim() > 1 and not -x.dim() <= inputs_axis < x.dim():
        raise CheckError(
            f"an input of shape {tuple(x.shape)} has no axis {inputs_axis}; give inputs_axis= where positions stand"
        )
    inputs_axis = inputs_axis if x.dim() > 1 else 0
    return Sight(probe, place, Axes(inputs_axis, inputs_axis if outputs_axis is None else outputs_axis))
