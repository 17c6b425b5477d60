"""Hugging Face transformers: (batch, keys) where the model adds the rest itself, else four axes of floats."""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import (
    as_mask,
    as_tensor,
    check_four_axes,
    check_shape,
    kept,
    kept_of_additive,
)
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.joins import And
from pellucid.masks.kinds import Causal, Full
from pellucid.masks.samples import Padding

__all__ = ["TRANSFORMERS"]

# Measured with transformers 5.24: of a (batch, keys) mask, sdpa makes a bool one, and torch gives its blind rows zeros.
MEAN = "the mean of all values (NaN where a float64 model takes its softmax in float32, as Llama does)"
BLIND_OF_TWO_AXES = f"eager attention gives such a row {MEAN}, sdpa attention zeros"
BLIND_OF_FOUR_AXES = f"eager and sdpa attention give such a row {MEAN}"


def _export(mask: Mask, target: Target) -> dict[str, Any]:
    """Nothing or (batch, keys) where the model hides the rest by itself, else (batch or 1, heads or 1, queries, keys).

    The model counts what is cached from the right: its last query stands at the last key. Where ours does not, or where
    nobody said how many samples there are, the mask has four axes, which mean the same at any offset and are broadcast.
    Two axes do not move positions: with padding on the left, `position_ids` are still the caller's to give. GPT-2 of
    transformers 5.0 hides the future in its eager attention beside four axes too; that of 5.24 does not.
    """
    simple, samples = mask.within(*target.size), target.batch or mask.batch
    if not target.causal_model or target.first_query + target.queries == target.keys:
        hides = Causal() if target.causal_model else Full()
        if simple == hides.within(*target.size):
            return {}
        keep = _kept_keys(simple, hides, target)
        if keep is not None and samples is not None:
            target.look_for_blind_rows(mask, BLIND_OF_TWO_AXES)
            return {"attention_mask": keep.expand(samples, target.keys).long()}
    target.look_for_blind_rows(mask, BLIND_OF_FOUR_AXES)
    added = simple.additive(*target.size, target.device, dtype=target.dtype or torch.float32)
    sizes = target.batch or added.shape[0], target.heads or added.shape[1]
    return {"attention_mask": added.expand(*sizes, -1, -1).contiguous()}


def _kept_keys(mask: Mask, hides: Mask, target: Target) -> Bool[Tensor, "batch key"] | None:
    """The keys that each sample may look at, where the mask is these keys and what the model hides, else None."""
    parts = mask.parts if isinstance(mask, And) else (mask,)
    if hides.sees_everything or hides in parts:  # told from the expression, which costs no queries x keys cells
        everything: Mask = Full()
        rest = reduce(Mask.__and__, (part for part in parts if part != hides), everything)
        look = rest.broadcast(*target.size, target.device)
        if look.shape[1:3] == (1, 1):
            return look[:, 0, 0]
    look = mask.dense(*target.size, target.device)
    keep = look.any(dim=1).any(dim=1)
    with_the_model_s = keep[:, None, None] & hides.dense(*target.size, target.device)
    return keep if torch.equal(look, with_the_model_s.expand_as(look)) else None


def _read(given: Given) -> Mask:
    """The mask that the argument means; of (batch, keys) the keys alone, since it does not say whether the model is causal.

    For a causal model, write `Causal() & read("transformers", ...)`.
    """
    tensor = as_tensor(given, "attention_mask")
    if tensor is None:
        return Full()
    if tensor.dim() != 2:
        check_four_axes(given, "attention_mask", tensor)
        read = kept_of_additive if tensor.dtype.is_floating_point else kept
        return as_mask(read(given, "attention_mask", tensor, true_keeps=True), given.first_query)
    check_shape(given, "attention_mask", tensor, (given.batch, given.keys), "(batch, keys)")
    odd = tensor[(tensor != 0) & (tensor != 1)]
    if len(odd):
        raise MaskError(
            f"transformers was read with attention_mask of shape {tuple(tensor.shape)} that holds {odd[0].item():g}, but "
            "of (batch, keys) 1 keeps and 0 hides; give an additive mask with its four axes"
        )
    return Padding.from_keep(tensor.bool())


TRANSFORMERS = Convention(
    taker="transformers' models",
    meaning="(batch, keys): 1 = may look, cached keys counted too; (batch, heads, queries, keys): float is added to the "
    "scores, bool is for sdpa attention only, True = may look",
    arguments=("attention_mask",),
    export=_export,
    read=_read,
)
