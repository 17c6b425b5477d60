"""Random masks as long as several blocks, and random calls of attention under them, for the tests of the kernels.

As in `mask_expressions`, an expression is drawn as text and built inside the test.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from mask_expressions import NAMES, cells, joined
from pellucid.masks import Dense, Mask, Segments
from pellucid.model import attend
from pellucid.model.bias import Relative
from pellucid.model.kernels.tiles import _kept

__all__ = [
    "BATCH",
    "FIRSTS",
    "HEADS",
    "LENGTHS",
    "MASKS",
    "MASKS_OF_HEADS",
    "PACKED",
    "SIDE",
    "Asked",
    "asked",
    "built",
    "given",
    "repeated",
    "said",
    "small_blocks",
]

BATCH, HEADS = 2, 3  # wherever a mask tells samples or heads apart
LENGTHS = st.sampled_from((1, 127, 128, 129, 257))  # a cell, and blocks of 128 that are and are not cut short
FIRSTS = st.sampled_from((0, 64, 128, 300))
PACKED = 601  # positions that the masks of limited size know: more than 300 + 257


def broken(size: int) -> Mask:
    """Two documents a sample that take turns: of other lengths in the second sample."""
    return Segments([[i // (size + sample) % 2 for i in range(PACKED)] for sample in range(BATCH)])


def drawn(seed: int, *shape: int) -> Mask:
    """A mask without structure."""
    return Dense(cells(seed, *shape))


INSIDE = {**NAMES, "broken": broken, "drawn": drawn}

near = st.one_of(st.integers(0, 5), st.integers(0, 300), st.sampled_from((127, 128, 129, 255, 256)))
some = st.one_of(st.integers(1, 5), st.integers(1, 300), st.sampled_from((64, 127, 128, 129, 256)))
POSITIONS = st.one_of(
    st.sampled_from(["Causal()", "Causal()", "Full()"]),
    st.builds("Window({}, {})".format, near, near),
    st.builds("Window({}, 0)".format, near),
    st.builds("Chunked({})".format, some),
    st.builds("Dilated({})".format, st.one_of(st.integers(1, 5), some)),
    st.builds("Global({})".format, st.lists(near, max_size=3)),
    st.builds("Prefix({})".format, near),
)
SAMPLES = st.one_of(
    st.builds("Padding(({}, {}))".format, near, near),
    st.builds("Prefix(({}, {}))".format, near, near),
    st.builds(
        f"Segments.from_lengths((({{0}}, {PACKED} - {{0}}), ({{1}}, {{2}}, {PACKED} - {{1}} - {{2}})))".format,
        near,
        near,
        near,
    ),
    st.builds("broken({})".format, some),
)
PLAIN = st.one_of(POSITIONS, SAMPLES)
INVERTIBLE = st.one_of(PLAIN, st.builds("~{}".format, PLAIN), st.builds("(Causal() & {})".format, PLAIN))
PER_HEAD = st.builds("Heads(({}, {}, {}))".format, INVERTIBLE, INVERTIBLE, INVERTIBLE)
SIZES = ["601, 257", "2, 601, 257", "2, 1, 1, 257", "1, 1, 601, 1"]
SIZES_OF_HEADS = ["2, 3, 601, 257", "2, 3, 1, 1", "1, 3, 601, 1"]
OPAQUE = st.one_of(
    st.builds("drawn({}, {})".format, st.integers(0, 9), st.sampled_from(SIZES)),
    st.just("Predicate(striped)"),
    st.just("Predicate(by_sample, batch=2)"),
)
OPAQUE_OF_HEADS = st.one_of(
    st.builds("drawn({}, {})".format, st.integers(0, 9), st.sampled_from(SIZES_OF_HEADS)),
    st.just("Predicate(by_head, heads=3)"),
)

MASKS = joined(st.one_of(POSITIONS, POSITIONS, SAMPLES, SAMPLES, OPAQUE), most=4)
"""Expressions that treat all heads alike."""
MASKS_OF_HEADS = joined(st.one_of(POSITIONS, SAMPLES, PER_HEAD, PER_HEAD, OPAQUE_OF_HEADS), most=4)
"""Expressions that may tell three heads apart."""


def built(expression: str) -> Mask:
    """The mask that is written there."""
    mask = eval(expression, INSIDE)  # noqa: S307 - with these names only
    assert isinstance(mask, Mask)
    return mask


class Asked(NamedTuple):
    """One call of attention, all but its numbers.

    `bias` is the shape of a tensor, "relative" for a number for each offset and head, "alike" for one for each offset
    alone, or () for none. `widths` are those of keys and of values: torch's kernel for CPUs wants them equal.
    """

    expression: str
    queries: int
    keys: int
    first: int = 0
    heads: int = HEADS
    key_heads: int = HEADS
    bias: tuple[int, ...] | str = ()
    widths: tuple[int, int] = (5, 5)

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor | None]:
        """Query, key and value, and what the bias is kept in, all of which want gradients."""
        key_width, value_width = self.widths
        sizes = [
            (BATCH, self.heads, self.queries, key_width),
            (BATCH, self.key_heads, self.keys, key_width),
            (BATCH, self.key_heads, self.keys, value_width),
        ]
        leaves = [torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]
        shape = self.bias
        if isinstance(shape, str):
            # Two offsets more on either side than there are: the table may know more than is asked of it.
            shape = (self.heads if shape == "relative" else 1, self.queries + self.keys + 3)
        return leaves, torch.randn(shape, dtype=dtype, requires_grad=True) if shape else None

    def bias_of(self, kept: Tensor | None) -> Tensor | Relative | None:
        """The bias that is kept in a tensor."""
        if kept is None or not isinstance(self.bias, str):
            return kept
        return Relative(kept, least=-(self.first + self.queries - 1) - 2)

    def attended(self, backend: str, leaves: list[Tensor], kept: Tensor | None, dropout: float = 0.0) -> Tensor:
        """What attention gives by a backend."""
        query, key, value = leaves
        bias, mask = self.bias_of(kept), built(self.expression)
        result: Tensor = attend(query, key, value, mask, bias, self.first, backend, dropout=dropout)  # type: ignore[call-overload]
        return result

    def blind(self) -> Tensor:
        """The queries that see nothing: Bool (B, H, Q)."""
        mask = built(self.expression)
        return mask.blind(self.queries, self.keys, self.first).expand(BATCH, self.heads, self.queries)


def given(asked: Asked, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor | None, Tensor]:
    """The tensors of a call, and a gradient of its result."""
    leaves, kept = asked.tensors(dtype)
    return leaves, kept, torch.randn(BATCH, asked.heads, asked.queries, asked.widths[1], dtype=dtype)


def said(where: str) -> Callable[[str], str]:
    """What a comparison says, with what was compared before it."""
    return lambda text: f"{where}: {text}"


SIDE = 32


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of so few queries and keys, and tiles of so little cost, that short masks have many tiles to be joined."""
    kernels = "pellucid.model.kernels"
    small = {"tiles.BLOCK": SIDE, "patterns.BLOCK": SIDE, "patterns.LONG": 1, "patterns.TALL": 3 * SIDE**2}
    small |= {"tiles.TILE": 0, "blocks.WRITTEN": 2**13, "blocks.LEAST": 2**6}
    _kept.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, number in small.items():
            patch.setattr(f"{kernels}.{name}", number)
        yield
    _kept.cache_clear()


@st.composite
def asked(draw: st.DrawFn, biased: bool = True) -> Asked:
    """Calls of all sizes, shapes and kinds of bias; a mask may tell three heads apart, and keys have as many or one."""
    heads = draw(st.sampled_from((1, HEADS)))
    queries, keys = draw(LENGTHS), draw(LENGTHS)
    full = (BATCH, heads, queries, keys)
    tensors = st.tuples(*(st.sampled_from((1, size)) for size in full))
    none = st.just(())
    return Asked(
        draw(MASKS if heads == 1 else st.one_of(MASKS, MASKS_OF_HEADS)),
        queries,
        keys,
        draw(FIRSTS),
        heads,
        draw(st.sampled_from((1, heads))),
        draw(st.one_of(none, none, tensors, st.sampled_from(("relative", "alike"))) if biased else none),
        draw(st.sampled_from(((5, 5), (5, 7)))),
    )


@st.composite
def repeated(draw: st.DrawFn) -> Asked:
    """Calls whose tiles repeat along the diagonal: windows, chunks and documents, over five blocks and more."""
    heads = draw(st.sampled_from((1, 2)))
    window = st.builds("Window({}, {})".format, near, st.sampled_from((0, 0, 1, 127, 128)))
    chunks = st.builds("Chunked({})".format, st.sampled_from((64, 128, 200, 256)))
    other = st.sampled_from(("Causal()", "Padding((400, 600))", "Padding((500, 0))", "~Global(130)", "Full()"))
    expression = f"{draw(st.one_of(window, chunks))} & {draw(other)}"
    queries, keys, first = draw(st.sampled_from(((640, 640, 0), (641, 641, 0), (513, 700, 128), (600, 641, 64))))
    bias = draw(st.one_of(st.just(()), st.sampled_from(("relative", "alike"))))
    return Asked(expression, queries, keys, first, heads, draw(st.sampled_from((1, heads))), bias)
