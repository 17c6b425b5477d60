"""Whether the samples of a batch touch: whether changing one of them moves another."""

from typing import Any

import torch
from torch import Tensor

from pellucid.check.advice import of_batch
from pellucid.check.apart import allowed_distance, farthest, moved, scale
from pellucid.check.calling import Call
from pellucid.check.dropout import left_on
from pellucid.check.influence import sight_of
from pellucid.check.looked import Looked
from pellucid.check.report import Report
from pellucid.check.sight import Sight
from pellucid.check.ways import Probe, in_every_way
from pellucid.check.where import first_broken, part_of_sample
from pellucid.errors import CheckError

__all__ = ["independence"]

ASKED = "no sample of a batch may depend on another"
SHOWN = 8  # findings that are spelt out


def independence(
    module: Any,
    *inputs: Any,
    inputs_axis: int = 1,
    outputs_axis: int | None = None,
    call: Call | None = None,
    tolerance: float | None = None,
) -> Report:
    """Whether changing one sample leaves the outputs of all others as they were, in evaluation and in training.

    Args:
        module: any module or function.
        inputs: tensors that it is called with, all of the same samples: (B, T, D) states or (B, T) ids, say. Each sample
            is changed in all of them.
        inputs_axis: the axis of positions; samples stand on the front axis beside it.
        outputs_axis: that of the output's; the same where it is not given.
        call: call(module, *inputs), where calling is not plain.
        tolerance: how far outputs may move; where it is not given, 1e-9 in float64, and a thousand roundings in a lower
            precision (a hundred of a function), of the largest output.

    Returns:
        A report that names the samples which touch, with a picture of samples by samples; and the likely slip.

    Raises:
        CheckError: there are fewer than two samples, the inputs have not the same, or the module cannot be called so.

    >>> independence(lambda x: x - x.mean(dim=0), torch.ones(2, 3, 1)).findings[0]
    'sample 1 moves when sample 0 is changed, at position 2 by 4.77'
    """

    def measure(probe: Probe) -> Report:
        chance = left_on(probe, "independence", ASKED)
        sights = [
            sight_of(probe, place, inputs_axis, outputs_axis)
            for place, one in enumerate(probe.inputs)
            if _changeable(one)
        ]
        if len({sight.samples for sight in sights}) != 1 or sights[0].samples < 2:
            shapes = " and ".join(str(tuple(one.shape)) for one in probe.inputs if isinstance(one, Tensor)) or "nothing"
            raise CheckError(
                f"independence was given {shapes}; give tensors with the same samples in each, two at least, and "
                "inputs_axis= where positions stand"
            )
        return _measured(probe, sights, tolerance) if chance is None else chance

    return in_every_way(module, inputs, call, measure)


def _changeable(value: Any) -> bool:
    """Whether an input has samples with content: a mask or a number has none."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() > 0 and value.dtype is not torch.bool


def _measured(probe: Probe, sights: list[Sight], tolerance: float | None) -> Report:
    """What was found in one way of the module."""
    base, samples = sights[-1].output(), sights[0].samples
    if len(base) != samples:
        raise CheckError(
            f"the module gave {len(base)} samples for {samples}; give outputs_axis=, or call=, so that outputs have a row "
            "for each sample"
        )
    allowed = allowed_distance(tolerance, probe.tolerance * scale(base))
    touched, findings, worst, culprit = torch.eye(samples, dtype=torch.bool), [], 0.0, None
    for changed in range(samples):
        inputs = _with_another(probe, sights, changed)
        other = sights[-1].front(probe(*inputs))
        for sample in (one for one in range(samples) if one != changed):
            (place, *_), change = farthest(moved(base[sample], other[sample]))
            worst = max(worst, change)
            if change > allowed:
                touched[sample, changed] = True
                findings.append(
                    f"sample {sample} moves when sample {changed} is changed, at position {place} by {change:.3g}"
                )
                part = part_of_sample(sample, samples, sights[0].axis)
                culprit = culprit or first_broken(probe, inputs, part, sights[-1].length)
    figures: dict[str, float | int | str] = {"samples": samples, "largest change": worst}
    if not findings:
        return Report("independence", ASKED, (), figures)
    looked = Looked(touched, torch.eye(samples, dtype=torch.bool), torch.zeros_like(touched), list(range(samples)))
    shown = findings if len(findings) <= SHOWN else [*findings[:SHOWN], f"and {len(findings) - SHOWN} more pairs"]
    drawn = looked.picture("depends on another sample")
    return Report(
        "independence",
        ASKED,
        tuple(shown),
        figures,
        drawn,
        str(culprit or ""),
        of_batch(culprit, _positions_mix(sights[-1])),
    )


def _with_another(probe: Probe, sights: list[Sight], sample: int) -> tuple[Any, ...]:
    """The inputs with another content of one sample."""
    inputs = list(probe.inputs)
    for sight in sights:
        chosen = (torch.arange(sight.samples) == sample)[:, None].expand(-1, sight.length)
        inputs[sight.of] = sight.changed(chosen)
    return tuple(inputs)


def _positions_mix(sight: Sight) -> bool | None:
    """Whether any output position depends on another position of its own sample; None where that is not known."""
    if sight.samples * sight.length > 1024:
        return None
    base = sight.output()
    if base.shape[1] != sight.length:
        return None
    first = (torch.arange(sight.length) == 0)[None]
    return bool((sight.moves(base, first)[:, 1:] > 0).any())
