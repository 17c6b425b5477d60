"""The relative positions of T5: a number learned for each head and each bucket of distances, added to the scores."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Int
from torch import Tensor, nn

from pellucid.errors import ConfigError
from pellucid.model.bias import Relative
from pellucid.model.positions.counts import count
from pellucid.model.positions.interface import First, Positions
from pellucid.model.positions.places import offsets
from pellucid.shapes import States

__all__ = ["T5Relative"]


class T5Relative(Positions):
    """A learned number for each head and bucket of offsets k - q (Raffel et al. 2020, arXiv 1910.10683, section 2.1).

    Half of a direction's buckets hold one distance each, from 0 up. The other half widen with the logarithm of the
    distance up to `max_distance`, and the last of them holds all that is farther. With `bidirectional`, keys ahead of
    the query have half of all buckets; without, they share the bucket of distance 0, as a causal mask hides them.

    It acts on the scores of self-attention; cross-attention has none, as source and target are counted apart. A cached
    step at position t is given row t of the whole. There is no longest distance: past the trained length keys fall into
    buckets that are known. T5 itself adds it to scores that were not divided by sqrt(d_k), and shares one table between
    the layers of a stack.

    Args:
        num_heads: the heads of the attention it is added in.
        bidirectional: whether keys ahead are told from those behind: True in an encoder, False in a decoder.
        num_buckets: rows of the table; even where bidirectional.
        max_distance: from this distance on all is one bucket.

    Attributes:
        weight: (num_buckets, H), as in the published checkpoints.

    Raises:
        ConfigError: a number is not whole or below 1, there are too few buckets or an odd number for two directions, or
            `max_distance` is not past the buckets of one distance.

    >>> T5Relative(num_heads=3).bias(queries=5, keys=7).table.shape
    torch.Size([3, 11])
    """

    _bounds: Tensor

    def __init__(
        self, num_heads: int, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        num_heads, num_buckets, max_distance = _counts(num_heads, num_buckets, max_distance)
        if num_buckets < 2 * directions or num_buckets % directions:
            raise ConfigError(
                f"T5Relative was given num_buckets={num_buckets} and bidirectional={bidirectional}; give at least 2 "
                "buckets for each direction, and as many for one as for the other"
            )
        single = num_buckets // directions // 2
        if max_distance <= single:
            raise ConfigError(
                f"T5Relative was given max_distance={max_distance}, but the distances below {single} have a bucket "
                "each; give a larger max_distance, or fewer num_buckets"
            )
        self.bidirectional = bidirectional
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight, std=0.02)
        wide = num_buckets // directions - single
        bounds = [*range(1, single), *(_bound(single, max_distance, step, wide) for step in range(wide))]
        self.register_buffer("_bounds", torch.tensor(bounds), persistent=False)

    def buckets(self, offsets: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
        """The row of `weight` that stands for each offset k - q.

        The bounds of the buckets are exact, where the published code rounds logarithms.

        >>> T5Relative(num_heads=1).buckets(torch.tensor([-200, -8, -7, 0, 7, 8, 200])).tolist()
        [15, 8, 7, 0, 23, 24, 31]
        """
        distances = offsets.abs() if self.bidirectional else (-offsets).clamp(min=0)
        buckets = torch.bucketize(distances, self._bounds, right=True)
        if not self.bidirectional:
            return buckets
        return buckets + (offsets > 0) * (len(self._bounds) + 1)

    def forward(self, states: States, first: First = 0) -> States:  # noqa: ARG002
        """The states as they are: nothing is added to embeddings."""
        return states

    def bias(self, queries: int, keys: int, first_query: int = 0) -> Relative:
        """What is added to the scores of those queries and of the keys from 0 on.

        Args:
            queries: how many queries stand in a row.
            keys: how many keys, the first at position 0.
            first_query: the absolute position of the first query.

        Returns:
            A table (H, queries + keys - 1), in the dtype of `weight`, which gradients reach through it.
        """
        rows = self.buckets(offsets(queries, keys, first_query, self.weight.device))
        return Relative(F.embedding(rows, self.weight).T, least=1 - queries - first_query)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        num_buckets, num_heads = self.weight.shape
        return (
            f"num_heads={num_heads}, bidirectional={self.bidirectional}, num_buckets={num_buckets}, "
            f"max_distance={self.max_distance}"
        )


def _counts(num_heads: int, num_buckets: int, max_distance: int) -> tuple[int, int, int]:
    """The same numbers, where each is whole and from 1 up."""
    given = "T5Relative was given"
    return (
        count(
            num_heads, f"{given} num_heads", "each head learns its own numbers", "the attention's own number of heads"
        ),
        count(num_buckets, f"{given} num_buckets", "it counts the rows of the table", "how many buckets there are"),
        count(max_distance, f"{given} max_distance", "it counts positions", "the distance from which on all are alike"),
    )


def _bound(single: int, max_distance: int, step: int, steps: int) -> int:
    """The least distance of a wide bucket: single * (max_distance / single)^(step / steps), rounded up exactly."""
    near = round(single * math.pow(max_distance / single, step / steps))
    return near + int(pow(near, steps) < pow(single, steps - step) * pow(max_distance, step))
