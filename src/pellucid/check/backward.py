"""Whether gradients are there, finite and right: for each parameter that wants one, and by float inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.calling import Call, title, usual_call
from pellucid.check.fault import Owners, first_fault, tensors_of
from pellucid.check.held import modules_of
from pellucid.check.quotients import wrong_slopes
from pellucid.check.report import Report
from pellucid.check.ways import Probe, in_every_way
from pellucid.errors import CheckError

__all__ = ["gradients"]

ASKED = "gradients must be there, finite, and the slopes of the output"
SHOWN = 8
SEEDS = (1, 2, 3)
"""Other random numbers, for a layer that chance leaves out now and then."""


def gradients(module: Any, *inputs: Any, call: Call | None = None) -> Report:
    """Whether each parameter that wants a gradient gets one, finite and right.

    Measured on copies, in evaluation and training mode without dropout: all gradients of a random projection of the
    outputs must be finite, in float64 and in the module's own precision. In float64 they are held against difference
    quotients along random directions, as torch.autograd.gradcheck does in its fast mode, by parameters and by float
    inputs; in training mode none may be missing. Frozen parameters are left out. A function is called as it is: missing
    and infinite gradients of modules that it is known to hold are found, right and wrong is told of its inputs.

    Args:
        module: any module or function.
        inputs: what it is called with; of token ids no gradient is asked.
        call: call(module, *inputs), where calling is not plain; all of a module's outputs count if it is not given.

    Raises:
        CheckError: the module cannot be copied or called so, or has neither parameters that want a gradient nor float
            inputs.

    >>> print(gradients(lambda x: x.square().sum(-1).sqrt(), torch.zeros(1, 2)))
    gradients: FAILED: gradients must be there, finite, and the slopes of the output
      the gradient of input 0 (1, 2) is not finite in 2 of 2 elements, nan at (0, 0)
      parameters = 0
      without gradient = 0
      gradients of zero = 0
      advice: the root of 0 has an infinite slope, which torch.where around it does not hide: add an eps under the root, as in (x.square().sum(-1) + eps).sqrt()
    """  # noqa: E501 - what is printed
    wanted = [name for name, one in _parameters(module).items() if one.requires_grad]
    floats = any(isinstance(value, Tensor) and value.is_floating_point() for value in inputs)
    if not wanted and not floats:
        raise CheckError(
            f"{title(module)} has no parameter that wants a gradient, and no float input was given; give one that is not "
            "frozen, or float inputs"
        )

    def measure(probe: Probe) -> Report:
        return _Backward(_whole(probe) if call is None else probe, wanted, called=call is not None).report()

    if not isinstance(module, nn.Module) and not _parameters(module):
        try:
            return in_every_way(module, [_double(value) for value in inputs], call, measure)
        except CheckError:  # it may take no float64
            pass
    return in_every_way(module, inputs, call, measure)


def _parameters(module: Any) -> dict[str, Tensor]:
    """The parameters of a module, or of those that a function holds."""
    held = modules_of(module)
    return {
        (f"{title(one)}." if len(held) > 1 else "") + name: parameter
        for one in held
        for name, parameter in one.named_parameters()
    }


def _double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _whole(probe: Probe) -> Probe:
    """The probe with all float outputs in one: a parameter may serve another than the first."""

    def whole(module: Any, *inputs: Any) -> Tensor:
        given = usual_call(module, inputs, {})
        outputs = [one for one in tensors_of(given) if one.requires_grad] or [probe.called(module, *inputs)]
        return torch.cat([one.flatten() for one in outputs])

    return replace(probe, called=torch.enable_grad()(whole))


IN_PLACE = "in-place: what the backward pass needs was changed meanwhile; write y = y * 2 rather than y.mul_(2)"


@dataclass(frozen=True, slots=True)
class _Backward:
    """The backward pass of a module, run one way."""

    probe: Probe
    wanted: list[str]
    called: bool

    def report(self) -> Report:
        """What is wrong with it."""
        tensors = self._leaves()
        owners = Owners(self.probe.module)
        with owners.watching():
            output = self.probe(*self._given(tensors))
        value = _projected(output)
        if not value.requires_grad:
            found = "no gradient leads from the output to any parameter or input"
            return Report("gradients", ASKED, (found,), advice=_cut([], owners, everything=True))
        try:
            with self.probe.mode():
                slopes_of = torch.autograd.grad(value, list(tensors.values()), retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            found = f"the backward pass fails ({type(error).__name__}: {' '.join(str(error).split())})"
            return Report("gradients", ASKED, (found,), advice=IN_PLACE if "inplace" in found else "")
        found_by = dict(zip(tensors, slopes_of, strict=True))
        missing, notes = self._missing([name for name in self.wanted if found_by[name] is None], owners)
        slopes = {name: slope for name, slope in found_by.items() if slope is not None}
        zero = [name for name in self.wanted if name in slopes and not slopes[name].any()]
        figures: dict[str, float | int | str] = {
            "parameters": len(self.wanted), "without gradient": len(missing), "gradients of zero": len(zero),
        }  # fmt: skip
        if zero and self.probe.first:
            notes.append(f"with these inputs the gradient is zero everywhere for {_listed(zero)}")
        odd = [_odd(_said(name), slope) for name, slope in slopes.items() if not slope.isfinite().all()]
        if output.isnan().any():
            odd.insert(0, f"the output is NaN in {int(output.isnan().sum())} of {output.numel()} elements")
        if odd:
            fault = first_fault(value, owners)
            where, advice = (fault.where, fault.advice) if fault else ("", "")
            return Report("gradients", ASKED, _some(odd), figures, where=where, advice=advice, notes=tuple(notes))
        lost = [f"{_said(name)} {tuple(tensors[name].shape)} gets no gradient" for name in missing]
        wrong = self._wrong(tensors, slopes)
        advice = _cut(missing, owners, everything=False) if missing else WRONG if wrong else ""
        return Report("gradients", ASKED, _some([*lost, *wrong]), figures, advice=advice, notes=tuple(notes))

    def _leaves(self) -> dict[str, Tensor]:
        """What gradients are taken by: parameters that want one, and float inputs."""
        parameters = _parameters(self.probe.module)
        leaves = {name: parameters[name].requires_grad_() for name in self.wanted}
        for place, value in enumerate(self.probe.inputs):
            if isinstance(value, Tensor) and value.is_floating_point():
                leaves[f"input {place}"] = value.detach().clone().requires_grad_()
        return leaves

    def _given(self, tensors: Mapping[str, Tensor]) -> list[Any]:
        """Inputs to call with, which may be changed in place."""
        inputs = [tensors.get(f"input {place}", value) for place, value in enumerate(self.probe.inputs)]
        return [value.clone() if isinstance(value, Tensor) else value for value in inputs]

    def _missing(self, names: list[str], owners: Owners) -> tuple[list[str], list[str]]:
        """Parameters that get no gradient whatever chance decides, and notes on those that are not asked about.

        They are asked about in training. A call of the user's own may leave parts of a module out.
        """
        if not names or not (self.probe.way.training or self.probe.way.dtype is None):
            return [], []
        for seed in SEEDS:
            tensors = {name: _parameters(self.probe.module)[name] for name in names}
            value = _projected(self.probe(*self._given({}), seed=seed))
            found = (
                torch.autograd.grad(value, list(tensors.values()), allow_unused=True) if value.requires_grad else names
            )
            names = [name for name, slope in zip(names, found, strict=True) if slope is None or isinstance(slope, str)]
            if not names:
                break
        left_out = [name for name in names if self.called and not _ran(name, owners)]
        notes = [f"call= leaves out {_listed(left_out)}"] if left_out else []
        return [name for name in names if name not in left_out], notes

    def _wrong(self, tensors: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> list[str]:
        """Gradients that are not the slopes, where numbers are fine enough to tell."""
        mine = isinstance(self.probe.module, nn.Module)
        moved = {name: one for name, one in tensors.items() if name in slopes and (mine or name not in self.wanted)}
        if any(one.dtype != torch.float64 for one in moved.values()):
            return []
        found = wrong_slopes(lambda: float(_projected(self.probe(*self._given(tensors))).detach()), moved, slopes)
        return [
            f"the gradient of {_said(one.name)} is wrong: {one.gradient:.4g} along a direction in which the output's "
            f"slope is {one.slope:.4g}"
            for one in found
        ]


WRONG = (
    "the backward pass is not that of the forward pass: look for a backward() written by hand that is wrong, or for "
    "detach(), .data or no_grad() on one of several paths; a straight-through estimate does so on purpose"
)


def _cut(missing: Sequence[str], owners: Owners, *, everything: bool) -> str:
    """What may have cut the path to parameters that get no gradient."""
    unused = [name for name in missing if isinstance(owners.module, nn.Module) and not _ran(name, owners)]
    if unused:
        part = unused[0].rpartition(".")[0]
        return (
            f"never called: `{part}` is registered and not used in forward; call it there, or take it out of __init__"
        )
    where = "the output" if everything else f"`{missing[0]}`"
    return (
        f"the path to {where} is cut, or it is not used: look for detach(), .data, .item(), no_grad() or an argmax on "
        "its way to the output"
    )


def _ran(name: str, owners: Owners) -> bool:
    """Whether the submodule that a parameter belongs to was called."""
    return name.rpartition(".")[0] in owners.called


def _projected(output: Tensor) -> Tensor:
    """A random projection of the finite elements of an output."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
    return (torch.where(output.isfinite(), output, 0.0) * noise).sum()


def _odd(name: str, slope: Tensor) -> str:
    odd = ~slope.isfinite()
    index = tuple(odd.nonzero()[0].tolist())
    return (
        f"the gradient of {name} {tuple(slope.shape)} is not finite in {int(odd.sum())} of {odd.numel()} elements, "
        f"{float(slope[index]):g} at {index}"
    )


def _said(name: str) -> str:
    return name if name.startswith("input ") else f"parameter `{name}`"


def _some(found: Sequence[str]) -> tuple[str, ...]:
    return tuple(found) if len(found) <= SHOWN else (*found[:SHOWN], f"and {len(found) - SHOWN} more")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
