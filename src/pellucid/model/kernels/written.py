"""One tile of attention with its scores written out: plain tensor products, on any device and in any dtype."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Gradients", "Numbers", "backward", "forward"]


class Numbers(NamedTuple):
    """A tile's tensors: (samples, heads, rows, head_dim), keys and values (samples, heads, columns, ...)."""

    query: Tensor
    key: Tensor
    value: Tensor


class Gradients(NamedTuple):
    """What a tile adds to the gradients of its tensors, and of its scores where that is asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor | None = None


def forward(
    numbers: Numbers, added: Tensor | None, kept: Tensor | None
) -> tuple[Float[Tensor, "samples heads rows value_dim"], Float[Tensor, "samples heads rows"]]:
    """Softmax over the tile's own keys, times its values; and the logarithm of the sum that the softmax divides by.

    Args:
        numbers: the tile's tensors.
        added: what is added to the scores; minus infinity hides.
        kept: what dropout multiplies the weights by, if anything.
    """
    scores = _scores(numbers, added)
    highest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)  # of a row that is blind, finite
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    dropped = weights if kept is None else weights * kept
    # Where all is hidden the sum is 0: zeros, and a logarithm of minus infinity.
    attended = (dropped @ numbers.value.to(weights.dtype)) / total.clamp(min=torch.finfo(total.dtype).tiny)
    return attended, (total.log() + highest).squeeze(-1).masked_fill(total.squeeze(-1) == 0, -math.inf)


def backward(
    grad: Float[Tensor, "samples heads rows value_dim"],
    numbers: Numbers,
    attended: Float[Tensor, "samples heads rows value_dim"],
    logsumexp: Float[Tensor, "samples heads rows"],
    added: Tensor | None,
    kept: Tensor | None,
) -> Gradients:
    """What this tile adds to the gradients, from the attention and the logarithms of all tiles together.

    With P the weights and dP = dO V^T, dS = P * (dP - rowsum(dO * O)): the softmax's gradient, for which a row's output
    is all that is needed of the other tiles (Dao et al. 2022, arXiv 2205.14135, appendix B.2).
    """
    weights = _scores(numbers, added).sub_(logsumexp[..., None]).exp_()
    query, key, value = (tensor.to(weights.dtype) for tensor in numbers)
    grad = grad.to(weights.dtype)
    into_weights = grad @ value.transpose(-1, -2)
    dropped = weights
    if kept is not None:
        into_weights, dropped = into_weights * kept, weights * kept
    into_value = dropped.transpose(-1, -2) @ grad
    shared = (grad * attended).sum(-1, keepdim=True)
    into_scores = into_weights.sub_(shared).mul_(weights)
    scaled = into_scores / math.sqrt(query.shape[-1])
    return Gradients(scaled @ key, scaled.transpose(-1, -2) @ query, into_value, into_scores)


def _scores(numbers: Numbers, added: Tensor | None) -> Tensor:
    """Q K^T / sqrt(d_k) and what is added, in float32 at least."""
    wide = torch.promote_types(numbers.query.dtype, torch.float32)
    query, key = numbers.query.to(wide), numbers.key.to(wide)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    return scores if added is None else scores.add_(added)
