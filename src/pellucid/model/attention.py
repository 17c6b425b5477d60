"""Attention: the formula, and multi-head attention over it (Vaswani et al. 2017, section 3.2)."""

import math
from typing import Literal, overload

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import ConfigError
from pellucid.masks import Mask
from pellucid.model.bias import Relative
from pellucid.model.cache import KeysValues
from pellucid.model.kernels import KERNELS, Backend, Bias, Call, Explanation, choose, every_head, known, require_fit
from pellucid.model.kernels import explain as explained
from pellucid.model.positions import First, Positions
from pellucid.model.sublayer import share
from pellucid.shapes import Heads, States, Weights

__all__ = ["Backend", "MultiHeadAttention", "attend", "attention_weights"]


def attention_weights(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch key_heads key head_dim"],
    mask: Mask | None = None,
    bias: Float[Tensor, "#batch #heads #query #key"] | Relative | None = None,
    first_query: int = 0,
) -> Weights:
    """How much each query looks at each key: softmax(Q K^T / sqrt(d_k)) over the keys it may see (equation 1).

    A query that may look at nothing has weights of zero, and finite gradients.
    """
    scores = (query / math.sqrt(query.shape[-1])) @ every_head(query.shape[1], key).transpose(-2, -1)
    if mask is None and bias is None:
        return scores.softmax(dim=-1)
    hidden = torch.zeros((), dtype=torch.bool, device=query.device)
    if isinstance(bias, Relative):
        bias = bias.scores(query.shape[2], key.shape[2], first_query)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
        hidden = scores == -math.inf  # a bias may hide, too
    if mask is not None:
        hidden = hidden | ~mask.broadcast(query.shape[2], key.shape[2], first_query, query.device)
    # The lowest finite number, not -inf, so that a row in which all is hidden is not NaN; its weights are then dropped.
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(hidden, 0.0)


@overload
def attend(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch key_heads key head_dim"],
    value: Float[Tensor, "batch key_heads key value_dim"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    first_query: int = 0,
    backend: Backend = "auto",
    *,
    dropout: float = 0.0,
    explain: Literal[False] = False,
) -> Float[Tensor, "batch heads query value_dim"]: ...


@overload
def attend(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch key_heads key head_dim"],
    value: Float[Tensor, "batch key_heads key value_dim"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    first_query: int = 0,
    backend: Backend = "auto",
    *,
    dropout: float = 0.0,
    explain: Literal[True],
) -> tuple[Float[Tensor, "batch heads query value_dim"], Explanation]: ...


def attend(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch key_heads key head_dim"],
    value: Float[Tensor, "batch key_heads key value_dim"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    first_query: int = 0,
    backend: Backend = "auto",
    *,
    dropout: float = 0.0,
    explain: bool = False,
) -> Float[Tensor, "batch heads query value_dim"] | tuple[Float[Tensor, "batch heads query value_dim"], Explanation]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
        query: (B, H, Q, head_dim).
        key: (B, H, K, head_dim); fewer heads than H, each shared by H / fewer neighbouring heads of queries, are
            grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).
        value: (B, H, K, value_dim), as many heads as keys; the paper's d_v is value_dim.
        mask: what each query may look at; None lets it look at everything.
        bias: added to the scores before the softmax: a tensor that broadcasts to (B, H, Q, K), or a `Relative`, which
            costs memory that is linear in the length.
        first_query: the absolute position of the first query; keys begin at 0.
        backend: "formula" is the specification, "fused" torch's kernel, "blocks" leaves out what the mask hides in
            whole blocks, "flex" is torch's FlexAttention, "auto" the one that structure and sizes make fastest. One that
            cannot compute the call hands it to one that can. Gradients of gradients and torch.func need the formula.
        dropout: the share of weights set to zero, chosen anew at each call.
        explain: whether to hand back, too, which kernel computed it and why; print it.

    Returns:
        (B, H, Q, value_dim); zeros for a query that may look at nothing.

    Raises:
        ShapeError: keys, values, queries and bias do not fit together, or the mask speaks of another batch.
        MaskError: the mask is none, or does not know so many positions.
        ConfigError: the backend is unknown, or dropout is no share.

    >>> from pellucid.masks import Causal
    >>> values = torch.tensor([[[[1.0], [3.0]]]])
    >>> attend(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), values, mask=Causal()).flatten().tolist()
    [1.0, 2.0]
    """
    require_fit(query, key, value, mask, bias, first_query)
    call = Call.of(query, key, value, mask, bias, first_query, share(dropout))
    kernel, _ = choose(call, backend)
    if kernel == "formula":
        weights = attention_weights(query, key, mask, bias, first_query)
        attended = F.dropout(weights, dropout) @ every_head(query.shape[1], value)
    else:
        attended = KERNELS[kernel](call)
    return (attended, explained(call, backend)) if explain else attended


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own projection of the states (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Args:
        d_model: width of the states.
        num_heads: attentions side by side; each is d_model / num_heads wide.
        num_key_value_heads: heads of keys and values, each shared by num_heads / num_key_value_heads neighbouring heads
            of queries (Ainslie et al. 2023, arXiv 2305.13245, section 2.2); 1 is multi-query attention, None is num_heads.
        bias: whether the four projections add a bias.
        dropout: the share of attention weights dropped while training.
        backend: how each attention is computed.

    Raises:
        ConfigError: d_model does not divide into the heads, or the heads into those of keys and values, or dropout is no
            share.

    >>> from pellucid.model.positions import ALiBi
    >>> states = torch.zeros(2, 5, 12)
    >>> MultiHeadAttention(d_model=12, num_heads=3, num_key_value_heads=1)(states, states, states, positions=ALiBi(3)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ConfigError(
                f"d_model {d_model} does not divide into {num_heads} heads; choose num_heads that divides d_model"
            )
        shared = num_heads if num_key_value_heads is None else num_key_value_heads
        if shared < 1 or num_heads % shared:
            raise ConfigError(
                f"num_heads {num_heads} do not divide into num_key_value_heads {shared}; choose num_key_value_heads that "
                "divides num_heads"
            )
        self.num_heads, self.num_key_value_heads = num_heads, shared
        self.dropout = share(dropout)
        self.backend: Backend = known(backend)
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, shared * (d_model // num_heads), bias=bias)
        self.value = nn.Linear(d_model, shared * (d_model // num_heads), bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch key d_model"],
        value: Float[Tensor, "batch key d_model"],
        mask: Mask | None = None,
        first_query: int = 0,
        positions: Positions | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Let each query state look at the key states and gather from the value states.

        Args:
            query: (B, Q, d_model).
            key: (B, K, d_model).
            value: (B, K, d_model).
            mask: what each query may look at; None lets it look at everything.
            first_query: the absolute position of the first query; keys begin at 0.
            positions: turns queries and keys, or adds to the scores; what it adds to embeddings stands in the states.

        Returns:
            (B, Q, d_model).
        """
        bias = None if positions is None else positions.bias(query.shape[1], key.shape[1], first_query)
        seen = self.keys_values(key, value, positions)
        states, _ = self.look(query, seen, mask, first_query, positions=positions, bias=bias)
        return states

    def keys_values(
        self, key: States, value: States, positions: Positions | None = None, first_key: First = 0
    ) -> KeysValues:
        """Project what is looked at, once, so that a cache may keep it; keys as `positions` turn them."""
        keys = self._split(self.key(key), self.num_key_value_heads)
        if positions is not None:
            keys = positions.rotate(keys, first_key)
        return KeysValues(keys, self._split(self.value(value), self.num_key_value_heads))

    def look(
        self,
        query: States,
        seen: KeysValues,
        mask: Mask | None = None,
        first_query: int = 0,
        *,
        positions: Positions | None = None,
        bias: Relative | None = None,
        need_weights: bool = False,
    ) -> tuple[States, Weights | None]:
        """Let each query state look at projected keys and values; hand back the weights too where they are asked for.

        The queries are turned by `positions`, as the keys were when they were projected. `bias` is what `positions.bias`
        gave for these queries and keys: handed in, since all layers of a stack share it. The weights, of each query head,
        are those before dropout, computed by the formula whatever the backend.
        """
        heads = self._split(self.query(query), self.num_heads)
        if positions is not None:
            heads = positions.rotate(heads, first_query)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            require_fit(heads, seen.key, seen.value, mask, bias, first_query)
            weights = attention_weights(heads, seen.key, mask, bias, first_query)
            attended = F.dropout(weights, dropout) @ every_head(self.num_heads, seen.value)
        else:
            weights = None
            attended = attend(heads, seen.key, seen.value, mask, bias, first_query, self.backend, dropout=dropout)
        return self.output(attended.transpose(1, 2).flatten(2)), weights

    def _split(self, states: States, heads: int) -> Heads:
        """(B, L, heads * head_dim) -> (B, heads, L, head_dim)."""
        batch, length, width = states.shape
        return states.view(batch, length, heads, width // heads).transpose(1, 2)
