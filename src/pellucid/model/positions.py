"""Where a token stands, told to the model by adding a vector to its embedding.

Every scheme takes states and the absolute position of the first of them, so that a cached step at position t is given
row t of the same table.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import ConfigError, PositionError
from pellucid.shapes import States

__all__ = ["Learned", "NoPositions", "Positions", "Sinusoidal"]


class Positions(nn.Module, ABC):
    """A scheme that adds positions to embeddings."""

    @abstractmethod
    def forward(self, states: States, first: int = 0) -> States:
        """Return the states with positions first, first + 1, ... told to them."""


class NoPositions(Positions):
    """Positions left untold: the states as they are."""

    def forward(self, states: States, first: int = 0) -> States:  # noqa: ARG002
        """Return the states unchanged."""
        return states


class Sinusoidal(Positions):
    """Sines and cosines of wavelengths from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model)).
    An odd d_model ends with a sine. There is no longest position.

    Args:
        d_model: width of the states.
        layout: "interleaved" puts each cosine beside its sine, as the paper does; "halves" puts all sines first.

    >>> Sinusoidal(d_model=4).table(length=2).mul(100).round().int().tolist()
    [[0, 100, 0, 100], [84, 54, 1, 100]]
    """

    def __init__(self, d_model: int, layout: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        if layout not in ("interleaved", "halves"):
            raise ConfigError(f"Sinusoidal was given layout={layout!r}, but it knows 'interleaved' and 'halves'")
        self.d_model = d_model
        self.layout = layout

    def table(
        self,
        length: int,
        first: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "length d_model"]:
        """Rows first to first + length - 1 of the table, computed in float64 and then rounded."""
        pos = torch.arange(first, first + length, dtype=torch.float64, device=device)[:, None]
        two_i = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=device)
        angles = pos * torch.exp(two_i * (-math.log(10000.0) / self.d_model))
        sines, cosines = angles.sin(), angles[:, : self.d_model // 2].cos()
        if self.layout == "halves":
            return torch.cat([sines, cosines], dim=1).to(dtype)
        table = angles.new_empty(length, self.d_model)
        table[:, 0::2], table[:, 1::2] = sines, cosines
        return table.to(dtype)

    def forward(self, states: States, first: int = 0) -> States:
        """Return states + table[first : first + length]."""
        return states + self.table(states.shape[1], first, states.dtype, states.device)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"d_model={self.d_model}, layout={self.layout!r}"


class Learned(Positions):
    """A vector learned for each of `max_positions` positions (Gehring et al. 2017, arXiv 1705.03122, section 3.1).

    Args:
        d_model: width of the states.
        max_positions: how many positions are learned: 0 to max_positions - 1.
    """

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, states: States, first: int = 0) -> States:
        """Return states + weight[first : first + length].

        Raises:
            PositionError: a state stands past the last learned position.
        """
        past = first + states.shape[1]
        if past > self.max_positions:
            raise PositionError(
                f"a token stands at position {past - 1}, but max_positions={self.max_positions} were learned, "
                f"0 to {self.max_positions - 1}; shorten the text, or train with a larger max_positions or with "
                "sinusoidal positions, which have no end"
            )
        return states + self.weight[first:past].to(states.dtype)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"max_positions={self.max_positions}, d_model={self.weight.shape[1]}"
