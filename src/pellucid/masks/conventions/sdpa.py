"""`torch.nn.functional.scaled_dot_product_attention`: True = may look, `is_causal` counted from the top left."""

from typing import Any

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import as_mask, as_tensor, kept, kept_of_additive
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.kinds import Causal, Full

__all__ = ["SDPA"]


def _export(mask: Mask, target: Target) -> dict[str, Any]:
    """`is_causal` where it is equal, nothing where all is seen, else `attn_mask`, with size 1 along what is alike."""
    simple = mask.within(*target.size)
    if simple.sees_everything:
        return {}
    # Torch counts from the top left whatever the shape is, as we do where the first row is the query at position 0.
    if simple == Causal() and target.first_query == 0:
        return {"is_causal": True}
    target.look_for_blind_rows(mask, "the math kernel of torch before 2.5 gives NaN for such a row, later ones zeros")
    if target.dtype is None:
        return {"attn_mask": simple.broadcast(*target.size, target.device)}
    return {"attn_mask": simple.additive(*target.size, target.device, dtype=target.dtype)}


def _read(given: Given) -> Mask:
    """The mask that the arguments mean."""
    tensor, causal = as_tensor(given, "attn_mask"), bool(given.arguments.get("is_causal"))
    if tensor is None:
        return Causal() if causal else Full()
    if causal:
        raise MaskError("sdpa was read with both attn_mask and is_causal, which torch refuses; give one of them")
    if tensor.dim() < 2:
        raise MaskError(
            f"sdpa was read with attn_mask of shape {tuple(tensor.shape)}, but it is (..., queries, keys); give two axes "
            "or more"
        )
    float_ = tensor.dtype.is_floating_point
    cells = (
        kept_of_additive(given, "attn_mask", tensor) if float_ else kept(given, "attn_mask", tensor, true_keeps=True)
    )
    return as_mask(cells, given.first_query)


SDPA = Convention(
    library="torch.nn.functional.scaled_dot_product_attention",
    meaning="bool: True = may look; float: added to the scores; is_causal counts from the top left, without attn_mask",
    arguments=("attn_mask", "is_causal"),
    export=_export,
    read=_read,
)
