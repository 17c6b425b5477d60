"""Whether chance still decides a module's output where nothing should: dropout that was left on."""

import torch

from pellucid.check.apart import apart
from pellucid.check.report import Report
from pellucid.check.ways import Probe

__all__ = ["CHANGING", "STATE", "left_on"]

ADVICE = (
    "dropout left on: the same call gives another output with other random numbers; pass training=self.training to "
    "F.dropout, or call eval()"
)

CHANGING = "two calls with the same input and random numbers differ"
STATE = (
    "state: a call leaves something to the next, a counter or a cache that is kept on the module; hand it over and back, "
    "and see check.repeatable"
)
NO_NUMBERS = (
    "look for a row of which -inf hides everything, for a division by zero, and for weights that are no numbers"
)


def left_on(probe: Probe, name: str, asked: str) -> Report | None:
    """What a check says of a module that it cannot compare with itself, since each call gives another output.

    In evaluation that is a finding. In training, where dropout is off already, other chance has its place, and a note
    says that nothing was compared.
    """
    with torch.no_grad():
        one, same, other = (probe(*probe.inputs, seed=seed) for seed in (0, 0, 1))
    if one.is_floating_point() and one.numel() and not one.isfinite().any():
        return Report(name, asked, ("no output is finite, so there is nothing to compare",), advice=NO_NUMBERS)
    if one.shape != same.shape or not torch.equal(one.nan_to_num(), same.nan_to_num()):
        return Report(name, asked, (CHANGING,), advice=STATE)
    if one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num()):
        return None
    if probe.way.training:
        return Report(name, asked, notes=("chance decides outputs in training, so none were compared there",))
    change = float(apart(one, other).max()) if one.shape == other.shape else float("inf")
    return Report(name, asked, (f"two calls with the same input differ by {change:.3g}",), advice=ADVICE)
