"""Whether a sample's result is its own: the same alone, in a batch, and in the batch in another order."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from pellucid.check.copies import Call, matching, plain_call, seen
from pellucid.check.padded import NAMES
from pellucid.check.report import Report
from pellucid.errors import CheckError
from pellucid.shapes import Lengths

__all__ = ["batching"]

Told = Int[Tensor, " _samples"] | Sequence[int] | None
"""Lengths of some of the samples."""

NAMES_BY_INPUT = (NAMES, ("target_lengths", "tgt_lengths", "output_lengths"))
"""Arguments by which modules are known to take the lengths of their first input and of their second."""


def batching(
    module: Any,
    *inputs: Any,
    lengths: Lengths | Sequence[Lengths | None] | None = None,
    call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether each sample gives what it gives alone and without padding, whatever batch it is in and wherever in it.

    Measured on a float64 copy in evaluation mode; a function is called as it is, with the inputs as they are.

    Args:
        module: any module or function whose outputs have a row for each sample; where they stand at positions, then at
            those of its last input.
        inputs: tensors that it is called with, as many as it takes, batch first: (B, T, D) states or (B, T) ids, say.
        lengths: real positions of each sample, where inputs are padded at the end: those of the only input, or for
            several inputs a sequence of the lengths of each, None where one has no padding. The module is told them.
        call: call(module, *inputs) or, with lengths, call(module, *inputs, *lengths of each), where calling is not plain
            or the module takes lengths by names that are not known.
        tolerance: how far apart outputs may lie; where it is not given, 1e-9 in float64, and a hundred roundings of 1
            in the lower precision that a function may have.

    Raises:
        CheckError: inputs are not tensors of the same two samples or more, lengths do not fit them, no way is known to
            tell the module the lengths, or its outputs do not have a row for each sample.

    >>> print(batching(lambda x: x - x.mean(dim=0), torch.tensor([[[1.0], [3.0]], [[2.0], [3.0]]])))
    batching: FAILED: a sample must not depend on the batch around it
      alone, sample 0 changes at position 0 by 0.5
      alone, sample 1 changes at position 0 by 0.5
      samples = 2
      largest change = 0.5
    """
    sizes = _fitting(inputs, lengths)
    called = plain_call(call or _by_names(module, sizes))
    batch = _Batch(called, seen(module), tuple(matching(value, module) for value in inputs), sizes)
    order = [*range(1, batch.samples), 0]  # nobody stays in place
    together, shuffled = batch.outputs(range(batch.samples)), batch.outputs(order)
    ways = {
        "alone": [batch.alone(sample) for sample in range(batch.samples)],
        "in another order": [shuffled[order.index(sample)] for sample in range(batch.samples)],
    }
    real = _real(ways["alone"], sizes[-1])
    rounding = torch.finfo(together.dtype).eps if together.is_floating_point() else 0.0
    allowed = tolerance if tolerance is not None else max(1e-9, 100 * rounding)
    findings, worst = [], 0.0
    for way, others in ways.items():
        for sample, other in enumerate(others):
            place, change = _farthest(together[sample][real[sample]], other[real[sample]])
            worst = max(worst, change)
            if change > allowed:
                findings.append(f"{way}, sample {sample} changes{place} by {change:.3g}")
    asked = "a sample must not depend on the batch around it"
    return Report("batching", asked, tuple(findings), {"samples": batch.samples, "largest change": worst})


@dataclass(frozen=True, slots=True)
class _Batch:
    """The inputs of a module, of which it can be given any samples."""

    called: Callable[..., Tensor]
    module: Any
    inputs: tuple[Tensor, ...]
    sizes: tuple[Told, ...]

    @property
    def samples(self) -> int:
        """Samples in the whole batch."""
        return len(self.inputs[0])

    def outputs(self, order: Sequence[int]) -> Tensor:
        """What the module gives for these samples together."""
        rows = list(order)
        return self._given([value[rows] for value in self.inputs], [_chosen(side, rows) for side in self.sizes])

    def alone(self, sample: int) -> Tensor:
        """What the module gives for one sample without its padding, or with one position of it where all is padding."""
        sizes = [_chosen(side, [sample]) for side in self.sizes]
        cut = [
            value[[sample]] if side is None else value[[sample], : max(1, int(side[0]))]
            for value, side in zip(self.inputs, sizes, strict=True)
        ]
        return self._given(cut, sizes)[0]

    def _given(self, inputs: list[Tensor], sizes: list[Told]) -> Tensor:
        told = sizes if any(side is not None for side in sizes) else []
        output = self.called(self.module, *inputs, *told).detach()
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
    numbers = [int(length) for length in lengths]
    at_positions = all(one.dim() and len(one) == max(1, length) for one, length in zip(alone, numbers, strict=True))
    return [slice(length) if at_positions else ... for length in numbers]


def _farthest(one: Tensor, other: Tensor) -> tuple[str, float]:
    """Where two outputs of a sample lie farthest apart, and how far; what is no number lies infinitely far."""
    if one.shape != other.shape:
        raise CheckError(
            f"the module gave {tuple(one.shape)} for a sample in the batch and {tuple(other.shape)} for the same alone; "
            "give lengths, or call=, with which its outputs stand at the positions of its last input"
        )
    if not one.numel():
        return "", 0.0
    apart = (one.double() - other.double()).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    if one.dim() == 0:
        return "", float(apart)
    apart = apart.flatten(1).amax(dim=1) if one.dim() > 1 else apart
    place = int(apart.argmax())
    return f" {'at position' if one.dim() > 1 else 'in element'} {place}", float(apart[place])


def _by_names(module: Any, sizes: tuple[Told, ...]) -> Call:
    """Call a module with the lengths of its inputs under the names that it has for them."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        known = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # functions written in C have none
        known = []
    names: list[str | None] = []
    for index, side in enumerate(sizes):
        possible = NAMES_BY_INPUT[index] if index < len(NAMES_BY_INPUT) else ()
        found = next((name for name in possible if name in known), None)
        if side is not None and found is None:
            raise CheckError(
                f"{type(module).__name__} has no argument for the lengths of input {index}"
                f"{', known as ' + ', '.join(possible) if possible else ''}; give call=lambda module, ... that takes all "
                "inputs and then the lengths of each"
            )
        names.append(None if side is None else found)

    def called(module: Any, *given: Any) -> Any:
        inputs, told = given[: len(sizes)], given[len(sizes) :]
        return module(*inputs, **{name: side for name, side in zip(names, told or names, strict=True) if name})

    return called


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
        numbers = [] if side is None else [int(length) for length in side]
        longest = value.shape[1] if value.dim() > 1 else 0
        if side is not None and (len(numbers) != len(value) or min(numbers) < 0 or max(numbers) > longest):
            raise CheckError(
                f"lengths {numbers} do not fit an input of shape {tuple(value.shape)}; give one for each sample"
            )
    return sizes
