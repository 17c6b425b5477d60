"""What an output position really sees: how strongly each depends on each input position, by gradient or by change.

Gradients are exact where they exist, and also find what is too faint to move a rounded number. Changing an input and
looking whether an output moves finds the rest: token ids, and steps without a gradient, as a choice of the largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.check.apart import moved, scale
from pellucid.check.slopes import leaves_of, slopes
from pellucid.check.ways import Probe
from pellucid.errors import CheckError

__all__ = ["Axes", "Sight"]

PROBES = 2
"""Random projections of each output whose gradients are taken, and contents that an input is given, so that a chance zero
hides nothing."""

MANY = 32
"""Of more outputs than these, one projection each is taken: with real random numbers a chance zero hardly exists."""

Strengths = Float[Tensor, "samples rows inputs"]
"""How strongly each row of a sample depends on each input position of it; one sample where all are taken together."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Which axes count positions, of the input that is asked about and of the output; samples stand in front of them."""

    inputs: int = 1
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class Sight:
    """A module as it sees one of its inputs.

    Attributes:
        probe: the module, prepared.
        of: the place of the input that is asked about.
        axes: where positions stand.
    """

    probe: Probe
    of: int
    axes: Axes = Axes()

    @property
    def x(self) -> Tensor:
        """The input that is asked about."""
        value: Tensor = self.probe.inputs[self.of]
        return value

    @property
    def axis(self) -> int:
        """Where positions stand in it, and in what it is embedded as."""
        return self.axes.inputs % self.x.dim() if self.x.dim() > 1 else 0

    @property
    def length(self) -> int:
        """Positions of that input."""
        return self.x.shape[self.axis]

    @property
    def samples(self) -> int:
        """Samples of that input."""
        return len(front(self.x, self.axis))

    def output(self, x: Tensor | None = None) -> Tensor:
        """What the module gives, for another x where one is given: (samples, positions, the rest in one axis)."""
        inputs = list(self.probe.inputs)
        inputs[self.of] = self.x if x is None else x
        return self.front(self.probe(*inputs))

    def front(self, output: Tensor) -> Tensor:
        """An output as (samples, positions, the rest in one axis)."""
        axis, dims = self.axes.outputs, output.dim()
        pooled = dims == 2 and -dims <= axis < dims and output.shape[axis] != self.length and self.x.dim() > 1
        if not -dims <= axis < dims or pooled:  # (batch, width) is what a mean over positions gives
            raise CheckError(
                f"the module gave {tuple(output.shape)} for {self.length} positions of {tuple(self.x.shape)}, but outputs "
                f"were to stand at positions on axis {axis}; give outputs_axis=, or call= that hands back such outputs"
            )
        return front(output, self.axes.outputs)

    def by_gradient(self, rows: Sequence[int], *, by_sample: bool = False) -> Strengths | None:
        """The largest slope of each row by each input position; None where there are no gradients.

        Args:
            rows: output positions.
            by_sample: whether each sample is asked by itself; else all samples are taken together.
        """
        with leaves_of(self.probe, self.of) as (inputs, leaves):
            output = self.front(self.probe(*inputs))
        if not leaves or not output.requires_grad:
            return None
        generator = torch.Generator().manual_seed(0)
        views = output if by_sample else output.movedim(0, 1).flatten(1)[None]
        sums = []
        for _ in range(PROBES if len(rows) <= MANY else 1):
            noise = torch.randn(views.shape, generator=generator, dtype=torch.float64).to(views)
            sums.append((views * noise).sum(-1)[:, list(rows)])
        asked = torch.stack(sums)  # probes, samples, rows
        with self.probe.mode():
            found = slopes(asked.flatten(), leaves)
        if found is None:
            return None
        seen = torch.stack([self._strongest(slope, asked) for slope in found]).amax(dim=0)
        return seen.diagonal(dim1=0, dim2=2).permute(2, 1, 0) if by_sample else seen.amax(dim=0).permute(1, 2, 0)

    def _strongest(
        self, slope: Tensor, asked: Float[Tensor, "probes asked_samples rows"]
    ) -> Float[Tensor, "samples inputs asked_samples rows"]:
        """The largest slope at each input position, over what stands there and over the probes."""
        slope = slope[..., None] if slope.dim() == 2 else slope  # of numbers that stand alone at their positions
        each = front(slope.movedim(0, -1), self.axis)
        largest = each.reshape(*each.shape[:2], -1, asked.numel()).abs().amax(dim=2).double()
        return (
            largest.nan_to_num(nan=float("inf"), posinf=float("inf"))
            .reshape(*largest.shape[:2], *asked.shape)
            .amax(dim=2)
        )

    def by_change(self, rows: Sequence[int], columns: Sequence[int], *, by_sample: bool = False) -> Strengths:
        """How far each row moves where an input position gets another content; (samples, rows, columns)."""
        base = self.output()
        changes = []
        for column in columns:
            hidden = torch.zeros(1, self.length, dtype=torch.bool)
            hidden[0, column] = True
            each = torch.stack([self.moves(base, hidden, draw)[:, list(rows)] for draw in range(PROBES)]).amax(dim=0)
            changes.append(each if by_sample else each.amax(dim=0, keepdim=True))
        return torch.stack(changes, dim=-1)

    def moves(
        self, base: Tensor, chosen: Bool[Tensor, "_samples inputs"], draw: int = 0
    ) -> Float[Tensor, "samples rows"]:
        """How far each output position lies from the base once the chosen inputs have another content.

        Less than the tolerance of the module's precision counts as nothing.
        """
        other = self.output(self.changed(chosen, draw))
        if other.shape != base.shape:
            raise CheckError(
                f"the module gave {tuple(base.shape)}, and {tuple(other.shape)} once the content of its input was another; "
                "give call= that hands back outputs of one shape"
            )
        distance = moved(base, other)
        farthest = distance.amax(dim=-1) if distance.shape[-1] else distance.sum(dim=-1)
        return torch.where(farthest > self.probe.tolerance * scale(base), farthest, 0.0)

    def changed(self, chosen: Bool[Tensor, "_samples inputs"], draw: int = 0) -> Tensor:
        """The input with another content at the chosen positions, where each number or id is another.

        Raises:
            CheckError: ids are all the same, so that none is known to change them to.
        """
        x = self.x
        generator = torch.Generator().manual_seed(draw)
        if x.is_floating_point():
            spread = max(3.0, scale(x))
            other = x + spread * (1 + torch.randn(x.shape, generator=generator).abs()).to(x)
        else:
            known = _known_ids(x)
            places = torch.searchsorted(known, x.clamp(min=int(known[0])).contiguous())
            turned = torch.randint(1, len(known), x.shape, generator=generator).to(x.device)
            other = known[(places + turned) % len(known)].to(x.dtype)
        where = chosen.expand(self.samples, -1).to(x.device)
        if x.dim() == 1:
            return torch.where(where[0], other, x)
        where = where.reshape(*where.shape, *[1] * (x.dim() - 2))
        return torch.where(where.movedim((0, 1), (_beside(self.axis), self.axis)), other, x)


def front(value: Tensor, axis: int) -> Tensor:
    """A tensor as (samples, positions, the rest in one axis); samples are the first axis that is not the positions'."""
    if value.dim() == 1:
        return value[None, :, None]
    if not -value.dim() <= axis < value.dim():
        raise CheckError(
            f"an input of {tuple(value.shape)} has no axis {axis}; give inputs_axis= where positions stand"
        )
    axis %= value.dim()
    moved = value.movedim((_beside(axis), axis), (0, 1))
    return moved.flatten(2) if moved.dim() > 2 else moved[..., None]


def _beside(axis: int) -> int:
    """The axis of samples, beside one of positions."""
    return 0 if axis != 0 else 1


def _known_ids(ids: Tensor) -> Tensor:
    """Ids that surely exist, sorted: those that stand there, and what lies between them, but for padding."""
    least, most = int(ids.min()), int(ids.max())
    known = torch.arange(max(1, least) if most > 1 else least, most + 1, device=ids.device)
    if len(known) < 2:
        raise CheckError(
            f"the ids are all {most}, so there is none to change them to; give ids of several tokens, drawn at random say"
        )
    return known
