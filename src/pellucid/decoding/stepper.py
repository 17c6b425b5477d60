"""The decoder's step written for speed: `Transformer.decode` of one token for each row, and nothing that is not needed.

It computes what the decoder's layers compute, from the same weights, and the tests hold it to them number by number.
What is saved: queries, keys and values are one product; the source's keys and values are made once for a sentence and
shared by its hypotheses; the past is kept in place (`Past`); angles and biases of positions are worked out once a step
for all layers; no mask is built for one token that may see all before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.decoding.grid import Grid
from pellucid.decoding.past import Past
from pellucid.decoding.products import Product, joined, product
from pellucid.model import Transformer
from pellucid.model.decoder import DecoderLayer
from pellucid.model.positions import Positions, Turn
from pellucid.model.sublayer import Residual

__all__ = ["Source", "Stepper"]

TOLD = 32  # positions whose additions to embeddings are worked out at once


@dataclass(frozen=True, slots=True)
class Source:
    """What is kept of the sources: keys and values of each layer's cross-attention, and what hides their padding.

    Attributes:
        keys_values: (layers, 2, sentences * heads, S, head_dim).
        hidden: (sentences * heads, 1, S) to be added to scores, or None where nothing is padding.
        lengths: real tokens of each sentence.
        grid: which sentence each row stands in.
    """

    keys_values: Float[Tensor, "layers two sentences_heads source head_dim"]
    hidden: Float[Tensor, "sentences_heads 1 source"] | None
    lengths: tuple[int, ...]
    grid: Grid

    def select(self, rows: Sequence[int]) -> "Source":
        """What is kept for those rows; sentences that have none left leave."""
        grid, kept = self.grid.select(rows)
        if kept == list(range(self.grid.count)):
            return Source(self.keys_values, self.hidden, self.lengths, grid)
        heads = self.keys_values.shape[2] // self.grid.count
        lengths = tuple(self.lengths[sentence] for sentence in kept)
        longest = max(lengths)
        chosen = torch.tensor(
            [sentence * heads + head for sentence in kept for head in range(heads)], device=grid.device
        )
        keys_values = self.keys_values[:, :, :, :longest].index_select(2, chosen)
        alike = min(lengths) == longest
        hidden = None if self.hidden is None or alike else self.hidden[:, :, :longest].index_select(0, chosen)
        return Source(keys_values, hidden, lengths, grid)


class _Norm:
    """A residual connection without dropout, its norm called without the module around it."""

    def __init__(self, residual: Residual) -> None:
        self._pre = residual.pre
        self._normed = _layer_norm(residual.norm)

    def enter(self, states: Tensor) -> Tensor:
        return self._normed(states) if self._pre else states

    def leave(self, states: Tensor, update: Tensor) -> Tensor:
        states = states + update
        return states if self._pre else self._normed(states)


def _layer_norm(norm: nn.LayerNorm) -> Product:
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda states: F.layer_norm(states, shape, weight, bias, eps)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share."""

    past: Past
    source: Source
    hidden: Float[Tensor, "groups_heads places slots"] | None
    turn: Turn | None


class _Layer:
    """One decoder layer: its products, made once from the weights."""

    def __init__(self, layer: DecoderLayer, index: int) -> None:
        own, cross, inner = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.index, self.heads = index, own.num_heads
        # the scores' scale is put into the queries' weights
        scale = (own.query.weight.shape[0] // self.heads) ** -0.5
        self.queries_keys_values = joined([own.query, own.key, own.value], [scale, 1.0, 1.0])
        self.own_output = joined([own.output], [1.0])
        self.cross_query = joined([cross.query], [scale])
        self.cross_output = joined([cross.output], [1.0])
        self.inner, self.outer = joined([inner.inner], [1.0]), joined([inner.outer], [1.0])
        self.active = torch.relu_ if inner.activation == "relu" else F.gelu
        self.own_norm, self.cross_norm = _Norm(layer.self_residual), _Norm(layer.cross_residual)
        self.inner_norm = _Norm(layer.feed_forward_residual)

    def __call__(self, states: Float[Tensor, "rows d_model"], step: _Step) -> Float[Tensor, "rows d_model"]:
        states = self.own_norm.leave(states, self._own(self.own_norm.enter(states), step))
        states = self.cross_norm.leave(states, self._cross(self.cross_norm.enter(states), step.source))
        return self.inner_norm.leave(states, self.outer(self.active(self.inner(self.inner_norm.enter(states)))))

    def _own(self, states: Tensor, step: _Step) -> Tensor:
        """Look at the past and at oneself."""
        grid = step.past.grid
        cells = grid.spread(self.queries_keys_values(states))
        cells = cells.view(*cells.shape[:2], 3, self.heads, -1)
        if step.turn is not None:
            cells = torch.cat([step.turn.apply(cells[:, :, :2]), cells[:, :, 2:]], dim=2)
        groups, places, _, heads, head_dim = cells.shape
        step.past.write(self.index, cells[:, :, 1:].permute(2, 0, 3, 1, 4))
        query = cells[:, :, 0].transpose(1, 2).reshape(groups * heads, places, head_dim)
        key, value = step.past.keys_values(self.index)
        return self.own_output(_attended(query, key, value, step.hidden, grid))

    def _cross(self, states: Tensor, source: Source) -> Tensor:
        """Look at the source."""
        cells = source.grid.spread(self.cross_query(states))
        cells = cells.view(*cells.shape[:2], self.heads, -1)
        query = cells.transpose(1, 2).flatten(0, 1)
        key, value = source.keys_values[self.index]
        return self.cross_output(_attended(query, key, value, source.hidden, source.grid))


def _attended(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, grid: Grid) -> Tensor:
    """softmax(Q K^T + hidden) V, its scale in Q already: (groups * heads, places, head_dim) -> (rows, d_model)."""
    key = key.transpose(1, 2)
    scores = torch.bmm(query, key) if hidden is None else torch.baddbmm(hidden, query, key)
    attended = torch.bmm(scores.softmax(dim=-1), value)
    by_head = attended.view(grid.count, -1, *attended.shape[1:])
    return grid.gather(by_head.transpose(1, 2)).flatten(1)


class Stepper:
    """Takes steps with the decoder of a model, as its weights are when this is made.

    Args:
        model: in evaluation mode; its linear maps may be `EightBit`.
    """

    def __init__(self, model: Transformer) -> None:
        decoder = model.stacks.decoder
        layers = cast("list[DecoderLayer]", list(decoder.layers))
        self.heads = model.config.num_heads
        self.layers = [_Layer(layer, index) for index, layer in enumerate(layers)]
        maps = [part for layer in layers for part in (layer.cross_attention.key, layer.cross_attention.value)]
        self._memory = joined(maps, [1.0] * len(maps))
        self._final_norm = None if decoder.final_norm is None else _layer_norm(decoder.final_norm)
        self._head = product(model.head.weight, None) if isinstance(model.head, nn.Linear) else model.head
        self._embedding, self._scale = model.target_embedding.weight, math.sqrt(model.config.d_model)
        self._positions: Positions = model.target_positions
        self._told: list[Tensor] = []

    def read(self, memory: Float[Tensor, "sentences source d_model"], lengths: tuple[int, ...]) -> Source:
        """Keep what the cross-attentions need of the encoded sources."""
        sentences, longest, _ = memory.shape
        parts = self._memory(memory).view(sentences, longest, len(self.layers), 2, self.heads, -1)
        keys_values = parts.permute(2, 3, 0, 4, 1, 5).contiguous().flatten(2, 3)
        hidden = None
        if min(lengths, default=longest) < longest:
            real = torch.tensor(lengths, device=memory.device)[:, None] > torch.arange(longest, device=memory.device)
            added = torch.zeros(real.shape, dtype=memory.dtype, device=memory.device).masked_fill_(~real, -math.inf)
            hidden = added.repeat_interleave(self.heads, dim=0)[:, None]
        return Source(keys_values, hidden, lengths, Grid.alone(sentences, memory.device))

    def begin(self, source: Source) -> Past:
        """The past of the sources' rows, which have said nothing."""
        sentences = source.grid.count
        return Past.empty(
            sentences,
            source.keys_values.view(
                *source.keys_values.shape[:2], sentences, self.heads, *source.keys_values.shape[3:]
            ),
        )

    def step(
        self, ids: Int[Tensor, " rows"], source: Source, past: Past
    ) -> tuple[Float[Tensor, "rows vocabulary"], Past]:
        """The logits of each row's next token, and the past with these ids in it."""
        at = past.length
        past = past.longer()
        states = F.embedding(ids, self._embedding) * self._scale + self._addition(at)
        step = _Step(past, source, self._hidden(past, at, states.dtype), self._positions.turn(1, at, states))
        for layer in self.layers:
            states = layer(states, step)
        if self._final_norm is not None:
            states = self._final_norm(states)
        return self._head(states), past

    def _addition(self, at: int) -> Float[Tensor, "1 d_model"]:
        """What positions add to the embedding at a position: worked out for many at once, and kept."""
        while len(self._told) <= at // TOLD:
            first = TOLD * len(self._told)
            last = getattr(self._positions, "max_positions", first + TOLD)
            # a position that was never learned is asked for by itself, and refused
            count = max(min(TOLD, last - first), 1)
            zeros = self._embedding.new_zeros(1, count, self._embedding.shape[1])
            self._told.append(self._positions(zeros, first)[0])
        block = self._told[at // TOLD]
        if at % TOLD >= len(block):
            self._positions(self._embedding.new_zeros(1, 1, self._embedding.shape[1]), at)
        return block[at % TOLD][None]

    def _hidden(self, past: Past, at: int, dtype: torch.dtype) -> Float[Tensor, "groups_heads places slots"] | None:
        """What is added to the scores of self-attention: a bias by distance, and what hides the slots of others."""
        hidden = past.hidden(dtype)
        bias = self._positions.bias(1, at + 1, at)
        if bias is not None:
            scores = bias.scores(1, at + 1, at)[..., torch.tensor(past.steps, device=past.grid.device)].to(dtype)
            hidden = scores if hidden is None else hidden + scores
        if hidden is None:
            return None
        groups, width = past.grid.count, past.grid.width
        return hidden.expand(groups, self.heads, width, -1).flatten(0, 1)
