"""Where a promise is broken: the first submodule whose output breaks it though what it was given does not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from pellucid.check.apart import apart, scale
from pellucid.check.calling import plain_call
from pellucid.check.sight import Axes, Sight
from pellucid.check.ways import Probe
from pellucid.check.witness import Clue, Witness, clue_of

__all__ = ["Culprit", "Part", "alone", "first_broken", "given_to", "part_at_positions", "part_of_sample", "told_apart"]

Part = Callable[[Tensor], Tensor | None]
"""The part of an intermediate tensor that must not change; None where it is not known to have one."""

KEPT = 1e-9  # relative: what moves less in float64 was rounded otherwise


@dataclass(frozen=True, slots=True)
class Culprit:
    """The submodule that breaks a promise first.

    Attributes:
        name: its path, "" for the module itself.
        kind: its class.
        clues: slips that were seen in it.
        turn: which of its calls it was, from 0.
    """

    name: str
    kind: str
    clues: tuple[Clue, ...] = ()
    turn: int = 0

    def __str__(self) -> str:
        return f"{self.name or 'the module itself'} ({self.kind})"


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a submodule: the parts of what went in and came out that must not change."""

    name: str
    given: list[Tensor | None]
    made: list[Tensor | None]


def first_broken(probe: Probe, changed: tuple[Any, ...], part: Part, length: int) -> Culprit | None:
    """The first submodule whose output moves, in a part that must not, while nothing that it was given does.

    Args:
        probe: the module and the inputs with which it keeps still.
        changed: inputs that differ only in what must not be seen.
        part: what must not change of a tensor.
        length: positions of the input that is asked about.

    Returns:
        None for a function, in which nothing can be told apart.
    """
    module = probe.module
    if not isinstance(module, nn.Module):
        return None
    before, clues = _watched(probe, probe.inputs, part, length)
    after, _ = _watched(probe, changed, part, length)
    if [step.name for step in before] != [step.name for step in after]:
        return None
    tolerance = max(KEPT, probe.tolerance)
    for place, (one, other) in enumerate(zip(before, after, strict=True)):
        if _moved(one.made, other.made, tolerance) and not _moved(one.given, other.given, tolerance):
            found = module.get_submodule(one.name)
            inside = [clue for name, clue in clues if name == one.name]
            own = clue_of(found)
            known = tuple(dict.fromkeys([*inside, *([own] if own else [])]))
            turn = sum(step.name == one.name for step in before[:place])
            return Culprit(one.name, type(found).__name__, known, turn)
    return None


def alone(probe: Probe, culprit: Culprit, length: int, axis: int) -> Sight | None:
    """The culprit by itself, as it sees what it was given; None where nothing of that stands at positions."""
    module = probe.module.get_submodule(culprit.name)
    args, named = given_to(probe, culprit)
    x = next((value for value in _tensors((args, named)) if _axis(value, length, axis) is not None), None)
    if x is None:
        return None
    at = _axis(x, length, axis)
    assert at is not None

    def called(module: Any, other: Tensor) -> Any:
        return module(*_with(args, x, other), **_with(named, x, other))

    own = replace(probe, module=module, inputs=(x.detach().clone(),), called=plain_call(called))
    return Sight(own, 0, Axes(at, at))


def given_to(probe: Probe, culprit: Culprit) -> tuple[Any, Any]:
    """What the culprit is called with, by place and by name."""
    calls: list[tuple[Any, Any]] = []
    module = probe.module.get_submodule(culprit.name)
    hook = module.register_forward_pre_hook(lambda _, args, named: calls.append((args, named)), with_kwargs=True)
    try:
        probe(*probe.inputs)
    finally:
        hook.remove()
    return calls[culprit.turn]


def told_apart(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two calls of a module differ in more than states: in a mask, in lengths."""
    pairs = list(zip(_tensors(one), _tensors(other), strict=False))
    widths = {left.shape[-1] for left, _ in pairs if left.is_floating_point() and left.dim() > 2}
    return any(
        left.shape != right.shape or not torch.equal(left, right)
        for left, right in pairs
        if not (left.is_floating_point() and left.dim() > 2 and left.shape[-1] == max(widths))
    )


def _with(value: Any, old: Tensor, new: Tensor) -> Any:
    """What a module was given, with one tensor in place of another, wherever it stands."""
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: _with(one, old, new) for key, one in value.items()}
    return type(value)(_with(one, old, new) for one in value) if type(value) in (tuple, list) else value


def part_at_positions(rows: Bool[Tensor, "samples positions"], axis: int, *, elsewhere: bool = False) -> Part:
    """The part at the given positions of each sample.

    Args:
        rows: true where nothing may change.
        axis: where an input's positions stand, and most likely those of what becomes of it.
        elsewhere: whether nothing may change either in what does not stand at these positions.
    """
    count, length = rows.shape

    def part(tensor: Tensor) -> Tensor | None:
        if not tensor.is_floating_point():
            return None
        each = tensor.detach()
        at = _axis(each, length, axis)
        if at is None and each.dim() > 1 and len(each) == count * length:  # positions of all samples in a row
            each, at = each.reshape(count, length, *each.shape[1:]), 1
        if at is None:
            return each if elsewhere else None
        beside = 0 if at != 0 else 1
        each = each.movedim((beside, at), (0, 1)) if each.dim() > 1 else each[None]
        if len(each) != count and len(each) % count == 0:  # heads stand within samples
            each = each.reshape(count, -1, *each.shape[1:]).movedim(2, 1).flatten(2)
        if len(each) != count:
            return each[:, rows.all(dim=0)]
        return torch.cat([one[real].flatten() for one, real in zip(each, rows, strict=True)])

    return part


def part_of_sample(sample: int, samples: int, axis: int) -> Part:
    """All that is one sample's: of a tensor whose front axis, beside the positions', counts samples, or heads of them."""

    def part(tensor: Tensor) -> Tensor | None:
        for at in (0, 1) if axis != 0 else (1, 0):
            if tensor.dim() > at and tensor.shape[at] % samples == 0 and tensor.shape[at]:
                each = tensor.detach().movedim(at, 0)
                return each.reshape(samples, -1, *each.shape[1:])[sample]
        return None

    return part


def _axis(tensor: Tensor, length: int, axis: int) -> int | None:
    """Where positions stand in an intermediate tensor, by their number; where the input has them, if that fits."""
    if not tensor.is_floating_point():
        return None
    places = [place for place, size in enumerate(tensor.shape) if size == length]
    if not places:
        return None
    return axis if axis in places else places[0]


def _moved(one: list[Tensor | None], other: list[Tensor | None], tolerance: float) -> bool:
    for left, right in zip(one, other, strict=True):
        if left is None or right is None or left.shape != right.shape or not left.numel():
            continue
        distance = apart(left, right)
        distance[(left == right) | (left.isnan() & right.isnan())] = 0.0  # masks hold infinities
        if float(distance.max()) > tolerance * scale(left):
            return True
    return False


def _watched(
    probe: Probe, inputs: tuple[Any, ...], part: Part, length: int
) -> tuple[list[_Step], list[tuple[str, Clue]]]:
    """The calls of submodules, in the order in which they end, and the clues seen in them."""
    steps: list[_Step] = []
    hooks = []
    for name, module in probe.module.named_modules():

        def ended(_: nn.Module, args: Any, named: Any, output: Any, name: str = name) -> None:
            given = [part(tensor) for tensor in _tensors((args, named))]
            steps.append(_Step(name, given, [part(tensor) for tensor in _tensors(output)]))

        hooks.append(module.register_forward_hook(ended, with_kwargs=True))
    witness = Witness(length)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole layer at once, and calls no submodule
    try:
        with witness.watching(probe.module):
            probe(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
    return steps, witness.clues


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a module is given or gives."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
