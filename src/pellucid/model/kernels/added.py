"""What is added to the scores of one tile, the bias and minus infinity where a key is hidden; and its gradient."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.masks import Mask
from pellucid.model.bias import Relative
from pellucid.model.kernels.patterns import Span
from pellucid.model.kernels.tiles import Tile

__all__ = ["Added"]


class Added:
    """The bias and the mask of one attention, tile by tile, in the dtype that a kernel takes.

    Args:
        mask: what each query may look at.
        bias: what is added to the scores, whole.
        first_query: the absolute position of the first query.
        dtype: what the scores are added up in.
        device: where.
    """

    def __init__(
        self, mask: Mask, bias: Tensor | Relative | None, first_query: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.mask, self.bias, self.first_query = mask, bias, first_query
        self.dtype, self.device = dtype, device
        self._shared: tuple[Tensor, Tensor] | None = None  # the cells that were turned into numbers last

    def to(self, tile: Tile, *, past_too: bool) -> Float[Tensor, "#samples #heads #rows #columns"] | None:
        """The numbers to be added to a tile's scores, or None where there is nothing to add.

        Args:
            tile: the tile.
            past_too: whether a tile whose future is hidden must be told so; a kernel may have a flag for it.
        """
        hidden = None
        if tile.seen == "some":
            hidden = self._hidden(tile)
        elif tile.seen == "past" and (past_too or self.bias is not None):
            (top, bottom), (left, right) = tile.rows, tile.columns
            future = torch.ones(bottom - top, right - left, dtype=torch.bool, device=self.device).triu(1)
            hidden = self._numbers(future)[None, None]
        bias = self._bias(tile)
        return hidden if bias is None else bias if hidden is None else bias + hidden

    def collect(self, tile: Tile, grad: Float[Tensor, "samples heads rows columns"], into: Tensor) -> None:
        """Add the gradient of a tile's scores to the gradient of the bias."""
        if isinstance(self.bias, Relative):
            sums = _along_diagonals(grad.sum(0))
            start = tile.columns[0] - (self.first_query + tile.rows[1] - 1) - self.bias.least
            sums = sums.sum(0, keepdim=True) if len(into) == 1 else sums
            heads = slice(None) if len(into) == 1 else slice(*(tile.heads or (None,)))
            into[heads, start : start + sums.shape[1]] += sums
            return
        target = into[_place(into, tile)]
        alike = [axis for axis, size in enumerate(target.shape) if size == 1 and grad.shape[axis] != 1]
        target += grad.sum(alike, keepdim=True) if alike else grad

    def _hidden(self, tile: Tile) -> Tensor:
        cells = tile.look(self.mask, self.first_query, self.device)
        if tile.cells is None:
            return self._numbers(~cells)
        if self._shared is None or self._shared[0] is not tile.cells:
            self._shared = (tile.cells, self._numbers(~cells))
        return self._shared[1]

    def _numbers(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, -math.inf)

    def _bias(self, tile: Tile) -> Tensor | None:
        if self.bias is None:
            return None
        if isinstance(self.bias, Tensor):
            return self.bias[_place(self.bias, tile)].to(self.dtype)
        (top, bottom), (left, right) = tile.rows, tile.columns
        numbers = self.bias.scores(bottom - top, right - left, self.first_query + top, left)
        heads = slice(None) if self.bias.heads == 1 else slice(*(tile.heads or (None,)))
        return numbers[:, heads].to(self.dtype)


def _place(bias: Tensor, tile: Tile) -> tuple[slice, ...]:
    """Where a tile lies in a tensor whose axes of size 1 speak of all."""
    spans: tuple[Span | None, ...] = (tile.samples, tile.heads, tile.rows, tile.columns)
    return tuple(
        slice(None) if size == 1 or span is None else slice(*span) for size, span in zip(bias.shape, spans, strict=True)
    )


def _along_diagonals(grad: Float[Tensor, "heads rows columns"]) -> Float[Tensor, "heads offsets"]:
    """Sums along the diagonals, the lowest first: what all cells of one offset k - q are given together."""
    heads, rows, columns = grad.shape
    # Padded to rows + columns and read as rows one shorter, each row stands one place further to the right.
    skewed = torch.nn.functional.pad(grad.flip(1), (0, rows)).reshape(heads, -1)[:, : rows * (rows + columns - 1)]
    return skewed.reshape(heads, rows, rows + columns - 1).sum(1)
