"""Whether decoding step by step with a cache gives what decoding all at once does, samples that change places included."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pellucid.check.apart import farthest
from pellucid.check.calling import Call, title
from pellucid.check.courses import Course, Walks, courses
from pellucid.check.drift import of_chunks, of_samples, of_steps
from pellucid.check.dropout import left_on
from pellucid.check.report import Report
from pellucid.check.stepping import Begin, Select, Step, Whole, stepping_of
from pellucid.check.ways import Probe, own_dtype, ways
from pellucid.errors import CheckError

__all__ = ["cache", "unknown"]

ASKED = "decoding step by step with a cache must equal decoding all at once"
MOST = 40
"""Positions that are drawn."""


def cache(
    model: Any,
    *inputs: Any,
    whole: Whole | None = None,
    begin: Begin | None = None,
    step: Step | None = None,
    select: Select | None = None,
    chunks: bool = True,
    tolerance: float | None = None,
) -> Report:
    """Whether decoding step by step with a cache equals decoding all at once.

    Steps take one position each; then half of the target, two positions, and one each; then one each while samples change
    places twice, as in a beam search: all in the opposite order, and one twice in another's stead. All this in evaluation,
    in float64 and in the model's own precision.

    Models whose steps are known need no more than their inputs: those with `encode(source)` and
    `decode(target, memory, cache=...)` that gives (logits, cache), as `Transformer`; decoders that take ids and a cache and
    give (logits, cache); and Hugging Face's, of either kind. A cache can reorder its samples by a method `select(rows)` or
    `reorder_cache(rows)`. Any other model is told by functions, which must use the model they are given, a copy.

    Args:
        model: the model, or a function.
        inputs: the target, (B, T) ids or (B, T, D) states without padding, or a source and the target.
        whole: whole(model, *inputs) -> logits (B, T, V), where calling the model is not plain.
        begin: begin(model, *sources) -> state, where there are sources, and `step` is given.
        step: step(model, ids, state) -> (logits of the ids, state); ids are the new ones, and state is what the step before
            gave, or `begin`, or None.
        select: select(state, rows) -> state of these samples in this order, with all that it holds of their sources.
        chunks: whether steps of several positions are taken, too.
        tolerance: how far apart logits may lie, for numbers about 1; by the precision if not given.

    Returns:
        A report that names the first position that differs, and draws which do.

    Raises:
        CheckError: no way to take steps is known, the target is shorter than two positions, or a step fails.

    >>> import torch
    >>> def step(model, ids, state):  # a running sum, which begins anew with each step
    ...     return model(ids), None
    >>> def total(ids):
    ...     return torch.nn.functional.one_hot(ids, 5).double().cumsum(dim=1)
    >>> report = cache(total, torch.tensor([[1, 4, 2], [3, 1, 4]]), step=step)
    >>> report.findings
    ('step by step, position 1 of sample 0 differs by 1: logit 1 is 0, and 1 at once; 2 of 3 positions differ',)
    >>> report.advice.partition(":")[0]
    'cache not read'
    """
    if not inputs or not isinstance(inputs[-1], Tensor) or inputs[-1].dim() < 2 or not len(inputs[-1]):
        raise CheckError(
            "cache was given no target of (batch, length); give the ids, or the source and then the ids of the target"
        )
    length, samples = inputs[-1].shape[1], len(inputs[-1])
    if length < 2:
        raise CheckError(f"cache was given targets of length {length}; give two ids at least, to take a step")
    stepping = stepping_of(model, len(inputs) - 1, whole=whole, begin=begin, step=step, select=select)
    if stepping is None:
        raise unknown(model, "cache")
    known, taken = stepping, courses(length, samples, chunks=chunks)

    def measure(probe: Probe) -> Report:
        chance = left_on(probe, "cache", ASKED)
        return _measured(Walks.of(probe, known, tolerance), taken) if chance is None else chance

    return _in_evaluation(model, inputs, known.whole, measure)


def unknown(model: Any, name: str) -> CheckError:
    """The error for a model whose steps are not known."""
    return CheckError(
        f"{name} does not know how {title(model)} takes a step with these inputs; give step=lambda model, ids, state: ..., "
        "which hands back the logits and the next state, and begin= where there is a source"
    )


def _in_evaluation(
    model: Any, inputs: tuple[Any, ...], call: Call | None, measure: Callable[[Probe], Report]
) -> Report:
    """The report of the first way in evaluation that fails, or of the first of all."""
    reports: dict[str, Report] = {}
    own = own_dtype(model, inputs)
    for probe in ways(model, inputs, call):
        reports[str(probe.way)] = measure(probe)
        if probe.way.dtype is own:
            break  # the others are of training
    first = next((report for report in reports.values() if not report.passed), next(iter(reports.values())))
    notes = dict.fromkeys(note for report in reports.values() for note in report.notes)
    if isinstance(model, nn.Module) and not any("float64" in way for way in reports):
        notes["the model does not run in float64, so small differences were not looked for"] = None
    kept = {way: report.passed for way, report in reports.items()}
    return Report(
        first.name, first.asked, first.findings, first.figures, first.picture, "", first.advice, kept, tuple(notes)
    )


def _measured(walks: Walks, taken: tuple[Course, Course | None, Course | None]) -> Report:
    """What one way of the model does along each course; chunks and samples are looked at where single steps are right."""
    inputs = walks.probe.inputs
    wanted = walks.whole(*inputs)
    if wanted.dim() < 3 or wanted.shape[:2] != inputs[-1].shape[:2]:
        raise CheckError(
            f"{title(walks.probe.module)} gave {tuple(wanted.shape)} for targets {tuple(inputs[-1].shape)}; give "
            "whole=lambda model, *inputs: ... that hands back logits at each position, batch first"
        )
    steps, chunks, samples = taken
    found = [_compared(walks, steps, wanted)]
    advice = [of_steps(walks, steps, inputs, found[0].wrong)] if found[0].wrong else []
    notes = [] if samples is not None else ["one sample cannot change places with another; give two at least"]
    if not found[0].wrong and chunks is not None:
        found.append(_compared(walks, chunks, wanted))
        advice += [of_chunks(walks, chunks, inputs, found[-1].wrong)] if found[-1].wrong else []
    if not found[0].wrong and samples is not None:
        moved = walks.along(samples, *inputs)
        if moved.shape[1] < wanted.shape[1]:
            notes.append(
                "no way is known to reorder this cache, so that was not looked at; give step=, begin= and select="
            )
        elif not walks.differ(samples.of(wanted), wanted).any():
            notes.append(
                "all samples give the same, so it does not show whether they change places; give different ones"
            )
        else:
            found.append(_Found(samples, moved, samples.of(wanted), walks))
            advice += [of_samples(walks, samples, inputs)] if found[-1].wrong else []
    findings = tuple(one.told() for one in found if one.wrong)
    figures: dict[str, float | int | str] = {
        "positions": wanted.shape[1],
        "differing": len({place for one in found for place in one.wrong}),
        "largest difference": max(one.largest for one in found),
    }
    picture = _picture(found) if findings else ""
    return Report("cache", ASKED, findings, figures, picture, advice="; and ".join(advice), notes=tuple(notes))


def _compared(walks: Walks, course: Course, wanted: Tensor) -> "_Found":
    return _Found(course, walks.along(course, *walks.probe.inputs), course.of(wanted), walks)


class _Found:
    """What a course gave beside what it should have given.

    Attributes:
        course: the course.
        wrong: the positions that differ.
        largest: the largest difference, roundings included.
    """

    def __init__(self, course: Course, made: Tensor, wanted: Tensor, walks: Walks) -> None:
        self.course, self._made, self._wanted = course, made, wanted
        self._differ = walks.differ(made, wanted)
        self.wrong: list[int] = self._differ.flatten(2).amax(dim=(0, 2)).nonzero().flatten().tolist()
        self.largest = farthest(self._differ)[1] if self.wrong else farthest((made - wanted).abs().nan_to_num())[1]

    def told(self) -> str:
        """The first position that differs, and by how much, in a sentence."""
        first = self.wrong[0]
        (sample, *rest), size = farthest(self._differ[:, first])
        place = (sample, first, *rest)
        logit = ", ".join(map(str, rest))
        return (
            f"{self.course.name}, position {first} of sample {sample} differs by {size:.3g}: logit {logit} is "
            f"{float(self._made[place]):.4g}, and {float(self._wanted[place]):.4g} at once; {len(self.wrong)} of "
            f"{self._made.shape[1]} positions differ"
        )


def _picture(found: list[_Found]) -> str:
    """A row of marks for each course: which positions differ, where steps begin, and where samples change places."""
    length = sum(found[0].course.sizes)
    first = min(place for one in found for place in one.wrong)
    left = 0 if first < MOST - 1 else first - MOST // 2
    shown = range(left, min(left + MOST, length))
    wide, margin = len(str(shown[-1])), max(len(one.course.name) for one in found)
    lines = [f"{'position':<{margin}}" + "".join(f" {place:>{wide}}" for place in shown)]
    for one in found:
        sizes = one.course.sizes
        begins = {sum(sizes[:step]) for step in range(len(sizes))} if max(sizes) > 1 else set()
        bars = ("↕" if place in one.course.orders else "|" if place in begins else " " for place in shown)
        marks = ("!" if place in one.wrong else "■" for place in shown)
        lines.append(
            f"{one.course.name:<{margin}}"
            + "".join(f"{bar}{mark:>{wide}}" for bar, mark in zip(bars, marks, strict=True))
        )
    lines.append("(■ equal, ! differs, | a step of several begins, ↕ samples change places)")
    return "\n".join(f"  {line}" for line in lines)
