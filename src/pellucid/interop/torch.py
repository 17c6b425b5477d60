"""Weights to and from `torch.nn.Transformer`: the same numbers, so the same outputs, whichever module computes them.

torch's module packs the three input projections into one matrix, and may put batch second.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.errors import InteropError
from pellucid.model import DecoderLayer, EncoderDecoder, EncoderLayer, MultiHeadAttention
from pellucid.model.sublayer import Activation

__all__ = ["from_torch", "to_torch"]

Value = TypeVar("Value")


@torch.no_grad()
def from_torch(theirs: nn.Transformer) -> EncoderDecoder:
    """An `EncoderDecoder` that computes what a `torch.nn.Transformer` does, with a copy of its weights.

    Args:
        theirs: pre- or post-norm, with or without biases and final norms, any depth, eps and dropout, batch first
            or second.

    Returns:
        A module in the same mode, dtype and device. Its inputs are batch first, whatever theirs were.

    Raises:
        InteropError: an activation other than relu and gelu, an empty stack, layers that differ from each other, or
            parts that are not torch's own.

    >>> theirs = nn.Transformer(12, 2, 1, 2, 24, batch_first=True)
    >>> sum(p.numel() for p in from_torch(theirs).parameters()) == sum(p.numel() for p in theirs.parameters())
    True
    """
    if type(theirs).forward is not nn.Transformer.forward:
        raise InteropError(_foreign(theirs, nn.Transformer))
    layers = [*_layers(theirs.encoder, nn.TransformerEncoder), *_layers(theirs.decoder, nn.TransformerDecoder)]
    first = layers[0]
    attentions, norms = _parts(layers, nn.MultiheadAttention), _parts(layers, nn.LayerNorm)
    ours = EncoderDecoder(
        d_model=_same("d_model", {norm.normalized_shape[0] for norm in norms}),
        num_heads=_same("heads", {one.num_heads for one in attentions}),
        num_encoder_layers=len(theirs.encoder.layers),
        num_decoder_layers=len(theirs.decoder.layers),
        d_ff=_same("dim_feedforward", {layer.linear1.out_features for layer in layers}),
        dropout=_same("dropout", {layer.dropout1.p for layer in layers}),
        attention_dropout=_same("attention dropout", {one.dropout for one in attentions}),
        activation_dropout=_same("activation dropout", {layer.dropout.p for layer in layers}),
        norm="pre" if _same("norm_first", {layer.norm_first for layer in layers}) else "post",
        activation=_same("activation", {_activation(layer.activation) for layer in layers}),
        bias=_same("bias", {layer.linear1.bias is not None for layer in layers}),
        eps=_same("eps", {norm.eps for norm in norms}),
        final_norm=False,
    )
    ours.encoder.final_norm = _final_norm(theirs.encoder.norm)
    ours.decoder.final_norm = _final_norm(theirs.decoder.norm)
    ours = ours.to(first.linear1.weight.device, first.linear1.weight.dtype).train(theirs.training)
    for mine, other in _matched(ours, theirs):
        mine.copy_(other)
    return ours


@torch.no_grad()
def to_torch(ours: EncoderDecoder) -> nn.Transformer:
    """A batch-first `torch.nn.Transformer` that computes what an `EncoderDecoder` does, with a copy of its weights.

    Args:
        ours: pre- or post-norm, with or without biases and final norms.

    Returns:
        The module, in the same mode, dtype and device, with the same rate of dropout at each place.

    Raises:
        InteropError: one of the stacks is empty.

    >>> ours = EncoderDecoder(d_model=12, num_heads=3, num_encoder_layers=1, num_decoder_layers=1, d_ff=24)
    >>> sum(p.numel() for p in to_torch(ours).parameters()) == sum(p.numel() for p in ours.parameters())
    True
    """
    if not len(ours.encoder.layers) or not len(ours.decoder.layers):
        raise InteropError(_EMPTY)
    attention = cast("EncoderLayer", ours.encoder.layers[0]).self_attention
    # Built by hand, since nn.Transformer's own constructor warns of nested tensors, which not every encoder can use.
    encoder = nn.TransformerEncoder(
        _layer_like(ours, nn.TransformerEncoderLayer),
        len(ours.encoder.layers),
        copy.deepcopy(ours.encoder.final_norm),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        _layer_like(ours, nn.TransformerDecoderLayer),
        len(ours.decoder.layers),
        copy.deepcopy(ours.decoder.final_norm),
    )
    theirs = nn.Transformer(
        ours.d_model, attention.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    weight = attention.query.weight
    theirs = theirs.to(weight.device, weight.dtype).train(ours.training)
    for mine, other in _matched(ours, theirs):
        other.copy_(mine)
    return theirs


def _layer_like(ours: EncoderDecoder, kind: Callable[..., Any]) -> Any:
    """One of torch's layers with the sizes and habits of ours."""
    layer = cast("EncoderLayer", ours.encoder.layers[0])
    made = kind(
        ours.d_model,
        layer.self_attention.num_heads,
        layer.feed_forward.inner.out_features,
        layer.self_residual.dropout.rate,
        layer.feed_forward.activation,
        layer.self_residual.norm.eps,
        batch_first=True,
        norm_first=layer.self_residual.pre,
        bias=layer.feed_forward.inner.bias is not None,
    )
    made.dropout.p = layer.feed_forward.dropout.rate
    for attention in _parts([made], nn.MultiheadAttention):
        attention.dropout = layer.self_attention.dropout
    return made


def _matched(ours: EncoderDecoder, theirs: nn.Transformer) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter of ours beside the (part of the) parameter of theirs that holds the same numbers."""
    for stack, their_stack in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layer, their_layer in zip(stack.layers, their_stack.layers, strict=True):
            mine, other = cast("EncoderLayer | DecoderLayer", layer), cast("Any", their_layer)
            yield from _attention(mine.self_attention, other.self_attn)
            norms = [mine.self_residual.norm, mine.feed_forward_residual.norm]
            if isinstance(mine, DecoderLayer):
                yield from _attention(mine.cross_attention, other.multihead_attn)
                norms.insert(1, mine.cross_residual.norm)
            for number, norm in enumerate(norms, start=1):
                yield from _plain(norm, getattr(other, f"norm{number}"))
            yield from _plain(mine.feed_forward.inner, other.linear1)
            yield from _plain(mine.feed_forward.outer, other.linear2)
        if stack.final_norm is not None:
            yield from _plain(stack.final_norm, cast("nn.LayerNorm", their_stack.norm))


def _attention(mine: MultiHeadAttention, other: nn.MultiheadAttention) -> Iterator[tuple[Tensor, Tensor]]:
    """The three input projections beside the rows of torch's one, and the output projections."""
    for kind in ("weight", "bias"):
        packed = getattr(other, f"in_proj_{kind}")
        if packed is not None:
            for linear, part in zip((mine.query, mine.key, mine.value), packed.chunk(3), strict=True):
                yield getattr(linear, kind), part
    yield from _plain(mine.output, other.out_proj)


def _plain(mine: nn.Module, other: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters of two parts that name them alike."""
    named = dict(other.named_parameters())
    for name, parameter in mine.named_parameters():
        yield parameter, named[name]


_EMPTY = "a stack without layers has no equal on the other side; give each stack one layer at least"


def _layers(stack: Any, kind: type[nn.TransformerEncoder | nn.TransformerDecoder]) -> list[Any]:
    """The layers of a stack of torch's own, each as torch made it."""
    if type(stack) is not kind:
        raise InteropError(_foreign(stack, kind))
    if not len(stack.layers):
        raise InteropError(_EMPTY)
    wanted = nn.TransformerEncoderLayer if kind is nn.TransformerEncoder else nn.TransformerDecoderLayer
    for layer in stack.layers:
        if type(layer) is not wanted:
            raise InteropError(_foreign(layer, wanted))
        for name in ("self_attn", "multihead_attn") if kind is nn.TransformerDecoder else ("self_attn",):
            attention = getattr(layer, name)
            plain = type(attention) is nn.MultiheadAttention and attention._qkv_same_embed_dim
            if not plain or attention.bias_k is not None or attention.add_zero_attn:
                raise InteropError(_foreign(attention, nn.MultiheadAttention))
        for norm in (part for name, part in layer.named_children() if name.startswith("norm")):
            if type(norm) is not nn.LayerNorm:
                raise InteropError(_foreign(norm, nn.LayerNorm))
    return list(stack.layers)


def _parts(layers: list[Any], kind: type[Value]) -> list[Value]:
    """Every part of that kind in the layers."""
    return [part for layer in layers for part in layer.children() if isinstance(part, kind)]


def _final_norm(norm: Any) -> nn.LayerNorm | None:
    """A copy of the norm at a stack's end, whose eps and bias may be others than the layers'."""
    if norm is not None and type(norm) is not nn.LayerNorm:
        raise InteropError(_foreign(norm, nn.LayerNorm))
    return copy.deepcopy(norm)


def _same(what: str, values: set[Value]) -> Value:
    """The one value that all layers have."""
    if len(values) > 1:
        found = " and ".join(sorted(map(str, values)))
        raise InteropError(f"the layers differ in {what}: {found}; give layers that are alike")
    return values.pop()


def _activation(function: object) -> Activation:
    """The name of an activation that both sides know."""
    if function in (F.relu, torch.relu) or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise InteropError(f"the activation {function!r} has no equal here; train with relu or gelu")


def _foreign(part: object, kind: type) -> str:
    return (
        f"{type(part).__name__} may compute what no part here does; give torch's own {kind.__name__}, as "
        "nn.Transformer builds it"
    )
