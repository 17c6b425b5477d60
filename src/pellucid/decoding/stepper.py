"""The decoder's step written for speed: `Transformer.decode` of one token for each row, and nothing that is not needed.

It computes what the decoder's layers compute, from the same weights, and the tests hold it to them number by number.
What is saved: queries, keys and values are one product; the source's keys and values are made once for a sentence and
shared by its hypotheses; the past is kept in place (`Past`); angles and biases of positions are worked out once a step
for all layers; no mask is built for one token that may see all before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.grid import Grid
from pellucid.decoding.past import Past
from pellucid.decoding.products import joined
from pellucid.decoding.reader import layer_norm, padding
from pellucid.model import Transformer
from pellucid.model.decoder import DecoderLayer
from pellucid.model.positions import Positions, Turn

__all__ = ["Source", "Stepper"]

TOLD = 32  # positions whose additions to embeddings are worked out at once


@dataclass(frozen=True, slots=True)
class Source:
    """What is kept of the sources: keys and values of each layer's cross-attention, and what hides their padding.

    Attributes:
        keys_values: (layers, 2, sentences * heads, S, head_dim).
        keys: those of each layer, laid out for a product with queries.
        values: those of each layer.
        hidden: (sentences * heads, 1, S) to be added to scores, or None where nothing is padding.
        lengths: real tokens of each sentence.
        grid: which sentence each row stands in.
    """

    keys_values: Float[Tensor, "layers two sentences_heads source head_dim"]
    keys: tuple[Float[Tensor, "sentences_heads head_dim source"], ...]
    values: tuple[Float[Tensor, "sentences_heads source head_dim"], ...]
    hidden: Float[Tensor, "sentences_heads 1 source"] | None
    lengths: tuple[int, ...]
    grid: Grid

    @staticmethod
    def of(keys_values: Tensor, hidden: Tensor | None, lengths: tuple[int, ...], grid: Grid) -> "Source":
        """The sources with those keys and values."""
        keys, values = keys_values[:, 0].transpose(2, 3).unbind(), keys_values[:, 1].unbind()
        return Source(keys_values, keys, values, hidden, lengths, grid)

    def select(self, rows: Sequence[int]) -> "Source":
        """What is kept for those rows; sentences that have none left leave."""
        grid, kept = self.grid.select(rows)
        if kept == list(range(self.grid.count)):
            return replace(self, grid=grid)
        heads = self.keys_values.shape[2] // self.grid.count
        lengths = tuple(self.lengths[sentence] for sentence in kept)
        longest = max(lengths)
        chosen = torch.tensor(
            [sentence * heads + head for sentence in kept for head in range(heads)], device=grid.device
        )
        keys_values = self.keys_values[:, :, :, :longest].index_select(2, chosen)
        alike = min(lengths) == longest
        hidden = None if self.hidden is None or alike else self.hidden[:, :, :longest].index_select(0, chosen)
        return Source.of(keys_values, hidden, lengths, grid)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share, and each layer's slots to write and to read."""

    past: Past
    source: Source
    hidden: Float[Tensor, "groups_heads places slots"] | None
    turn: Turn | None
    newest: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class _Layer:
    """One decoder layer: its products, made once from the weights, and no modules to be called around them."""

    def __init__(self, layer: DecoderLayer, index: int) -> None:
        own, cross, inner = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.index, self.heads = index, own.num_heads
        # the scores' scale is put into the queries' weights
        scale = (own.query.weight.shape[0] // self.heads) ** -0.5
        self.queries_keys_values = joined([own.query, own.key, own.value], [scale, 1.0, 1.0])
        self.cross_query = joined([cross.query], [scale])
        self.inner = joined([inner.inner], [1.0])
        self.own_output, self.cross_output = joined([own.output], [1.0]), joined([cross.output], [1.0])
        self.outer = joined([inner.outer], [1.0])
        self.gelu = inner.activation == "gelu"
        self.pre = layer.self_residual.pre
        self.own_norm, self.cross_norm = layer_norm(layer.self_residual.norm), layer_norm(layer.cross_residual.norm)
        self.inner_norm = layer_norm(layer.feed_forward_residual.norm)

    def __call__(self, states: Float[Tensor, "rows d_model"], step: _Step) -> Float[Tensor, "rows d_model"]:
        if self.pre:
            states = self.own_output.added(self._own(self.own_norm(states), step), states)
            states = self.cross_output.added(self._cross(self.cross_norm(states), step.source), states)
            return self.outer.added(self._inner(self.inner_norm(states)), states)
        states = self.own_norm(self.own_output.added(self._own(states, step), states))
        states = self.cross_norm(self.cross_output.added(self._cross(states, step.source), states))
        return self.inner_norm(self.outer.added(self._inner(states), states))

    def _own(self, states: Tensor, step: _Step) -> Tensor:
        """What is gathered from the past and from oneself."""
        grid = step.past.grid
        groups, places, heads = grid.count, grid.width, self.heads
        cells = grid.spread(self.queries_keys_values(states)).view(groups, places, 3, heads, -1)
        if step.turn is None:
            query, newest = cells[:, :, 0], cells[:, :, 1:]
        else:
            turned = step.turn.apply(cells[:, :, :2])
            query, newest = turned[:, :, 0], torch.stack([turned[:, :, 1], cells[:, :, 2]], dim=2)
        step.newest[self.index].copy_(newest)
        query = query.transpose(1, 2).reshape(groups * heads, places, -1)
        return _attended(query, step.keys[self.index], step.values[self.index], step.hidden, grid)

    def _cross(self, states: Tensor, source: Source) -> Tensor:
        """What is gathered from the source."""
        grid = source.grid
        cells = grid.spread(self.cross_query(states)).view(grid.count, grid.width, self.heads, -1)
        query = cells.transpose(1, 2).reshape(grid.count * self.heads, grid.width, -1)
        return _attended(query, source.keys[self.index], source.values[self.index], source.hidden, grid)

    def _inner(self, states: Tensor) -> Tensor:
        return F.gelu(self.inner(states)) if self.gelu else self.inner.active(states)


def _attended(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, grid: Grid) -> Tensor:
    """softmax(Q K^T + hidden) V, its scale in Q already: (groups * heads, places, head_dim) -> (rows, d_model)."""
    scores = torch.bmm(query, key) if hidden is None else torch.baddbmm(hidden, query, key)
    attended = torch.bmm(scores.softmax(dim=-1), value)
    if grid.width == 1:
        return grid.gather(attended.view(grid.count, 1, -1))
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
        self._final_norm = None if decoder.final_norm is None else layer_norm(decoder.final_norm)
        self._head = joined([model.head], [1.0])
        self._embedding, self._scale = model.target_embedding.weight, math.sqrt(model.config.d_model)
        self._positions: Positions = model.target_positions
        self._told: list[Tensor] = []

    def read(self, memory: Float[Tensor, "sentences source d_model"], lengths: tuple[int, ...]) -> Source:
        """Keep what the cross-attentions need of the encoded sources."""
        sentences, longest, _ = memory.shape
        parts = self._memory(memory.flatten(0, 1)).view(sentences, longest, len(self.layers), 2, self.heads, -1)
        keys_values = parts.permute(2, 3, 0, 4, 1, 5).contiguous().flatten(2, 3)
        hidden = padding(lengths, longest, memory)
        if hidden is not None:
            hidden = hidden.repeat_interleave(self.heads, dim=0)[:, None]
        return Source.of(keys_values, hidden, lengths, Grid.alone(sentences, memory.device))

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
        hidden, turn = self._hidden(past, at, states.dtype), self._positions.turn(1, at, states)
        step = _Step(past, source, hidden, turn, past.newest(), past.keys(), past.values())
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
            told = bias.scores(1, at + 1, at)[0, :, 0].to(dtype)
            scores = told[:, past.steps()].transpose(0, 1)[:, :, None]
            hidden = scores if hidden is None else hidden + scores
        if hidden is None:
            return None
        groups, width = past.grid.count, past.grid.width
        return hidden.expand(groups, self.heads, width, -1).flatten(0, 1)
