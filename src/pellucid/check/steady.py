"""Whether the same call gives the same answer, and leaves what a module holds, and what it was given, as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.apart import apart, farthest, scale
from pellucid.check.calling import Call, title
from pellucid.check.chance import fixed
from pellucid.check.held import kept_as_they_were, modules_of
from pellucid.check.report import Report
from pellucid.check.ways import Probe, copied, ways

__all__ = ["repeatable"]

ASKED = "in evaluation the same call must give the same output and change neither inputs nor buffers"
DROPOUT = "dropout left on: chance decides the output in evaluation; pass training=self.training to F.dropout{name}"
KEPT = (
    "a state is kept on the module from call to call: a cache, or a mask that each call adds to, say; pass it in and hand "
    "it back, or make it anew in each call"
)
_Calls = list[tuple[str, list[Tensor], list[Tensor]]]
"""Calls of submodules: the name, what went in and what came out."""

ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)


def repeatable(module: Any, *inputs: Any, call: Call | None = None) -> Report:
    """Whether a module is a function of its inputs: the same call gives the same bits, whatever was called before.

    Measured on copies in evaluation mode, in float64 and in the module's own precision: once, again, with other random
    numbers, and again after a call with other contents, with one position less, and with one sample less. After each
    call, buffers and inputs must be what they were; a table that has only grown, as those of positions do, may. A
    function is called as it is, with modules that it is known to hold in evaluation mode; their buffers are put back.

    Args:
        module: any module or function.
        inputs: what it is called with.
        call: call(module, *inputs), where calling is not plain.

    Raises:
        CheckError: the module cannot be copied, or cannot be called so.

    >>> print(repeatable(lambda x: torch.nn.functional.dropout(x, 0.5), torch.ones(1)))
    repeatable: FAILED: in evaluation the same call must give the same output and change neither inputs nor buffers
      two calls with the same inputs differ by 2 at element (0,)
      advice: dropout left on: chance decides the output in evaluation; pass training=self.training to F.dropout
    """
    reports: dict[str, Report] = {}
    for probe in ways(module, inputs, call):
        if not probe.way.training:
            reports[str(probe.way)] = _measured(_Subject(module, probe, _given(inputs, probe)))
    first = next((report for report in reports.values() if not report.passed), next(iter(reports.values())))
    notes = tuple(dict.fromkeys(note for report in reports.values() for note in report.notes))
    return replace(first, ways={way: report.passed for way, report in reports.items()}, notes=notes)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A module, of which each run has a copy that nobody has called, or a function."""

    module: Any
    probe: Probe
    inputs: tuple[Any, ...]

    @contextmanager
    def fresh(self) -> Iterator["_Run"]:
        """What has not been called since it was handed over; what a function holds is put back afterwards."""
        if isinstance(self.module, nn.Module):
            fresh = copied(self.module).to(self.probe.way.dtype).eval()
            yield _Run(fresh.requires_grad_(requires_grad=False), self.probe.called)
            return
        with kept_as_they_were(self.module):
            for part in modules_of(self.module):
                part.eval()
            yield _Run(self.module, self.probe.called)


@dataclass(frozen=True, slots=True)
class _Run:
    """Calls of one module, one after the other, with nothing put back between them."""

    module: Any
    called: Callable[..., Tensor]

    def __call__(self, inputs: Sequence[Any], seed: int = 0) -> Tensor:
        with fixed(seed), torch.no_grad():
            return self.called(self.module, *_clones(inputs)).detach().clone()

    def changes(self, inputs: Sequence[Any]) -> tuple[list[str], list[str], str]:
        """What one call changes, what it changes without harm, and the likely slip."""
        given, before = _clones(inputs), self._held()
        with fixed(0), torch.no_grad():
            self.called(self.module, *given)
        findings, advice = [], ""
        for place, (one, other) in enumerate(zip(inputs, given, strict=True)):
            if isinstance(one, Tensor) and not _same(one, other):
                index, size = farthest(_distance(one, other))
                findings.append(f"input {place} is changed in place by a call, at element {index} by {size:.3g}")
                advice = f"in-place: an input is changed in place; write x = x + y, not x += y, of input {place}"
        notes, after = [], self._held()
        for name, one in before.items():
            other = after.get(name, one)
            if _same(one, other) or _grown(one, other):
                continue
            kind, own = name
            if kind == "parameter":
                notes.append(f"parameter `{own}` is changed by a call")
                continue
            findings.append(f"{kind} `{own}` is changed by a call{_by(one, other)}")
            short = own.rpartition(".")[2]
            advice = (
                f"in-place: {kind} `{own}` is changed by a call; write {short} = self.{short} & pad, say, with a new "
            )
            advice += f"tensor, not self.{short} &= pad"
        return findings, notes, advice

    def _held(self) -> dict[tuple[str, str], Tensor]:
        """Copies of the buffers and parameters of a module, or of those that a function holds."""
        modules = modules_of(self.module)
        several = len(modules) > 1
        held = {}
        for module in modules:
            front = f"{type(module).__name__}." if several else ""
            for kind, named in (("buffer", module.named_buffers()), ("parameter", module.named_parameters())):
                held.update({(kind, front + name): value.detach().clone() for name, value in named})
        return held


def _measured(subject: _Subject) -> Report:
    inputs = subject.inputs
    with subject.fresh() as run:
        findings, notes, advice = run.changes(inputs)
    with subject.fresh() as run:
        once, again = run(inputs), run(inputs)
        if not _same(once, again):
            findings.append(f"the second call with the same inputs differs from the first{_by(once, again)}")
            advice = advice or KEPT
    with subject.fresh() as run:
        otherwise = run(inputs, seed=1)
    if _same(once, again) and not _same(once, otherwise):
        findings.append(f"two calls with the same inputs differ{_by(once, otherwise)}")
        place = _chance_in(subject)
        return Report(
            "repeatable",
            ASKED,
            tuple(findings),
            where=place,
            advice=advice or DROPOUT.format(name=f" in {place}" * bool(place)),
        )
    if not findings:
        findings = _between(subject, once)
        advice = KEPT if findings else ""
    return Report("repeatable", ASKED, tuple(findings), advice=advice, notes=tuple(notes))


def _between(subject: _Subject, once: Tensor) -> list[str]:
    """What a call with other inputs leaves behind: in the answer after it, or by its own answer after another."""
    tolerance = subject.probe.tolerance
    for said, others in _others(subject.inputs):
        try:
            with subject.fresh() as run:
                alone = run(others)
        except ERRORS:  # a module that takes no such inputs may say so
            continue
        with subject.fresh() as run:
            run(subject.inputs)
            try:
                second = run(others)
                third = run(subject.inputs)
            except ERRORS as error:
                reason = " ".join(str(error).split())
                return [f"a call after one with {said} fails ({type(error).__name__}: {reason})"]
        if not _close(third, once, tolerance):
            return [f"a call with {said} changes the answer to the next call{_by(once, third)}"]
        if not _close(second, alone, tolerance):
            return [f"a call changes the answer to the next, with {said}{_by(alone, second)}"]
    return []


def _others(inputs: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Other inputs of the same kind, and what is other in them."""
    padded = tuple(_padded(value) for value in inputs)
    rolled = tuple(_rolled(value) for value in inputs)
    shorter = tuple(_cropped(value, 1) for value in inputs)
    fewer = tuple(_cropped(value, 0) for value in inputs)
    return [
        ("other contents", rolled), ("other contents and padding", padded), ("one position less", shorter),
        ("one sample less", fewer),
    ]  # fmt: skip


def _rolled(value: Any) -> Any:
    """Other contents of the same kind: numbers that stand elsewhere, and floats a little larger."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    other = value.flatten().roll(1).view_as(value).clone()
    return other * 1.25 + 0.5 if value.is_floating_point() else other


def _padded(value: Any) -> Any:
    """Ids whose last ones are 0, which is padding most of the time, and masks whose last column is another."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dim() < 2:
        return _rolled(value)
    other = value.clone()
    other[..., -1] = not value.all() if value.dtype == torch.bool else 0
    return other


def _cropped(value: Any, axis: int) -> Any:
    """A tensor without the last of its positions or samples."""
    if not isinstance(value, Tensor) or value.dim() < 1 + axis or value.shape[axis] < 2:
        return value
    return value.narrow(axis, 0, value.shape[axis] - 1).clone()


def _chance_in(subject: _Subject) -> str:
    """The first submodule whose output chance decides, but not what it is given; nothing for a function."""
    if not isinstance(subject.module, nn.Module):
        return ""
    seen: list[_Calls] = [[], []]
    for seed, calls in enumerate(seen):
        with subject.fresh() as run:
            for name, part in run.module.named_modules():
                part.register_forward_hook(partial(_note, name, calls))
            run(subject.inputs, seed=seed)
    for (name, given, made), (_, others, outputs) in zip(*seen, strict=False):
        same = [all(map(_same, *both)) for both in ((given, others), (made, outputs))]
        if same == [True, False]:
            return f"{name or 'the module itself'} ({title(subject.module.get_submodule(name))})"
    return ""


def _note(name: str, calls: _Calls, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Note what went into a submodule and came out."""
    made = output if isinstance(output, tuple | list) else (output,)
    given, made = ([value.clone() for value in some if isinstance(value, Tensor)] for some in (args, made))
    calls.append((name, given, made))


def _given(inputs: Sequence[Any], probe: Probe) -> tuple[Any, ...]:
    """The inputs in a probe's precision; its own may have been changed in place by now."""
    return tuple(
        value.detach().clone().to(own.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value, own in zip(inputs, probe.inputs, strict=True)
    )


def _clones(inputs: Sequence[Any]) -> list[Any]:
    return [value.detach().clone() if isinstance(value, Tensor) else value for value in inputs]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same; what is no number is the same as itself."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two outputs are equal but for rounding, as in another copy of the same numbers."""
    if _same(one, other):
        return True
    return one.shape == other.shape and farthest(_distance(one, other))[1] <= tolerance * scale(one)


def _distance(one: Tensor, other: Tensor) -> Tensor:
    distance = apart(one, other)
    return torch.where((one == other) | ((one != one) & (other != other)), 0.0, distance)


def _grown(one: Tensor, other: Tensor) -> bool:
    """Whether a table is only longer than it was."""
    if one.dim() != other.dim() or one.shape == other.shape:
        return one.numel() == 0
    if any(new < old for old, new in zip(one.shape, other.shape, strict=True)):
        return False
    return _same(one, other[tuple(slice(size) for size in one.shape)])


def _by(one: Tensor, other: Tensor) -> str:
    """Where two tensors differ most, and by how much."""
    if one.shape != other.shape:
        return f": its shape is {tuple(other.shape)}, not {tuple(one.shape)}"
    index, size = farthest(_distance(one, other))
    return f" by {size:.3g} at element {index}"
