"""`torch.nn.functional.scaled_dot_product_attention`: True = may look, `is_causal` counted from the top left."""

from typing import Any

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import (
    as_mask,
    as_tensor,
    check_shape,
    kept,
    kept_of_additive,
    says_it_all,
    top_left,
)
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.kinds import Causal, Full

__all__ = ["SDPA"]

BLIND_BOOL = "torch gives it zeros, as Pellucid does (measured in 2.13; before 2.5 its math kernel gave NaN)"
BLIND_FLOAT = "a number that is added to all of its scores hides none, so torch averages over the hidden keys"
AXES = ("batch", "heads", "queries", "keys")


def _export(mask: Mask, target: Target) -> dict[str, Any]:
    """`is_causal` where it is equal, nothing where all is seen, else `attn_mask`, with size 1 along what is alike."""
    simple = mask.within(*target.size)
    if simple.sees_everything:
        return {}
    if simple == Causal() and target.first_query == 0:  # known before a tensor is made
        return {"is_causal": True}
    look = simple.broadcast(*target.size, target.device)
    short = says_it_all(look, target.queries, target.keys)
    if short is not None:
        return {"is_causal": True} if short == Causal() else {}
    target.look_for_blind_rows(mask, BLIND_BOOL if target.dtype is None else BLIND_FLOAT)
    if target.dtype is None:
        return {"attn_mask": look}
    return {"attn_mask": simple.additive(*target.size, target.device, dtype=target.dtype)}


def _read(given: Given) -> Mask:
    """The mask that the arguments mean."""
    tensor, causal = as_tensor(given, "attn_mask"), bool(given.arguments.get("is_causal"))
    if tensor is None:
        return _flag(given) if causal else Full()
    if causal:
        raise MaskError("sdpa was read with both attn_mask and is_causal, which torch refuses; give one of them")
    if not 2 <= tensor.dim() <= 4:
        raise MaskError(
            f"sdpa was read with attn_mask of shape {tuple(tensor.shape)}, but it is (queries, keys) or (batch, heads, "
            "queries, keys); give two axes or four"
        )
    if tensor.dim() == 3 and tensor.shape[0] != 1:
        raise MaskError(
            f"sdpa was read with attn_mask of shape {tuple(tensor.shape)}, which torch takes as (heads, queries, keys) "
            "beside queries of four axes and as (batch, queries, keys) beside those of three; give four axes: "
            "mask[None] or mask[:, None]"
        )
    # An axis of size 1 speaks of all, however many were told.
    wanted = [
        None if size == 1 else told
        for size, told in zip(
            tensor.shape, (given.batch, given.heads, given.queries, given.keys)[-tensor.dim() :], strict=True
        )
    ]
    check_shape(given, "attn_mask", tensor, wanted, f"({', '.join(AXES[-tensor.dim() :])})")
    float_ = tensor.dtype.is_floating_point
    cells = (
        kept_of_additive(given, "attn_mask", tensor, true_keeps=True)
        if float_
        else kept(given, "attn_mask", tensor, true_keeps=True)
    )
    return as_mask(cells, given.first_query)


def _flag(given: Given) -> Mask:
    """The mask of `is_causal` alone, which counts from the first row, wherever that row stands."""
    if given.first_query == 0:
        return Causal()
    if given.queries is None or given.keys is None:
        raise MaskError(
            f"sdpa was read with is_causal for rows from position {given.first_query}, but torch counts from the first "
            "row, so this is Causal() no more; give queries and keys"
        )
    return as_mask(top_left(given.queries, given.keys), given.first_query)


SDPA = Convention(
    taker="torch.nn.functional.scaled_dot_product_attention",
    meaning="bool: True = may look; float: added to the scores; is_causal counts from the top left, without attn_mask",
    arguments=("attn_mask", "is_causal"),
    export=_export,
    read=_read,
)
