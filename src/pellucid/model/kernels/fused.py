"""The attention formula through torch's `scaled_dot_product_attention`, with as little of a mask as it can be given."""

import math

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float
from torch import Tensor

from pellucid.masks import Causal
from pellucid.model.kernels.call import Call

__all__ = ["fused", "is_past"]


def fused(call: Call) -> Float[Tensor, "batch heads query value_dim"]:
    """`attend` through torch's own kernel, which never writes all weights at once.

    What hides nothing at this size is not applied, a causal mask becomes the kernel's own flag, and a mask is as small
    as it can be: padding costs a row for each sample.
    """
    mask, bias = call.mask, call.scores_bias()
    shared = call.key.shape[1] != call.query.shape[1]
    past = bias is None and is_past(call)
    if not (past or mask.sees_everything):
        look = mask.broadcast(*call.size, call.query.device)
        bias = look if bias is None else bias.masked_fill(~look, -math.inf)
    return F.scaled_dot_product_attention(
        call.query, call.key, call.value, attn_mask=bias, dropout_p=call.dropout, is_causal=past, enable_gqa=shared
    )


def is_past(call: Call) -> bool:
    """Whether the mask is the kernel's own flag: key k for queries k and later, both counted from 0."""
    return call.first_query == 0 and call.mask == Causal()
