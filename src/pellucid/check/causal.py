"""Whether a module sees what it should: nothing ahead of it, or just what a mask of the algebra lets it see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.check.advice import of_sight
from pellucid.check.calling import Call
from pellucid.check.influence import ALL_ROWS, sampled, seen, sight_of, strengths
from pellucid.check.picture import meant_and_found
from pellucid.check.report import Report
from pellucid.check.sight import Sight
from pellucid.check.ways import Probe, in_every_way
from pellucid.check.where import Culprit, alone, first_broken, part_at_positions
from pellucid.errors import CheckError
from pellucid.masks import Causal, Mask

__all__ = ["causality", "sees"]

SHOWN = 8  # findings that are spelt out
TAILS = 16  # output positions whose hidden inputs are changed, all at once
COLUMNS = 64  # inputs that are changed one by one, where gradients show nothing


def causality(
    module: Any,
    *inputs: Any,
    inputs_axis: int = 1,
    outputs_axis: int | None = None,
    of: int | None = None,
    rows: int | Sequence[int] | None = None,
    call: Call | None = None,
) -> Report:
    """Whether no output depends on an input ahead of it, in evaluation and in training.

    Args:
        module: any module or function whose outputs stand at its input's positions.
        inputs: what it is called with: (B, T, D) states or (B, T) ids, say, and what else it takes.
        inputs_axis: the axis of the input's positions.
        outputs_axis: that of the output's; the same where it is not given.
        of: which input is asked about, as in `influence`.
        rows: output positions to look at, or how many; all, or 64 of more than 256, if not given.
        call: call(module, *inputs), where calling is not plain.

    Returns:
        A report that names each output position which sees ahead, and what it sees; where, by the first submodule that
        breaks the promise; and the likely slip.

    Raises:
        CheckError: the module cannot be called so, or its outputs do not stand at its input's positions.

    >>> print(causality(lambda x: x.flip(dims=(1,)), torch.ones(1, 3, 1)))
    causality: FAILED: no output position may depend on a later input position
      output 0 depends on input 2 (slope 1.54)
      outputs = 3
      leaking = 1
      advice: polarity: the mask is the wrong way round
    """

    def measure(probe: Probe) -> Report:
        sight = sight_of(probe, of, inputs_axis, outputs_axis)
        return _Question("causality", "no output position may depend on a later input position", sight, rows, Causal()).report()

    return in_every_way(module, inputs, call, measure)


def sees(
    module: Any,
    *inputs: Any,
    mask: Mask | None = None,
    layers: int = 1,
    inputs_axis: int = 1,
    outputs_axis: int | None = None,
    of: int | None = None,
    rows: int | Sequence[int] | None = None,
    call: Call | None = None,
) -> Report:
    """Whether each output sees just the inputs that a mask lets it see, in evaluation and in training.

    Several layers under a mask see more than the mask: what the positions that they see have seen. Position t may see
    itself whatever the mask says, since residual paths lead from each position to itself; it need not.

    Args:
        module: any module or function.
        inputs: what it is called with, as in `causality`; the last may be the mask.
        mask: what was meant, of the algebra; of `Heads`, what the heads see together.
        layers: how many attentions under this mask follow each other between input and output.
        inputs_axis: the axis of the input's positions.
        outputs_axis: that of the output's; the same where it is not given.
        of: which input is asked about, as in `influence`.
        rows: output positions to look at, or how many; all, or 64 of more than 256, if not given.
        call: call(module, *inputs), where calling is not plain.

    Returns:
        A report of what is seen though it must not be, and of what is not seen though it should be.

    Raises:
        CheckError: no mask is given, it does not fit, or the module cannot be called so.

    >>> from pellucid.masks import Window
    >>> sees(lambda x: x + x.roll(1, dims=1), torch.ones(1, 5, 1), Window(before=1)).findings
    ('output 0 depends on input 4 (slope 0.846)',)
    """
    if mask is None and inputs and isinstance(inputs[-1], Mask):
        *rest, mask = inputs
        inputs = tuple(rest)
    if not isinstance(mask, Mask) or layers < 1:
        raise CheckError(
            f"sees was given {'no mask' if mask is None else type(mask).__name__} and {layers} layers; give a mask of "
            "pellucid.masks, as in sees(module, x, Causal()), and 1 layer at least"
        )
    meant = mask

    def measure(probe: Probe) -> Report:
        sight = sight_of(probe, of, inputs_axis, outputs_axis)
        asked = f"each output position sees what {layers} layers of {meant} let it see" if layers > 1 else (
            f"each output position sees what {meant} lets it see"
        )
        return _Question("sees", asked, sight, rows, meant, layers, both=True).report()

    return in_every_way(module, inputs, call, measure)


@dataclass(frozen=True, slots=True)
class _Question:
    """What one way of a module is asked: whether its outputs see what a mask says, and whether they see all of it."""

    name: str
    asked: str
    sight: Sight
    chosen: int | Sequence[int] | None
    mask: Mask
    layers: int = 1
    both: bool = False

    def report(self) -> Report:
        """Measure, and say what was found."""
        base = self.sight.output()
        rows = sampled(base.shape[1], self.chosen)
        allowed, wanted = self._meant(base, rows)
        moved = self._moved_rows(base, rows, allowed)
        if not (moved or self.sight.probe.first) and base.isfinite().all():
            return Report(self.name, self.asked)
        strength = self._strengths(rows, allowed, moved)
        sees_them = seen(strength)
        leaks = self._leaks(strength, allowed)
        missing = self._missing(rows, wanted & ~sees_them) if self.both else torch.zeros_like(leaks)
        odd = ~base.isfinite().all(dim=-1)[:, rows]
        findings = [*_told(leaks, strength, rows), *_lacking(missing, rows), *_not_numbers(odd, rows)]
        figures: dict[str, float | int | str] = {"outputs": base.shape[1], "leaking": int(leaks.any(dim=0).any(dim=-1).sum())}
        if len(rows) < base.shape[1]:
            figures["looked at"] = f"{len(rows)} outputs, evenly spaced from {rows[0]} to {rows[-1]}"
        if self.both:
            figures["lacking"] = int(missing.any(dim=0).any(dim=-1).sum())
        if not findings:
            return Report(self.name, self.asked, (), figures)
        culprit = self._culprit(base, leaks, rows)
        sample = int((leaks | missing).flatten(1).any(dim=1).int().argmax())
        drawn = meant_and_found(allowed[sample], sees_them[sample], missing[sample], rows)
        advice = of_sight(*self._looked_like(culprit, base, sees_them, allowed, missing, rows, sample), culprit)
        if odd.any() and not leaks.any() and not missing.any():
            advice = (
                "a row that sees nothing gives no number: let it see something, or give zeros for it; a mask of -1e9 added "
                "twice, or in float16, is -inf too"
            )
        return Report(self.name, self.asked, tuple(findings), figures, drawn, str(culprit or ""), advice)

    def _meant(self, base: Tensor, rows: list[int]) -> tuple[Bool[Tensor, "s r k"], Bool[Tensor, "s r k"]]:
        """What each row of each sample may see, and what of it it should see."""
        outputs, inputs = base.shape[1], self.sight.length
        if self.name == "causality" and outputs != inputs:
            raise CheckError(
                f"the module gave {outputs} output positions for {inputs} input positions, so none lies ahead of another; "
                "give inputs_axis=, outputs_axis=, or call= whose outputs stand at the input's positions"
            )
        once = self.mask.dense(outputs, inputs).any(dim=1)
        if len(once) not in (1, self.sight.samples):
            raise CheckError(
                f"{self.mask} speaks of {len(once)} samples, and the input has {self.sight.samples}; give as many"
            )
        if outputs != inputs:
            return once[:, rows], once[:, rows]
        own = once | torch.eye(inputs, dtype=torch.bool)
        may, should = own, once
        for _ in range(self.layers - 1):
            may, should = _through(own, may), _through(once, should)
        return may[:, rows], should[:, rows]

    def _strengths(
        self, rows: list[int], allowed: Tensor, moved: list[int]
    ) -> Float[Tensor, "samples rows inputs"]:
        """How strongly rows depend on inputs; where a row moved and gradients show no leak, what moves it counts, too."""
        by_sample = len(allowed) > 1
        strength = strengths(self.sight, rows, by_sample=by_sample)
        if not moved or self._leaks(strength, allowed).any():
            return strength
        columns = sampled(self.sight.length, min(COLUMNS, self.sight.length))
        changes = self.sight.by_change(rows, columns, by_sample=by_sample)
        strength[..., columns] = strength[..., columns].maximum(changes)
        return strength

    def _moved_rows(self, base: Tensor, rows: list[int], allowed: Tensor) -> list[int]:
        """Of some rows, spread over all, those that move when all that is hidden from them has another content."""
        spread = [round(at * (len(rows) - 1) / max(1, TAILS - 1)) for at in range(min(TAILS, len(rows)))]
        some = sorted({*spread, *range(min(2, len(rows)))})
        hiding = [at for at in some if not allowed[:, at].all()]
        return [at for at in hiding if self.sight.moves(base, ~allowed[:, at])[:, rows[at]].any()]

    def _leaks(self, strength: Tensor, allowed: Tensor) -> Bool[Tensor, "samples rows inputs"]:
        """What is seen though it must not be; roundings of the strongest dependence are no leak."""
        strongest = strength[strength.isfinite()]
        dtype = self.sight.x.dtype if self.sight.x.is_floating_point() else torch.float64
        floor = 20 * torch.finfo(dtype).eps * (float(strongest.max()) if strongest.numel() else 0.0)
        return (strength > floor) & ~allowed

    def _missing(self, rows: list[int], lacking: Tensor) -> Bool[Tensor, "samples rows inputs"]:
        """What should be seen and is not: neither by gradient nor by a change, of a sample of inputs where there are many."""
        columns = lacking.any(dim=0).any(dim=0).nonzero().flatten().tolist()
        if not columns:
            return lacking
        columns = [columns[at] for at in sampled(len(columns), min(COLUMNS, len(columns)))]
        changes = self.sight.by_change(rows, columns, by_sample=len(lacking) > 1)
        still = torch.zeros_like(lacking)
        still[..., columns] = lacking[..., columns] & (changes == 0)
        return still

    def _culprit(self, base: Tensor, leaks: Tensor, rows: list[int]) -> Culprit | None:
        """The first submodule in which a row moves when what it must not see is changed."""
        if not leaks.any():
            return None
        at = int(leaks.any(dim=0).any(dim=-1).int().argmax())
        hidden = leaks[:, at]
        sight = self.sight
        inputs = list(sight.probe.inputs)
        inputs[sight.of] = sight.changed(hidden)
        kept = torch.zeros(sight.samples, base.shape[1], dtype=torch.bool)
        kept[:, rows[at]] = hidden.any(dim=1).expand(sight.samples)
        part = part_at_positions(kept, torch.arange(sight.samples), sight.axis)
        return first_broken(sight.probe, tuple(inputs), part, sight.length)

    def _looked_like(
        self, culprit: Culprit | None, base: Tensor, found: Tensor, allowed: Tensor, missing: Tensor, rows: list[int],
        sample: int,
    ) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """What the culprit by itself sees, may see and lacks; what the module does, where that cannot be told."""
        whole = (found[sample], allowed[sample], missing[sample], rows)
        if culprit is None or not culprit.name or base.shape[1] != self.sight.length:
            return whole
        own = alone(self.sight.probe, culprit, self.sight.length, self.sight.axis)
        once = self.mask.dense(base.shape[1], self.sight.length).any(dim=1)[:, rows]
        if own is None or own.output().shape[1] != base.shape[1]:
            return whole
        by_sample = len(once) > 1
        strength = own.by_gradient(rows, by_sample=by_sample)
        if strength is None:
            return whole
        itself = seen(strength)[sample if by_sample else 0]
        meant = once[sample if by_sample else 0]
        return itself, meant, meant & ~itself, rows


def _through(one: Tensor, other: Tensor) -> Tensor:
    """What is seen through what is seen."""
    return (one.double() @ other.double()) > 0


def _told(leaks: Tensor, strength: Tensor, rows: list[int]) -> list[str]:
    """A sentence for each row that sees what it must not."""
    found = []
    for sample, at in leaks.any(dim=-1).nonzero().tolist():
        inputs = leaks[sample, at].nonzero().flatten().tolist()
        named = ", ".join(map(str, inputs[:5])) + (" ..." if len(inputs) > 5 else "")
        size = float(strength[sample, at, inputs].max())
        whose = f"sample {sample}: " if len(leaks) > 1 else ""
        found.append(f"{whose}output {rows[at]} depends on input{'s' * (len(inputs) > 1)} {named} (slope {size:.3g})")
    return _shortened(found)


def _lacking(missing: Tensor, rows: list[int]) -> list[str]:
    """A sentence for each row that does not see what it should."""
    found = []
    for sample, at in missing.any(dim=-1).nonzero().tolist():
        inputs = missing[sample, at].nonzero().flatten().tolist()
        named = ", ".join(map(str, inputs[:5])) + (" ..." if len(inputs) > 5 else "")
        whose = f"sample {sample}: " if len(missing) > 1 else ""
        found.append(f"{whose}output {rows[at]} does not depend on input{'s' * (len(inputs) > 1)} {named}")
    return _shortened(found)


def _not_numbers(odd: Tensor, rows: list[int]) -> list[str]:
    places = [rows[at] for at in odd.any(dim=0).nonzero().flatten().tolist()]
    if not places:
        return []
    named = ", ".join(map(str, places[:5])) + (" ..." if len(places) > 5 else "")
    return [f"output{'s' * (len(places) > 1)} {named} {'are' if len(places) > 1 else 'is'} not finite"]


def _shortened(found: list[str]) -> list[str]:
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more outputs"]
