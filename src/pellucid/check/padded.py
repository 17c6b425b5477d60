"""Whether padding is really ignored: neither what stands in it nor how much of it there is may change anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.check.advice import of_padding
from pellucid.check.apart import allowed_distance, farthest, moved, scale
from pellucid.check.calling import Call, plain_call, probed_input
from pellucid.check.dropout import left_on
from pellucid.check.influence import sight_of
from pellucid.check.lengths import fitting, telling
from pellucid.check.report import Report
from pellucid.check.sight import Sight
from pellucid.check.ways import Probe, in_every_way
from pellucid.check.where import Culprit, first_broken, given_to, part_at_positions, told_apart
from pellucid.errors import CheckError
from pellucid.shapes import Lengths

__all__ = ["padding"]

ASKED = "padding must change nothing at real positions"
MORE = 3  # positions of padding that are added
MOST = 64  # positions that are changed one by one, to tell the likely slip


def padding(
    module: Any,
    *inputs: Any,
    lengths: Lengths | None = None,
    of: int = 0,
    call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether the outputs at real positions are the same whatever stands in the padding, and however much there is.

    Asked in evaluation and in training, in float64 and in the module's own precision; a function is called as it is.

    Args:
        module: any module or function, batch first.
        inputs: what it is called with: (B, T, D) states or (B, T) ids, padded at the end, and what else it takes; the
            last may be the lengths.
        lengths: real positions of each sample of the input that is padded; the module is told them as they are, or as
            the mask that torch's or Hugging Face's modules take.
        of: which input is padded. Outputs stand at the positions of the one that `influence` would ask about; where that
            is another, all outputs are real.
        call: call(module, *inputs, lengths); needed where the module takes them by a name that is not known.
        tolerance: how far apart outputs may lie; where it is not given, 1e-9 in float64, and a thousand roundings in a
            lower precision (a hundred of a function), of the largest output.

    Returns:
        A report that names each sample whose real outputs move; the first submodule in which they do; and the likely
        slip: padding ignored, hidden by queries instead of keys, heads repeated the wrong way, a mean that counts it.

    Raises:
        CheckError: no way is known to tell the module the lengths, lengths do not fit or leave nothing to check, or
            outputs do not stand at positions.

    >>> print(padding(lambda x, lengths: x - x.mean(dim=1, keepdim=True), torch.ones(1, 3, 1), (2,)).findings[-1])
    more padding changes sample 0 at position 0 by 0.5
    """
    if lengths is None and inputs:
        *rest, lengths = inputs
        inputs = tuple(rest)
    if not inputs or not -len(inputs) <= of < len(inputs) or not isinstance(inputs[of], Tensor):
        raise CheckError(
            f"padding was given {len(inputs)} inputs and asked about input {of}; give the padded tensor and its lengths, "
            "as in padding(module, x, lengths)"
        )
    of %= len(inputs)
    lengths, numbers = _something_to_check(inputs[of], lengths)
    told = [lengths if place == of else None for place in range(len(inputs))]
    by_name = telling(module, told) if call is None else None

    def with_lengths(other: Lengths) -> Call:
        sides = [None if side is None else other for side in told]
        if by_name is not None:
            return lambda module, *given: by_name(module, *given, *sides)
        return lambda module, *given: call(module, *given, other) if call else None

    at_outputs = probed_input(module, inputs, None) == of

    def measure(probe: Probe) -> Report:
        sight = sight_of(probe, of)
        chance = left_on(probe, "padding", ASKED)
        return _Padded(sight, numbers, at_outputs, tolerance, with_lengths).report() if chance is None else chance

    return in_every_way(module, inputs, with_lengths(lengths), measure)


@dataclass(frozen=True, slots=True)
class _Padded:
    """A module as it sees an input of which the end of some samples is padding.

    Attributes:
        sight: the module.
        lengths: real positions of each sample.
        at_outputs: whether outputs stand at the positions of this input.
        tolerance: how far apart outputs may lie, or None.
        with_lengths: how the module is called with other lengths.
    """

    sight: Sight
    lengths: list[int]
    at_outputs: bool
    tolerance: float | None
    with_lengths: Callable[[Any], Call]

    def report(self) -> Report:
        """Measure, and say what was found."""
        base = self.sight.output()
        if len(base) != self.sight.samples or (self.at_outputs and base.shape[1] < max(self.lengths)):
            self._refuse()
        findings: list[str] = []
        worst = 0.0
        notes: tuple[str, ...] = ()
        filled = self.sight.changed(~self._real(self.sight.length))
        for what, sight in (("other content in the", self._with(filled)), ("more", self._with(self._longer()))):
            try:
                output = sight.output()
            except RuntimeError as error:
                if what != "more":
                    raise
                notes = (f"the module does not take more padding ({' '.join(str(error).split())})",)
                continue
            found, most = self._compared(base, output, what)
            findings += found
            worst = max(worst, most)
        figures: dict[str, float | int | str] = {"largest change": worst}
        if not findings:
            return Report("padding", ASKED, (), figures, notes=notes)
        if self.sight.probe.told:
            return Report("padding", ASKED, tuple(findings))  # whose words are those of the first way
        content = any(finding.startswith("other") for finding in findings)
        inputs = self._with(filled).probe.inputs
        kept = part_at_positions(self._real(self.sight.length), self.sight.axis, elsewhere=True)
        culprit = first_broken(self.sight.probe, inputs, kept, self.sight.length) if content else None
        advice = of_padding(self._seen(base) if content else None, self.lengths, self._heeded(base, culprit), culprit)
        return Report("padding", ASKED, tuple(findings), figures, "", str(culprit or ""), advice, notes=notes)

    def _real(self, length: int) -> Bool[Tensor, "samples positions"]:
        return torch.arange(length)[None] < torch.tensor(self.lengths)[:, None]

    def _compared(self, base: Tensor, output: Tensor, what: str) -> tuple[list[str], float]:
        """What changed at real positions, and by how much at most."""
        if len(output) != len(base) or output.shape[2:] != base.shape[2:]:
            self._refuse()
        if not self.at_outputs and output.shape != base.shape:
            self._refuse()
        allowed = allowed_distance(self.tolerance, self.sight.probe.tolerance * scale(base))
        findings, worst = [], 0.0
        for sample, length in enumerate(self.lengths):
            end = length if self.at_outputs else base.shape[1]
            if output.shape[1] < end:
                self._refuse()
            odd = ~base[sample, :end].isfinite().all(dim=-1)
            if odd.any() and what != "more":
                findings.append(f"sample {sample} is not finite at position {int(odd.int().argmax())}, which is real")
            distance = moved(base[sample, :end], output[sample, :end])
            (place, *_), change = farthest(distance) if distance.numel() else ((0,), 0.0)
            worst = max(worst, change)
            if change > allowed:
                findings.append(f"{what} padding changes sample {sample} at position {place} by {change:.3g}")
        return findings, worst

    def _with(self, x: Tensor) -> Sight:
        """The module as it sees another x."""
        inputs = tuple(x if place == self.sight.of else one for place, one in enumerate(self.sight.probe.inputs))
        return replace(self.sight, probe=replace(self.sight.probe, inputs=inputs))

    def _longer(self) -> Tensor:
        """The same input with more positions of padding, filled as a batcher would: with zeros."""
        x = self.sight.x
        return torch.cat([x, x.new_zeros(len(x), MORE, *x.shape[2:])], dim=1)

    def _seen(self, base: Tensor) -> Bool[Tensor, "samples positions"] | None:
        """The positions of each sample that move its real outputs, also of more padding; None where it takes none."""
        wide = self._with(self._longer())
        if wide.length > MOST:
            return None
        try:
            rows = wide.by_change(
                range(max(self.lengths) if self.at_outputs else base.shape[1]), range(wide.length), by_sample=True
            )
        except RuntimeError:
            return None
        moved = rows > 0
        if self.at_outputs:
            moved &= self._real(moved.shape[1])[:, :, None]
            moved &= ~torch.eye(*moved.shape[1:], dtype=torch.bool)  # each position sees itself, whatever the mask
        return moved.any(dim=1)

    def _heeded(self, base: Tensor, culprit: Culprit | None) -> bool:
        """Whether it makes a difference which lengths the culprit, or else the module, is told."""
        probe = self.sight.probe
        for other in ([self.sight.length] * self.sight.samples, self.lengths[::-1]):
            deaf = replace(probe, called=plain_call(self.with_lengths(other)))
            if culprit is not None and culprit.name:
                heeds = told_apart(given_to(probe, culprit), given_to(deaf, culprit))
            else:
                output = replace(self.sight, probe=deaf).output()
                heeds = output.shape != base.shape or not torch.equal(output.nan_to_num(), base.nan_to_num())
            if heeds:
                return True
        return False

    def _refuse(self) -> NoReturn:
        probe, x = self.sight.probe, self.sight.x
        raise CheckError(
            f"the module gave {tuple(probe(*probe.inputs).shape)} for an input of {tuple(x.shape)}; give one, or call=, "
            "whose outputs stand at the inputs' positions"
        )


def _something_to_check(x: Tensor, lengths: Any) -> tuple[Lengths, list[int]]:
    """The lengths as they are and as numbers, where they fit the input and leave something to check."""
    if not isinstance(lengths, Tensor | Sequence) or isinstance(lengths, str):
        raise CheckError(
            f"padding was given lengths of type {type(lengths).__name__}; give the real positions of each sample, as in "
            "padding(module, x, (5, 3))"
        )
    numbers = fitting(x, lengths)
    if min(numbers) == x.shape[1]:
        raise CheckError("no sample has any padding, so there is nothing to check; give a sample that is shorter")
    if max(numbers) == 0:
        raise CheckError("all samples are padding, so there is nothing to check; give a sample of some length")
    return lengths, numbers
