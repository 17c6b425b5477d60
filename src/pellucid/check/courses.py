"""Courses over a target: how many positions each step takes, and before which of them samples change places."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.check.apart import allowed_distance, apart, scale
from pellucid.check.calling import title
from pellucid.check.stepping import Stepping, logits_of
from pellucid.check.ways import CallError, Probe
from pellucid.errors import CheckError

__all__ = ["Course", "Walks", "courses"]


@dataclass(frozen=True, slots=True)
class Course:
    """One course over the target positions.

    Attributes:
        name: what it is called in a finding.
        sizes: positions that each step takes.
        orders: the order that samples change to, by the position before which they do.
    """

    name: str
    sizes: tuple[int, ...]
    orders: dict[int, Tensor]

    def of(self, logits: Tensor) -> Tensor:
        """What the logits (B, T, ...) of all positions at once become where samples change places."""
        logits = logits.clone()
        for first, rows in self.orders.items():
            logits[:, first:] = logits[rows, first:]
        return logits

    def mixed(self, target: Tensor) -> Tensor:
        """The ids that each row is given from first to last, (B, T): of its new sample once it has changed."""
        return self.of(target)


def courses(length: int, samples: int, *, chunks: bool) -> tuple[Course, Course | None, Course | None]:
    """One position at a time; half at once, then two, then one at a time; and with samples that change places twice."""
    ones = (1,) * length
    steps = Course("step by step", ones, {})
    half = max(1, length // 2)
    some = Course("in chunks", (half, 2, *ones[half + 2 :]), {}) if chunks and length > 2 else None
    if samples < 2:
        return steps, some, None
    rows = torch.arange(samples)
    early, late = max(1, length // 3), max(2, 2 * length // 3)
    orders = {early: rows.flip(0)} | ({late: (rows + 1).clamp(max=samples - 1)} if late < length else {})
    return steps, some, Course("samples reordered", ones, orders)


@dataclass(frozen=True, slots=True)
class Walks:
    """A probe and its way of taking steps.

    Attributes:
        probe: the model in one of its ways.
        stepping: how it takes steps.
        tolerance: how far apart logits may lie, for numbers about 1.
    """

    probe: Probe
    stepping: Stepping
    tolerance: float

    @staticmethod
    def of(probe: Probe, stepping: Stepping, tolerance: float | None) -> "Walks":
        """With the tolerance of the probe where none is given."""
        return Walks(probe, stepping, allowed_distance(tolerance, probe.tolerance))

    def whole(self, *inputs: Any) -> Tensor:
        """Logits (B, T, V), all positions at once."""
        return self._run(f"{title(self.probe.module)} at once", self.probe.called, inputs)

    def along(self, course: Course, *inputs: Any) -> Tensor:
        """Logits (B, T, V) along a course; only those before samples change places where no way to do so is known."""
        return self._run(f"{title(self.probe.module)} {course.name}", self._taking(course), inputs)

    def greedy(self, steps: int, *inputs: Any) -> Tensor:
        """Logits (B, steps, V) of ids that are chosen one after another, each the likeliest after all before it."""

        def walk(model: Any, *inputs: Any) -> Tensor:
            *sources, ids = inputs
            state, made = self.stepping.begin(model, *sources), []
            for _ in range(steps):
                output, state = self.stepping.step(model, ids, state)
                made.append(logits_of(output, ids, model)[:, -1])
                ids = made[-1].argmax(dim=-1, keepdim=True).to(ids.dtype)
            return torch.stack(made, dim=1)

        return self._run(f"{title(self.probe.module)} step by step", walk, inputs)

    def differ(self, found: Tensor, wanted: Tensor) -> Tensor:
        """How far apart logits lie, (B, T, V), where that is more than roundings; else 0."""
        if found.shape != wanted.shape:
            raise CheckError(
                f"steps gave logits {tuple(found.shape)}, and all positions at once {tuple(wanted.shape)}; give step= and "
                "whole= that hand back the same"
            )
        distance = apart(found, wanted)
        distance[found == wanted] = 0.0  # a logit of -inf on both sides
        return torch.where(distance > self.tolerance * scale(wanted), distance, 0.0)

    def _taking(self, course: Course) -> Callable[..., Tensor]:
        def walk(model: Any, *inputs: Any) -> Tensor:
            *sources, target = inputs
            state = self.stepping.begin(model, *sources)
            first, made = 0, []
            for size in course.sizes:
                if (rows := course.orders.get(first)) is not None:
                    state = self.stepping.select(model, state, rows.to(target.device))
                    if state is None:
                        break
                    target = target[rows]
                ids = target[:, first : first + size]
                output, state = self.stepping.step(model, ids, state)
                made.append(logits_of(output, ids, model))
                first += size
            return torch.cat(made, dim=1)

        return walk

    def _run(self, what: str, called: Callable[..., Tensor], inputs: tuple[Any, ...]) -> Tensor:
        """What a call gives of copies of the inputs, with what goes wrong inside it in one sentence."""
        given = tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)
        try:
            with torch.no_grad():
                return replace(self.probe, called=called)(*given).detach().clone()
        except CallError as failed:
            error = failed.__cause__ or failed
            said = " ".join(str(error).split())
            raise CheckError(
                f"{what} failed ({type(error).__name__}: {said}); see that it takes such inputs, or tell how it takes "
                "steps by step=, begin= and select="
            ) from error
