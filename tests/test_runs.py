"""Runs: tiles that repeat along the diagonal, as one tensor; what is read from the whole, and what is added back to it."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.masks import Causal, Chunked, Dense, Mask, Padding, Segments, Window
from pellucid.model.kernels.patterns import BLOCK
from pellucid.model.kernels.runs import Run, runs
from pellucid.model.kernels.tiles import COLUMNS, Tile, tiles

B, H, D = 3, 5, 2
LENGTH = 7 * BLOCK + 13
CPU = torch.device("cpu")
MASKS: dict[str, Mask] = {
    "a window": Causal() & Window(BLOCK, 0),
    "a wide window": Causal() & Window(3 * BLOCK, 0),
    "a window on both sides": Window(200, 70),
    "a window and padding": Causal() & Window(BLOCK, 0) & Padding((LENGTH, 500, 0)),
    "documents": Segments([[place // BLOCK for place in range(LENGTH)]] * B),
    "documents, causal": Causal() & Segments([[place // (2 * BLOCK) for place in range(LENGTH)]] * B),
    "causal": Causal(),
    "chunks with holes": Chunked(BLOCK)
    & Dense(torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5),
}


def found(mask: Mask) -> tuple[Tile, ...]:
    """The tiles of a square attention."""
    return tiles(mask, LENGTH, LENGTH, 0, CPU)


def every_tile(run: Run) -> list[Tile]:
    """The tiles of a run one by one, as places and what is seen."""
    height = run.tile.rows[1] - run.tile.rows[0]
    shifts = range(0, run.times * height, height)
    return [
        Tile(
            (run.tile.rows[0] + shift, run.tile.rows[1] + shift),
            (run.tile.columns[0] + shift, run.tile.columns[1] + shift),
            run.tile.seen,
            run.tile.samples,
            run.tile.heads,
        )
        for shift in shifts
    ]


def places(some: Sequence[Tile]) -> list[tuple[object, ...]]:
    """Where tiles lie, for each sample apart, in order of place."""
    return sorted(
        (sample, tile.rows, tile.columns, tile.seen, tile.heads or ())
        for tile in some
        for sample in range(*(tile.samples or (0, B)))
    )


@pytest.mark.parametrize("columns", [1, 4 * BLOCK, COLUMNS])
@pytest.mark.parametrize("name", MASKS)
def test_runs_are_the_tiles_each_once(name: str, columns: int) -> None:
    plan = found(MASKS[name])
    gathered = list(runs(plan, B, columns))
    assert places([tile for run in gathered for tile in every_tile(run)]) == places(plan)
    for run in gathered:
        together = run.times * (run.tile.columns[1] - run.tile.columns[0])
        assert run.times == 1 or together < columns + run.tile.columns[1] - run.tile.columns[0]
        assert run.times == 1 or len(range(*(run.tile.samples or (0, B)))) == 1
        cells = run.tile.cells
        if run.times > 1 and cells is not None:
            assert all(torch.equal(tile.look(MASKS[name], 0, CPU), cells) for tile in every_tile(run))


def test_the_strips_of_a_window_are_one_run_for_each_sample() -> None:
    gathered = list(runs(found(MASKS["a window"]), B, COLUMNS))
    # The first strip has nothing before it, the last is cut short; six of two blocks each stand between them.
    assert sorted(run.times for run in gathered) == [1, 1, 6, 6, 6]
    assert [run.tile.samples for run in gathered if run.times == 6] == [(0, 1), (1, 2), (2, 3)]
    alone = list(runs(found(MASKS["a window"]), 1, COLUMNS))
    assert sorted(run.times for run in alone) == [1, 1, 6]


def test_more_samples_than_tiles_stay_together() -> None:
    gathered = list(runs(found(MASKS["a window"]), 7, COLUMNS))
    assert [run.times for run in gathered] == [1] * 8
    assert places([run.tile for run in gathered]) == places(found(MASKS["a window"]))


@given(st.sampled_from(sorted(MASKS)), st.sampled_from([1, 5]), st.integers(0, 9))
def test_adding_to_keys_is_the_adjoint_of_reading_them(name: str, key_heads: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    whole = torch.randn(B, key_heads, LENGTH, D, dtype=torch.float64, generator=draw)
    for run in runs(found(MASKS[name]), B, COLUMNS):
        shared = None if key_heads == H else torch.zeros(H, dtype=torch.int64)
        part = run.of_keys(whole, shared)
        other = torch.randn(part.shape, dtype=torch.float64, generator=draw)
        into = torch.zeros_like(whole)
        run.add_to_keys(into, other, shared)
        torch.testing.assert_close((part * other).sum(), (whole * into).sum(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MASKS)
def test_the_parts_of_queries_are_views_of_the_whole(name: str) -> None:
    numbered = torch.arange(B * H * LENGTH * D).view(B, H, LENGTH, D)
    reached = torch.zeros(B, H, LENGTH, D)
    for run in runs(found(MASKS[name]), B, COLUMNS):
        tiles_of_run = every_tile(run)
        part = run.of_queries(numbered)
        samples = slice(*(run.tile.samples or (None,)))
        rows = [numbered[samples, :, slice(*tile.rows)] for tile in tiles_of_run]
        assert torch.equal(part, rows[0] if run.times == 1 else torch.cat(rows))
        run.of_queries(reached)[:] = 1
        run.of_queries(reached[..., 0])  # of what has no width, as the logarithms
    assert bool(reached.all()) is (name != "a window and padding")
