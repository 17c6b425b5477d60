"""What attention is given, refused in one sentence where it does not fit together."""

import math

import torch
from torch import Tensor

from pellucid.errors import MaskError, ShapeError
from pellucid.masks import Mask
from pellucid.model.bias import Relative
from pellucid.model.kernels.call import Bias

__all__ = ["require_fit"]


def require_fit(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None, first_query: int
) -> None:
    """Say which sizes do not fit, before a matrix product says it worse.

    Raises:
        ShapeError: they do not, or dtypes differ.
        MaskError: the mask is none.
    """
    if mask is not None and not isinstance(mask, Mask):
        raise MaskError(
            f"attention was given a mask of type {type(mask).__name__}; wrap a tensor in masks.Dense(...), True = may "
            "look, or read it with masks.read(...)"
        )
    fit = query.dim() == key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3]
    if (
        not fit
        or (len(query), query.shape[3]) != (len(key), key.shape[3])
        or query.shape[1] % (key.shape[1] or math.inf)
    ):
        raise ShapeError(
            f"attention was given queries {tuple(query.shape)}, keys {tuple(key.shape)} and values "
            f"{tuple(value.shape)}; it needs (batch, heads, length, head_dim) with one batch, queries as wide as keys, a "
            "value for each key, and as many heads of keys as of queries or a number that divides it"
        )
    if not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        raise ShapeError(
            f"attention was given queries of {query.dtype}, keys of {key.dtype} and values of {value.dtype}; convert them "
            "to one"
        )
    if first_query < 0:
        raise ShapeError(
            f"attention was given first_query={first_query}, but positions count from 0; give one from 0 up"
        )
    if bias is not None:
        _check_bias(bias, (*query.shape[:3], key.shape[2]), first_query)
    if mask is None:
        return
    for what, spoken, there in (("samples", mask.batch, len(query)), ("heads", mask.heads, query.shape[1])):
        if spoken is not None and spoken != there:
            raise ShapeError(
                f"the mask {mask!r} speaks of {spoken} {what}, but attention was given {there}; "
                "make the mask from the lengths of this batch"
            )


def _check_bias(bias: Bias, scores: tuple[int, ...], first_query: int) -> None:
    """Refuse a bias that cannot be added to scores of that shape."""
    given = (1, bias.heads, 1, 1) if isinstance(bias, Relative) else tuple(bias.shape)
    if len(given) != 4 or any(size not in (1, whole) for size, whole in zip(given, scores, strict=True)):
        raise ShapeError(
            f"attention was given a bias of {given} for scores of {scores}; give (batch, heads, queries, keys), each as "
            "many as there are or 1"
        )
    if isinstance(bias, Relative) and 0 not in scores[2:]:
        bias.require(scores[2], scores[3], first_query)
    if isinstance(bias, Tensor) and not bias.is_floating_point():
        raise ShapeError(
            f"attention was given a bias of {bias.dtype}, but it is added to the scores; give floats, or mask="
        )
