"""The encoder: source states that have looked at each other (Vaswani et al. 2017, section 3.1)."""

from collections.abc import Iterable

from torch import nn

from pellucid.masks import Mask
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.bias import Relative
from pellucid.model.positions import Positions
from pellucid.model.sublayer import FeedForward, Residual
from pellucid.shapes import States, Weights

__all__ = ["Encoder", "EncoderLayer"]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside its residual connection."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        self_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_residual = self_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    def forward(
        self,
        states: States,
        mask: Mask | None = None,
        positions: Positions | None = None,
        bias: Relative | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[States, Weights | None]:
        """(B, S, d_model) -> (B, S, d_model), and the weights (B, H, S, S) where they are asked for.

        `bias` is what `positions.bias` gave, computed once for all layers.
        """
        entered = self.self_residual.enter(states)
        seen = self.self_attention.keys_values(entered, entered, positions)
        update, weights = self.self_attention.look(
            entered, seen, mask, positions=positions, bias=bias, need_weights=need_weights
        )
        states = self.self_residual.leave(states, update)
        update = self.feed_forward(self.feed_forward_residual.enter(states))
        return self.feed_forward_residual.leave(states, update), weights


class Encoder(nn.Module):
    """A stack of layers; pre-norm stacks end with a LayerNorm of their own."""

    def __init__(self, layers: Iterable[EncoderLayer], final_norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    def forward(
        self,
        states: States,
        mask: Mask | None = None,
        positions: Positions | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[States, tuple[Weights, ...]]:
        """Pass states through all layers.

        Args:
            states: (B, S, d_model); what positions add to embeddings is already in them.
            mask: which source positions may be looked at.
            positions: turns queries and keys, or adds to the scores, in each layer.
            need_weights: whether to hand back each layer's attention weights.

        Returns:
            States of the same shape, and a (B, H, S, S) for each layer, or nothing where not asked for.
        """
        bias = None if positions is None else positions.bias(states.shape[1], states.shape[1])
        kept = []
        for layer in self.layers:
            states, weights = layer(states, mask, positions, bias, need_weights=need_weights)
            kept.append(weights)
        if self.final_norm is not None:
            states = self.final_norm(states)
        return states, tuple(kept) if need_weights else ()
