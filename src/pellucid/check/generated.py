"""Whether what a model generates, one id at a time, has the logits that training would give it, all at once."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.check.advice import SLIPS
from pellucid.check.apart import farthest
from pellucid.check.calling import title
from pellucid.check.courses import Course, Walks
from pellucid.check.drift import of_steps
from pellucid.check.dropout import left_on
from pellucid.check.report import Report
from pellucid.check.stepping import Begin, Step, Stepping, Whole, stepping_of
from pellucid.check.ways import Probe, in_every_way
from pellucid.check.where import Culprit, first_broken, part_at_positions
from pellucid.check.witness import clue_of
from pellucid.errors import CheckError

__all__ = ["training_matches_generation"]

ASKED = "the logits of what is generated must be those that training gives it, all positions at once"
LENGTH = (
    "length: at once, a position's logits depend on how many positions there are, though not on what stands there; a "
    "scale, a mean or a position must count from the front and take no notice of the length of the whole"
)
AHEAD = (
    "look-ahead: in training {name} sees ids that generation does not have yet, by a mask that is not applied, a norm or a "
    "mean over time; check.causality draws what it sees"
)
MODE = (
    "in training mode the module computes something else than in evaluation, dropout aside; look for statistics of the "
    "batch, or for what asks self.training"
)


def training_matches_generation(
    model: Any,
    *inputs: Any,
    steps: int = 8,
    whole: Whole | None = None,
    begin: Begin | None = None,
    step: Step | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether the model gives what it generates the logits that it gave while it generated.

    Ids are chosen greedily, by the model's cache where it has one that is known (see `cache`), and a second time without:
    a prefix grows, and the model is called with all of it. The logits of both are held beside those of one call with all
    that was generated, in evaluation and, dropout off, in training.

    Args:
        model: the model, or a function, that gives logits (B, T, V) of the next ids.
        inputs: the prefix, (B, P) ids such as begin marks, or a source and the prefix.
        steps: how many ids are generated.
        whole: whole(model, *inputs) -> logits, where calling the model is not plain.
        begin: begin(model, *sources) -> state, as in `cache`.
        step: step(model, ids, state) -> (logits of the ids, state), as in `cache`.
        tolerance: how far apart logits may lie, for numbers about 1; by the precision if not given.

    Returns:
        A report that names the first position that differs, and what each would have chosen there.

    Raises:
        CheckError: the prefix is no ids, there are fewer than 2 steps, or the model cannot be called so.

    >>> def centred(ids):
    ...     logits = torch.nn.functional.one_hot(ids + 1, 11).double() * (ids[..., None] + 1)
    ...     return logits - logits.mean(dim=1, keepdim=True)
    >>> report = training_matches_generation(centred, torch.tensor([[2, 3], [3, 1]]), steps=3)
    >>> print(report.findings[0])
    growing a prefix, position 1 of sample 0 differs by 1.5: it chooses 4, training 4; 2 of 3 positions and 0 choices differ
    >>> report.advice.partition(":")[0]
    'look-ahead'
    """
    prefix = inputs[-1] if inputs else None
    if not isinstance(prefix, Tensor) or prefix.dim() != 2 or prefix.is_floating_point() or not prefix.numel():
        raise CheckError(
            "training_matches_generation was given no prefix of ids (batch, length); give begin marks, after the source"
        )
    if steps < 2:
        raise CheckError(
            f"training_matches_generation was given {steps} steps; give 2 at least, so that a prefix grows"
        )
    stepping = stepping_of(model, len(inputs) - 1, whole=whole, begin=begin, step=step, select=None)
    known = stepping or Stepping(whole, lambda *_: None, lambda *_: None, lambda *_: None)
    made: dict[torch.dtype | None, _Generated] = {}

    def measure(probe: Probe) -> Report:
        chance = left_on(probe, "training_matches_generation", ASKED)
        if chance is not None:
            return chance
        walks = Walks.of(probe, known, tolerance)
        if probe.way.training and probe.way.dtype in made:
            return _trained(walks, made[probe.way.dtype])
        generated = made[probe.way.dtype] = _generated(walks, steps, cached=stepping is not None)
        return _compared(walks, generated)

    return in_every_way(model, inputs, known.whole, measure)


@dataclass(frozen=True, slots=True)
class _Generated:
    """What was generated.

    Attributes:
        ids: (B, P + steps - 1), the prefix and what was chosen; the last choice is left out.
        first: the position of the first choice.
        ways: by how they were made, the logits (B, steps, V) of the choices.
    """

    ids: Tensor
    first: int
    ways: dict[str, Tensor]


def _generated(walks: Walks, steps: int, *, cached: bool) -> _Generated:
    """Choose ids greedily, by the cache where there is one; and give the same ids to a prefix that grows."""
    *sources, prefix = walks.probe.inputs
    ways: dict[str, Tensor] = {}
    if cached:
        ways["step by step"] = walks.greedy(steps, *sources, prefix)
    ids, grown = prefix, []
    for at in range(steps):
        logits = walks.whole(*sources, ids)
        if logits.dim() != 3 or logits.shape[:2] != ids.shape:
            raise CheckError(
                f"{title(walks.probe.module)} gave {tuple(logits.shape)} for ids {tuple(ids.shape)}; give whole=lambda "
                "model, *inputs: ... that hands back logits (batch, length, vocabulary)"
            )
        grown.append(logits[:, -1])
        chosen = ways["step by step"][:, at] if cached else grown[-1]
        ids = torch.cat([ids, chosen.argmax(dim=-1, keepdim=True).to(ids.dtype)], dim=1)
    ways["growing a prefix"] = torch.stack(grown, dim=1)
    return _Generated(ids[:, :-1], prefix.shape[1] - 1, ways)


def _compared(walks: Walks, made: _Generated) -> Report:
    """The logits of what was generated beside those of one call, in evaluation."""
    sources = walks.probe.inputs[:-1]
    wanted = walks.whole(*sources, made.ids)[:, made.first :]
    told = {how: _told(walks, how, logits, wanted, made.first) for how, logits in made.ways.items()}
    findings = tuple(one for one in told.values() if one)
    distances = [walks.differ(logits, wanted) for logits in made.ways.values()]
    figures: dict[str, float | int | str] = {
        "steps": wanted.shape[1],
        "differing": max(len(_wrong(one)) for one in distances),
        "largest difference": max(farthest((one - wanted).abs())[1] for one in made.ways.values()),
    }
    advice, culprit = "", None
    if told["growing a prefix"]:
        advice, culprit = _of_growth(walks, made)
    elif findings:
        course = Course("step by step", (1,) * made.ids.shape[1], {})
        given = (*sources, made.ids)
        wrong = _wrong(walks.differ(walks.along(course, *given), walks.whole(*given)))
        advice = f"{of_steps(walks, course, given, wrong)} (check.cache)" if wrong else "look at check.cache"
    where = str(culprit or "")
    return Report(
        "training_matches_generation",
        ASKED,
        findings,
        figures,
        _picture(made, wanted, walks) if findings else "",
        where,
        advice,
    )


def _trained(walks: Walks, made: _Generated) -> Report:
    """The logits of what was generated in evaluation beside those of one call in training."""
    module = walks.probe.module
    wanted = walks.whole(*walks.probe.inputs[:-1], made.ids)[:, made.first :]
    how, logits = next(iter(made.ways.items()))
    told = _told(walks, how, logits, wanted, made.first)
    if not told:
        return Report("training_matches_generation", ASKED)
    normed = next((name for name, part in module.named_modules() if clue_of(part) == "batch norm"), None)
    figures: dict[str, float | int | str] = {
        "steps": wanted.shape[1],
        "largest difference": farthest((logits - wanted).abs())[1],
    }
    advice = MODE if normed is None else SLIPS["batch norm"].format(name=normed)
    return Report(
        "training_matches_generation", ASKED, (told,), figures, _picture(made, wanted, walks), normed or "", advice
    )


def _told(walks: Walks, how: str, logits: Tensor, wanted: Tensor, first: int) -> str:
    """The first choice that differs, in a sentence, or nothing."""
    distance = walks.differ(logits, wanted)
    wrong = _wrong(distance)
    if not wrong:
        return ""
    at = wrong[0]
    (sample, _), size = farthest(distance[:, at])
    chosen, taught = logits.argmax(dim=-1), wanted.argmax(dim=-1)
    return (
        f"{how}, position {first + at} of sample {sample} differs by {size:.3g}: it chooses {int(chosen[sample, at])}, "
        f"training {int(taught[sample, at])}; {len(wrong)} of {logits.shape[1]} positions and "
        f"{int((chosen != taught).sum())} choices differ"
    )


def _wrong(distance: Tensor) -> list[int]:
    """The positions that differ."""
    places: list[int] = distance.flatten(2).amax(dim=(0, 2)).nonzero().flatten().tolist()
    return places


def _of_growth(walks: Walks, made: _Generated) -> tuple[str, Culprit | None]:
    """What to do about logits that depend on how far the prefix has grown, and where that begins."""
    sources, first = walks.probe.inputs[:-1], made.first
    for at in range(first, made.ids.shape[1] - 1):
        changed = made.ids.clone()
        later = changed[:, at + 1 :]
        changed[:, at + 1 :] = torch.where(later > 0, later - 1, 1)
        one, other = walks.whole(*sources, made.ids), walks.whole(*sources, changed)
        if not walks.differ(other, one)[:, : at + 1].any():
            continue
        probe = replace(walks.probe, inputs=(*sources, made.ids))
        kept = (torch.arange(made.ids.shape[1]) <= at).expand(len(made.ids), -1)
        part = part_at_positions(kept, 1)
        culprit = first_broken(probe, (*sources, changed), part, made.ids.shape[1])
        name = culprit.name or "the module" if culprit else "the module"
        clue = next((clue for clue in (culprit.clues if culprit else ()) if clue in SLIPS), None)
        return (SLIPS[clue] if clue else AHEAD).format(name=name), culprit
    return LENGTH, None


def _picture(made: _Generated, wanted: Tensor, walks: Walks) -> str:
    """A row of marks for each way of generating: which positions differ."""
    places = range(made.first, made.first + wanted.shape[1])[:40]
    wide, margin = len(str(places[-1])), max(len(how) for how in made.ways)
    lines = [f"{'position':<{margin}} " + " ".join(f"{place:>{wide}}" for place in places)]
    for how, logits in made.ways.items():
        wrong = {made.first + at for at in _wrong(walks.differ(logits, wanted))}
        marks = " ".join(f"{'!' if place in wrong else '■':>{wide}}" for place in places)
        lines.append(f"{how:<{margin}} {marks}")
    return "\n".join(f"  {line}" for line in [*lines, "(■ as in training, ! differs)"])
