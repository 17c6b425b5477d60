"""Attention: the formula, and multi-head attention over it (Vaswani et al. 2017, section 3.2)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import ConfigError, ShapeError
from pellucid.masks import Mask
from pellucid.model.cache import KeysValues
from pellucid.model.kernels import fused
from pellucid.model.sublayer import share
from pellucid.shapes import Heads, States, Weights

__all__ = ["Backend", "MultiHeadAttention", "attend", "attention_weights"]

Backend = Literal["auto", "formula", "fused"]
"""How attention is computed: the formula as written, torch's fused kernel, or whichever is faster."""


def attention_weights(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch heads key head_dim"],
    mask: Mask | None = None,
    bias: Float[Tensor, "#batch #heads #query #key"] | None = None,
    first_query: int = 0,
) -> Weights:
    """How much each query looks at each key: softmax(Q K^T / sqrt(d_k)) over the keys it may see (equation 1).

    A query that may look at nothing has weights of zero, and finite gradients.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return scores.softmax(dim=-1)
    hidden = ~mask.broadcast(query.shape[2], key.shape[2], first_query, query.device)
    # The lowest finite number, not -inf, so that a row in which all is hidden is not NaN; its weights are then dropped.
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(hidden, 0.0)


def attend(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch heads key head_dim"],
    value: Float[Tensor, "batch heads key value_dim"],
    mask: Mask | None = None,
    bias: Float[Tensor, "#batch #heads #query #key"] | None = None,
    first_query: int = 0,
    backend: Backend = "auto",
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query value_dim"]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
        query: (B, H, Q, head_dim).
        key: (B, H, K, head_dim).
        value: (B, H, K, value_dim), where the paper's d_v is value_dim.
        mask: what each query may look at; None lets it look at everything.
        bias: added to the scores before the softmax, broadcast to (B, H, Q, K).
        first_query: the absolute position of the first query; keys begin at 0.
        backend: "formula" is the specification, "fused" torch's kernel, "auto" the faster.
        dropout: the share of weights set to zero, chosen anew at each call.

    Returns:
        (B, H, Q, value_dim); zeros for a query that may look at nothing.

    Raises:
        ShapeError: keys, values and queries do not fit together, or the mask speaks of another batch.
        ConfigError: the backend is unknown.

    >>> from pellucid.masks import Causal
    >>> values = torch.tensor([[[[1.0], [3.0]]]])
    >>> attend(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), values, mask=Causal()).flatten().tolist()
    [1.0, 2.0]
    """
    _check_sizes(query, key, value, mask)
    if backend in ("auto", "fused"):
        return fused(query, key, value, mask, bias, first_query, dropout)
    if backend != "formula":
        raise ConfigError(
            f"attend was given backend={backend!r}, but it knows 'auto', 'formula' and 'fused'; choose one"
        )
    weights = attention_weights(query, key, mask, bias, first_query)
    return F.dropout(weights, dropout) @ value


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own projection of the states (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Args:
        d_model: width of the states.
        num_heads: attentions side by side; each is d_model / num_heads wide.
        bias: whether the four projections add a bias.
        dropout: the share of attention weights dropped while training.
        backend: how each attention is computed.

    Raises:
        ConfigError: d_model does not divide into the heads, or dropout is no share.
    """

    def __init__(
        self, d_model: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0, backend: Backend = "auto"
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ConfigError(
                f"d_model {d_model} does not divide into {num_heads} heads; choose num_heads that divides d_model"
            )
        self.num_heads = num_heads
        self.dropout = share(dropout)
        self.backend: Backend = backend
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch key d_model"],
        value: Float[Tensor, "batch key d_model"],
        mask: Mask | None = None,
        first_query: int = 0,
    ) -> Float[Tensor, "batch query d_model"]:
        """Let each query state look at the key states and gather from the value states.

        Args:
            query: (B, Q, d_model).
            key: (B, K, d_model).
            value: (B, K, d_model).
            mask: what each query may look at; None lets it look at everything.
            first_query: the absolute position of the first query.

        Returns:
            (B, Q, d_model).
        """
        states, _ = self.look(query, self.keys_values(key, value), mask, first_query)
        return states

    def keys_values(self, key: States, value: States) -> KeysValues:
        """Project what is looked at, once, so that a cache may keep it."""
        return KeysValues(self._split(self.key(key)), self._split(self.value(value)))

    def look(
        self,
        query: States,
        seen: KeysValues,
        mask: Mask | None = None,
        first_query: int = 0,
        *,
        need_weights: bool = False,
    ) -> tuple[States, Weights | None]:
        """Let each query state look at projected keys and values; hand back the weights too where they are asked for.

        The weights are those before dropout, computed by the formula whatever the backend.
        """
        heads = self._split(self.query(query))
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            _check_sizes(heads, seen.key, seen.value, mask)
            weights = attention_weights(heads, seen.key, mask, None, first_query)
            attended = F.dropout(weights, dropout) @ seen.value
        else:
            weights = None
            attended = attend(heads, seen.key, seen.value, mask, None, first_query, self.backend, dropout=dropout)
        return self.output(attended.transpose(1, 2).flatten(2)), weights

    def _split(self, states: States) -> Heads:
        """(B, L, d_model) -> (B, H, L, head_dim)."""
        batch, length, d_model = states.shape
        return states.view(batch, length, self.num_heads, d_model // self.num_heads).transpose(1, 2)


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> None:
    """Say which sizes do not fit, before a matrix product says it worse."""
    if key.shape[:3] != value.shape[:3] or query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ShapeError(
            f"attention was given queries {tuple(query.shape)}, keys {tuple(key.shape)} and values "
            f"{tuple(value.shape)}; it needs (batch, heads, length, head_dim) with one batch and number of heads, "
            "queries as wide as keys, and a value for each key"
        )
    if mask is None:
        return
    for what, spoken, given in (("samples", mask.batch, len(query)), ("heads", mask.heads, query.shape[1])):
        if spoken is not None and spoken != given:
            raise ShapeError(
                f"the mask {mask!r} speaks of {spoken} {what}, but attention was given {given}; "
                "make the mask from the lengths of this batch"
            )
