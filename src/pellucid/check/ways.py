"""The ways in which a module is run while it is checked: in evaluation and training, in float64 and its own precision.

A module is copied, so the original keeps its mode, precision, gradients and buffers. A function is called as it is; what
it changes in modules that it is known to hold is put back.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.calling import Call, plain_call, title
from pellucid.check.chance import DropoutOff, fixed
from pellucid.check.held import kept_as_they_were
from pellucid.check.report import Report
from pellucid.check.rounding import Rounding
from pellucid.errors import CheckError

__all__ = ["CallError", "Probe", "Way", "copied", "in_every_way", "own_dtype", "ways"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running a module; a function has one, which is as it is.

    Attributes:
        training: whether it is in training mode, with dropout off and all other chance fixed.
        dtype: the precision of its numbers; None leaves everything as it is.
    """

    training: bool
    dtype: torch.dtype | None

    def __str__(self) -> str:
        if self.dtype is None:
            return "as it is"
        return f"{'training' if self.training else 'evaluation'}, {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A module prepared for one way: call it with inputs, get its output; the same inputs give the same output.

    Attributes:
        module: the copy in its mode and precision, or the function.
        inputs: what it was to be checked with, in this precision.
        way: how it is run.
        called: how it is called: called(module, *inputs) -> output.
        first: whether it is the first way of all, and the most exact.
        eps: how coarsely numbers of this precision are rounded somewhere inside; 0 where they are not.
        told: whether another way has failed already, so that only whether this one does is still to be said.
    """

    module: Any
    inputs: tuple[Any, ...]
    way: Way
    called: Callable[..., Tensor]
    first: bool = True
    eps: float = 0.0
    told: bool = False

    def __call__(self, *inputs: Any, seed: int = 0) -> Tensor:
        """The output for these inputs, of which float tensors may want gradients; none of them is changed.

        Raises:
            CallError: the module raised.
        """
        given = [
            value.clone() if isinstance(value, Tensor) and value.is_floating_point() else value for value in inputs
        ]
        try:
            with fixed(seed), kept_as_they_were(self.module), self.mode():
                return self.called(self.module, *given)
        except CheckError:
            raise
        except (Exception, SystemExit) as error:
            raise CallError(_said(self.module, inputs, error)) from error

    def mode(self) -> AbstractContextManager[Any]:
        """In which calls are made, and what a backward pass may compute again: without dropout in training."""
        return DropoutOff(self.module) if self.way.training else nullcontext()

    @property
    def tolerance(self) -> float:
        """How far apart two outputs may lie that ought to be equal, for numbers about 1."""
        if self.way.dtype is torch.float64:
            return max(1e-9, 100 * self.eps)
        dtype = self.way.dtype or own_dtype(self.module, self.inputs)
        own = (100 if self.way.dtype is None else 1000) * torch.finfo(dtype).eps
        return max(1e-9, own, 100 * self.eps)


class CallError(CheckError, RuntimeError):
    """What is checked raised when it was called: a wrong call, where it was the first."""


def ways(module: Any, inputs: Sequence[Any], call: Call | None = None) -> Iterator[Probe]:
    """The module in each way in which it can be run; the first is the most exact.

    Raises:
        CheckError: the module cannot be copied, or cannot be called with these inputs at all.
    """
    if not isinstance(module, nn.Module):
        given = tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs)
        probe = Probe(module, given, Way(training=False, dtype=None), plain_call(call))
        yield from _running(probe, must=True)
        return
    own = own_dtype(module, inputs)
    called = plain_call(call)
    found = 0
    for training in (False, True):
        for dtype in dict.fromkeys((torch.float64, own)):
            given = tuple(_in(value, dtype) for value in inputs)
            probe = Probe(_frozen(module).to(dtype).train(training), given, Way(training, dtype), called, not found)
            for ready in _running(probe, must=dtype is own):
                found += 1
                yield ready


def in_every_way(module: Any, inputs: Sequence[Any], call: Call | None, measure: Callable[[Probe], Report]) -> Report:
    """The report of the first way that fails, or of the first of all; it says how each way ended.

    Raises:
        CheckError: the module cannot be copied or called, or a tensor of the inputs holds nothing, or no numbers.
    """
    for place, value in enumerate(inputs):
        if isinstance(value, Tensor) and (not value.numel() or not value.isfinite().all()):
            held = "is empty" if not value.numel() else "holds NaN or infinity"
            raise CheckError(f"input {place} of shape {tuple(value.shape)} {held}; give numbers, drawn at random say")
    with torch.inference_mode(mode=False), torch.enable_grad():
        reports: dict[str, Report] = {}
        for probe in ways(module, inputs, call):
            failed = any(not report.passed for report in reports.values())
            reports[str(probe.way)] = measure(replace(probe, told=failed))
    first = next((report for report in reports.values() if not report.passed), next(iter(reports.values())))
    notes = dict.fromkeys(note for report in reports.values() for note in report.notes)
    if isinstance(module, nn.Module) and not any("float64" in way for way in reports):
        notes["the module does not run in float64, so small differences were not looked for"] = None
    return Report(
        first.name, first.asked, first.findings, first.figures, first.picture, first.where, first.advice,
        {way: report.passed for way, report in reports.items()}, tuple(notes),
    )  # fmt: skip


def own_dtype(module: Any, inputs: Sequence[Any] = ()) -> torch.dtype:
    """The precision of a module's numbers, or else of its inputs'; float32 where there are none."""
    numbers = [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []
    given = [value for value in inputs if isinstance(value, Tensor)]
    return next((value.dtype for value in (*numbers, *given) if value.is_floating_point()), torch.get_default_dtype())


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; of what it keeps of a call before, an activation say, the numbers.

    Raises:
        CheckError: it cannot be copied.
    """
    kept = (value for part in module.modules() for value in vars(part).values())
    memo = {id(value): value.detach().clone() for value in kept if isinstance(value, Tensor) and not value.is_leaf}
    try:
        return copy.deepcopy(module, memo)
    except (RuntimeError, TypeError) as error:
        raise CheckError(
            f"{type(module).__name__} cannot be copied ({error}); wrap it in a function to check it"
        ) from None


def _frozen(module: nn.Module) -> nn.Module:
    """A copy whose parameters want no gradient."""
    frozen = copied(module)
    try:
        for parameter in frozen.parameters():
            parameter.requires_grad = False
    except RuntimeError as error:  # as of a script
        raise CheckError(
            f"a copy of {type(module).__name__} cannot be frozen ({error}); give the module that it was made of"
        ) from None
    return frozen


def _in(value: Any, dtype: torch.dtype) -> Any:
    """A copy of a tensor, in this precision where it has floats."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone()
    return value.to(dtype) if value.is_floating_point() else value


def _running(probe: Probe, *, must: bool) -> Iterator[Probe]:
    """The probe, if the module takes this precision, which it must if it is its own; how coarsely it rounds is noted."""
    try:
        with torch.no_grad(), Rounding() as rounding:
            probe(*probe.inputs)
    except CallError:
        if must:
            raise
        return
    yield replace(probe, eps=rounding.eps)


def _said(module: Any, inputs: Sequence[Any], error: BaseException) -> str:
    given = ", ".join(_told(value) for value in inputs) or "nothing"
    said = " ".join(str(error).split())
    advice = "give inputs that it takes, or call=lambda module, *inputs: ... that calls it"
    if "overflow" in said and "Half" in said:
        advice = "-1e9 is more than float16 holds, so hide scores by torch.finfo(scores.dtype).min"
    return f"{title(module)} cannot be called with {given} ({type(error).__name__}: {said}); {advice}"


def _told(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
