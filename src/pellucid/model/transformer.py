"""The assembled Transformer: embeddings, both stacks, and the projection onto words (Vaswani et al. 2017, figure 1).

This is the one builder that turns settings into parts.
"""

import math
from typing import Any, Literal, NamedTuple, overload

from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.config import ModelConfig
from pellucid.errors import ShapeError
from pellucid.masks import seq2seq
from pellucid.model.cache import Cache
from pellucid.model.decoder import Decoded
from pellucid.model.positions import ALiBi, Learned, NoPositions, Positions, Rotary, Sinusoidal, T5Relative
from pellucid.model.stacks import EncoderDecoder
from pellucid.model.sublayer import Dropout
from pellucid.shapes import Ids, Lengths, Logits, States, Weights

__all__ = ["AttentionWeights", "Transformer"]


class AttentionWeights(NamedTuple):
    """Attention weights of every layer and head: encoder (B, H, S, S), decoder (B, H, T, T), cross (B, H, T, S)."""

    encoder: tuple[Weights, ...]
    decoder: tuple[Weights, ...]
    cross: tuple[Weights, ...]


class Transformer(nn.Module):
    """The encoder-decoder Transformer: token ids in, scores of the next token out, at every target position.

    Embeddings are multiplied by sqrt(d_model), positions are added, and dropout acts on the sum (sections 3.4, 5.4);
    positions that act on queries and keys or on scores are told in each self-attention instead. Each side has one scheme,
    whose numbers, where it learns any, all its layers share.

    Args:
        config: every size and habit of the network.

    >>> import torch
    >>> model = Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13))
    >>> model(torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])).shape
    torch.Size([1, 2, 13])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.stacks = EncoderDecoder(
            d_model=config.d_model,
            num_heads=config.num_heads,
            num_encoder_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers,
            d_ff=config.d_ff,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            norm=config.norm,
            activation=config.activation,
        )
        self.source_embedding = nn.Embedding(config.source_vocab_size, config.d_model)
        self.target_embedding = nn.Embedding(config.target_vocab_size, config.d_model)
        self.head = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        self.source_positions = _positions(config, bidirectional=True)
        self.target_positions = _positions(config, bidirectional=False)
        self.dropout = Dropout(config.dropout)
        for matrix in (self.source_embedding.weight, self.target_embedding.weight, self.head.weight):
            # Times sqrt(d_model), embeddings then have unit variance, as positions and normed states have.
            nn.init.normal_(matrix, std=config.d_model**-0.5)
        if config.tie_embeddings != "none":
            self.head.weight = self.target_embedding.weight
        if config.tie_embeddings == "all":
            self.source_embedding.weight = self.target_embedding.weight

    @overload
    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        need_weights: Literal[False] = False,
    ) -> Logits: ...

    @overload
    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        *,
        need_weights: Literal[True],
    ) -> tuple[Logits, AttentionWeights]: ...

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        need_weights: bool = False,
    ) -> Float[Tensor, "batch target vocabulary"] | tuple[Float[Tensor, "batch target vocabulary"], AttentionWeights]:
        """Score every next token of the targets, all positions at once.

        Args:
            source: (B, S) ids.
            target: (B, T) ids, beginning with the begin mark.
            source_lengths: real tokens of each source; None means that nothing is padding.
            target_lengths: real tokens of each target; None means that nothing is padding.
            need_weights: whether to hand back the attention weights of every layer and head.

        Returns:
            (B, T, target_vocab_size) logits, and the weights where they are asked for.

        Raises:
            ShapeError: a length does not fit its ids, an id its vocabulary, or sources and targets are not as many.
            PositionError: a sentence is longer than the positions the model has learned.
        """
        decoded, encoder_weights = self._run(source, target, source_lengths, target_lengths, need_weights)
        logits: Logits = self.head(decoded.states)
        if need_weights:
            return logits, AttentionWeights(encoder_weights, decoded.own_weights, decoded.cross_weights)
        return logits

    def states(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """What `forward` gives before the projection onto words: (B, T, d_model)."""
        decoded, _ = self._run(source, target, source_lengths, target_lengths, need_weights=False)
        return decoded.states

    def encode(self, source: Ids, source_lengths: Lengths | None = None) -> States:
        """Read the sources: (B, S) ids -> memory (B, S, d_model)."""
        memory, _ = self._encode(source, source_lengths)
        return memory

    def decode(
        self,
        target: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        source_lengths: Lengths | None = None,
        cache: Cache | None = None,
    ) -> tuple[Float[Tensor, "batch target vocabulary"], Cache]:
        """Score the next tokens after target prefixes, reusing what a call before has computed.

        Args:
            target: (B, T) ids; with a cache, the new ids only.
            memory: (B, S, d_model) from `encode`.
            source_lengths: real tokens of each source.
            cache: what the call before handed back; it is not changed.

        Returns:
            (B, T, target_vocab_size) logits of the given positions, and the cache for the next call.

        Raises:
            ShapeError: a length does not fit the memory, or ids, memory and cache are not of one batch.
            PositionError: a token stands past the positions the model has learned.
        """
        first = 0 if cache is None else cache.length
        _check_batch(target, memory, "targets", "memories")
        _check_lengths(memory, source_lengths, "source")
        states = self._embed(self.target_embedding, self.target_positions, target, first)
        masks = seq2seq(source_lengths)
        decoded: Decoded = self.stacks.decoder(states, memory, masks.decoder, masks.cross, cache, self.target_positions)
        return self.head(decoded.states), decoded.cache

    def _run(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        source_lengths: Lengths | None,
        target_lengths: Lengths | None,
        need_weights: bool,
    ) -> tuple[Decoded, tuple[Weights, ...]]:
        _check_batch(source, target, "sources", "targets")
        _check_lengths(target, target_lengths, "target")
        memory, encoder_weights = self._encode(source, source_lengths, need_weights)
        states = self._embed(self.target_embedding, self.target_positions, target)
        masks = seq2seq(source_lengths, target_lengths)
        decoded = self.stacks.decoder(
            states, memory, masks.decoder, masks.cross, positions=self.target_positions, need_weights=need_weights
        )
        return decoded, encoder_weights

    def _encode(
        self, source: Ids, source_lengths: Lengths | None, need_weights: bool = False
    ) -> tuple[States, tuple[Weights, ...]]:
        _check_lengths(source, source_lengths, "source")
        states = self._embed(self.source_embedding, self.source_positions, source)
        encoded: tuple[States, tuple[Weights, ...]] = self.stacks.encoder(
            states, seq2seq(source_lengths).encoder, self.source_positions, need_weights=need_weights
        )
        return encoded

    def _embed(self, embedding: nn.Embedding, positions: Positions, ids: Ids, first: int = 0) -> States:
        try:
            scaled = embedding(ids) * math.sqrt(self.config.d_model)
        except IndexError:
            raise ShapeError(
                f"ids from {int(ids.min())} to {int(ids.max())} were given, but the vocabulary has "
                f"{embedding.num_embeddings}, from 0; use the tokenizer that this model was trained with"
            ) from None
        states: States = self.dropout(positions(scaled, first))
        return states


def _positions(config: ModelConfig, *, bidirectional: bool) -> Positions:
    """One side's scheme; `bidirectional` where tokens look ahead too, which T5 tells apart from looking back."""
    if config.positions == "sinusoidal":
        return Sinusoidal(config.d_model, config.position_layout)
    if config.positions == "learned":
        return Learned(config.d_model, config.max_positions)
    if config.positions == "rotary":
        return Rotary(
            config.head_dim,
            config.position_layout,
            base=config.rotary_base,
            scaling=config.rotary_scaling,
            factor=config.rotary_factor,
            original_length=config.max_positions,
        )
    if config.positions == "alibi":
        return ALiBi(config.num_heads)
    if config.positions == "t5":
        return T5Relative(config.num_heads, bidirectional=bidirectional)
    return NoPositions()


def _check_batch(one: Any, other: Any, one_name: str, other_name: str) -> None:
    if len(one) != len(other):
        raise ShapeError(
            f"the model was given {len(one)} {one_name} {tuple(one.shape)} and {len(other)} {other_name} "
            f"{tuple(other.shape)}; give one for each, batch first"
        )


def _check_lengths(padded: Tensor, lengths: Lengths | None, side: str) -> None:
    """Refuse lengths that do not fit: a mask made from them would be silently wrong."""
    if lengths is None:
        return
    numbers = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(numbers) != len(padded) or (numbers and max(numbers) > padded.shape[1]):
        raise ShapeError(
            f"{side}_lengths {numbers} do not fit a {side} of shape {tuple(padded.shape)}; "
            "give one length for each sentence, none longer than what stands there"
        )
