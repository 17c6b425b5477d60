"""Angles worked out once, by which any number of layers then turn their queries and keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """How each pair of a head's dimensions is turned at each position, and how much it grows.

    Attributes:
        cos: the cosines, (L, head_dim / 2) or more axes in front, in float32 at least.
        sin: the sines.
        halves: whether dimension i is paired with i + head_dim / 2, rather than 2i with 2i + 1.
    """

    cos: Float[Tensor, "*positions pairs"]
    sin: Float[Tensor, "*positions pairs"]
    halves: bool

    def apply(self, heads: Float[Tensor, "*axes head_dim"]) -> Float[Tensor, "*axes head_dim"]:
        """Turn heads whose axes before the last broadcast with those of the angles; their dtype stays."""
        if self.halves:
            one, other = heads.chunk(2, dim=-1)
        else:
            one, other = heads[..., 0::2], heads[..., 1::2]
        turned = one * self.cos - other * self.sin, one * self.sin + other * self.cos
        whole = torch.cat(turned, dim=-1) if self.halves else torch.stack(turned, dim=-1).flatten(-2)
        return whole.to(heads.dtype)
