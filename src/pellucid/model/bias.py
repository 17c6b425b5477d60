"""Numbers added to scores that depend on the distance between query and key alone, kept as one row for each head."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pellucid.errors import ShapeError

__all__ = ["Relative"]


@dataclass(frozen=True, slots=True, eq=False)
class Relative:
    """A bias of each head for each offset k - q: Q + K numbers instead of Q x K.

    ALiBi (Press et al. 2022, arXiv 2108.12409, section 3) and the T5 scheme (Raffel et al. 2020, section 2.1) are such.
    Queries and keys are counted in absolute positions, as in a mask. Gradients reach the table.

    Attributes:
        table: (H, offsets): column i is what a key that stands `least + i` past its query is given; H may be 1.
        least: the offset k - q of column 0, the most negative that is known.

    >>> import torch
    >>> Relative(torch.tensor([[-1.0, 0.0, 5.0]]), least=-1).scores(queries=2, keys=2)
    tensor([[[[ 0.,  5.],
              [-1.,  0.]]]])
    """

    table: Float[Tensor, "heads _offsets"]
    least: int

    @property
    def heads(self) -> int:
        """Heads that it tells apart; 1 where all are alike."""
        return len(self.table)

    def scores(
        self, queries: int, keys: int, first_query: int = 0, first_key: int = 0
    ) -> Float[Tensor, "1 heads _query _key"]:
        """What is added to the scores of those queries and keys: (1, H, queries, keys).

        Raises:
            ShapeError: an offset among them is not in the table.
        """
        if not queries or not keys:
            return self.table.new_zeros(1, self.heads, queries, keys)
        nearest, farthest = self.require(queries, keys, first_query, first_key)
        offsets = self.table[:, nearest - self.least : farthest - self.least + 1]
        # Row i of the unfolding begins at offset nearest + i, which is the row of the query i places before the last.
        return offsets.unfold(1, keys, 1).flip(1)[None]

    def require(self, queries: int, keys: int, first_query: int = 0, first_key: int = 0) -> tuple[int, int]:
        """The least and the greatest offset among those queries and keys, of which there is one at least.

        Raises:
            ShapeError: one of them is not in the table.
        """
        nearest, farthest = first_key - (first_query + queries - 1), first_key + keys - 1 - first_query
        most = self.least + self.table.shape[1] - 1
        if nearest < self.least or farthest > most:
            raise ShapeError(
                f"a relative bias of the offsets {self.least} to {most} was asked for {nearest} to {farthest}; make it "
                "for as many queries and keys as attend"
            )
        return nearest, farthest
