"""Which kernel computes an attention, chosen from the structure of its mask and its sizes, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import ConfigError
from pellucid.model.bias import Relative
from pellucid.model.kernels.blocks import blocks
from pellucid.model.kernels.call import Call
from pellucid.model.kernels.flex import compiles, flex
from pellucid.model.kernels.fused import fused, is_past
from pellucid.model.kernels.patterns import BLOCK
from pellucid.model.kernels.tiles import TILE, cost, tiles

__all__ = ["KERNELS", "Backend", "Explanation", "Kernel", "choose", "explain", "known", "unable"]

Kernel = Literal["formula", "fused", "blocks", "flex"]
"""How attention is computed: as the paper writes it, by torch's fused kernel, over tiles, or by FlexAttention."""

Backend = Literal["auto", "formula", "fused", "blocks", "flex"]
"""A kernel by name, or the one that the mask's structure and the sizes make fastest."""

KERNELS: Mapping[Kernel, Callable[[Call], Float[Tensor, "batch heads query value_dim"]]] = {
    "fused": fused,
    "blocks": blocks,
    "flex": flex,
}
"""The kernels that are not the formula."""

SMALL = (2 * BLOCK) ** 2  # queries x keys below which there is too little to leave out
HELD = 2**22  # cells of a mask that torch's kernel may be given whole
DENSE = 1.3  # what a cell costs torch's kernel under a mask of all cells, beside one under none: measured on CPUs
ROW = 1.05  # the same under a mask of keys alone
GAIN = 0.9  # of the fused kernel's cost that tiles must stay below: it is the simpler one


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which kernel computes an attention, and why; printed, it also draws the mask in blocks.

    Attributes:
        backend: the kernel.
        reason: why this one.
        refused: the kernels that cannot compute it, each with the reason.
        tiles: rectangles that the blocks kernel computes.
        computed: the share of all cells that lie in them.
        picture: the mask, a mark for each block.
    """

    backend: Kernel
    reason: str
    refused: Mapping[Kernel, str]
    tiles: int
    computed: float
    picture: str

    def __str__(self) -> str:
        lines = [
            f"{self.backend}: {self.reason}",
            *(f"not {name}: {reason}" for name, reason in self.refused.items() if name != self.backend),
            f"blocks computes {self.computed:.1%} of the cells, in {self.tiles:,} tile{'s' * (self.tiles != 1)}",
            self.picture,
        ]
        return "\n".join(lines)


def known(backend: Backend) -> Backend:
    """The backend, which must be one.

    Raises:
        ConfigError: it is not.
    """
    if backend not in get_args(Backend):
        raise ConfigError(
            f"attend was given backend={backend!r}, but it knows {', '.join(map(repr, get_args(Backend)))}; choose one"
        )
    return backend


def choose(call: Call, backend: Backend) -> tuple[Kernel, str]:
    """The kernel that computes a call, and why.

    A kernel that was asked for and cannot compute it hands it to one that can.

    Raises:
        ConfigError: the backend is unknown.
    """
    known(backend)
    if backend == "auto":
        return _fastest(call)
    reason = unable(backend, call)
    if reason is None:
        whole = (
            backend == "formula" or (backend == "flex" and not compiles(call)) or (backend == "fused" and _held(call))
        )
        return backend, "it was asked for" + ", though it holds all scores" * bool(whole)
    other: Kernel = "fused" if unable("blocks", call) else "blocks"
    return other, f"{backend} was asked for, but {reason}"


def explain(call: Call, backend: Backend) -> Explanation:
    """The choice in words, with what the other kernels would do."""
    kernel, reason = choose(call, backend)
    refused = {name: why for name in get_args(Kernel) if (why := unable(name, call)) is not None}
    queries, keys, first = call.size
    found = tiles(call.mask, *call.size, call.query.device)
    samples = call.mask.batch or 1
    heads = call.mask.heads or 1
    cells = sum(
        tile.area
        * (samples if tile.samples is None else tile.samples[1] - tile.samples[0])
        * (heads if tile.heads is None else tile.heads[1] - tile.heads[0])
        for tile in found
    )
    return Explanation(
        kernel,
        reason,
        refused,
        len(found),
        cells / max(1, samples * heads * queries * keys),
        call.mask.draw(queries, keys, first),
    )


def unable(kernel: Kernel, call: Call) -> str | None:
    """Why a kernel cannot compute a call, or None where it can."""
    if kernel == "flex":
        on_cpu = call.query.device.type == "cpu"
        if call.dropout:
            return "FlexAttention has no dropout"
        if call.learns and on_cpu:
            return "FlexAttention has no backward pass on a CPU"
        if not call.query.numel() or not call.key.numel():
            return "FlexAttention takes no empty tensors"
        alone = call.query.shape[2] == 1 and on_cpu and call.query.dtype != torch.float64
        if alone and call.bias is not None:
            return "FlexAttention's kernel for a single query on a CPU does not compile with a bias"
        if not on_cpu and min(call.query.shape[3], call.value.shape[3]) < 16:
            return "FlexAttention takes no heads narrower than 16 on a GPU"
    if kernel == "blocks" and not call.query.dtype == call.key.dtype == call.value.dtype:
        return "queries, keys and values differ in dtype"
    return None


def _fastest(call: Call) -> tuple[Kernel, str]:
    """What the mask's structure and the sizes make fastest, and what holds no more than it must."""
    queries, keys, _ = call.size
    if queries * keys <= SMALL:
        return "fused", f"{queries} x {keys} cells are too few to leave any out"
    if unable("blocks", call) is not None:
        return "fused", "queries, keys and values differ in dtype"
    if call.query.device.type != "cpu":
        return _fastest_on_accelerator(call)
    held = _held(call)
    past = is_past(call) and call.bias is None
    if call.mask.sees_everything or past:
        if held is not None:
            return "blocks", f"torch's kernel would hold all scores, for {held}"
        return "fused", "torch's kernel has a flag that hides the future" if past else "nothing is hidden"
    of_keys = _speaks_of_keys_alone(call)
    dense = TILE + (ROW if of_keys else DENSE) * len(call.query) * queries * keys
    tiled = cost(tiles(call.mask, *call.size, call.query.device), len(call.query))
    share = f"{tiled / dense:.0%} of what all cells under a mask would cost"
    if tiled < GAIN * dense:
        return "blocks", f"the tiles that are seen cost about {share}"
    if held is not None:
        return "blocks", f"torch's kernel would hold all scores, for {held}"
    if not of_keys and (call.mask.batch or 1) * (call.mask.heads or 1) * queries * keys > HELD:
        return "blocks", "torch's kernel would be given a mask of all cells"
    return "fused", f"the tiles that are seen would cost about {share}"


def _fastest_on_accelerator(call: Call) -> tuple[Kernel, str]:
    """On a GPU, where nothing has been measured: FlexAttention where much is hidden, and torch's kernel elsewhere."""
    queries, keys, _ = call.size
    if call.mask.sees_everything or (is_past(call) and call.bias is None):
        return "fused", "torch's kernel needs no mask"
    tiled = cost(tiles(call.mask, *call.size, call.query.device), len(call.query))
    if tiled > 0.5 * DENSE * len(call.query) * queries * keys:
        return "fused", "most of the cells are seen"
    if unable("flex", call) is None and compiles(call):
        return "flex", "more than half of the cells are hidden in whole blocks, which FlexAttention leaves out"
    return "blocks", "more than half of the cells are hidden in whole blocks"


def _held(call: Call) -> str | None:
    """What makes torch's kernel for CPUs write out all scores, or None where it does not."""
    if call.query.device.type != "cpu":
        return None
    if call.dropout:
        return "the dropout"
    if call.query.shape[3] != call.value.shape[3]:
        return "values that are not as wide as keys"
    if isinstance(call.bias, Relative):
        return "the bias"
    if call.learns and call.bias is not None and call.bias.requires_grad:
        return "the gradient of the bias"
    return None


def _speaks_of_keys_alone(call: Call) -> bool:
    """Whether all queries see the same keys, so that a row is mask enough: what is asked of two queries shows it."""
    queries, _, first = call.size
    return call.bias is None and call.mask.broadcast(min(2, queries), 1, first).shape[2] == 1
