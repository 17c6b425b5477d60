"""`torch.nn.Transformer`: its nine mask arguments from the three masks of an encoder-decoder, and back.

In eval mode without gradients torch's encoder may skip the positions that `src_key_padding_mask` hides and give zeros
there. So memory at source padding is not what the formula gives, and the cross-attention must hide it, as
`masks.seq2seq(...)` does.
"""

from dataclasses import replace
from typing import Any, Never

import torch

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.multihead import Names, arguments, read_attention
from pellucid.masks.conventions.tensors import as_tensor
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.joins import agreed
from pellucid.masks.seq2seq import Seq2SeqMasks

__all__ = ["TRANSFORMER", "export_transformer", "read_transformer"]

SOURCE, TARGET, MEMORY = (
    Names(f"{one}_mask", f"{one}_key_padding_mask", f"{one}_is_causal") for one in ("src", "tgt", "memory")
)
BLIND_BOOL = (
    "nn.Transformer gives it zeros before the output projection, or NaN on the fast path (eval mode without gradients)"
)
BLIND_FLOAT = (
    "numbers that are added to all of its scores hide none, so nn.Transformer averages over keys that are hidden, or its "
    "encoder gives NaN on the fast path (eval mode without gradients)"
)


def export_transformer(
    triple: Seq2SeqMasks,
    *,
    source: int,
    target: int,
    batch: int | None = None,
    heads: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    blind: str = "warn",
) -> dict[str, Any]:
    """The nine mask arguments of `nn.Transformer.forward`; None and False where nothing is to be said.

    Args:
        triple: what each attention may see.
        source: source positions.
        target: target positions.
        batch: samples, where torch must be told and no mask tells.
        heads: heads, likewise.
        dtype: a float type for additive masks; None gives bool.
        device: where tensors are made.
        blind: what to do where a row sees nothing, as in `Mask.to`.

    Raises:
        MaskError: torch has no such mask, or a row is blind and `blind` is "refuse".
    """
    masks = (triple.encoder, triple.decoder, triple.cross)
    batch = agreed("samples", [batch, *(mask.batch for mask in masks)], masks)
    found: dict[str, Any] = {name: False if name.endswith("is_causal") else None for name in TRANSFORMER.arguments}
    for mask, names, (queries, keys) in zip(
        masks, (SOURCE, TARGET, MEMORY), ((source, source), (target, target), (target, source)), strict=True
    ):
        wanted = Target(queries, keys, batch=batch, heads=heads, dtype=dtype, device=device, blind=blind)
        found |= _one(mask, names, wanted)
    return found


def _one(mask: Mask, names: Names, target: Target) -> dict[str, Any]:
    """The arguments of one of the three attentions."""
    if None not in (mask.heads, target.heads) and mask.heads != target.heads:
        raise MaskError(
            f"{mask!r} speaks of {mask.heads} heads and was asked for {target.heads}; ask for as many, or for none"
        )
    target.look_for_blind_rows(mask, BLIND_BOOL if target.dtype is None else BLIND_FLOAT)
    return arguments(mask, target, names)


def read_transformer(given: Given) -> Seq2SeqMasks:
    """The three masks that the arguments mean; `queries` are target positions, `keys` source positions.

    Raises:
        MaskError: they can mean two things, or do not fit together.
    """
    if given.first_query:
        raise MaskError(
            f"transformer was read with first_query={given.first_query}, but nn.Transformer begins at 0; read the steps "
            "of a cached decoder as 'multihead_attention'"
        )
    source = _agreed_size(
        given,
        "source positions",
        given.keys,
        ((SOURCE.mask, -2), (SOURCE.mask, -1), (MEMORY.mask, -1), (SOURCE.padding, -1), (MEMORY.padding, -1)),
    )
    target = _agreed_size(
        given,
        "target positions",
        given.queries,
        ((TARGET.mask, -2), (TARGET.mask, -1), (MEMORY.mask, -2), (TARGET.padding, -1)),
    )
    batch = _agreed_size(given, "samples", given.batch, tuple((names.padding, 0) for names in (SOURCE, TARGET, MEMORY)))
    sized = ((SOURCE, source, source), (TARGET, target, target), (MEMORY, target, source))
    found = [
        read_attention(replace(given, queries=queries, keys=keys, batch=batch), names) for names, queries, keys in sized
    ]
    agreed("samples", [mask.batch for mask in found], tuple(found))
    return Seq2SeqMasks(*found)


def _agreed_size(given: Given, what: str, told: int | None, places: tuple[tuple[str, int], ...]) -> int | None:
    """The one size that these axes have, where they have one.

    Raises:
        MaskError: two of them differ; the message has both shapes.
    """
    size, of = told, ""  # what was told is held against each tensor when it is read
    for name, axis in places:
        tensor = as_tensor(given, name)
        if tensor is None or tensor.dim() not in (2, 3):
            continue
        if size is not None and of and tensor.shape[axis] != size:
            raise MaskError(
                f"transformer was read with {of} and {name} of shape {tuple(tensor.shape)}, which have {size} and "
                f"{tensor.shape[axis]} {what}; give masks of one batch"
            )
        if size is None:
            size, of = tensor.shape[axis], f"{name} of shape {tuple(tensor.shape)}"
    return size


def _refuse(mask: Mask, target: Target) -> Never:  # noqa: ARG001
    """One mask is not three."""
    raise MaskError(
        f"{mask!r} was to be converted for 'transformer', but nn.Transformer takes three masks; write "
        "masks.seq2seq(...).to('transformer', source=..., target=...), or name 'multihead_attention'"
    )


TRANSFORMER = Convention(
    taker="torch.nn.Transformer",
    meaning="nine arguments, three for each attention, each as nn.MultiheadAttention takes it",
    arguments=tuple(
        getattr(names, part) for part in ("mask", "padding", "causal") for names in (SOURCE, TARGET, MEMORY)
    ),
    export=_refuse,
    read=read_transformer,
)
