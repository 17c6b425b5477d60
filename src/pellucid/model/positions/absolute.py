"""Absolute schemes, which add a vector to each embedding: sinusoidal, learned, and none.

Every scheme takes states and the absolute position of the first of them, so that a cached step at position t is given
row t of the same table. Cross-attention needs nothing of its own: source and target states have been told already.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.errors import ConfigError, PositionError, ShapeError
from pellucid.model.positions.converters import halves_to_interleaved
from pellucid.model.positions.counts import count
from pellucid.model.positions.interface import First, Positions
from pellucid.model.positions.places import places, require_place
from pellucid.shapes import States

__all__ = ["Learned", "NoPositions", "Sinusoidal"]

WIDTH = ("it is added to states of that width", "the width of the states")


class NoPositions(Positions):
    """Positions left untold: every door is closed.

    A decoder still feels order through its causal mask (Haviv et al. 2022, arXiv 2203.16634); an encoder does not.

    >>> NoPositions()(torch.ones(1, 2, 3), first=5).sum()
    tensor(6.)
    """

    def forward(self, states: States, first: First = 0) -> States:  # noqa: ARG002
        """The states as they are."""
        return states


class Sinusoidal(Positions):
    """Sines and cosines of wavelengths from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model)).
    An odd d_model ends with a sine. There is no longest position, though a model does worse on lengths it never saw.

    Args:
        d_model: width of the states.
        layout: "interleaved" puts each cosine beside its sine, as the paper does; "halves" puts all sines first.

    Raises:
        ConfigError: d_model is no whole number from 1 up, or the layout is unknown.

    >>> Sinusoidal(d_model=4).table(length=2).mul(100).round().int().tolist()
    [[0, 100, 0, 100], [84, 54, 1, 100]]
    """

    def __init__(self, d_model: int, layout: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        if layout not in ("interleaved", "halves"):
            raise ConfigError(
                f"Sinusoidal was given layout={layout!r}, but it knows 'interleaved' and 'halves'; choose one"
            )
        self.d_model = count(d_model, "Sinusoidal was given d_model", *WIDTH)
        self.layout = layout

    def table(
        self,
        length: int,
        first: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "length d_model"]:
        """Rows first to first + length - 1 of the table, computed in float64 and then rounded.

        Raises:
            ShapeError: `first` is no whole number.
        """
        require_place(first)
        return self._rows(torch.arange(first, first + length, device=device)).to(dtype)

    def forward(self, states: States, first: First = 0) -> States:
        """Return states + table[first : first + length], for each sample its own where `first` is a tensor.

        Args:
            states: (B, L, d_model).
            first: the absolute position of the first state; those below 0, which are padding, are told position 0.

        Raises:
            ShapeError: states are not `d_model` wide, or `first` is neither a whole number nor one for each sample.
        """
        _require_width("Sinusoidal", self.d_model, states)
        return states + self._rows(places(first, states).clamp(min=0)).to(states.dtype)

    def _rows(self, at: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes d_model"]:
        """The table's rows of those positions, in float64."""
        two_i = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=at.device)
        angles = at[..., None] * torch.exp(two_i * (-math.log(10000.0) / self.d_model))
        halves = torch.cat([angles.sin(), angles[..., : self.d_model // 2].cos()], dim=-1)
        return halves if self.layout == "halves" else halves_to_interleaved(halves)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"d_model={self.d_model}, layout={self.layout!r}"


class Learned(Positions):
    """A vector learned for each of `max_positions` positions (Gehring et al. 2017, arXiv 1705.03122, section 3.1).

    Past the last of them it knows nothing, and refuses.

    Args:
        d_model: width of the states.
        max_positions: how many positions are learned: 0 to max_positions - 1.

    Raises:
        ConfigError: one of them is no whole number from 1 up.

    >>> Learned(d_model=3, max_positions=5)(torch.zeros(1, 2, 3), first=3).shape
    torch.Size([1, 2, 3])
    """

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        d_model = count(d_model, "Learned was given d_model", *WIDTH)
        self.max_positions = count(
            max_positions,
            "Learned was given max_positions",
            "each position has its vector",
            "the length of the longest text",
        )
        self.weight = nn.Parameter(torch.empty(self.max_positions, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, states: States, first: First = 0) -> States:
        """Return states + weight[first : first + length], for each sample its own where `first` is a tensor.

        Args:
            states: (B, L, d_model).
            first: the absolute position of the first state; those below 0, which are padding, are told position 0.

        Raises:
            PositionError: a state stands past the last learned position.
            ShapeError: states are not as wide as the vectors, or `first` is neither a whole number nor one for each sample.
        """
        _require_width("Learned", self.weight.shape[1], states)
        at = places(first, states).clamp(min=0)
        latest = max(first.tolist(), default=0) if isinstance(first, Tensor) else first
        past = latest + states.shape[1]
        if past > self.max_positions:
            raise PositionError(
                f"a token stands at position {past - 1}, but max_positions={self.max_positions} were learned, "
                f"0 to {self.max_positions - 1}; shorten the text, or train with a larger max_positions or with "
                "sinusoidal positions, which have no end"
            )
        return states + F.embedding(at, self.weight).to(states.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"max_positions={self.max_positions}, d_model={self.weight.shape[1]}"


def _require_width(scheme: str, d_model: int, states: States) -> None:
    """Refuse states of another width, of which those of width 1 would be widened in silence."""
    if states.shape[-1] != d_model:
        raise ShapeError(
            f"{scheme}(d_model={d_model}) was given states of width {states.shape[-1]}; make it for the width of the states"
        )
