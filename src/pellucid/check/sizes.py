"""What shape comes out of each submodule, with axes named by what they follow: samples, positions, or neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.calling import Call, title
from pellucid.check.fault import tensors_of
from pellucid.check.report import Report
from pellucid.check.stretch import Stretch, stretches
from pellucid.check.ways import Probe, ways
from pellucid.errors import CheckError

__all__ = ["shapes"]

ROWS = 100
OUTPUTS = 3  # tensors that are shown of one call
HEADS = ("num_heads", "nhead", "n_head", "n_heads", "num_attention_heads", "heads", "h")
WIDTH = "D"


def shapes(
    module: Any, *inputs: Any, inputs_axis: int = 1, expect: str | None = None, call: Call | None = None
) -> Report:
    """Each submodule's output shape with named axes, as a table in the report's picture.

    Names are found by running the module again with one sample more, with twice as many, and the same with positions: an
    axis that grows along is B for samples and T for positions, S for those of the first of two inputs; B*H is an axis of
    heads within samples. An axis that stays is D where it has the inputs' width, that of token ids being their
    embedding's, and else a number. Measured in evaluation mode; inputs are batch first if not told otherwise.

    Args:
        module: any module or function.
        inputs: what it is called with: (B, T, D) states or (B, T) ids, and what else it takes.
        inputs_axis: the axis of the inputs' positions; samples stand on the other front one.
        expect: what the output's axes must be, as in "B T D"; a number means itself, any other letter any constant size.
        call: call(module, *inputs), where calling is not plain.

    Raises:
        CheckError: the module cannot be copied or called so, or no input has samples and positions.

    >>> print(shapes(nn.Sequential(nn.Linear(6, 11), nn.Flatten(0, 1)), torch.zeros(2, 7, 6)))
    shapes: passed: each submodule's output has these axes
      B = 2
      T = 7
      D = 6
      submodule          class       output
      0                  Linear      (B, T, 11)
      1                  Flatten     (B*T, 11)
      the module itself  Sequential  (B*T, 11)
    """
    if inputs_axis not in (0, 1):
        raise CheckError(
            f"inputs_axis {inputs_axis} was given, but positions stand on one of the two front axes; give 0 or 1"
        )
    probe = next(ways(module, inputs, call))
    base, embedded = _traced(probe, probe.inputs)
    named, notes = stretches(probe.inputs, inputs_axis)
    runs: list["_Run"] = []
    for choice in named:
        runs = [(one, _taken(probe, one, base)) for one in choice]
        if all(each for _, each in runs):
            break
    notes += [
        f"{one.name} is named by its size alone, as the module takes no other numbers of {one.what}"
        for one, each in runs if not each
    ]  # fmt: skip
    width = next(
        (x.shape[-1] for x in probe.inputs if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1), embedded
    )
    names = _Names(runs, width, _heads(module))
    rows = [(step.name or "the module itself", step.kind, names.said(place, step)) for place, step in enumerate(base)]
    rows = list(dict.fromkeys(rows))
    if len(rows) > ROWS:
        notes.append(f"{len(rows) - ROWS} rows before the last are left out")
        rows = [*rows[: ROWS - 1], rows[-1]]
    figures: dict[str, float | int | str] = {one.name: one.size for one, _ in runs}
    figures |= {WIDTH: width} if width else {}
    asked, found, advice = "each submodule's output has these axes", "", ""
    if expect is not None:
        asked = f"the output must be ({', '.join(expect.split())})"
        found, advice = _unmet(names.axes(len(base) - 1, base[-1].shapes[0]), base[-1].shapes[0], expect)
    return Report("shapes", asked, (found,) * bool(found), figures, _table(rows), advice=advice, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a submodule, and the shapes of what came out."""

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]


_Run = tuple[Stretch, dict[int, list[_Step]]]
"""A number that was another, and what came out with each that the module takes."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What axes are called, by how they grow."""

    runs: list["_Run"]
    width: int
    heads: int

    def said(self, place: int, step: _Step) -> str:
        """The shapes of a step, in names."""
        told = [f"({', '.join(self.axes(place, shape, which))})" for which, shape in enumerate(step.shapes)]
        return (
            ", ".join(told[:OUTPUTS]) + (f" and {len(told) - OUTPUTS} more" if len(told) > OUTPUTS else "")
            or "no tensor"
        )

    def axes(self, place: int, shape: tuple[int, ...], which: int = 0) -> list[str]:
        """The names of one tensor's axes."""
        taken: set[str] = set()
        return [self._axis(place, which, axis, size, taken) for axis, size in enumerate(shape)]

    def _axis(self, place: int, which: int, axis: int, size: int, taken: set[str]) -> str:
        follows: list[Stretch] = []
        odd = ""
        rest = size
        for one, each in self.runs:
            sizes = [(far, steps[place].shapes[which][axis]) for far, steps in each.items()]
            if all(other == size for _, other in sizes):
                continue
            if all(other * one.size == size * far for far, other in sizes) and rest % one.size == 0:
                follows.append(one)
                rest //= one.size
            elif all(other - size == far - one.size for far, other in sizes):
                odd = f"{one.name}{size - one.size:+d}"
            else:
                odd = f"{size} (follows {one.name})"
        if odd:
            return odd
        if follows:
            factor = [] if rest == 1 else ["H" if rest == self.heads else str(rest)]
            return "*".join([one.name for one in follows] + factor)
        for one, each in self.runs:  # that could not be stretched
            if not each and size == one.size and one.name not in taken and size != self.width:
                taken.add(one.name)
                return one.name
        return WIDTH if size == self.width else str(size)


def _traced(probe: Probe, inputs: Sequence[Any]) -> tuple[list[_Step], int]:
    """The calls of submodules in the order in which they end, the module's own the last, and the width of an embedding."""
    steps: list[_Step] = []
    widths: list[int] = []

    parts = probe.module.named_modules() if isinstance(probe.module, nn.Module) else ()
    hooks = [part.register_forward_hook(partial(_note, name, steps, widths)) for name, part in parts if name]
    try:
        with torch.no_grad():
            output = probe(*(one.clone() if isinstance(one, Tensor) else one for one in inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return [*steps, _Step("", title(probe.module), (tuple(output.shape),))], (widths or [0])[0]


def _note(name: str, steps: list[_Step], widths: list[int], part: nn.Module, _: Any, output: Any) -> None:
    """Note what came out of a submodule."""
    steps.append(_Step(name, type(part).__name__, tuple(tuple(one.shape) for one in _shown(output))))
    widths.extend([part.embedding_dim] if isinstance(part, nn.Embedding) else [])


def _shown(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else tensors_of(output)


def _taken(probe: Probe, stretch: Stretch, base: list[_Step]) -> dict[int, list[_Step]]:
    """The calls with each of a stretch's inputs that the module takes, by size."""
    each = {size: _again(probe, given, base) for size, given in zip(stretch.sizes, stretch.inputs, strict=True)}
    return {size: steps for size, steps in each.items() if steps}


def _again(probe: Probe, inputs: Sequence[Any], base: list[_Step]) -> list[_Step]:
    """The same calls with inputs of other sizes; none where the module does not take them, or calls others then."""
    try:
        steps, _ = _traced(probe, inputs)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, CheckError):
        return []
    same = len(steps) == len(base) and all(
        one.name == other.name and [len(shape) for shape in one.shapes] == [len(shape) for shape in other.shapes]
        for one, other in zip(steps, base, strict=True)
    )
    return steps if same else []


def _heads(module: Any) -> int:
    """How many heads the first submodule says it has; 0 where none does."""
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for name in HEADS:
            value = getattr(part, name, None)
            if type(value) is int and value > 1:
                return value
    return 0


def _unmet(axes: list[str], shape: tuple[int, ...], expect: str) -> tuple[str, str]:
    """What is other than was expected of the output, and the likely slip."""
    wanted = expect.split()
    known = {"B", "S", "T", WIDTH}

    def fits(axis: str, size: int, name: str) -> bool:
        if name.isdecimal():
            return size == int(name)
        return axis == name or (name not in known and "*" not in name and axis.isdecimal())

    if len(wanted) == len(axes) and all(map(fits, axes, shape, wanted)):
        return "", ""
    found = f"the output is ({', '.join(axes)}) = {shape}, where ({', '.join(wanted)}) was expected"
    if sorted(axes) == sorted(wanted) and {"B", "T"} <= set(axes) and axes != wanted:
        turned = axes.index("B") > axes.index("T")
        if turned != (wanted.index("B") > wanted.index("T")):
            return found, "B and T are swapped: set batch_first=True, or turn the output back with transpose(0, 1)"
    if len(wanted) == len(axes) <= 5:
        for order in permutations(range(len(axes))):
            if all(fits(axes[at], shape[at], name) for at, name in zip(order, wanted, strict=True)):
                return found, f"the axes stand in another order: permute{order} puts them right"
    if len(axes) < len(wanted) and any("*" in axis for axis in axes):
        return found, "axes were put into one, with a reshape or flatten, and not taken apart again"
    missing = [name for name in ("B", "S", "T") if name in wanted and not any(name in axis for axis in axes)]
    if missing:
        return found, f"nothing follows {' and '.join(missing)}: look for a mean, a choice or a sum over that axis"
    return found, "look in the table for the first submodule whose output is not as meant"


def _table(rows: list[tuple[str, str, str]]) -> str:
    head = [("submodule", "class", "output"), *rows]
    wide = [max(len(row[column]) for row in head) for column in range(2)]
    return "\n".join(f"  {name:<{wide[0]}}  {kind:<{wide[1]}}  {shape}" for name, kind, shape in head)
