"""The attention formula made fast, equal to it wherever it is defined.

A kernel asks a mask for its structure: what hides nothing at this size is not applied, a causal square uses the
kernel's own flag, and padding stays one row for each sample.
"""

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float
from torch import Tensor

from pellucid.masks import Causal, Mask

__all__ = ["fused"]


def fused(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch heads key head_dim"],
    value: Float[Tensor, "batch heads key value_dim"],
    mask: Mask | None,
    bias: Float[Tensor, "#batch #heads #query #key"] | None,
    first_query: int,
    dropout: float,
) -> Float[Tensor, "batch heads query value_dim"]:
    """`attend` through `torch.nn.functional.scaled_dot_product_attention`, which never writes all weights at once."""
    queries, keys = query.shape[2], key.shape[2]
    if mask is not None:
        mask = mask.within(queries, keys, first_query)
    if mask is None or mask.sees_everything:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    if mask == Causal() and bias is None and first_query == 0 and queries == keys:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    look = mask.broadcast(queries, keys, first_query, query.device)
    scores = look if bias is None else bias.masked_fill(~look, float("-inf"))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=scores, dropout_p=dropout)
