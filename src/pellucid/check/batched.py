"""Whether a sample's result is its own: the same alone, in a batch, in another order, and whatever its neighbours are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pellucid.check.advice import of_batch
from pellucid.check.apart import allowed_distance, farthest, moved, scale
from pellucid.check.calling import Call
from pellucid.check.dropout import left_on
from pellucid.check.lengths import Told, fitting, numbers_of, telling
from pellucid.check.report import Report
from pellucid.check.ways import Probe, in_every_way
from pellucid.errors import CheckError
from pellucid.shapes import Lengths

__all__ = ["batching"]

ASKED = "a sample must not depend on the batch around it"


def batching(
    module: Any,
    *inputs: Any,
    lengths: Lengths | Sequence[Lengths | None] | None = None,
    call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether each sample gives what it gives alone and without padding, whatever batch it is in and wherever in it.

    Asked in evaluation and in training, in float64 and in the module's own precision; a function is called as it is.

    Args:
        module: any module or function whose outputs have a row for each sample; where they stand at positions, then at
            those of its last input.
        inputs: tensors that it is called with, as many as it takes, batch first: (B, T, D) states or (B, T) ids, say.
        lengths: real positions of each sample, where inputs are padded at the end: those of the only input, or for
            several inputs a sequence of the lengths of each, None where one has no padding. The module is told them.
        call: call(module, *inputs) or, with lengths, call(module, *inputs, *lengths of each), where calling is not plain
            or the module takes lengths by names that are not known.
        tolerance: how far apart outputs may lie; where it is not given, 1e-9 in float64, and a thousand roundings in a
            lower precision (a hundred of a function), of the largest output.

    Raises:
        CheckError: inputs are not tensors of the same two samples or more, lengths do not fit them, no way is known to
            tell the module the lengths, or its outputs do not have a row for each sample.

    >>> import torch
    >>> batching(lambda x: x - x.mean(dim=0), torch.tensor([[[1.0], [3.0]], [[2.0], [3.0]]])).findings[0]
    'alone, sample 0 changes at position 0 by 0.5'
    """
    sizes = _fitting(inputs, lengths)
    told = [] if all(side is None for side in sizes) else sizes
    heard = call or telling(module, sizes)

    def called(module: Any, *given: Any) -> Any:  # a probe is called with inputs alone, too
        return heard(module, *given, *(told if len(given) == len(sizes) else ()))

    def measure(probe: Probe) -> Report:
        chance = left_on(probe, "batching", ASKED)
        return _measured(_Batch(probe, sizes), tolerance) if chance is None else chance

    return in_every_way(module, inputs, called, measure)


def _measured(batch: "_Batch", tolerance: float | None) -> Report:
    """What was found in one way of the module."""
    order = [*range(1, batch.samples), 0]  # nobody stays in place
    together, shuffled = batch.outputs(range(batch.samples)), batch.outputs(order)
    others = {
        "alone": [batch.alone(sample) for sample in range(batch.samples)],
        "in another order": [shuffled[order.index(sample)] for sample in range(batch.samples)],
    }
    real = _real(others["alone"], batch.sizes[-1])
    allowed = allowed_distance(tolerance, batch.probe.tolerance * scale(together))
    findings, worst = [], 0.0
    for way, outputs in others.items():
        for sample, other in enumerate(outputs):
            place, change = _farthest(together[sample][real[sample]], other[real[sample]])
            worst = max(worst, change)
            if change > allowed:
                findings.append(f"{way}, sample {sample} changes{place} by {change:.3g}")
    advice = of_batch(None, None) if findings else ""
    if findings and batch.sizes[-1] is not None and all(finding.startswith("alone") for finding in findings):
        advice = "padding is seen, or samples mix; check.padding tells which, and where"
    figures: dict[str, float | int | str] = {"samples": batch.samples, "largest change": worst}
    return Report("batching", ASKED, tuple(findings), figures, advice=advice)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The inputs of a module, of which it can be given any samples."""

    probe: Probe
    sizes: tuple[Told, ...]

    @property
    def samples(self) -> int:
        """Samples in the whole batch."""
        return len(self.probe.inputs[0])

    def outputs(self, order: Sequence[int]) -> Tensor:
        """What the module gives for these samples together."""
        rows = list(order)
        return self._given([value[rows] for value in self.probe.inputs], [_chosen(side, rows) for side in self.sizes])

    def alone(self, sample: int) -> Tensor:
        """What the module gives for one sample without its padding, or with one position of it where all is padding."""
        sizes = [_chosen(side, [sample]) for side in self.sizes]
        cut = [
            value[[sample]] if side is None else value[[sample], : max(1, int(side[0]))]
            for value, side in zip(self.probe.inputs, sizes, strict=True)
        ]
        return self._given(cut, sizes)[0]

    def _given(self, inputs: list[Tensor], sizes: list[Told]) -> Tensor:
        told = sizes if any(side is not None for side in sizes) else []
        output = self.probe(*inputs, *told).detach()
        if output.dim() == 0 or len(output) != len(inputs[0]):
            raise CheckError(
                f"the module gave {tuple(output.shape)} for {len(inputs[0])} samples; give one, or call=, whose outputs "
                "have a row for each sample, batch first"
            )
        return output


def _chosen(lengths: Told, rows: list[int]) -> Told:
    """The lengths of these samples, in the form that they came in."""
    if lengths is None or isinstance(lengths, Tensor):
        return None if lengths is None else lengths[rows]
    chosen = [lengths[row] for row in rows]
    return chosen if isinstance(lengths, list) else tuple(chosen)


def _real(alone: list[Tensor], lengths: Told) -> list[Any]:
    """The part of each sample's output that stands at real positions; all of it where outputs stand at none."""
    if lengths is None:
        return [...] * len(alone)
    numbers = numbers_of(lengths)
    at_positions = all(one.dim() and len(one) == max(1, length) for one, length in zip(alone, numbers, strict=True))
    return [slice(length) if at_positions else ... for length in numbers]


def _farthest(one: Tensor, other: Tensor) -> tuple[str, float]:
    """Where two outputs of a sample lie farthest apart, and how far."""
    if one.shape != other.shape:
        raise CheckError(
            f"the module gave {tuple(one.shape)} for a sample in the batch and {tuple(other.shape)} for the same alone; "
            "give lengths, or call=, with which its outputs stand at the positions of its last input"
        )
    distance = moved(one, other)
    if one.dim() == 0:
        return "", float(distance)
    place, change = farthest(distance.flatten(1).amax(dim=1) if one.dim() > 1 and one.numel() else distance)
    return (f" {'at position' if one.dim() > 1 else 'in element'} {place[0]}" if place else ""), change


def _fitting(inputs: tuple[Any, ...], lengths: Lengths | Sequence[Lengths | None] | None) -> tuple[Lengths | None, ...]:
    """The lengths of each input, where inputs have the same samples and the lengths fit them."""
    batches = {len(value) if isinstance(value, Tensor) and value.dim() else 0 for value in inputs}
    if len(batches) != 1 or min(batches) < 2:
        shapes = (str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__ for value in inputs)
        raise CheckError(
            f"batching was given {' and '.join(shapes) or 'nothing'}; give tensors, batch first, with the same samples in "
            "each, two at least"
        )
    sizes: tuple[Any, ...]
    if lengths is not None and (not isinstance(lengths, Tensor | Sequence) or isinstance(lengths, str)):
        raise CheckError(f"lengths were given as {type(lengths).__name__}; give those of each sample, as in (5, 3)")
    if lengths is None:
        sizes = (None,) * len(inputs)
    elif isinstance(lengths, Tensor) or all(isinstance(one, int) for one in lengths):
        sizes = (lengths,)
    else:
        sizes = tuple(lengths)
    if len(sizes) != len(inputs):
        raise CheckError(
            f"batching was given {len(inputs)} inputs and the lengths of {len(sizes)}; give a sequence with the lengths "
            "of each, None where one has no padding"
        )
    for value, side in zip(inputs, sizes, strict=True):
        if side is not None and not max(fitting(value, side)):
            raise CheckError(
                "all samples of an input are padding, so there is nothing to check; give some of some length"
            )
    return sizes
