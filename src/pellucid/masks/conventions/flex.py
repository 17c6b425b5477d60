"""`torch.nn.attention.flex_attention`: a BlockMask, read off the mask's blocks, and the mask as a function of one cell."""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions.tensors import as_mask
from pellucid.masks.conventions.terms import Convention, Given, Target
from pellucid.masks.joins import And, Not, Or
from pellucid.masks.kinds import Full
from pellucid.masks.samples import Heads, Padding, Prefix, Segments
from pellucid.masks.sizes import FULL, PARTIAL
from pellucid.masks.tensors import Dense, MaskMod, Predicate

__all__ = ["FLEX"]

BLOCK = 128  # rows and columns of a block, as flex_attention's own create_block_mask has them
BLIND = "flex_attention gives it zeros, as Pellucid does"


def _export(mask: Mask, target: Target) -> dict[str, Any]:
    """A BlockMask, or nothing where all is seen."""
    simple = mask.within(*target.size)
    if simple.sees_everything:
        return {}
    if target.dtype is not None:
        raise MaskError(f"flex_attention was to be given a mask of {target.dtype}, but it takes none; leave dtype out")
    target.look_for_blind_rows(mask, BLIND)
    blocks = _uncut(simple.blocks(*target.size, BLOCK, target.device), target)
    full, partial = blocks == FULL, blocks == PARTIAL
    seen, first = _lowered(simple, target.device), target.first_query
    block_mask = BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, q, k: seen(b, h, q + first, k),  # a row is counted from 0 in the attention
        seq_lengths=(target.queries, target.keys),
    )
    return {"block_mask": block_mask}


def _lowered(mask: Mask, device: torch.device | str | None) -> MaskMod:
    """`mask.see` as a compiled kernel takes it: no numbers become a tensor in it, and those it reads lie on the device."""
    match mask:
        case And(parts=parts) | Or(parts=parts):
            join = torch.logical_and if isinstance(mask, And) else torch.logical_or
            mods = [_lowered(part, device) for part in parts]
            return lambda b, h, q, k: reduce(join, [mod(b, h, q, k) for mod in mods])
        case Not(part=part):
            shown = _lowered(part, device)
            return lambda b, h, q, k: ~shown(b, h, q, k)
        case Heads(masks=masks):
            of_heads = list(enumerate(_lowered(part, device) for part in masks))
            return lambda b, h, q, k: reduce(
                torch.logical_or, [(h == head) & mod(b, h, q, k) for head, mod in of_heads]
            )
        case Padding(lengths=numbers) | Prefix(lengths=tuple() as numbers):
            lengths = torch.tensor(numbers, device=device)
            return lambda b, _h, _q, k: k < lengths[b]
        case Segments(ids=rows):
            ids = torch.tensor(rows, device=device)
            return lambda b, _h, q, k: ids[b, q] == ids[b, k]
        case Dense():
            cells = mask.cells.to(device)
            # A size of 1 speaks of all.
            return lambda *at: cells[
                tuple(torch.zeros_like(i) if size == 1 else i for i, size in zip(at, cells.shape, strict=True))
            ]
        case Predicate():
            return mask.mask_mod
    return mask.see


def _uncut(blocks: Int[Tensor, "batch heads rows columns"], target: Target) -> Int[Tensor, "batch heads rows columns"]:
    """Blocks that are full only where no edge cuts them short: the kernel goes over whole ones."""
    rows, columns = target.queries // BLOCK, target.keys // BLOCK
    whole = blocks.clone()
    whole[:, :, rows:].clamp_(max=PARTIAL)
    whole[..., columns:].clamp_(max=PARTIAL)
    return whole


def _listed(
    blocks: Bool[Tensor, "batch heads rows columns"],
) -> tuple[Int[Tensor, "batch heads rows"], Int[Tensor, "batch heads rows columns"]]:
    """How many blocks of each row are True, and the columns of those, before the columns of the others."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()


def _read(given: Given) -> Mask:
    """The cells of a BlockMask at its own size; an axis of samples or heads that it broadcasts speaks of all."""
    block_mask = given.arguments.get("block_mask")
    if block_mask is None:
        return Full()
    if not isinstance(block_mask, BlockMask) or len(block_mask.shape) != 4:
        what = f"shape {block_mask.shape}" if isinstance(block_mask, BlockMask) else f"type {type(block_mask).__name__}"
        raise MaskError(
            f"flex was read with block_mask of {what}, but it is a BlockMask of (batch, heads, queries, keys); make it "
            "with create_block_mask"
        )
    told = (given.batch, given.heads, given.queries, given.keys)
    # A BlockMask of one sample or head serves any number of them.
    loose = [None if axis < 2 and size == 1 else size for axis, size in enumerate(block_mask.shape)]
    if any(None not in pair and pair[0] != pair[1] for pair in zip(told, loose, strict=True)):
        raise MaskError(
            f"flex was read with block_mask of shape {tuple(block_mask.shape)}, but it is (batch, heads, queries, keys), "
            f"here ({', '.join('any' if size is None else str(size) for size in told)}); give a BlockMask that fits"
        )
    return as_mask(_cells(block_mask), given.first_query)


def _cells(block_mask: BlockMask) -> Bool[Tensor, "batch heads _query _key"]:
    """What is seen, where the blocks and the function agree.

    Raises:
        MaskError: they do not, so that a compiled kernel and the eager one differ; or there is no function.
    """
    batch, heads, queries, keys = block_mask.shape
    device = block_mask.kv_num_blocks.device
    try:
        asked = create_mask(block_mask.mask_mod, batch, heads, queries, keys, device=device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise MaskError(
            f"flex was read with a block_mask whose mask_mod answers '{reason}'; give a whole BlockMask, not a slice of one"
        ) from None
    partial = _spread(block_mask, block_mask.kv_num_blocks, block_mask.kv_indices)
    full = _spread(block_mask, block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    apart = (asked != (full | partial & asked)).nonzero()
    if len(apart):
        sample, head, query, key = apart[0].tolist()
        says = "shows" if asked[sample, head, query, key] else "hides"
        raise MaskError(
            f"flex was read with a block_mask whose mask_mod {says} key {key} to query {query} of sample {sample}, head "
            f"{head}, while its blocks say otherwise, so that compiled kernels and the eager one differ; make it with "
            "create_block_mask"
        )
    return asked


def _spread(block_mask: BlockMask, counts: Tensor | None, columns: Tensor | None) -> Bool[Tensor, "batch heads _q _k"]:
    """The cells of the blocks that are listed."""
    batch, heads, queries, keys = block_mask.shape
    tall, wide = block_mask.BLOCK_SIZE
    if counts is None or columns is None:
        return torch.zeros(batch, heads, queries, keys, dtype=torch.bool, device=block_mask.kv_num_blocks.device)
    listed = torch.arange(columns.shape[-1], device=columns.device) < counts[..., None]
    # What is not listed may be any number, so it is sent to a column of its own, past the last.
    last = -(-keys // wide)
    places = torch.where(listed, columns.long(), last)
    blocks = columns.new_zeros((*columns.shape[:-1], last + 1), dtype=torch.bool).scatter_(-1, places, True)
    rows, across = (
        torch.arange(size, device=columns.device) // block for size, block in ((queries, tall), (keys, wide))
    )
    return blocks[:, :, rows[:, None], across]


FLEX = Convention(
    taker="torch.nn.attention.flex_attention",
    meaning="a BlockMask, whose mask_mod says True = may look, in blocks of 128 x 128 that are full, partial or left out",
    arguments=("block_mask",),
    export=_export,
    read=_read,
)
