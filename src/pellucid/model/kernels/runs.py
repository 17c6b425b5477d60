"""Tiles that repeat along the diagonal, as those of a window do, computed by one call of a kernel."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jaxtyping import Shaped
from torch import Tensor

from pellucid.model.kernels.patterns import Span
from pellucid.model.kernels.tiles import Tile

__all__ = ["Run", "runs", "span"]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A tile, and those like it that follow it along the diagonal, each by the tile's height further down and right.

    Its part of a tensor has a first axis that counts samples, where the tile stands alone, and else the tiles, which
    are then of one sample.

    Attributes:
        tile: the first of them.
        times: how many there are.
    """

    tile: Tile
    times: int = 1

    def of_queries(self, whole: Shaped[Tensor, "batch heads query ..."]) -> Shaped[Tensor, "_parts _heads rows ..."]:
        """The part of something that each query has, as a view."""
        tile = self.tile
        top, bottom = tile.rows
        if self.times == 1:
            return whole[span(tile.samples), span(tile.heads), top:bottom]
        height = bottom - top
        rows = whole[self._sample, span(tile.heads), top : top + self.times * height]
        return rows.view(len(rows), self.times, height, *rows.shape[2:]).movedim(1, 0)

    def of_keys(
        self, whole: Shaped[Tensor, "batch key_heads key width"], heads: Shaped[Tensor, " _heads"] | None
    ) -> Shaped[Tensor, "_parts _heads columns width"]:
        """The part of keys or values, as a view; a copy where `heads` says which key head each query head looks at."""
        left, right = self.tile.columns
        if self.times == 1:
            part = whole[span(self.tile.samples), span(self.tile.heads) if heads is None else slice(None), left:right]
            return part if heads is None else part.index_select(1, heads)
        height = self._height
        part = whole[self._sample, span(self.tile.heads) if heads is None else slice(None)]
        part = part[:, left : right + (self.times - 1) * height]
        part = part if heads is None else part.index_select(0, heads)
        return part.unfold(1, right - left, height).permute(1, 0, 3, 2)

    def add_to_keys(
        self,
        whole: Shaped[Tensor, "batch key_heads key width"],
        part: Shaped[Tensor, "_parts _heads columns width"],
        heads: Shaped[Tensor, " _heads"] | None,
    ) -> None:
        """Add a part, shaped as `of_keys` gives it, to the whole, in place; parts of one run may overlap."""
        left, right = self.tile.columns
        samples = span(self.tile.samples) if self.times == 1 else slice(self._sample, self._sample + 1)
        shared = span(self.tile.heads) if heads is None else slice(None)
        step = right - left if self.times == 1 else self._height
        # A stretch as wide as the step overlaps with that of no other tile.
        for start in range(0, right - left, step):
            stretch = part[:, :, start : start + step]
            width = stretch.shape[2]
            first = left + start
            if self.times == 1:
                target = whole[samples, shared, first : first + width]
            else:
                along = whole[self._sample, shared, first : first + (self.times - 1) * step + width]
                target = along.unfold(1, width, step).permute(1, 0, 3, 2)
            if heads is None:
                target += stretch
            else:
                target.index_add_(1, heads, stretch.to(target.dtype))

    @property
    def _height(self) -> int:
        return self.tile.rows[1] - self.tile.rows[0]

    @property
    def _sample(self) -> int:
        """The one sample of several tiles."""
        return self.tile.samples[0] if self.tile.samples else 0


def runs(found: Iterable[Tile], batch: int, columns: int) -> Iterator[Run]:
    """The tiles in runs, in order.

    Args:
        found: tiles; those that may be one run stand one after another.
        batch: the samples of the attention.
        columns: keys that the tiles of one run have together at most: what one call holds of them.
    """
    run = None
    for tile in found:
        if run is not None and run.times * (tile.columns[1] - tile.columns[0]) < columns and _follows(run, tile):
            run = Run(run.tile, run.times + 1)
            continue
        if run is not None:
            yield from _placed(run, batch)
        run = Run(tile)
    if run is not None:
        yield from _placed(run, batch)


def _follows(run: Run, tile: Tile) -> bool:
    """Whether a tile is the run's next."""
    first = run.tile
    shift = run.times * (first.rows[1] - first.rows[0])
    return (
        (tile.seen, tile.samples, tile.heads, tile.first) == (first.seen, first.samples, first.heads, True)
        and tile.cells is first.cells
        and (tile.seen != "some" or (tile.cells is not None and len(tile.cells) == 1))
        and tile.rows == _shifted(first.rows, shift)
        and tile.columns == _shifted(first.columns, shift)
    )


def _placed(run: Run, batch: int) -> Iterator[Run]:
    """The run, once for each sample; or its tiles one by one, where samples are more than they."""
    first, last = run.tile.samples or (0, batch)
    if run.times == 1 or last - first == 1:
        yield run
    elif run.times > last - first:
        for sample in range(first, last):
            yield Run(replace(run.tile, samples=(sample, sample + 1)), run.times)
    else:
        height = run.tile.rows[1] - run.tile.rows[0]
        for shift in range(0, run.times * height, height):
            rows, columns = _shifted(run.tile.rows, shift), _shifted(run.tile.columns, shift)
            yield Run(replace(run.tile, rows=rows, columns=columns))


def span(ends: Span | None) -> slice:
    """The slice between two ends; all of an axis where there are none."""
    return slice(None) if ends is None else slice(*ends)


def _shifted(ends: Span, shift: int) -> Span:
    return ends[0] + shift, ends[1] + shift
