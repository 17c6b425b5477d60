"""Whether a module sees what it should: nothing ahead of it, or just what a mask of the algebra lets it see."""

from collections.abc import Sequence
from typing import Any

from pellucid.check.calling import Call
from pellucid.check.influence import sight_of
from pellucid.check.question import Question
from pellucid.check.report import Report
from pellucid.check.ways import Probe, in_every_way
from pellucid.errors import CheckError
from pellucid.masks import Causal, Mask

__all__ = ["causality", "sees"]


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
        rows: output positions to look at, or how many; all, or 32 of more than 256, if not given.
        call: call(module, *inputs), where calling is not plain.

    Returns:
        A report that names each output position which sees ahead, and what it sees; where, by the first submodule that
        breaks the promise; and the likely slip.

    Raises:
        CheckError: the module cannot be called so, or its outputs do not stand at its input's positions.

    >>> import torch
    >>> print(causality(lambda x: x.flip(dims=(1,)), torch.ones(1, 3, 1)).picture)
        meant   found
        0 1 2   0 1 2
      0 ■ · ·   · · !
      1 ■ ■ ·   · ■ ·
      2 ■ ■ ■   ■ · ·
        (■ sees, ! sees what it must not)
    """

    def measure(probe: Probe) -> Report:
        sight = sight_of(probe, of, inputs_axis, outputs_axis)
        return Question(
            "causality", "no output position may depend on a later input position", sight, rows, Causal()
        ).report()

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
        rows: output positions to look at, or how many; all, or 32 of more than 256, if not given.
        call: call(module, *inputs), where calling is not plain.

    Returns:
        A report of what is seen though it must not be, and of what is not seen though it should be.

    Raises:
        CheckError: no mask is given, it does not fit, or the module cannot be called so.

    >>> import torch
    >>> from pellucid.masks import Window
    >>> sees(lambda x: x + x.roll(1, dims=1), torch.ones(1, 5, 1), Window(1, 0)).findings
    ('output 0 depends on input 4 (slope 1.54)',)
    """
    if mask is None and inputs and isinstance(inputs[-1], Mask):
        *rest, mask = inputs
        inputs = tuple(rest)
    if not isinstance(mask, Mask) or not isinstance(layers, int) or layers < 1:
        raise CheckError(
            f"sees was given {'no mask' if mask is None else type(mask).__name__} and {layers} layers; give a mask of "
            "pellucid.masks, as in sees(module, x, Causal()), and 1 layer at least"
        )
    meant = mask

    def measure(probe: Probe) -> Report:
        sight = sight_of(probe, of, inputs_axis, outputs_axis)
        through = f"{layers} layers of {meant} let" if layers > 1 else f"{meant} lets"
        asked = f"each output position sees what {through} it see"
        return Question("sees", asked, sight, rows, meant, layers, both=True).report()

    return in_every_way(module, inputs, call, measure)
