"""Tiles: they hold every cell that a mask shows, each once, in as few and as plain pieces as its structure allows."""

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from large_masks import BATCH, FIRSTS, HEADS, LENGTHS, MASKS, MASKS_OF_HEADS, built, small_blocks
from pellucid.masks import Causal, Chunked, Full, Heads, Mask, Padding, Segments, Window
from pellucid.model.kernels.patterns import BLOCK
from pellucid.model.kernels.runs import runs
from pellucid.model.kernels.tiles import Tile, cost, cut, tiles

CPU = torch.device("cpu")
Shape = tuple[int, int, int]
SHAPES = st.tuples(LENGTHS, LENGTHS, FIRSTS)
LONG = 1024
PACKED = Segments.from_lengths(((256, 256, 256, 256),))


def found(mask: Mask, shape: Shape) -> tuple[Tile, ...]:
    """The tiles of a mask, simplified as `attend` does."""
    return tiles(mask.within(*shape), *shape, CPU)


def place(tile: Tile) -> tuple[slice, slice, slice, slice]:
    """Where a tile lies among all cells: samples, heads, queries, keys."""
    every: tuple[tuple[int, int] | None, ...] = (tile.samples, tile.heads, tile.rows, tile.columns)
    samples, heads, rows, columns = (slice(None) if span is None else slice(*span) for span in every)
    return samples, heads, rows, columns


def seen_in(tile: Tile, mask: Mask, first: int) -> Tensor:
    """The cells of a tile that are shown, as what it is says: bool, of the tile's size or broadcasting to it."""
    rows, columns = (end - start for start, end in (tile.rows, tile.columns))
    if tile.seen == "some":
        return tile.look(mask, first, CPU)
    return torch.ones(1, 1, rows, columns, dtype=torch.bool).tril(0 if tile.seen == "past" else max(rows, columns))


def painted(some: Iterable[Tile], mask: Mask, shape: Shape) -> tuple[Tensor, Tensor]:
    """How many tiles cover each cell, and how many show it: (B, H, Q, K) both."""
    covered = torch.zeros(BATCH, HEADS, *shape[:2], dtype=torch.int)
    shown = torch.zeros_like(covered)
    for tile in some:
        covered[place(tile)] += 1
        shown[place(tile)] += seen_in(tile, mask, shape[2]).int()
    return covered, shown


def assert_flags(some: Iterable[Tile], shape: Shape) -> None:
    """A tile is the first of its queries exactly where none before it has one of them."""
    reached = torch.zeros(BATCH, HEADS, shape[0], dtype=torch.bool)
    for tile in some:
        rows = place(tile)[:3]
        assert tile.first == (not bool(reached[rows].any()))
        reached[rows] = True


# --- laws -----------------------------------------------------------------------------------------------------


@given(st.one_of(MASKS, MASKS_OF_HEADS), SHAPES)
@example("Causal()", (257, 257, 0))
@example("Causal()", (129, 257, 128))
@example("Causal() & Window(130, 0)", (257, 257, 0))
@example("Heads((Causal(), Full(), ~Causal())) & Padding((200, 0))", (257, 257, 0))
@example("Segments.from_lengths(((128, 473), (256, 345)))", (257, 257, 0))
def test_tiles_show_what_the_mask_shows_each_cell_once(expression: str, shape: Shape) -> None:
    assert_shows(built(expression), shape)


@given(st.one_of(MASKS, MASKS_OF_HEADS), SHAPES)
@example("Causal()", (129, 257, 128))
@example("Causal() & (Window(40, 0) | Global(3)) & Padding((200, 90))", (257, 257, 0))
def test_small_tiles_show_what_the_mask_shows_each_cell_once(expression: str, shape: Shape) -> None:
    with small_blocks():
        assert_shows(built(expression), shape)


def assert_shows(mask: Mask, shape: Shape) -> None:
    """No cell lies in two tiles, those that the mask shows are shown, and the first tiles of queries are flagged."""
    some = found(mask, shape)
    covered, shown = painted(some, mask, shape)
    assert int(covered.amax()) <= 1
    assert torch.equal(shown.bool(), mask.dense(*shape).expand_as(shown))
    assert_flags(some, shape)


@settings(max_examples=30)
@given(st.one_of(MASKS, MASKS_OF_HEADS), SHAPES, st.sampled_from((1000, 5000, 2**14, 2**20)))
@example("Causal()", (12, 11, 0), 1)
@example("Causal() & Window(3, 1)", (12, 11, 2), 1)
@example("Causal()", (257, 257, 0), 1000)
@example("Causal()", (257, 128, 0), 5000)
@example("drawn(1, 1, 1, 601, 1)", (257, 257, 0), 2**14)
def test_pieces_are_the_tile_each_cell_once(expression: str, shape: Shape, size: int) -> None:
    mask = built(expression)
    some = found(mask, shape)
    pieces = [piece for tile in some for piece in cut(tile, size)]
    covered, shown = painted(pieces, mask, shape)
    assert int(covered.amax()) <= 1
    assert torch.equal(shown.bool(), mask.dense(*shape).expand_as(shown))
    sizes = [(piece.rows[1] - piece.rows[0]) * (piece.columns[1] - piece.columns[0]) for piece in pieces]
    assert max(sizes, default=0) <= size
    # What is flagged first may write over what stands there: no piece before it may have one of its queries.
    reached = torch.zeros(BATCH, HEADS, shape[0], dtype=torch.bool)
    for piece in pieces:
        rows = place(piece)[:3]
        assert not (piece.first and bool(reached[rows].any()))
        reached[rows] = True


@given(st.one_of(MASKS, MASKS_OF_HEADS), SHAPES)
def test_a_tile_s_cells_are_the_mask_s(expression: str, shape: Shape) -> None:
    mask = built(expression)
    dense = mask.dense(*shape).expand(BATCH, HEADS, *shape[:2])
    for tile in found(mask, shape):
        assert (tile.cells is None) == (tile.seen != "some")
        assert torch.equal(seen_in(tile, mask, shape[2]).expand_as(dense[place(tile)]), dense[place(tile)])


@settings(max_examples=25)
@given(st.one_of(MASKS, MASKS_OF_HEADS), SHAPES, st.sampled_from((1, 300, 10**4)))
@example("Window(100, 0)", (1025, 1025, 0), 10**4)
@example("Chunked(128) & Causal()", (640, 640, 0), 300)
@example("Causal() & Padding((130, 257))", (257, 257, 0), 10**4)
def test_runs_are_the_tiles_each_once(expression: str, shape: Shape, columns: int) -> None:
    mask = built(expression)
    queries, keys, _ = shape
    covered = torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.int)
    places = torch.arange(BATCH * HEADS * queries).view(BATCH, HEADS, queries)
    of_keys = torch.arange(BATCH * HEADS * keys).view(BATCH, HEADS, keys, 1)
    some = found(mask, shape)
    for run in runs(some, BATCH, columns):
        rows, seen = run.of_queries(places), run.of_keys(of_keys, None)
        assert len(rows) == len(seen) == (run.times if run.times > 1 else len(places[place(run.tile)[0]]))
        samples, heads, q = (rows // (HEADS * queries)), rows // queries % HEADS, rows % queries
        k = seen[..., 0] % keys
        assert torch.equal(seen[..., 0] // keys, (rows // queries)[:, :, :1].expand(k.shape))
        covered.index_put_(
            (samples[..., None], heads[..., None], q[..., None], k[:, :, None, :]),
            torch.ones((), dtype=torch.int),
            True,
        )
        assert run.times == 1 or run.times * (run.tile.columns[1] - run.tile.columns[0]) <= columns + keys
    assert torch.equal(covered, painted(some, mask, shape)[0])


def test_what_overlapping_tiles_give_is_summed() -> None:
    [run] = [run for run in runs(found(Window(100, 0), (1024, 1024, 0)), 1, 10**4) if run.times > 1]
    whole = torch.zeros(1, HEADS, 1024, 1)
    given_back = torch.rand_like(run.of_keys(whole, None))
    run.add_to_keys(whole, given_back, None)
    height, (left, right) = run.tile.rows[1] - run.tile.rows[0], run.tile.columns
    wanted = torch.zeros_like(whole)
    for step in range(run.times):
        wanted[0, :, left + step * height : right + step * height] += given_back[step]
    torch.testing.assert_close(whole, wanted)
    shared = torch.zeros(1, 2, 1024, 1)  # the first two heads look at one
    run.add_to_keys(shared, given_back, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(shared, torch.stack([wanted[:, :2].sum(1), wanted[:, 2]], dim=1))


# --- by hand ----------------------------------------------------------------------------------------------------


def drawn(mask: Mask, queries: int = LONG, keys: int = LONG, first: int = 0) -> list[tuple[object, ...]]:
    """Rows, columns and what is seen of each tile."""
    return [(tile.rows, tile.columns, tile.seen) for tile in found(mask, (queries, keys, first))]


def test_causal_is_one_triangle() -> None:
    assert drawn(Causal()) == [((0, LONG), (0, LONG), "past")]
    assert drawn(Causal(), 1000, 1000) == [((0, 1000), (0, 1000), "past")]


def test_nothing_hidden_is_one_rectangle_and_all_hidden_is_none() -> None:
    assert drawn(Full(), 1000, 300) == [((0, 1000), (0, 300), "all")]
    assert drawn(~Full()) == []
    assert drawn(Causal(), 0, 5) == []


def test_later_queries_see_a_rectangle_and_a_triangle() -> None:
    assert sorted(drawn(Causal(), 512, LONG, 512)) == [((0, 512), (0, 512), "all"), ((0, 512), (512, LONG), "past")]


def test_packed_documents_are_a_triangle_each() -> None:
    assert drawn(Causal() & PACKED) == [((at, at + 256), (at, at + 256), "past") for at in range(0, LONG, 256)]
    assert drawn(Causal() & Chunked(256)) == drawn(Causal() & PACKED)


def test_where_a_document_ends_within_a_block_no_triangle_does() -> None:
    some = found(Causal() & Segments.from_lengths(((200, 312, 512),)), (LONG, LONG, 0))
    astride = [tile for tile in some if tile.rows[0] < 256 and tile.rows[1] > 128]
    assert {tile.seen for tile in astride} == {"some"}
    # Of a later document no tile reaches back beyond the block in which it begins.
    assert all(tile.columns[0] >= 128 for tile in some if tile.rows[0] >= 256)
    assert all(tile.columns[0] >= 512 for tile in some if tile.rows[0] >= 512)


def test_the_strips_of_a_window_share_their_cells() -> None:
    mask = Window(255, 0)
    some = found(mask, (4096, 4096, 0))
    inside = [tile for tile in some if tile.rows[0] >= 384]
    assert len(inside) == 29
    assert len({id(tile.cells) for tile in inside}) == 1
    assert all(tile.columns == (tile.rows[0] - 256, tile.rows[1]) and tile.seen == "some" for tile in inside)
    assert {tile.rows[1] - tile.rows[0] for tile in inside} == {BLOCK}


def test_padding_ends_the_triangle_and_leaves_a_rectangle() -> None:
    some = found(Causal() & Padding((600,)), (LONG, LONG, 0))
    assert max(tile.columns[1] for tile in some) == 640  # the block in which the padding begins
    area = sum(tile.area for tile in some)
    assert area <= 640 * 640 // 2 + (LONG - 640 + BLOCK) * 640
    assert any(tile.seen == "past" and tile.rows == (0, 512) for tile in some)


def test_samples_and_heads_that_are_alike_share_tiles() -> None:
    assert len(found(Causal() & Padding((600, 600)), (LONG, LONG, 0))) == len(
        found(Causal() & Padding((600,)), (LONG, LONG, 0))
    )
    some = found(Heads((Causal(), Causal(), Window(255, 0))), (LONG, LONG, 0))
    assert [tile.heads for tile in some if tile.seen == "past"] == [(0, 2)]
    assert {tile.heads for tile in some if tile.seen != "past"} == {(2, 3)}


def test_short_samples_are_computed_together() -> None:
    some = found(Padding((60, 50, 40, 30)), (64, 64, 0))
    assert [(tile.samples, tile.rows, tile.columns) for tile in some] == [((0, 4), (0, 64), (0, 64))]


def test_triangles_are_taken_only_where_the_flag_says_all() -> None:
    # A block of the diagonal in which one cell of the past is hidden.
    mask = Causal() - (Window(5, 0) & ~Window(4, 0) & Padding((3,)))
    assert all(tile.seen != "past" or tile.rows[0] >= 128 for tile in found(mask, (LONG, LONG, 0)))
    # Queries that do not begin on a block's edge have their diagonal inside of it.
    assert all(tile.seen != "past" for tile in found(Causal(), (257, LONG, 100)))


def test_what_costs_more_is_more() -> None:
    shape = (LONG, LONG, 0)
    costs = [cost(found(mask, shape), 1) for mask in (Causal() & PACKED, Window(255, 0), Causal(), Full())]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


# --- the same everywhere ----------------------------------------------------------------------------------------

LISTED = """
from pellucid.masks import Causal, Global, Heads, Padding, Segments, Window
from pellucid.model.kernels.tiles import tiles
import torch
mask = Heads((Causal() | Global((3, 700)), Window(200, 90), Causal())) & (Padding((600, 900)) | Window(9, 9))
for tile in tiles(mask, 1024, 1024, 0, torch.device("cpu")):
    print(tile.rows, tile.columns, tile.seen, tile.samples, tile.heads, tile.first)
"""


@pytest.mark.slow
def test_the_order_of_tiles_is_the_same_in_every_process() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", LISTED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0].count("\n") > 20
    assert printed[1] == printed[0]
