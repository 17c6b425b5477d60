"""Draw a mask that was written as text, count what it shows, convert it, and put it in a picture."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from pellucid.errors import MaskError
from pellucid.masks import BlindRows, Heads, Mask, Padding, Prefix, Segments, parse
from pellucid.masks.conventions import CONVENTIONS
from pellucid.masks.joins import Join, Not

__all__ = ["Size", "arguments", "describe", "picture"]

MOST_COUNTED = 2**33  # cells: some minutes
USUAL = 8  # queries and keys of a mask that does not say
MOST_PRINTED = 4096  # numbers of a tensor that are printed
MOST_PANELS, MOST_CELLS = 6, 2048  # of a picture, and along one side of it


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a mask is wanted; what is None, the mask's own numbers decide."""

    queries: int | None = None
    keys: int | None = None
    first_query: int = 0

    def of(self, mask: Mask) -> tuple[int, int, int]:
        """Queries, keys and the first query's position, for this mask."""
        natural = _natural(mask) or USUAL
        most_queries, most_keys = (natural if known is None else known for known in mask.known)
        return (
            max(0, min(natural, most_queries - self.first_query)) if self.queries is None else self.queries,
            min(natural, most_keys) if self.keys is None else self.keys,
            self.first_query,
        )


def describe(expression: str, size: Size) -> str:
    """The picture for the terminal, and below it what was counted."""
    mask = parse(expression)
    queries, keys, first = size.of(mask)
    cells = (mask.batch or 1) * (mask.heads or 1) * queries * keys
    if cells > MOST_COUNTED:
        raise MaskError(
            f"{expression} has {cells:,} cells at {queries:,} queries and {keys:,} keys, and {MOST_COUNTED:,} are counted "
            "at most; ask for fewer with --queries and --keys"
        )
    counts = mask.counts(queries, keys, first)
    seen, blind = int(counts.sum()), int((counts == 0).sum())
    figures = f"{seen:,} of {cells:,} cells may be looked at ({seen / max(1, cells):.1%})"
    if counts.numel():
        figures += f"; each query sees {int(counts.min()):,} to {int(counts.max()):,} keys"
    figures += f"; {blind:,} rows see nothing" if blind else ""
    return f"{mask.draw(queries, keys, first)}\n\n{figures}"


def arguments(
    expression: str,
    size: Size,
    convention: str,
    *,
    batch: int | None = None,
    heads: int | None = None,
    causal_model: bool = False,
) -> str:
    """The mask as a library's keyword arguments, as Python that can be pasted.

    Args:
        expression: the mask.
        size: how much of it.
        convention: as in `Mask.to`, as are the others.
        batch: samples, where the library must be told.
        heads: heads, likewise.
        causal_model: whether the model hides the future by itself.

    Raises:
        MaskError: there is no such convention, or it has no such mask.
    """
    mask = parse(expression)
    queries, keys, first = size.of(mask)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BlindRows)
        made = mask.to(
            convention,
            queries=queries,
            keys=keys,
            first_query=first,
            batch=batch,
            heads=heads,
            causal_model=causal_model,
        )
    known = CONVENTIONS[convention]
    lines = [f"# {known.taker}", f"# {known.meaning}"]
    lines += [f"# {warning.message}" for warning in caught]
    values = [f"{name} = {_literal(value)}" for name, value in made.items()]
    lines += [f"import {library}" for library in ("numpy", "torch") if any(f"= {library}." in line for line in values)]
    lines += values
    return "\n".join(lines if made else [*lines, "# no argument: nothing is hidden"])


def picture(expression: str, size: Size, place: Path) -> None:
    """Draw the mask into a PNG or SVG file, each sample and head beside the others.

    Raises:
        MaskError: it is too large for a picture.
        ConfigError: the file cannot be written.
    """
    from pellucid import view  # matplotlib takes a while, and the terminal needs none of it

    mask = parse(expression)
    queries, keys, first = size.of(mask)
    panels = (mask.batch or 1) * (mask.heads or 1)
    if max(queries, keys) > MOST_CELLS or panels > MOST_PANELS or not min(queries, keys):
        raise MaskError(
            f"a picture of {panels} masks of {queries:,} queries and {keys:,} keys was asked for, but it shows 1 to "
            f"{MOST_PANELS} of 1 to {MOST_CELLS:,} each way; ask for less of it"
        )
    looks = mask.dense(queries, keys, first)
    rows = [str(first + row) for row in range(queries)]
    named = {
        ", ".join([f"sample {sample}"] * bool(mask.batch) + [f"head {head}"] * bool(mask.heads)): looks[sample, head]
        for sample in range(len(looks))
        for head in range(looks.shape[1])
    }
    if panels == 1:
        figure = view.mask(looks, rows=rows, title=repr(mask))
    else:
        figure = view.masks(named, rows=dict.fromkeys(named, rows), title=repr(mask))
    view.save(figure, place)


def _natural(mask: Mask) -> int | None:
    """The length that a mask's own numbers speak of: the longest sample, the documents packed."""
    match mask:
        case Padding(lengths=lengths) | Prefix(lengths=tuple() as lengths):
            return max(lengths) or None
        case Segments(ids=ids):
            return len(ids[0])
        case Not(part=part):
            return _natural(part)
        case Join(parts=parts) | Heads(masks=parts):
            return max(filter(None, map(_natural, parts)), default=None)
    return None


def _literal(value: Any) -> str:
    """A value as Python writes it; of a large tensor its type and shape."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Tensor):
        if value.numel() > MOST_PRINTED:
            return f"...  # {value.dtype}, shape {tuple(value.shape)}"
        dtype = "" if value.dtype in (torch.bool, torch.int64) else f", dtype={value.dtype}"
        return f"torch.tensor({value.tolist()}{dtype})"
    if hasattr(value, "tolist"):
        if value.size > MOST_PRINTED:
            return f"...  # numpy {value.dtype}, shape {value.shape}"
        dtype = "" if value.dtype.name == "bool" else f", dtype='{value.dtype.name}'"
        return f"numpy.array({value.tolist()}{dtype})"
    if isinstance(value, BlockMask):
        full = 0 if value.full_kv_num_blocks is None else int(value.full_kv_num_blocks.sum())
        blocks = f"{full:,} full and {int(value.kv_num_blocks.sum()):,} partial blocks of {value.BLOCK_SIZE}"
        return f"...  # BlockMask, shape {tuple(value.shape)}: {blocks}; make it with mask.to('flex', ...)"
    return f"...  # {value}"
