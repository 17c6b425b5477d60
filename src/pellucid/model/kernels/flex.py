"""The attention formula through torch's FlexAttention, with a BlockMask that is made once for a mask and its sizes."""

import os
import shutil
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from pellucid.masks import Mask
from pellucid.model.bias import Relative
from pellucid.model.kernels.call import Call, may_be_kept

__all__ = ["compiles", "flex"]

MASKS = 256  # kinds of mask that may be compiled in one process
COMPILERS = ("g++", "clang++", "icpx")


def flex(call: Call) -> Float[Tensor, "batch heads query value_dim"]:
    """`attend` through FlexAttention: compiled where that is possible, and else as it runs without a compiler."""
    tensors, bias = (call.query, call.key, call.value), call.bias
    if not call.learns:
        # On a CPU it refuses what wants gradients, even where none are taken.
        tensors = (call.query.detach(), call.key.detach(), call.value.detach())
        bias = Relative(bias.table.detach(), bias.least) if isinstance(bias, Relative) else bias
        bias = bias.detach() if isinstance(bias, Tensor) else bias
    arguments = {
        **_block_mask_of(call),
        "score_mod": None if bias is None else _score_mod(bias, call.first_query),
        "enable_gqa": call.key.shape[1] != call.query.shape[1],
    }
    if compiles(call):
        import torch._dynamo  # takes seconds, which only those wait who compile

        # A window's width and the like are part of the code, which is compiled anew for others; past torch's limit all
        # scores would be held.
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        with torch._dynamo.config.patch({limit: MASKS}):
            attended: Tensor = _compiled()(*tensors, **arguments)
        return attended
    with warnings.catch_warnings():
        # It says that it holds all scores when it isn't compiled, which `explain` says too.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        whole: Tensor = flex_attention(*tensors, **arguments)
        return whole


def compiles(call: Call) -> bool:
    """Whether the kernel can be compiled for such tensors: not in float64, and on a CPU with a C++ compiler alone."""
    if call.query.dtype == torch.float64:
        return False
    if call.query.device.type != "cpu":
        return True
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((named,) if named else COMPILERS))


@cache
def _compiled() -> Callable[..., Any]:
    """The compiled function, compiled once for each kind of input."""
    return torch.compile(flex_attention)


def _block_mask_of(call: Call) -> dict[str, Any]:
    """The mask as FlexAttention takes it, under its argument's name; nothing where all is seen."""
    made = _kept if may_be_kept(call.mask) else _block_mask
    return made(call.mask, *call.size, len(call.query), call.query.shape[1], call.query.device)


@lru_cache(maxsize=64)
def _kept(
    mask: Mask, queries: int, keys: int, first_query: int, batch: int, heads: int, device: torch.device
) -> dict[str, Any]:
    """`_block_mask`, once for each mask and size."""
    return _block_mask(mask, queries, keys, first_query, batch, heads, device)


def _block_mask(
    mask: Mask, queries: int, keys: int, first_query: int, batch: int, heads: int, device: torch.device
) -> dict[str, Any]:
    """`mask.to("flex")`, made so that a later training may use what an inference made."""
    with torch.inference_mode(False):
        return mask.to(
            "flex",
            queries=queries,
            keys=keys,
            first_query=first_query,
            batch=batch,
            heads=heads,
            device=device,
            blind="ignore",  # a blind query is given zeros, as everywhere here
        )


def _score_mod(bias: Tensor | Relative, first_query: int) -> Callable[..., Tensor]:
    """The bias as FlexAttention takes it: a function of a score and its place."""
    if isinstance(bias, Relative):
        table, least, alike = bias.table, bias.least, bias.heads == 1
        return lambda score, _b, h, q, k: score + table[h * (not alike), k - (q + first_query) - least]
    moves = [size != 1 for size in bias.shape]
    return lambda score, *place: score + bias[tuple(at * move for at, move in zip(place, moves, strict=True))]
