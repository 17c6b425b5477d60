"""What one way of a module is asked: whether its outputs see what a mask lets them see."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.check.advice import BLIND_ROWS, MORE_LAYERS, OTHER_SAMPLE, of_sight
from pellucid.check.dropout import CHANGING, STATE
from pellucid.check.influence import FAINTEST, sampled, seen, strengths
from pellucid.check.looked import Looked, lacking, leaking, positions
from pellucid.check.report import Report
from pellucid.check.sight import Sight
from pellucid.check.ways import own_dtype
from pellucid.check.where import Culprit, alone, first_broken, part_at_positions
from pellucid.errors import CheckError
from pellucid.masks import Mask

__all__ = ["Question"]

TAILS = 16  # output positions whose hidden inputs are changed, all at once
MOST_LAYERS = 12  # that are tried as a reason for what is seen beyond a mask
COLUMNS = 64  # inputs that are changed one by one, where gradients show nothing

Cells = Bool[Tensor, "samples rows inputs"]
Strengths = Float[Tensor, "samples rows inputs"]


@dataclass(frozen=True, slots=True)
class Question:
    """A mask that was meant, asked of a module.

    Attributes:
        name: the check.
        asked: the promise, in a sentence.
        sight: the module as it sees the input.
        chosen: output positions to look at, or how many.
        mask: what was meant.
        layers: attentions under the mask that follow each other.
        both: whether outputs must also see all that they may.
    """

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
        again = self.sight.output()
        if base.shape != again.shape or not torch.equal(base.nan_to_num(), again.nan_to_num()):
            return Report(self.name, self.asked, (CHANGING,), advice=STATE)
        rows = sampled(base.shape[1], self.chosen)
        if self.sight.length < 2:
            raise CheckError(f"{self.name} was given one position, which has no other to see; give several")
        allowed, wanted = self._meant(base, rows)
        moved = self._moved(base, rows, allowed)
        odd = [rows[at] for at in (~base.isfinite().all(dim=-1)[:, rows]).any(dim=0).nonzero().flatten().tolist()]
        if not (moved or odd or self.sight.probe.first):
            return Report(self.name, self.asked)
        if self.sight.probe.told and (moved or odd):
            return Report(self.name, self.asked, ("here, too",))  # whose words are those of the first way
        strength = self._strengths(rows, allowed, moved)
        strength[:, [at for at, row in enumerate(rows) if row in odd]] = 0.0  # what is no number says nothing
        leaks = self._leaks(strength, allowed)
        lacks = wanted & ~seen(strength, FAINTEST)
        lacks[:, [at for at, row in enumerate(rows) if row in odd]] = False
        missing = self._missing(rows, lacks) if self.both else torch.zeros_like(leaks)
        findings = [*leaking(leaks, strength, rows), *lacking(missing, rows)]
        if moved and not leaks.any():
            findings.append(f"{positions('output', moved)} move when all that is hidden from them is changed together")
        if odd:
            findings.append(f"{positions('output', odd)} {'is' if len(odd) == 1 else 'are'} not finite")
        figures = self._figures(base, rows, leaks, missing)
        if not findings:
            return Report(self.name, self.asked, (), figures)
        at = int((leaks if leaks.any() else missing).flatten(1).any(dim=1).int().argmax())
        looked = Looked((seen(strength) & allowed | leaks)[at], allowed[at], missing[at], rows)
        culprit = self._culprit(base, leaks, rows)
        advice = self._slip(looked, allowed, base, rows, at) or of_sight(
            self._of_culprit(culprit, base, rows, at) or looked, culprit
        )
        if not (leaks.any() or missing.any() or moved):
            advice = BLIND_ROWS
        return Report(self.name, self.asked, tuple(findings), figures, looked.picture(), str(culprit or ""), advice)

    def _figures(self, base: Tensor, rows: list[int], leaks: Cells, missing: Cells) -> dict[str, float | int | str]:
        figures: dict[str, float | int | str] = {"outputs": base.shape[1]}
        if len(rows) < base.shape[1]:
            spread = "evenly spaced " if not isinstance(self.chosen, Sequence) else ""
            figures["looked at"] = f"{len(rows)} of them, {spread}from {rows[0]} to {rows[-1]}"
        figures["leaking"] = int(leaks.any(dim=0).any(dim=-1).sum())
        if self.both:
            figures["lacking"] = int(missing.any(dim=0).any(dim=-1).sum())
        return figures

    def _meant(self, base: Tensor, rows: list[int]) -> tuple[Cells, Cells]:
        """What each row of each sample may see, and what of it it should see."""
        outputs, inputs = base.shape[1], self.sight.length
        if self.name == "causality" and outputs != inputs:
            raise CheckError(
                f"the module gave {outputs} output positions for {inputs} input positions, so none lies ahead of another; "
                "give inputs_axis=, outputs_axis=, or call= whose outputs stand at the input's positions"
            )
        once = self._once(base)
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

    def _once(self, base: Tensor) -> Bool[Tensor, "samples outputs inputs"]:
        """What one attention lets each output see, whatever its head."""
        return self.mask.dense(base.shape[1], self.sight.length).any(dim=1)

    def _moved(self, base: Tensor, rows: list[int], allowed: Cells) -> list[int]:
        """The positions, of some that are spread over all, that move when all that is hidden from them is changed."""
        spread = [rows[at] for at in sampled(len(rows), TAILS)]
        some = [at for at, row in enumerate(rows) if at < 2 or row in spread]
        hiding = [at for at in some if not allowed[:, at].all()]
        return [rows[at] for at in hiding if self.sight.moves(base, ~allowed[:, at])[:, rows[at]].any()]

    def _strengths(self, rows: list[int], allowed: Cells, moved: list[int]) -> Strengths:
        """How strongly rows depend on inputs; where one moved and gradients show no leak, what moves it counts, too."""
        by_sample = len(allowed) > 1
        strength = strengths(self.sight, rows, by_sample=by_sample)
        if not moved or self._leaks(strength, allowed).any():
            return strength
        columns = sampled(self.sight.length, COLUMNS)
        changes = self.sight.by_change(rows, columns, by_sample=by_sample)
        strength = strength.clone()
        strength[..., columns] = strength[..., columns].maximum(changes)
        return strength

    def _leaks(self, strength: Strengths, allowed: Cells) -> Cells:
        """What is seen though it must not be; roundings of the strongest dependence are no leak."""
        strongest = strength[strength.isfinite()]
        dtype = self.sight.probe.way.dtype or own_dtype(self.sight.probe.module, self.sight.probe.inputs)
        eps = max(torch.finfo(dtype).eps, self.sight.probe.eps)
        return (strength > 20 * eps * (float(strongest.max()) if strongest.numel() else 0.0)) & ~allowed

    def _missing(self, rows: list[int], lacks: Cells) -> Cells:
        """What should be seen and is not: neither by gradient nor by a change, of some inputs where there are many."""
        columns = lacks.any(dim=0).any(dim=0).nonzero().flatten().tolist()
        if not columns:
            return lacks
        columns = [columns[at] for at in sampled(len(columns), COLUMNS)]
        changes = self.sight.by_change(rows, columns, by_sample=len(lacks) > 1)
        still = torch.zeros_like(lacks)
        still[..., columns] = lacks[..., columns] & (changes == 0)
        return still

    def _culprit(self, base: Tensor, leaks: Cells, rows: list[int]) -> Culprit | None:
        """The first submodule in which a row moves when what it must not see is changed."""
        if not leaks.any():
            return None
        at = int(leaks.any(dim=0).any(dim=-1).int().argmax())
        hidden, sight = leaks[:, at], self.sight
        inputs = list(sight.probe.inputs)
        inputs[sight.of] = sight.changed(hidden)
        kept = torch.zeros(sight.samples, base.shape[1], dtype=torch.bool)
        kept[:, rows[at]] = hidden.any(dim=1).expand(sight.samples)
        part = part_at_positions(kept, sight.axis)
        return first_broken(sight.probe, tuple(inputs), part, sight.length)

    def _slip(self, looked: Looked, allowed: Cells, base: Tensor, rows: list[int], sample: int) -> str:
        """The slip that what was meant tells: the mask of another sample, or more layers than were said."""
        itself = torch.tensor(rows)[:, None] == torch.arange(self.sight.length)[None]
        for other, meant in enumerate(allowed):
            if other != sample and not meant.all() and torch.equal(looked.found | itself, meant | itself):
                return OTHER_SAMPLE
        if self.name != "sees" or base.shape[1] != self.sight.length or looked.missing.any():
            return ""
        once = self._once(base)[sample if len(allowed) > 1 else 0] | torch.eye(self.sight.length, dtype=torch.bool)
        reach = once
        for layers in range(2, MOST_LAYERS + 1):
            reach = _through(once, reach)
            if layers > self.layers and bool((looked.found <= reach[rows]).all()) and not reach.all():
                return MORE_LAYERS.format(layers=layers)
        return ""

    def _of_culprit(self, culprit: Culprit | None, base: Tensor, rows: list[int], sample: int) -> Looked | None:
        """What the culprit by itself sees; None where that cannot be told."""
        if culprit is None or not culprit.name or base.shape[1] != self.sight.length:
            return None
        own = alone(self.sight.probe, culprit, self.sight.length, self.sight.axis)
        if own is None or own.output().shape[1] != base.shape[1]:
            return None
        meant = self._once(base)[:, rows]
        strength = own.by_gradient(rows, by_sample=len(meant) > 1)
        if strength is None:
            return None
        itself = seen(strength)[sample]
        looked = Looked(itself, meant[sample], meant[sample] & ~itself, rows)
        return looked if looked.leaks.any() else None


def _through(one: Tensor, other: Tensor) -> Tensor:
    """What is seen through what is seen."""
    return (one.double() @ other.double()) > 0
