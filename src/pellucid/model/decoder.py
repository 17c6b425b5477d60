"""The decoder: target states that look back at each other and across at the source (section 3.1).

Training gives it all positions at once; generation gives it one position at a time and the cache of those before.
Both are the same call: row t of the first equals step t of the second.
"""

from collections.abc import Iterable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import ShapeError
from pellucid.masks import Mask
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.bias import Relative
from pellucid.model.cache import Cache, LayerCache
from pellucid.model.positions import Positions
from pellucid.model.sublayer import FeedForward, Residual
from pellucid.shapes import States, Weights

__all__ = ["Decoded", "Decoder", "DecoderLayer", "LayerDecoded"]


class LayerDecoded(NamedTuple):
    """What one layer hands back: states, its cache, and its weights where they were asked for."""

    states: States
    cache: LayerCache
    own_weights: Weights | None
    cross_weights: Weights | None


class Decoded(NamedTuple):
    """What the stack hands back: states (B, T, d_model), the cache, and each layer's weights where asked for."""

    states: States
    cache: Cache
    own_weights: tuple[Weights, ...]
    cross_weights: tuple[Weights, ...]


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, then feed-forward, each inside its residual connection."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        self_residual: Residual,
        cross_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_residual = self_residual
        self.cross_attention = cross_attention
        self.cross_residual = cross_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    def forward(
        self,
        states: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        mask: Mask | None = None,
        cross_mask: Mask | None = None,
        cache: LayerCache | None = None,
        positions: Positions | None = None,
        bias: Relative | None = None,
        *,
        need_weights: bool = False,
    ) -> LayerDecoded:
        """Pass states through the three sublayers; with a cache, states are the new positions only.

        `positions` and `bias`, which it gave for all layers at once, are the self-attention's: a source is counted apart.
        """
        entered = self.self_residual.enter(states)
        first = 0 if cache is None else cache.own.key.shape[2]
        own = self.self_attention.keys_values(entered, entered, positions, first)
        if cache is not None:
            own = cache.own.append(own)
        update, own_weights = self.self_attention.look(
            entered, own, mask, first, positions=positions, bias=bias, need_weights=need_weights
        )
        states = self.self_residual.leave(states, update)

        entered = self.cross_residual.enter(states)
        cross = self.cross_attention.keys_values(memory, memory) if cache is None else cache.cross
        update, cross_weights = self.cross_attention.look(entered, cross, cross_mask, first, need_weights=need_weights)
        states = self.cross_residual.leave(states, update)

        update = self.feed_forward(self.feed_forward_residual.enter(states))
        states = self.feed_forward_residual.leave(states, update)
        return LayerDecoded(states, LayerCache(own, cross), own_weights, cross_weights)


class Decoder(nn.Module):
    """A stack of layers; pre-norm stacks end with a LayerNorm of their own."""

    def __init__(self, layers: Iterable[DecoderLayer], final_norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    def forward(
        self,
        states: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        mask: Mask | None = None,
        cross_mask: Mask | None = None,
        cache: Cache | None = None,
        positions: Positions | None = None,
        *,
        need_weights: bool = False,
    ) -> Decoded:
        """Pass states through all layers.

        Args:
            states: (B, T, d_model), with what positions add to embeddings; with a cache, the new positions only.
            memory: (B, S, d_model), what the encoder made; not read again once there is a cache.
            mask: which target positions each target position may look at, by absolute positions.
            cross_mask: which source positions may be looked at.
            cache: what the call before handed back, whose keys stay as `positions` turned them.
            positions: turns queries and keys, or adds to the scores, in each layer's self-attention.
            need_weights: whether to hand back each layer's attention weights.

        Raises:
            ShapeError: the cache was made for another number of samples, or of layers.
        """
        if cache is not None and (len(cache.layers), cache.batch) != (len(self.layers), len(states)):
            raise ShapeError(
                f"the decoder has {len(self.layers)} layers and was given {len(states)} samples, but a cache of "
                f"{len(cache.layers)} layers and {cache.batch} samples; give what its last call handed back, with the "
                "rows selected that go on"
            )
        first, queries = 0 if cache is None else cache.length, states.shape[1]
        bias = None if positions is None else positions.bias(queries, first + queries, first)
        layers = []
        for index, layer in enumerate(self.layers):
            past = None if cache is None else cache.layers[index]
            layers.append(layer(states, memory, mask, cross_mask, past, positions, bias, need_weights=need_weights))
            states = layers[-1].states
        if self.final_norm is not None:
            states = self.final_norm(states)
        return Decoded(
            states,
            Cache(tuple(layer.cache for layer in layers)),
            tuple(layer.own_weights for layer in layers) if need_weights else (),
            tuple(layer.cross_weights for layer in layers) if need_weights else (),
        )
