"""Weights to and from `torch.nn.Transformer`: the same numbers, so the same outputs, whichever module computes them.

torch's module always ends both stacks with a norm, packs the three input projections into one matrix, drops attention
weights and inner activations at the same rate as everything else, and may put batch second.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.errors import InteropError
from pellucid.model import EncoderDecoder, FeedForward, MultiHeadAttention, Residual
from pellucid.model.sublayer import Activation

__all__ = ["from_torch", "to_torch"]


@torch.no_grad()
def from_torch(theirs: nn.Transformer) -> EncoderDecoder:
    """An `EncoderDecoder` that computes what a `torch.nn.Transformer` does, with a copy of its weights.

    Args:
        theirs: pre- or post-norm, with or without biases, any depth, eps and dropout, batch first or second.

    Returns:
        A batch-first module in the same mode, dtype and device. Inputs must be batch first.

    Raises:
        InteropError: an activation other than relu and gelu, norms of which one stack has its own and the other has
            not, or stacks or layers that are not torch's own.

    >>> theirs = nn.Transformer(12, 3, 1, 2, 24, batch_first=True)
    >>> sum(p.numel() for p in from_torch(theirs).parameters()) == sum(p.numel() for p in theirs.parameters())
    True
    """
    encoder, decoder = _stack(theirs.encoder, nn.TransformerEncoder), _stack(theirs.decoder, nn.TransformerDecoder)
    encoder_layers = [_layer(layer, nn.TransformerEncoderLayer) for layer in encoder.layers]
    decoder_layers = [_layer(layer, nn.TransformerDecoderLayer) for layer in decoder.layers]
    every = [*encoder_layers, *decoder_layers]
    if not encoder_layers or not decoder_layers:
        raise InteropError("a nn.Transformer with an empty stack has no equal here; give each stack one layer at least")
    if (encoder.norm is None) != (decoder.norm is None):
        raise InteropError("one stack ends with a norm and the other does not; give both a final norm, or neither")
    first = every[0]

    def same(what: str, read: Callable[[Any], Any]) -> Any:
        values = {read(layer) for layer in every}
        if len(values) > 1:
            raise InteropError(
                f"the layers differ in {what}: {sorted(map(str, values))}; only like layers have an equal"
            )
        return values.pop()

    rate = same("dropout", lambda layer: layer.dropout1.p)
    ours = EncoderDecoder(
        d_model=first.self_attn.embed_dim,
        num_heads=same("heads", lambda layer: layer.self_attn.num_heads),
        num_encoder_layers=len(encoder_layers),
        num_decoder_layers=len(decoder_layers),
        d_ff=same("dim_feedforward", lambda layer: layer.linear1.out_features),
        dropout=rate,
        attention_dropout=same("attention dropout", lambda layer: layer.self_attn.dropout),
        activation_dropout=same("activation dropout", lambda layer: layer.dropout.p),
        norm="pre" if same("norm_first", lambda layer: layer.norm_first) else "post",
        activation=same("activation", lambda layer: _activation(layer.activation)),
        bias=same("bias", lambda layer: layer.linear1.bias is not None),
        eps=same("eps", lambda layer: layer.norm1.eps),
        final_norm=encoder.norm is not None,
    )
    ours = ours.to(first.linear1.weight.device, first.linear1.weight.dtype).train(theirs.training)
    for mine, other in _matched(ours, theirs):
        mine.copy_(other)
    return ours


@torch.no_grad()
def to_torch(ours: EncoderDecoder) -> nn.Transformer:
    """A batch-first `torch.nn.Transformer` that computes what an `EncoderDecoder` does, with a copy of its weights.

    In training mode the outputs are equal without dropout only: torch has one rate for all places, and is given the
    rate of the sublayers' outputs.

    Args:
        ours: both of its stacks may end with a norm or without.

    Returns:
        The module, in the same mode, dtype and device.
    """
    layer: Any = ours.encoder.layers[0]
    attention: MultiHeadAttention = layer.self_attention
    feed_forward: FeedForward = layer.feed_forward
    residual: Residual = layer.self_residual
    theirs = nn.Transformer(
        d_model=attention.query.in_features,
        nhead=attention.num_heads,
        num_encoder_layers=len(ours.encoder.layers),
        num_decoder_layers=len(ours.decoder.layers),
        dim_feedforward=feed_forward.inner.out_features,
        dropout=residual.dropout.rate,
        activation=feed_forward.activation,
        layer_norm_eps=residual.norm.eps,
        batch_first=True,
        norm_first=residual.pre,
        bias=feed_forward.inner.bias is not None,
    )
    if ours.encoder.final_norm is None:
        theirs.encoder.norm = theirs.decoder.norm = None
    weight = attention.query.weight
    theirs = theirs.to(weight.device, weight.dtype).train(ours.training)
    for mine, other in _matched(ours, theirs):
        other.copy_(mine)
    return theirs


def _matched(ours: EncoderDecoder, theirs: nn.Transformer) -> list[tuple[Tensor, Tensor]]:
    """Every parameter of ours beside the (part of the) parameter of theirs that holds the same numbers."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def plain(mine: nn.Module | None, other: nn.Module | None) -> None:
        if mine is not None and other is not None:
            named = dict(other.named_parameters())
            pairs.extend((parameter, named[name]) for name, parameter in mine.named_parameters())

    def attention(mine: MultiHeadAttention, other: nn.MultiheadAttention) -> None:
        packed = [other.in_proj_weight.chunk(3)]
        if other.in_proj_bias is not None:
            packed.append(other.in_proj_bias.chunk(3))
        for kind, parts in zip(("weight", "bias"), packed, strict=False):
            for linear, part in zip((mine.query, mine.key, mine.value), parts, strict=True):
                pairs.append((getattr(linear, kind), part))
        plain(mine.output, other.out_proj)

    mine: Any
    other: Any
    for mine, other in zip(ours.encoder.layers, theirs.encoder.layers, strict=True):
        attention(mine.self_attention, other.self_attn)
        plain(mine.self_residual.norm, other.norm1)
        _feed_forward(plain, mine, other)
        plain(mine.feed_forward_residual.norm, other.norm2)
    for mine, other in zip(ours.decoder.layers, theirs.decoder.layers, strict=True):
        attention(mine.self_attention, other.self_attn)
        attention(mine.cross_attention, other.multihead_attn)
        plain(mine.self_residual.norm, other.norm1)
        plain(mine.cross_residual.norm, other.norm2)
        _feed_forward(plain, mine, other)
        plain(mine.feed_forward_residual.norm, other.norm3)
    plain(ours.encoder.final_norm, theirs.encoder.norm)
    plain(ours.decoder.final_norm, theirs.decoder.norm)
    return pairs


def _feed_forward(plain: Callable[[nn.Module | None, nn.Module | None], None], mine: Any, other: Any) -> None:
    plain(mine.feed_forward.inner, other.linear1)
    plain(mine.feed_forward.outer, other.linear2)


def _activation(function: object) -> Activation:
    """The name of an activation that both sides know."""
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise InteropError(f"the activation {function!r} has no equal here; relu and gelu have")


def _stack(stack: Any, kind: type) -> Any:
    if type(stack) is not kind:
        raise InteropError(
            f"a stack is a {type(stack).__name__}, whose meaning is its own; only torch's {kind.__name__} has"
        )
    return stack


def _layer(layer: Any, kind: type) -> Any:
    if type(layer) is not kind:
        raise InteropError(
            f"a layer is a {type(layer).__name__}, whose meaning is its own; only torch's {kind.__name__} has"
        )
    return layer
