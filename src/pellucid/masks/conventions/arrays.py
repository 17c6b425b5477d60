"""Keras, flax, JAX and TensorFlow's `band_part`: masks as numpy arrays, each a copy that is the caller's."""

from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import (
    as_mask,
    as_tensor,
    check_four_axes,
    check_shape,
    kept,
    says_it_all,
)
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.kinds import Causal, Full, Window
from pellucid.masks.numbers import whole_numbers
from pellucid.masks.samples import Padding
from pellucid.shapes import Look

__all__ = ["BAND_PART", "FLAX", "JAX", "KERAS"]

# What becomes of a row that sees nothing: measured with keras 3.15 on torch, flax 0.12 (linen and nnx) and jax 0.10.
BLIND_IN_KERAS = (
    "keras gives such a row the mean of all values, and zeros where it hands back attention scores or drops weights"
)
BLIND_IN_FLAX = "flax gives such a row the mean of all values"
BLIND_IN_JAX = "jax gives such a row the mean of all values"
BLIND_IN_BAND_PART = (
    "code that adds (1 - mask) * -1e9 to the scores gives such a row the mean of all values in float32, and no mask at all "
    "in float64"
)


def _cells(mask: Mask, target: Target) -> Look:
    """The mask with as many samples and heads as were asked for, and size 1 where nothing changes."""
    cells = mask.broadcast(*target.size)
    return cells.expand(target.batch or cells.shape[0], target.heads or cells.shape[1], -1, -1)


def _whole(cells: Look, target: Target) -> Bool[Tensor, "..."]:
    """Every query and key, for a library that does not spread an axis of size 1 by itself."""
    return cells.expand(-1, -1, target.queries, target.keys)


def _short(mask: Mask, target: Target) -> Mask | None:
    """`Full()` or `Causal()` where the cells are just these, so that a flag says it all, or nothing need be said."""
    if mask.sees_everything or (mask == Causal() and target.first_query == 0):
        return mask  # known before a tensor is made
    short = says_it_all(mask.broadcast(*target.size), target.queries, target.keys)
    return None if short == Causal() and target.first_query else short  # the flag could not be read back as these rows


def _array(tensor: Shaped[Tensor, "..."]) -> Any:
    """A numpy array of its own memory, which may be written to."""
    return tensor.numpy().copy()


def _refuse_dtype(library: str, target: Target) -> None:
    """Refuse a float type, where a float mask would be taken for a bool one."""
    if target.dtype is not None:
        raise MaskError(
            f"{library} was asked for a mask of {target.dtype}, but it takes bool, and its numbers would not be added to "
            "the scores; leave dtype out"
        )


def _causal_from_the_top_left(given: Given, flag: str) -> Mask:
    """The mask of a flag that is set, or `Full()`.

    Raises:
        MaskError: the rows begin elsewhere than the flag counts.
    """
    if not given.arguments.get(flag):
        return Full()
    if given.first_query:
        raise MaskError(
            f"{given.convention} was read with {flag} and first_query={given.first_query}, but it counts rows from the top "
            "left whatever they stand for; read it with first_query=0, or give the mask as an array"
        )
    return Causal()


def _export_keras(mask: Mask, target: Target) -> dict[str, Any]:
    """`use_causal_mask` or `value_mask` where one of them is equal, nothing where all is seen, else `attention_mask`.

    That is (batch or 1, queries, keys), or (batch or 1, heads, queries, keys) where heads differ.
    """
    _refuse_dtype("keras", target)
    simple = mask.within(*target.size)
    short = _short(simple, target)
    if short is not None:
        return {"use_causal_mask": True} if short == Causal() else {}
    target.look_for_blind_rows(mask, BLIND_IN_KERAS)
    cells = _cells(simple, target)
    if simple.batch and simple.heads is None and cells.shape[2] == 1:
        return {"value_mask": _array(cells[:, 0, 0].expand(-1, target.keys))}
    cells = _whole(cells, target)
    return {"attention_mask": _array(cells[:, 0] if simple.heads is None else cells)}


def _read_keras(given: Given) -> Mask:
    """What all the arguments let a query see."""
    mask = _causal_from_the_top_left(given, "use_causal_mask")
    for name in ("value_mask", "key_mask"):
        tensor = as_tensor(given, name)
        if tensor is not None:
            check_shape(given, name, tensor, (given.batch, given.keys), "(batch, keys)")
            mask &= Padding.from_keep(kept(given, name, tensor, true_keeps=True))
    tensor = as_tensor(given, "attention_mask")
    if tensor is None:
        return mask
    if tensor.dim() == 3:
        batch = None if tensor.shape[0] == 1 else given.batch
        check_shape(given, "attention_mask", tensor, (batch, given.queries, given.keys), "(batch or 1, queries, keys)")
    elif tensor.dim() == 4:
        check_four_axes(given, "attention_mask", tensor)
    else:
        raise MaskError(
            f"keras was read with attention_mask of shape {tuple(tensor.shape)}, but it is (batch or 1, queries, keys) or "
            "(batch or 1, heads or 1, queries, keys); give three or four axes, or (batch, keys) as value_mask"
        )
    return mask & as_mask(kept(given, "attention_mask", tensor, true_keeps=True), given.first_query)


def _export_flax(mask: Mask, target: Target) -> dict[str, Any]:
    """Nothing where all is seen, else `mask`: (batch or 1, heads or 1, queries or 1, keys)."""
    _refuse_dtype("flax", target)
    simple = mask.within(*target.size)
    if _short(simple, target) == Full():
        return {}
    target.look_for_blind_rows(mask, BLIND_IN_FLAX)
    return {"mask": _array(_cells(simple, target))}


def _read_flax(given: Given) -> Mask:
    """The mask that the argument means.

    Flax's own `make_causal_mask` and `make_attention_mask` give floats, 1 = may look; these are read too. All zeros are
    not: they would hide everything as such a mask, and nothing as an additive one.
    """
    tensor = as_tensor(given, "mask")
    if tensor is None:
        return Full()
    check_four_axes(given, "mask", tensor)
    if tensor.dtype != torch.bool and bool((tensor == 1).any()) and bool(((tensor == 0) | (tensor == 1)).all()):
        tensor = tensor == 1
    return as_mask(kept(given, "mask", tensor, true_keeps=True), given.first_query)


def _export_jax(mask: Mask, target: Target) -> dict[str, Any]:
    """`is_causal` or `key_value_seq_lengths` where one of them is equal, nothing where all is seen, else `mask`."""
    _refuse_dtype("jax", target)
    simple = mask.within(*target.size)
    short = _short(simple, target)
    if short is not None:
        return {"is_causal": True} if short == Causal() else {}
    target.look_for_blind_rows(mask, BLIND_IN_JAX)
    if isinstance(simple, Padding):
        lengths = [min(length, target.keys) for length in simple.lengths]
        return {"key_value_seq_lengths": _array(torch.tensor(lengths, dtype=torch.int32))}
    return {"mask": _array(_cells(simple, target))}


def _read_jax(given: Given) -> Mask:
    """What all the arguments let a query see."""
    mask = _causal_from_the_top_left(given, "is_causal")
    lengths = as_tensor(given, "key_value_seq_lengths")
    if lengths is not None:
        check_shape(given, "key_value_seq_lengths", lengths, (given.batch,), "(batch,)")
        mask &= Padding(lengths)
    if given.arguments.get("local_window_size") is not None:
        mask &= _window(given)
    tensor = as_tensor(given, "mask")
    if tensor is None:
        return mask
    check_four_axes(given, "mask", tensor)
    return mask & as_mask(kept(given, "mask", tensor, true_keeps=True), given.first_query)


def _window(given: Given) -> Mask:
    """`local_window_size`: keys before and after the query beside itself, or one number for both; rows from the top left.

    Raises:
        MaskError: it is no such number, or the rows begin elsewhere than it counts.
    """
    size = given.arguments["local_window_size"]
    numbers = whole_numbers((size, size) if isinstance(size, int) else size)
    if numbers is None or len(numbers) != 2 or given.first_query:
        raise MaskError(
            f"jax was read with local_window_size={size!r} and first_query={given.first_query}, but it is (before, after) "
            "or one number for both, counted from the top left; give whole numbers from 0 up, and first_query=0"
        )
    return Window(before=numbers[0], after=numbers[1])


def _export_band_part(mask: Mask, target: Target) -> dict[str, Any]:
    """`mask` of 1 and 0: (queries, keys), or (batch or 1, heads or 1, queries, keys) where samples or heads are told."""
    target.look_for_blind_rows(mask, BLIND_IN_BAND_PART)
    cells = _whole(_cells(mask.within(*target.size), target), target)
    alike = cells.shape[:2] == (1, 1) and not (target.batch or target.heads)
    try:
        return {"mask": _array((cells[0, 0] if alike else cells).to(target.dtype or torch.float32))}
    except TypeError:
        raise MaskError(
            f"band_part was asked for a mask of {target.dtype}, which numpy does not have; ask for torch.float32 and "
            "convert it there"
        ) from None


def _read_band_part(given: Given) -> Mask:
    """The mask that 1 and 0 mean, whatever their type."""
    tensor = as_tensor(given, "mask")
    if tensor is None:
        return Full()
    if tensor.dim() == 2:
        check_shape(given, "mask", tensor, (given.queries, given.keys), "(queries, keys)")
    else:
        check_four_axes(given, "mask", tensor)
    odd = tensor[(tensor != 0) & (tensor != 1)]
    if len(odd):
        raise MaskError(
            f"band_part was read with mask that holds {odd[0].item():g}, but it is of 1, may look, and 0, may not; name "
            "the convention that the mask comes from"
        )
    return as_mask(tensor == 1, given.first_query)


KERAS = Convention(
    taker="keras.layers.MultiHeadAttention",
    meaning="bool: True = may look; use_causal_mask counts from the top left, also beside attention_mask",
    arguments=("attention_mask", "use_causal_mask", "value_mask", "key_mask"),
    export=_export_keras,
    read=_read_keras,
    unread={"query_mask": "hides no key: Keras zeroes gradients of padded queries with it, and attends all the same"},
)

FLAX = Convention(
    taker="flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention",
    meaning="bool: True = may look; flax's own mask makers give floats, 1 = may look",
    arguments=("mask",),
    export=_export_flax,
    read=_read_flax,
)

JAX = Convention(
    taker="jax.nn.dot_product_attention",
    meaning="bool: True = may look; is_causal counts from the top left; additive masks go into bias",
    arguments=("mask", "is_causal", "key_value_seq_lengths", "local_window_size"),
    export=_export_jax,
    read=_read_jax,
    unread={"query_seq_lengths": "hides no key: it says which rows of the output are padding"},
)

BAND_PART = Convention(
    taker="tf.linalg.band_part, and numpy's tril and triu",
    meaning="float: 1 = may look, 0 = may not, as band_part(ones, -1, 0) is; where code has 1 - band_part(...), 1 hides",
    arguments=("mask",),
    export=_export_band_part,
    read=_read_band_part,
)
