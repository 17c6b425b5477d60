"""The ways to compute one masked attention that `attention.py` times beside each other: ours, torch's and the formula.

What a way needs beforehand, a dense mask or a compiled kernel, is made by `prepare`, which is not timed.
"""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pellucid.masks import Causal, Mask, Padding, Prefix, Segments, Window
from pellucid.model.attention import Backend, attend

Inputs = tuple[Tensor, Tensor, Tensor]
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
Cell = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

BEFORE = 256  # keys that the window sees before the query
DOCUMENT = 1024  # tokens of each packed document
FORMULA_UP_TO = 2048  # tokens; past this the formula's scores take gigabytes


class UnsupportedError(Exception):
    """This way cannot compute this case here; the message says why."""


@dataclass(frozen=True)
class Shape:
    """Sizes of queries, keys and values: (batch, heads, length, head_dim), and their type."""

    length: int
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Case:
    """One attention to compute.

    Attributes:
        title: the mask in words.
        mask: ours.
        cell: the same rule as FlexAttention takes it, (sample, head, query, key) -> may look.
        real: how many rows from the first are no padding.
        causal: whether a real row of `is_causal` is right.
    """

    title: str
    shape: Shape
    mask: Mask
    cell: Cell
    real: int
    causal: bool = False

    def tensors(self) -> tuple[Inputs, Tensor]:
        """Queries, keys and values, the same at each call, and the gradient of the result, zero in padded rows."""
        shape, draw = self.shape, torch.Generator().manual_seed(0)
        sizes = (shape.batch, shape.heads, shape.length, shape.head_dim)
        query, key, value, pull = (torch.randn(sizes, generator=draw).to(shape.dtype) for _ in range(4))
        pull[:, :, self.real :] = 0  # no loss reads them
        return (query, key, value), pull


def causal(shape: Shape) -> Case:
    """Nothing ahead of the query."""
    return Case("causal", shape, Causal(), lambda _b, _h, q, k: k <= q, shape.length, causal=True)


def window(shape: Shape) -> Case:
    """The query and the keys just before it."""
    mask = Causal() & Window(before=BEFORE, after=0)
    return Case(f"window {BEFORE}", shape, mask, lambda _b, _h, q, k: (k <= q) & (k >= q - BEFORE), shape.length)


def packed(shape: Shape) -> Case:
    """Documents behind each other, each causal in itself; shorter ones where the row has not room for one."""
    size = DOCUMENT if shape.length >= DOCUMENT else max(1, shape.length // 16)
    document = torch.arange(shape.length) // size
    mask = Causal() & Segments(document.expand(shape.batch, -1))
    title = f"packed {math.ceil(shape.length / size)} x {size:,}"
    return Case(title, shape, mask, lambda _b, _h, q, k: (k <= q) & (document[q] == document[k]), shape.length)


def prefix(shape: Shape) -> Case:
    """The first quarter seen by all, the rest causal."""
    shown = shape.length // 4
    return Case("prefix", shape, Causal() | Prefix(shown), lambda _b, _h, q, k: (k <= q) | (k < shown), shape.length)


def padding(shape: Shape) -> Case:
    """Three quarters real, all of it seen."""
    real = shape.length * 3 // 4
    return Case("full with padding", shape, Padding((real,) * shape.batch), lambda _b, _h, _q, k: k < real, real)


def causal_padding(shape: Shape) -> Case:
    """Three quarters real, nothing ahead of the query."""
    real = shape.length * 3 // 4
    mask = Causal() & Padding((real,) * shape.batch)
    return Case("causal with padding", shape, mask, lambda _b, _h, q, k: (k <= q) & (k < real), real, causal=True)


CASES: dict[str, Callable[[Shape], Case]] = {
    "causal": causal,
    "window": window,
    "packed": packed,
    "prefix": prefix,
    "padding": padding,
    "causal-padding": causal_padding,
}


@dataclass(frozen=True)
class Way:
    """One way to compute it.

    Attributes:
        prepare: gives the function that is timed, or raises UnsupportedError.
        fits: whether the case is one for it.
        backward: whether it has gradients on a CPU.
        padded_rows: whether rows of padding are as the mask says, too.
    """

    prepare: Callable[[Case], Forward]
    fits: Callable[[Case], bool] = lambda _case: True
    backward: bool = True
    padded_rows: bool = True


def ours(backend: str) -> Callable[[Case], Forward]:
    """`attend` by one backend; the mask is a value that is made once, as a model hands it to all its layers."""

    def prepare(case: Case) -> Forward:
        chosen = cast("Backend", backend)
        return lambda query, key, value: attend(query, key, value, mask=case.mask, backend=chosen)

    return prepare


def by_hand(case: Case) -> Tensor:
    """The dense mask, from the rule itself and not from our mask: (1, 1, length, length), True = may look."""
    at, zero = torch.arange(case.shape.length), torch.zeros((), dtype=torch.int64)
    look = case.cell(zero, zero, at[:, None], at[None, :])
    return look.expand(1, 1, len(at), len(at)).contiguous()


def dense(case: Case) -> Forward:
    """Torch's fused kernel with a dense boolean mask."""
    look = by_hand(case)
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, attn_mask=look)


def is_causal(_case: Case) -> Forward:
    """Torch's fused kernel with its own triangle."""
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=True)


def formula(case: Case) -> Forward:
    """Equation 1 in plain torch, scores hidden by a dense mask."""
    hidden = ~by_hand(case)

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value

    return forward


def flex(case: Case) -> Forward:
    """FlexAttention, compiled at the first call, with the BlockMask that torch makes of the rule."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UnsupportedError(f"no C++ compiler: {compiler} is not on the path")
    length = case.shape.length
    block_mask = create_block_mask(case.cell, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda query, key, value: compiled(query, key, value, block_mask=block_mask)


def short(case: Case) -> bool:
    """Whether all scores may be held at once."""
    return case.shape.length <= FORMULA_UP_TO


OURS = "ours auto"
SINGLE = ("ours fused", "ours blocks", "ours flex", "ours formula")
DENSE, IS_CAUSAL, FLEX = "dense SDPA", "SDPA is_causal", "FlexAttention"
WAYS: dict[str, Way] = {
    OURS: Way(ours("auto")),
    "ours fused": Way(ours("fused")),
    "ours blocks": Way(ours("blocks")),
    "ours flex": Way(ours("flex"), backward=False),
    "ours formula": Way(ours("formula"), short),
    DENSE: Way(dense),
    IS_CAUSAL: Way(is_causal, lambda case: case.causal, padded_rows=False),
    FLEX: Way(flex, backward=False),
    "torch formula": Way(formula, short),
}
