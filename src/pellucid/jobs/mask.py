"""Draw a mask that was written as text, count what it shows, convert it, plan its attention, and put it in a picture."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from pellucid.config.settings import known
from pellucid.errors import ConfigError, MaskError
from pellucid.masks import BlindRows, Heads, Mask, Padding, Prefix, Segments, parse
from pellucid.masks.conventions import CONVENTIONS
from pellucid.masks.joins import Join, Not

__all__ = ["Attention", "Size", "arguments", "describe", "picture", "planned"]

MOST_COUNTED = 2**33  # cells: some minutes
MOST_ACROSS = 2**20  # queries, keys, samples, heads or the width of one that are planned
MOST_PLANNED = 2**36  # cells: likewise, where the mask's parts do not tell what a whole block holds
USUAL = 8  # queries and keys of a mask that does not say
USUAL_HEADS = 8  # of an attention
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
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
        known_queries, known_keys = mask.known
        queries = natural if known_queries is None else max(0, min(natural, known_queries - self.first_query))
        keys = natural if known_keys is None else min(natural, known_keys)
        return (
            queries if self.queries is None else self.queries,
            keys if self.keys is None else self.keys,
            self.first_query,
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """What attends under a mask, besides the sizes of the mask.

    Attributes:
        batch: samples; None is as many as the mask tells apart, or 1.
        heads: likewise, or 8.
        head_dim: the width of a head.
        dtype: the numbers' type, by its name in torch.
        learns: whether gradients are wanted.
        dropout: the share of weights that is dropped.
    """

    batch: int | None = None
    heads: int | None = None
    head_dim: int = 64
    dtype: str = "float32"
    learns: bool = False
    dropout: float = 0.0

    def tensors(self, mask: Mask, queries: int, keys: int) -> tuple[Tensor, Tensor]:
        """Queries (B, H, Q, head_dim) and keys (B, H, K, head_dim): one number each, which stands everywhere.

        Raises:
            ConfigError: there is no such dtype.
            MaskError: the mask tells other samples or heads apart, or nothing attends.
        """
        if self.dtype not in DTYPES:
            raise ConfigError(f"unknown dtype '{self.dtype}'; {known(self.dtype, DTYPES)}")
        batch = _agreed("--batch", self.batch, mask.batch, 1)
        heads = _agreed("--heads", self.heads, mask.heads, USUAL_HEADS)
        sizes = (batch, heads, queries, keys, self.head_dim)
        if min(sizes) < 1:
            raise MaskError(
                f"a plan was asked for with {queries} queries, {keys} keys, {heads} heads of {self.head_dim} and {batch} "
                "samples, but where one of them is 0, nothing is computed; ask for 1 of each at least"
            )
        if max(sizes) > MOST_ACROSS or math.prod(sizes) // min(queries, keys) >= 2**62:
            raise MaskError(
                f"a plan was asked for with {queries:,} queries, {keys:,} keys, {heads:,} heads of {self.head_dim:,} and "
                f"{batch:,} samples, which no tensor has; ask for {MOST_ACROSS:,} of each at most, and for fewer together"
            )
        one = torch.empty(1, dtype=DTYPES[self.dtype], requires_grad=self.learns)
        return one.expand(batch, heads, queries, self.head_dim), one.expand(batch, heads, keys, self.head_dim)


def describe(expression: str, size: Size) -> str:
    """The picture for the terminal, and below it what was counted."""
    mask = parse(expression)
    queries, keys, first = size.of(mask)
    cells = _cells(mask, queries, keys, MOST_COUNTED, "counted")
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
    library = CONVENTIONS[convention]
    lines = [f"# {library.taker}", f"# {library.meaning}"]
    lines += [f"# {warning.message}" for warning in caught]
    values = [f"{name} = {_literal(value)}" for name, value in made.items()]
    lines += [f"import {name}" for name in ("numpy", "torch") if any(f"= {name}." in line for line in values)]
    lines += values
    return "\n".join(lines if made else [*lines, "# no argument: nothing is hidden"])


def planned(expression: str, size: Size, attention: Attention, backend: str = "auto") -> str:
    r"""How `attend` would compute an attention under the mask on a CPU, and why; nothing is computed.

    Args:
        expression: the mask.
        size: how much of it.
        attention: what attends.
        backend: as in `attend`.

    Raises:
        ConfigError: there is no such backend or dtype, or dropout is no share.
        MaskError: the mask cannot be had at that size, by so many samples or heads, or it is too large.

    >>> print(planned("causal", Size(queries=2), Attention(), "fused").split("\n")[0])
    fused: it was asked for
    """
    from pellucid.model.kernels import Backend, Call, explain  # the model takes a while, and a picture needs none of it
    from pellucid.model.sublayer import share

    if backend not in get_args(Backend):
        raise ConfigError(f"unknown backend '{backend}'; {known(backend, get_args(Backend))}")
    mask = parse(expression)
    queries, keys, first = size.of(mask)
    query, key = attention.tensors(mask, queries, keys)
    _cells(mask, queries, keys, MOST_PLANNED, "planned")
    call = Call.of(query, key, key, mask, None, first, share(attention.dropout))
    return str(explain(call, cast("Backend", backend)))


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


def _cells(mask: Mask, queries: int, keys: int, most: int, done: str) -> int:
    """The cells of a mask at a size, all that it tells apart.

    Raises:
        MaskError: they are more than can be done.
    """
    cells = (mask.batch or 1) * (mask.heads or 1) * queries * keys
    if cells > most:
        raise MaskError(
            f"{mask!r} has {cells:,} cells at {queries:,} queries and {keys:,} keys, and {most:,} are {done} at most; ask "
            "for fewer with --queries and --keys"
        )
    return cells


def _agreed(option: str, asked: int | None, told: int | None, usual: int) -> int:
    """How many samples or heads there are: as many as the mask tells apart, where it does.

    Raises:
        MaskError: another number was asked for.
    """
    if asked is None:
        return usual if told is None else told
    if told not in (None, asked):
        raise MaskError(
            f"{option} is {asked}, but the mask is written for {told}; leave {option} out, or write another mask"
        )
    return asked


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
