"""One attention to be computed: the tensors, what each query may see, and what else is asked for."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.masks import Dense, Full, Heads, Mask, Predicate
from pellucid.masks.joins import Join, Not
from pellucid.model.bias import Relative

__all__ = ["Bias", "Call", "every_head", "may_be_kept"]

KEPT = 2**20  # cells of a dense mask of which a plan is kept

Bias = Float[Tensor, "#batch #heads #query #key"] | Relative
"""What is added to the scores: a tensor that broadcasts to them, or a number for each offset."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What `attend` was given, its sizes checked.

    Attributes:
        query: (B, H, Q, head_dim).
        key: (B, H or fewer, K, head_dim); each serves as many query heads as there are fewer.
        value: (B, H or fewer, K, value_dim).
        mask: what each query may look at, simplified for these sizes.
        bias: added to the scores.
        first_query: the absolute position of the first query.
        dropout: the share of weights that is dropped.
    """

    query: Float[Tensor, "batch heads query head_dim"]
    key: Float[Tensor, "batch key_heads key head_dim"]
    value: Float[Tensor, "batch key_heads key value_dim"]
    mask: Mask
    bias: Bias | None = None
    first_query: int = 0
    dropout: float = 0.0

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        first_query: int,
        dropout: float,
    ) -> "Call":
        """The call, its mask simplified for its sizes."""
        within = Full() if mask is None else mask.within(query.shape[2], key.shape[2], first_query)
        return Call(query, key, value, within, bias, first_query, dropout)

    @property
    def size(self) -> tuple[int, int, int]:
        """Queries, keys, and the position of the first query."""
        return self.query.shape[2], self.key.shape[2], self.first_query

    @property
    def learns(self) -> bool:
        """Whether gradients will be asked for."""
        return torch.is_grad_enabled() and any(
            tensor.requires_grad
            for tensor in (self.query, self.key, self.value, self.bias_tensor)
            if tensor is not None
        )

    @property
    def bias_tensor(self) -> Tensor | None:
        """The tensor in which the bias is kept."""
        return self.bias.table if isinstance(self.bias, Relative) else self.bias

    def scores_bias(self) -> Float[Tensor, "#batch #heads #query #key"] | None:
        """The bias as a tensor that broadcasts to all scores, in the queries' dtype."""
        whole = self.bias.scores(*self.size) if isinstance(self.bias, Relative) else self.bias
        return None if whole is None else whole.to(self.query.dtype)


def every_head(heads: int, shared: Tensor) -> Tensor:
    """Keys or values (B, fewer, K, D) for each query head: (B, H, K, D)."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], dim=1)


def may_be_kept(mask: Mask) -> bool:
    """Whether what was found out about a mask may be kept for the next call that has an equal one.

    A `Predicate` equals itself even after what its function reads has changed, and a large `Dense` would be kept alive.
    """
    match mask:
        case Predicate():
            return False
        case Dense():
            sizes = (mask.batch, mask.heads, *mask.known)
            return math.prod(size or 1 for size in sizes) <= KEPT
        case Join(parts=parts) | Heads(masks=parts):
            return all(map(may_be_kept, parts))
        case Not(part=part):
            return may_be_kept(part)
    return True
