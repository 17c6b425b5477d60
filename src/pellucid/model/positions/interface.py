"""The one interface of all position schemes, with three doors: states, queries and keys, scores."""

from abc import ABC, abstractmethod

from jaxtyping import Int
from torch import Tensor, nn

from pellucid.model.bias import Relative
from pellucid.model.positions.turn import Turn
from pellucid.shapes import Heads, States

__all__ = ["First", "Positions"]

First = int | Int[Tensor, " batch"]
"""The absolute position of the first of several: one for all samples, or one for each, below 0 where padding precedes."""


class Positions(nn.Module, ABC):
    """How a model is told where its tokens stand. A scheme opens one of three doors; the others leave all as it is.

    - `forward`: something is added to the embeddings, once, before the first layer;
    - `rotate`: queries and keys are turned by an angle of their position, in each self-attention;
    - `bias`: something is added to the scores of each self-attention by the distance from query to key.

    Every door takes the absolute position of the first token it is given, so that a cached step at position t is given
    what row t of the whole is given. Cross-attention takes none of the last two: source and target are counted apart.
    """

    @abstractmethod
    def forward(self, states: States, first: First = 0) -> States:
        """The states (B, L, d_model), positions first, first + 1, ... told to them; as they are, by another door."""

    def rotate(self, heads: Heads, first: First = 0) -> Heads:  # noqa: ARG002
        """Queries or keys (B, H, L, head_dim), turned to positions first, first + 1, ..."""
        return heads

    def turn(self, length: int, first: int, like: Tensor) -> Turn | None:  # noqa: ARG002
        """What `rotate` does to positions first, first + 1, ..., worked out once for many layers; None for nothing."""
        return None

    def bias(self, queries: int, keys: int, first_query: int = 0) -> Relative | None:  # noqa: ARG002
        """What is added to the scores of queries first_query, first_query + 1, ... and keys 0, 1, ..., if anything."""
        return None
