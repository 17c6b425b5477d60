"""Rotary positions: queries and keys turned by angles of their positions, so that scores know their distance alone."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.errors import ConfigError, ShapeError
from pellucid.model.positions.counts import count
from pellucid.model.positions.interface import First, Positions
from pellucid.model.positions.places import places
from pellucid.model.positions.turn import Turn
from pellucid.shapes import Heads, States

__all__ = ["Rotary"]

BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns within the trained length: pairs of more stay, pairs of fewer are stretched


class Rotary(Positions):
    """Each pair of a head's dimensions turned by position * base^(-2i / head_dim) (Su et al. 2021, RoFormer).

    That is arXiv 2104.09864, section 3.4.2, equation 34. The score of a turned query and a turned key depends on the
    distance between them alone; lengths are kept.

    It acts on queries and keys of self-attention; cross-attention is not turned, as source and target are counted
    apart. A cached key has been turned to its own position already, and stays. Negative positions are angles like any
    other, so padding in front needs no care. There is no longest position, but past the trained length a score meets
    angles it never saw, which a `scaling` avoids:

    - "linear": all positions divided by `factor` (Chen et al. 2023, arXiv 2306.15595, section 2.3);
    - "ntk": base * factor^(head_dim / (head_dim - 2)), which stretches the slowest pair by `factor` and leaves the
      fastest (bloc97's NTK-aware scaling, told by Peng et al. 2023, arXiv 2309.00071, section 3);
    - "yarn": pairs of many turns within `original_length` stay, those of less than one are stretched as by "linear",
      and between 32 turns and 1 they pass from one to the other; queries and keys grow by 0.1 ln(factor) + 1 each
      (Peng et al. 2023, section 3, "NTK-by-parts" and "YaRN"). The passage is linear in the pair's index between whole
      indices, as in the published code; the paper's formula has it linear in the turns.

    Args:
        head_dim: width of a head, even.
        pairs: "halves" pairs dimension i with i + head_dim / 2, as GPT-NeoX and Hugging Face do; "interleaved" pairs
            2i with 2i + 1, as the paper and GPT-J do. `rotary_weights` converts projections from one to the other.
        base: the slowest pair takes almost base * 2 pi positions to turn once.
        scaling: how a model is made to read texts longer than it was trained on.
        factor: how many times longer, from 1 up.
        original_length: positions that the model was trained on; "yarn" needs it, the others do not read it.

    Raises:
        ConfigError: head_dim or original_length is not whole; head_dim is odd, or too small for "ntk"; the numbers are
            out of range; or a choice is unknown.

    >>> Rotary(head_dim=2).rotate(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
    tensor([[[[1.0000, 0.0000],
              [0.5403, 0.8415]]]])
    """

    def __init__(
        self,
        head_dim: int,
        pairs: Literal["halves", "interleaved"] = "halves",
        base: float = 10000.0,
        scaling: Literal["none", "linear", "ntk", "yarn"] = "none",
        factor: float = 1.0,
        original_length: int | None = None,
    ) -> None:
        super().__init__()
        if pairs not in ("halves", "interleaved"):
            raise ConfigError(f"Rotary was given pairs={pairs!r}, but it knows 'halves' and 'interleaved'; choose one")
        if scaling not in ("none", "linear", "ntk", "yarn"):
            raise ConfigError(
                f"Rotary was given scaling={scaling!r}, but it knows 'none', 'linear', 'ntk' and 'yarn'; choose one"
            )
        self.head_dim = count(
            head_dim, "Rotary was given head_dim", "it turns dimensions in pairs", "the width of a head, even"
        )
        _check_numbers(self.head_dim, base, scaling, factor)
        if scaling == "yarn":
            needed = "it needs to know how many positions the model was trained on"
            count(original_length, "Rotary was given scaling='yarn' and original_length", needed, "original_length")
        self.pairs = pairs
        self.base = base
        self.scaling = scaling
        self.factor = factor
        self.original_length = original_length

    @property
    def magnitude(self) -> float:
        """What each turned query and key is multiplied by: sqrt(1 / t) of YaRN's temperature t, else 1."""
        return 0.1 * math.log(self.factor) + 1 if self.scaling == "yarn" else 1.0

    def frequencies(self, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
        """Radians that each of the head_dim / 2 pairs turns from one position to the next, in float64.

        >>> Rotary(head_dim=4, base=100.0).frequencies()
        tensor([1.0000, 0.1000], dtype=torch.float64)
        """
        pair = torch.arange(self.head_dim // 2, dtype=torch.float64, device=device)
        base = self.base
        if self.scaling == "ntk":
            base = base * self.factor ** (self.head_dim / (self.head_dim - 2))
        plain = torch.exp(pair * (-2 * math.log(base) / self.head_dim))
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "yarn":
            kept_until, stretched_from = self._passage(self.original_length or 1)
            stretched = ((pair - kept_until) / (stretched_from - kept_until)).clamp(0, 1)
            return plain * (1 - stretched) + plain / self.factor * stretched
        return plain

    def forward(self, states: States, first: First = 0) -> States:  # noqa: ARG002
        """The states as they are: nothing is added to embeddings."""
        return states

    def rotate(self, heads: Heads, first: First = 0) -> Heads:
        """Turn queries or keys to their positions.

        Args:
            heads: (B, H, L, head_dim).
            first: the absolute position of the first: one number, or a tensor (B,) with each sample's own.

        Returns:
            (B, H, L, head_dim) in the dtype of `heads`; angles are computed in float64, products in float32 at least.

        Raises:
            ShapeError: heads are not `head_dim` wide, or `first` is not of one whole number for each sample.
        """
        if heads.shape[-1] != self.head_dim:
            raise ShapeError(
                f"Rotary(head_dim={self.head_dim}) was given heads of width {heads.shape[-1]}; make it for the width "
                "of a head, d_model / num_heads"
            )
        return self._turn(places(first, heads), heads.dtype).apply(heads)

    def turn(self, length: int, first: int, like: Tensor) -> Turn:
        """The angles of positions first, first + 1, ..., for any number of layers: `rotate` without working them out anew.

        Args:
            length: how many positions.
            first: the absolute position of the first.
            like: what will be turned; only its dtype and its device are read.
        """
        at = torch.arange(first, first + length, device=like.device)
        return self._turn(at, like.dtype)

    def _turn(self, at: Int[Tensor, "*axes"], dtype: torch.dtype) -> Turn:
        """The angles of those positions: (L, pairs), or (B, 1, L, pairs), where a sample's are those of all its heads."""
        angles = at[..., None] * self.frequencies(at.device)
        if angles.dim() == 3:
            angles = angles[:, None]
        exact = torch.promote_types(dtype, torch.float32)
        cos, sin = (angles.cos() * self.magnitude).to(exact), (angles.sin() * self.magnitude).to(exact)
        return Turn(cos, sin, halves=self.pairs == "halves")

    def _passage(self, length: int) -> tuple[int, float]:
        """YaRN's indices of the last pair that is kept and the first that is stretched in full."""

        def index(turns: float) -> float:
            """Which pair, as a fraction, makes so many turns within the trained length."""
            return self.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        kept_until = max(math.floor(index(BETA_FAST)), 0)
        stretched_from = float(min(math.ceil(index(BETA_SLOW)), self.head_dim - 1))
        # Where both are one pair, the passage is a step.
        return kept_until, max(stretched_from, kept_until + 0.001)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        shown = f"head_dim={self.head_dim}, pairs={self.pairs!r}, base={self.base}"
        if self.scaling != "none":
            shown += f", scaling={self.scaling!r}, factor={self.factor}"
        return shown + (f", original_length={self.original_length}" if self.scaling == "yarn" else "")


def _check_numbers(head_dim: int, base: float, scaling: str, factor: float) -> None:
    """Refuse numbers that would turn nothing, or everything wrongly."""
    if head_dim % 2:
        raise ConfigError(
            f"Rotary was given head_dim={head_dim}, but it turns dimensions in pairs; give an even number from 2 up, "
            "by a num_heads that leaves d_model / num_heads even"
        )
    if scaling == "ntk" and head_dim == 2:
        raise ConfigError(
            "Rotary was given scaling='ntk' and head_dim=2, but it leaves the fastest pair, and there is no other; "
            "choose 'linear'"
        )
    if not 1 < base < math.inf:
        raise ConfigError(f"Rotary was given base={base}, but slower pairs need a base above 1; give one, as 10000.0")
    if not 1 <= factor < math.inf:
        raise ConfigError(
            f"Rotary was given factor={factor}, but it says how many times longer the texts become; give a number from "
            "1 up"
        )
    if scaling == "none" and factor != 1:
        raise ConfigError(
            f"Rotary was given factor={factor} and scaling='none', which stretches nothing; choose 'linear', 'ntk' or "
            "'yarn', or leave the factor out"
        )
