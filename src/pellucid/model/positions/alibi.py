"""ALiBi: scores lowered in proportion to the distance from query to key, more steeply in one head than in another."""

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.model.bias import Relative
from pellucid.model.positions.counts import count
from pellucid.model.positions.interface import First, Positions
from pellucid.model.positions.places import offsets
from pellucid.shapes import States

__all__ = ["ALiBi"]


class ALiBi(Positions):
    """-slope * |k - q| added to each score, a slope for each head (Press et al. 2022, arXiv 2108.12409, section 3).

    Behind its query a key is given what the paper gives it. One ahead is given as much, so that an encoder looks both
    ways alike; a causal mask hides it. Nothing is learned and nothing is saved.

    It acts on the scores of self-attention; cross-attention has none, as source and target are counted apart. A cached
    step at position t is given row t of the whole. There is no longest distance: past the trained length the line goes
    on, which is what the scheme was made for.

    Args:
        num_heads: the heads of the attention it is added in.

    Raises:
        ConfigError: num_heads is no whole number from 1 up.

    >>> ALiBi(num_heads=1).bias(queries=2, keys=3).scores(queries=2, keys=3)[0, 0].mul(2**8).int().tolist()
    [[0, -1, -2], [-1, 0, -1]]
    """

    _where: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = count(
            num_heads, "ALiBi was given num_heads", "each head has its slope", "the attention's own number of heads"
        )
        # Empty: it goes where the module goes, and says where that is. Slopes kept so would be rounded by `half()`.
        self.register_buffer("_where", torch.empty(0), persistent=False)

    @property
    def slopes(self) -> Float[Tensor, " heads"]:
        """(H,) by the published rule, in the module's dtype, or in float32 where that is narrower.

        For a power of two they are 2^(-8 / H), 2^(-16 / H), ... down to 2^-8. Otherwise they are those of the next
        lower power of two, and behind them every other one of twice that power, from its first on.

        >>> ALiBi(num_heads=3).slopes
        tensor([0.0625, 0.0039, 0.2500])
        """
        return self._slopes().to(self._dtype())

    def forward(self, states: States, first: First = 0) -> States:  # noqa: ARG002
        """The states as they are: nothing is added to embeddings."""
        return states

    def bias(self, queries: int, keys: int, first_query: int = 0) -> Relative:
        """What is added to the scores of those queries and of the keys from 0 on.

        Args:
            queries: how many queries stand in a row.
            keys: how many keys, the first at position 0.
            first_query: the absolute position of the first query.

        Returns:
            A table (H, queries + keys - 1), in the dtype of `slopes`.
        """
        away = offsets(queries, keys, first_query, self._where.device)
        return Relative((-self._slopes()[:, None] * away.abs()).to(self._dtype()), least=1 - queries - first_query)

    def _slopes(self) -> Float[Tensor, " heads"]:
        """The slopes in float64."""
        power = 2 ** (self.num_heads.bit_length() - 1)
        # In units of 4 / power the exponents of the power are even, and every other one of its double is odd.
        even = 2 * torch.arange(1, power + 1, device=self._where.device)
        odd = 2 * torch.arange(self.num_heads - power, device=self._where.device) + 1
        return torch.exp2(torch.cat([even, odd]).double() * (-4 / power))

    def _dtype(self) -> torch.dtype:
        """The module's, where it holds a distance times a slope well."""
        return torch.promote_types(self._where.dtype, torch.float32)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"num_heads={self.num_heads}"
