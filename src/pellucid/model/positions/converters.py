"""Layouts changed into each other: of sinusoid tables, and of the projections in front of rotary positions."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import ConfigError, ShapeError

__all__ = ["halves_to_interleaved", "interleaved_to_halves", "rotary_weights"]


def interleaved_to_halves(table: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
    """The same columns, those of even index first: from sine, cosine, sine, ... to all sines, then all cosines.

    The paper's layout (Vaswani et al. 2017, section 3.5) becomes that of tensor2tensor, fairseq and Marian. An odd
    width has one sine more.

    >>> interleaved_to_halves(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])).tolist()
    [0.0, 2.0, 4.0, 1.0, 3.0]
    """
    return torch.cat([table[..., 0::2], table[..., 1::2]], dim=-1)


def halves_to_interleaved(table: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes width"]:
    """The way back of `interleaved_to_halves`: a sine of the first half, a cosine of the second, in turn.

    >>> halves_to_interleaved(torch.tensor([0.0, 2.0, 4.0, 1.0, 3.0])).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    sines = (table.shape[-1] + 1) // 2
    interleaved = torch.empty_like(table)
    interleaved[..., 0::2], interleaved[..., 1::2] = table[..., :sines], table[..., sines:]
    return interleaved


def rotary_weights(
    weight: Float[Tensor, "rows ..."], num_heads: int, to: Literal["halves", "interleaved"]
) -> Float[Tensor, "rows ..."]:
    """A query's or key's projection for the other `pairs` of `Rotary`: in each head, its rows in the other order.

    With the projections of queries and of keys both converted, every score is the same as before. Values and output
    stay as they are. GPT-J and the original LLaMA turn interleaved pairs, GPT-NeoX and Hugging Face's LLaMA halves.

    Args:
        weight: (H * head_dim, d_model), or a bias (H * head_dim,), head by head, as in `nn.Linear`.
        num_heads: the heads in it: of the keys where they have fewer than the queries.
        to: the layout that is wanted; the weight is in the other.

    Returns:
        A new tensor of the same shape.

    Raises:
        ConfigError: `to` is no layout.
        ShapeError: the rows do not divide into heads of an even width.

    >>> rotary_weights(torch.arange(8.0), num_heads=2, to="halves").tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    if to not in ("halves", "interleaved"):
        raise ConfigError(f"rotary_weights was given to={to!r}, but it knows 'halves' and 'interleaved'; choose one")
    if num_heads < 1 or not weight.dim() or len(weight) % (2 * num_heads):
        raise ShapeError(
            f"rotary_weights was given a weight of shape {tuple(weight.shape)} and num_heads={num_heads}; it needs "
            "num_heads * head_dim rows with an even head_dim, so give one projection and its own number of heads"
        )
    heads = weight.reshape(num_heads, -1, *weight.shape[1:]).movedim(1, -1)
    convert = interleaved_to_halves if to == "halves" else halves_to_interleaved
    return convert(heads).movedim(-1, 1).flatten(0, 1)
