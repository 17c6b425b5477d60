"""The encoder written for speed: `Transformer.encode`, with one product for queries, keys and values of a layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.decoding.products import joined
from pellucid.model import Transformer
from pellucid.model.encoder import EncoderLayer
from pellucid.model.positions import Turn

__all__ = ["Reader", "layer_norm", "padding"]


def layer_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """The norm as a function, without the module around it."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda states: torch.layer_norm(states, shape, weight, bias, eps)


def padding(lengths: tuple[int, ...], longest: int, like: Tensor) -> Float[Tensor, "sentences source"] | None:
    """What is added to scores to hide what stands behind each length; None where nothing does."""
    if min(lengths, default=longest) == longest:
        return None
    real = torch.tensor(lengths, device=like.device)[:, None] > torch.arange(longest, device=like.device)
    return torch.zeros(real.shape, dtype=like.dtype, device=like.device).masked_fill_(~real, -math.inf)


@dataclass(frozen=True, slots=True)
class _Text:
    """Which tokens are real, what hides those that are not, and what all layers share.

    Attributes:
        shape: sentences, and tokens of the longest.
        real: where the real tokens stand among all, or None where all are.
        hidden: what is added to the scores.
        turn: how queries and keys are turned.
    """

    shape: tuple[int, int]
    real: Tensor | None
    hidden: Tensor | None
    turn: Turn | None

    def spread(self, tokens: Float[Tensor, "tokens width"]) -> Float[Tensor, "sentences source width"]:
        """Real tokens -> all, padding being zeros."""
        if self.real is not None:
            tokens = tokens.new_zeros(math.prod(self.shape), tokens.shape[1]).index_copy_(0, self.real, tokens)
        return tokens.view(*self.shape, -1)

    def gather(self, states: Float[Tensor, "sentences source width"]) -> Float[Tensor, "tokens width"]:
        """All tokens -> the real ones."""
        flat = states.flatten(0, 1)
        return flat if self.real is None else flat.index_select(0, self.real)


class _Layer:
    """One encoder layer: its products, made once from the weights."""

    def __init__(self, layer: EncoderLayer) -> None:
        own, inner = layer.self_attention, layer.feed_forward
        self.heads = own.num_heads
        # the scores' scale is put into the queries' weights
        scale = (own.query.weight.shape[0] // self.heads) ** -0.5
        self.queries_keys_values = joined([own.query, own.key, own.value], [scale, 1.0, 1.0])
        self.output, self.inner, self.outer = (
            joined([linear], [1.0]) for linear in (own.output, inner.inner, inner.outer)
        )
        self.gelu, self.pre = inner.activation == "gelu", layer.self_residual.pre
        self.norm, self.inner_norm = layer_norm(layer.self_residual.norm), layer_norm(layer.feed_forward_residual.norm)

    def __call__(self, states: Tensor, text: "_Text") -> Tensor:
        """(tokens, d_model) -> (tokens, d_model)."""
        if self.pre:
            states = self.output.added(self._own(self.norm(states), text), states)
            return self.outer.added(self._inner(self.inner_norm(states)), states)
        states = self.norm(self.output.added(self._own(states, text), states))
        return self.inner_norm(self.outer.added(self._inner(states), states))

    def _own(self, states: Tensor, text: "_Text") -> Tensor:
        """What is gathered from the whole sentence."""
        parts = text.spread(self.queries_keys_values(states))
        parts = parts.view(*parts.shape[:2], 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if text.turn is not None:
            query, key = text.turn.apply(query), text.turn.apply(key)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=text.hidden, scale=1.0)
        return text.gather(attended.transpose(1, 2).flatten(2))

    def _inner(self, states: Tensor) -> Tensor:
        return F.gelu(self.inner(states)) if self.gelu else self.inner.active(states)


class Reader:
    """Reads sources with the encoder of a model, as its weights are when this is made.

    Args:
        model: in evaluation mode; its linear maps may be `EightBit`.
    """

    def __init__(self, model: Transformer) -> None:
        encoder = model.stacks.encoder
        self._layers = [_Layer(layer) for layer in cast("list[EncoderLayer]", list(encoder.layers))]
        self._final_norm = None if encoder.final_norm is None else layer_norm(encoder.final_norm)
        self._embedding, self._scale = model.source_embedding.weight, math.sqrt(model.config.d_model)
        self._positions = model.source_positions

    def read(
        self, source: Int[Tensor, "sentences source"], lengths: tuple[int, ...]
    ) -> Float[Tensor, "sentences source d_model"]:
        """The states of each real token, as `Transformer.encode` gives them.

        Raises:
            PositionError: a source is longer than the positions that the model has learned.
        """
        states: Tensor = self._positions(F.embedding(source, self._embedding) * self._scale)
        text = self._text(states, lengths)
        tokens = text.gather(states)
        for layer in self._layers:
            tokens = layer(tokens, text)
        if self._final_norm is not None:
            tokens = self._final_norm(tokens)
        return text.spread(tokens)

    def _text(self, states: Float[Tensor, "sentences source d_model"], lengths: tuple[int, ...]) -> _Text:
        """What is real of those states, and what their positions say to queries, keys and scores."""
        sentences, longest, _ = states.shape
        padded = padding(lengths, longest, states)
        hidden = real = None
        if padded is not None:
            hidden, real = padded[:, None, None], (padded == 0).flatten().nonzero()[:, 0]
        bias = self._positions.bias(longest, longest)
        if bias is not None:
            scores = bias.scores(longest, longest).to(states.dtype)
            hidden = scores if hidden is None else hidden + scores
        return _Text((sentences, longest), real, hidden, self._positions.turn(longest, 0, states))
