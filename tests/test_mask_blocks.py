"""Blocks of masks: each says what its cells do, the kinds tell it by themselves, and cells are never all held."""

from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mask_expressions import EXPRESSIONS, PER_HEAD, PLAIN, Shape, built
from pellucid.errors import MaskError
from pellucid.masks import (
    Causal,
    Chunked,
    Dense,
    Dilated,
    Full,
    Global,
    Heads,
    Mask,
    Padding,
    Predicate,
    Prefix,
    Segments,
    Window,
    sizes,
)
from pellucid.masks.sizes import EMPTY, FULL, PARTIAL, UNKNOWN, Blocks
from test_masks import watched

Sides = tuple[int, int]
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
SIDES = st.tuples(st.integers(1, 7), st.integers(1, 7))
LONG = 8192


def known(mask: Mask, shape: Shape) -> Shape:
    """The shape, or as much of it as the mask knows."""
    queries, keys, first = shape
    return queries, min(keys, mask.known[1] or keys), first


def told(mask: Mask, shape: Shape, sides: Sides) -> Tensor:
    """The kinds of blocks, from all cells, one block after the other."""
    dense, (tall, wide) = mask.dense(*shape), sides
    kinds = torch.tensor(
        [
            [
                [
                    [
                        FULL if block.all() else PARTIAL if block.any() else EMPTY
                        for key in range(0, shape[1], wide)
                        for block in [picture[row : row + tall, key : key + wide]]
                    ]
                    for row in range(0, shape[0], tall)
                ]
                for picture in sample
            ]
            for sample in dense
        ]
    )
    return kinds.to(torch.int8)


def cut(mask: Mask, shape: Shape, sides: Sides) -> Blocks:
    """All blocks of a mask."""
    return Blocks.cut(mask.batch or 1, mask.heads or 1, shape, sides, None)


# --- what the blocks say --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(EXPRESSIONS, SIZES, SIDES)
@example("Causal() & ~Causal()", (7, 5, 3), (3, 2))
@example("Causal() & Window(3, 2)", (9, 9, 0), (3, 3))
@example("Causal() | ~Causal()", (7, 5, 3), (3, 2))
@example("Dense(cells(3, 2, 3, 1, 7)) & Causal()", (9, 7, 0), (2, 3))
@example("Dense(cells(3, 2, 3, 17, 1)) | Window(1, 0)", (9, 7, 5), (3, 2))
@example("Segments(((3, 1, 3, 3, 2, 2, 3, 1, 1) * 2, (5, 5, 0, 0, 0, -1, -1, -1, 7) * 2))", (9, 9, 2), (2, 2))
def test_each_block_says_what_its_cells_do(expression: str, shape: Shape, sides: Sides) -> None:
    mask = built(expression)
    shape = known(mask, shape)
    blocks = mask.blocks(*shape, size=sides)
    assert blocks.dtype == torch.int8
    assert torch.equal(blocks, told(mask, shape, sides))


@settings(max_examples=20)
@given(EXPRESSIONS, SIZES, SIDES, st.integers(1, 40))
def test_however_few_cells_are_looked_at_together(expression: str, shape: Shape, sides: Sides, most: int) -> None:
    mask = built(expression)
    shape = known(mask, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "CELLS", most)
        blocks = mask.blocks(*shape, size=sides)
    assert torch.equal(blocks, told(mask, shape, sides))


def test_blocks_are_numbered_as_documented() -> None:
    assert Causal().blocks(5, 6, size=2).tolist() == [[[[1, 0, 0], [2, 1, 0], [2, 2, 1]]]]
    assert Causal().blocks(5, 6, 3, size=(2, 3)).tolist() == [[[[2, 1], [2, 2], [2, 2]]]]
    assert (EMPTY, PARTIAL, FULL) == (0, 1, 2)


def test_a_block_has_128_rows_and_columns() -> None:
    assert Causal().blocks(257, 300).tolist() == [[[[1, 0, 0], [2, 1, 0], [2, 2, 1]]]]
    assert torch.equal(Causal().blocks(257, 300, size=128), Causal().blocks(257, 300, size=(128, 128)))


def test_samples_and_heads_are_as_many_as_in_dense() -> None:
    mask = Heads((Full(), Padding((9, 7, 2)), Causal(), Prefix(1), Full()))
    assert mask.blocks(7, 11, size=3).shape == (3, 5, 3, 4)
    # Where all is seen in a window, the mask speaks of as many samples as ever.
    assert Padding((5, 3, 9)).blocks(7, 3, size=2).tolist() == [[[[2, 2]] * 4]] * 3
    assert Causal().blocks(7, 11, size=3).shape == (1, 1, 3, 4)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize(
    "mask", [Causal(), Dense(torch.eye(7).bool()), Segments(((0, 1, 0, 1, 1), (0, 0, 1, 1, 2)))], ids=repr
)
def test_no_cells_make_no_blocks(mask: Mask, queries: int, keys: int) -> None:
    blocks = mask.blocks(queries, keys, size=3)
    assert blocks.shape == (mask.batch or 1, 1, -(-queries // 3), -(-keys // 3))
    assert blocks.dtype == torch.int8


def test_blocks_are_the_callers_own() -> None:
    mask = Dense(torch.ones(2, 1, 1, 7, dtype=torch.bool))
    mask.blocks(5, 7, size=2).zero_()
    blocks = Full().blocks(5, 7, size=2)
    blocks[0, 0, 0, 0] = EMPTY
    assert blocks.tolist() == [[[[EMPTY, FULL, FULL, FULL], [FULL] * 4, [FULL] * 4]]]
    assert Full().blocks(5, 7, size=2).tolist() == [[[[FULL] * 4] * 3]]
    assert mask.blocks(5, 7, size=2).tolist() == [[[[FULL] * 4] * 3]] * 2


@pytest.mark.parametrize("size", [0, -3, (2, 0), (0, 2)], ids=str)
def test_a_block_without_cells_is_refused(size: int | Sides) -> None:
    with pytest.raises(MaskError) as caught:
        Causal().blocks(5, 7, size=size)
    assert str(caught.value) == (
        f"blocks of size {size!r} were asked for, but a block has a row and a column or more; give a number from 1 up "
        "for both, or two of them"
    )


def test_sizes_past_what_a_mask_knows_are_refused() -> None:
    mask = Causal() & Segments(((0,) * 7,))
    assert mask.blocks(7, 7, size=5).tolist() == [[[[1, 0], [2, 1]]]]
    with pytest.raises(MaskError, match="knows 7 queries and was asked for 8; ask for fewer"):
        mask.blocks(3, 7, 5, size=5)
    with pytest.raises(MaskError, match="knows 7 keys and was asked for 8; ask for fewer"):
        mask.blocks(7, 8, size=5)
    with pytest.raises(MaskError, match="sizes and positions are never negative"):
        Causal().blocks(3, 7, -1, size=5)


# --- what the kinds say ---------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(EXPRESSIONS, SIZES, SIDES)
def test_no_kind_says_what_is_not_so(expression: str, shape: Shape, sides: Sides) -> None:
    mask = built(expression)
    shape = known(mask, shape)
    kinds, truth = mask.block_kinds(cut(mask, shape, sides)), told(mask, shape, sides)
    assert kinds.dtype == torch.int8
    for axis, (blocks, wanted) in enumerate(zip(kinds.shape, truth.shape, strict=True)):
        assert blocks in (1, wanted)
        if blocks < wanted:  # an axis of size 1 promises that no cell changes along it
            dense = mask.dense(*shape)
            assert torch.equal(dense, dense.narrow(axis, 0, 1).expand_as(dense))
    kinds = kinds.expand_as(truth)
    assert torch.equal(torch.where(kinds == UNKNOWN, truth, kinds), truth)


ONE_DOCUMENT_AFTER_THE_OTHER = "Segments(((7, 7, 2, 2, 2, 9, -1, 3, 3, 0, 0, 0, 5, 5, 5, 5, 5),) * 2)"
BANDS = [
    "Causal() & Window(3, 2)",
    "Window(5, 0) & Window(2, 3) & Causal()",
    "Causal() | Window(0, 3)",
    "Window(1, 2) | Window(3, 0)",
    "~(Causal() | Window(0, 2))",
]


@settings(max_examples=50)
@given(st.one_of(PLAIN, PER_HEAD, st.sampled_from([ONE_DOCUMENT_AFTER_THE_OTHER, *BANDS])), SIZES, SIDES)
@example("Global((0, 1, 2, 5))", (9, 9, 0), (3, 3))
@example("Global((3, 4, 5))", (9, 3, 3), (3, 2))
@example("Chunked(3)", (9, 9, 0), (4, 3))
@example(ONE_DOCUMENT_AFTER_THE_OTHER, (9, 9, 0), (3, 2))
@example("Dilated(1)", (5, 7, 2), (2, 3))
@example("Dilated(3)", (7, 7, 0), (1, 1))
@example("Dense(cells(5, 2, 3, 1, 7))", (9, 7, 3), (2, 3))
@example("Dense(cells(5, 2, 3, 17, 1))", (9, 7, 3), (2, 3))
@example("Dense(cells(5, 2, 3, 1, 1))", (9, 7, 3), (2, 3))
def test_kinds_tell_all_by_themselves(expression: str, shape: Shape, sides: Sides) -> None:
    mask = built(expression)
    shape = known(mask, shape)
    kinds, truth = mask.block_kinds(cut(mask, shape, sides)), told(mask, shape, sides)
    assert torch.equal(kinds.expand_as(truth), truth)


def test_what_kinds_cannot_tell_is_unknown() -> None:
    interrupted = Segments(((0, 1, 0, 0, 1, 1, 2), (0, 0, 1, 1, 1, 2, 2)))
    assert interrupted.block_kinds(cut(interrupted, (7, 7, 0), (2, 7))).tolist() == [
        [[[UNKNOWN], [UNKNOWN], [UNKNOWN], [UNKNOWN]]],
        [[[PARTIAL]] * 4],
    ]
    assert interrupted.blocks(7, 7, size=(2, 7)).tolist() == [[[[PARTIAL]] * 4]] * 2
    both = Causal() & Dilated(2)
    assert both.block_kinds(cut(both, (4, 4, 0), (2, 2))).tolist() == [[[[UNKNOWN, EMPTY], [PARTIAL, UNKNOWN]]]]
    opaque = Predicate(lambda b, h, q, k: q >= k)
    assert opaque.block_kinds(cut(opaque, (2, 5, 0), (2, 3))).tolist() == [[[[UNKNOWN, UNKNOWN]]]]
    assert opaque.blocks(2, 5, size=(2, 3)).tolist() == [[[[PARTIAL, EMPTY]]]]


class Odd(Mask):
    """A kind of somebody's own, which gives its formula alone."""

    def see(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Every odd key."""
        return k % 2 == 1


def test_a_kind_with_nothing_but_its_formula_has_blocks() -> None:
    assert Odd().blocks(3, 5, size=(2, 1)).tolist() == [[[[0, 2, 0, 2, 0]] * 2]]
    assert (Odd() | Prefix(3)).blocks(3, 5, size=2).tolist() == [[[[2, 2, 0]] * 2]]


def test_an_edge_is_looked_at_where_it_is() -> None:
    blocks = Blocks.cut(2, 3, (7, 5, 11), (3, 2), None)
    assert (blocks.b.flatten().tolist(), blocks.h.flatten().tolist()) == ([0, 1], [0, 1, 2])
    assert (blocks.q0.flatten().tolist(), blocks.q1.flatten().tolist()) == ([11, 14, 17], [13, 16, 17])
    assert (blocks.k0.flatten().tolist(), blocks.k1.flatten().tolist()) == ([0, 2, 4], [1, 3, 4])


# --- what is held ---------------------------------------------------------------------------------------------

FEW: list[Mask] = [
    Causal() & Window(256, 0),
    Causal() & Window(256, 0) & Padding((LONG, 5000, 0)),
    Causal() | Prefix((100, 3000)),
    Segments.from_lengths(((1000, 7192), (LONG,))),
    Window(100, 100) | Global((0, 4000)),
    Causal() & Chunked(512),
    Heads((Causal(), Window(10, 0), Padding((70, LONG)))),
    Padding.from_tokens((torch.arange(2 * LONG) % 97).view(2, LONG)),
]


@pytest.mark.parametrize("mask", FEW, ids=lambda mask: repr(mask)[:30])
def test_blocks_are_read_off_the_expression(mask: Mask) -> None:
    with watched() as largest:
        mask.blocks(LONG, LONG)
    # A few blocks at the edges at most are looked into, 12 of the 64 x 64 of each sample and head.
    assert largest.cells <= 12 * 128 * 128


@pytest.mark.parametrize("most", [200, 1000, 7000])
@pytest.mark.parametrize("mask", [Dense(torch.rand(2, 1, 100, 90) < 0.5), Causal() & Dilated(3)], ids=["dense", "join"])
def test_never_more_cells_than_some_are_held(mask: Mask, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, sides = (100, 90, 0), (31, 29)
    wanted = told(mask, shape, sides)
    monkeypatch.setattr(sizes, "CELLS", most)
    with watched() as largest:
        blocks = mask.blocks(*shape, size=sides)
    # The list of unknown blocks, four numbers each, is held besides.
    assert largest.cells <= max(most, 4 * wanted.numel())
    assert torch.equal(blocks, wanted)


@pytest.mark.parametrize(("tall", "wide"), list(product([1, 5, 90, 10**9], repeat=2)))
def test_tiles_hold_as_many_cells_as_they_may(tall: int, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "CELLS", 97)
    blocks, rows, columns = sizes.tile(tall, wide)
    assert rows <= tall
    assert columns <= wide
    assert 97 // 2 < blocks * rows * columns <= 97
    assert blocks == 1 or (rows, columns) == (tall, wide)
