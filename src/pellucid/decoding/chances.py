"""Says what may be drawn next and how likely each token is: the settings of a sampling, the cuts, the seeds."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.config.settings import known
from pellucid.decoding.numbers import is_number, is_whole
from pellucid.decoding.ranking import best_tokens
from pellucid.errors import DecodingError

__all__ = ["Drawing", "Sampling", "own_seed", "pick", "seed_or_fresh", "weigh"]

_ROUNDING = 16  # in steps of the answer's precision: how near to a cut a probability counts as standing on it
_FEW = 256  # tokens that are ranked at first for top-p


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, in the order in which it is applied.

    Attributes:
        temperature: log-probabilities are divided by it; 0 always takes the likeliest token.
        top_k: only the k likeliest tokens stay.
        top_p: of those, made to sum to one, only the fewest likeliest ones that have p together stay (Holtzman et al.
            2020, arXiv 1904.09751, section 3.1).
        min_p: of those, only the ones at least min_p times as likely as the likeliest stay (Nguyen et al. 2024,
            arXiv 2407.01082, section 3).

    None, and 1 for top_p or 0 for min_p, cut nothing off. The likeliest token always stays. Of equally likely tokens
    `top_k` and `top_p` keep the lowest ids, and `min_p` all or none.

    Raises:
        DecodingError: a setting is no number, or out of its range.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int | None = None
    min_p: float | int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature < math.inf):
            raise DecodingError(
                f"temperature was given {self.temperature!r}, but it divides log-probabilities; "
                "give a number above 0, or 0 for the likeliest token"
            )
        if self.top_k is not None and not (is_whole(self.top_k) and self.top_k >= 1):
            raise DecodingError(
                f"top_k was given {self.top_k!r}, but it counts the tokens to draw from; "
                "give 1 or more, or leave it out to draw from all"
            )
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise DecodingError(
                f"top_p was given {self.top_p!r}, but it is the probability to draw from; "
                "give a number above 0 and up to 1, or leave it out to draw from all"
            )
        if self.min_p is not None and not (is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise DecodingError(
                f"min_p was given {self.min_p!r}, but it is a share of the likeliest token's probability; "
                "give a number from 0 to 1, or leave it out to draw from all"
            )

    @classmethod
    def of(cls, given: "Sampling | Mapping[str, Any]") -> "Sampling":
        """The settings that were given by their names.

        Raises:
            DecodingError: one of them is unknown, or cannot have its value.

        >>> Sampling.of(dict(temperature=0.8, top_q=0.9))
        Traceback (most recent call last):
            ...
        pellucid.errors.DecodingError: sampling was given the unknown setting 'top_q'; did you mean 'top_p'?
        """
        if isinstance(given, Sampling):
            return given
        if not isinstance(given, Mapping):
            raise DecodingError(
                f"sampling was given {given!r}, but it takes settings by name; write sampling=dict(temperature=0.8)"
            )
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise DecodingError(f"sampling was given the unknown setting {name!r}; {known(str(name), names)}")
        return cls(**given)


def weigh(log_probs: Float[Tensor, "rows vocabulary"], sampling: Sampling) -> Float[Tensor, "rows vocabulary"]:
    """What each token weighs in the draw: its tempered probability over the likeliest one's, or 0 where it is cut off.

    It is worked out on the CPU in float64. Every row must have a token of some probability, and the temperature must
    be above 0. Probabilities that stand on a cut within the rounding of what the step gave count as on its near side.
    """
    rounding = _ROUNDING * torch.finfo(torch.promote_types(log_probs.dtype, torch.float32)).eps
    log_probs = log_probs.to("cpu", torch.float64)
    below = (log_probs - log_probs.amax(dim=-1, keepdim=True)) / sampling.temperature
    weights = below.exp()
    kept = _likeliest(log_probs, weights, sampling, rounding)
    if sampling.min_p:
        kept = kept & (below >= math.log(sampling.min_p) - rounding)
    return weights.where(kept, 0.0)


def _likeliest(
    log_probs: Float[Tensor, "rows vocabulary"],
    weights: Float[Tensor, "rows vocabulary"],
    sampling: Sampling,
    rounding: float,
) -> Bool[Tensor, "rows vocabulary"]:
    """The tokens that top-k and top-p keep: of each row so many of the likeliest, and of equals the lowest ids."""
    every = weights.shape[1]
    top_k = min(sampling.top_k or every, every)
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    if top_k == every and top_p == 1:
        return torch.ones_like(weights, dtype=torch.bool)
    # To rank all tokens is slow, and top-p mostly keeps a few: the rest is ranked only if these do not reach it.
    for count in (min(_FEW, every), every) if top_k == every else (top_k,):
        # Ranked by what the step gave: a temperature can make equals of unequals.
        _, tokens = best_tokens(log_probs, count)
        ranked = weights.gather(1, tokens)
        total = (weights if top_k == every else ranked).sum(dim=-1, keepdim=True)
        goes_on = ranked.cumsum(dim=-1) / total < top_p - rounding
        if not goes_on[:, -1].any():
            break
    kept = torch.ones_like(goes_on)
    if top_p < 1:
        kept[:, 1:] = goes_on[:, :-1]
    return torch.zeros_like(weights, dtype=torch.bool).scatter(1, tokens, kept)


def pick(
    log_probs: Float[Tensor, "rows vocabulary"], numbers: Sequence[float], sampling: Sampling
) -> Int[Tensor, " rows"]:
    """One token for each row, by inverse transform of a number from 0 up to 1; the likeliest at a temperature of 0.

    The transform goes through the tokens by their ids, so that a cut which cuts nothing changes no draw.
    """
    if sampling.temperature == 0:
        return best_tokens(log_probs, 1)[1][:, 0]
    reached = weigh(log_probs, sampling).cumsum(dim=-1)
    total = reached[:, -1:]
    # Rounding must not lift a number to the whole, behind which no token stands.
    wanted = (torch.tensor(numbers, dtype=torch.float64)[:, None] * total).minimum(
        total.nextafter(torch.zeros_like(total))
    )
    return torch.searchsorted(reached, wanted, right=True)[:, 0].to(log_probs.device)


def own_seed(seed: int, place: int) -> int:
    """The seed of what stands at a place, by a hash: seeds next to each other have nothing in common.

    >>> own_seed(1, 2) == own_seed(1, 2), own_seed(1, 2) == own_seed(2, 1)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {place}".encode()).digest()[:8], "big")


def seed_or_fresh(seed: int | None) -> int:
    """The seed, or where there is none a number from torch's generator, so that `torch.manual_seed` settles it.

    Raises:
        DecodingError: the seed is no whole number.
    """
    if seed is None:
        return int(torch.randint(2**63 - 1, ()))
    if not is_whole(seed):
        raise DecodingError(f"seed was given {seed!r}, but it is a whole number; give one such as 1, or leave it out")
    return seed


class Drawing(NamedTuple):
    """How the sentences of a whole text are drawn, and the seed of which each line takes its own by its number."""

    sampling: Sampling
    seed: int

    @classmethod
    def of(cls, sampling: Sampling | Mapping[str, Any] | None, seed: int | None) -> "Drawing | None":
        """What was asked for; None where nothing is to be drawn.

        Raises:
            DecodingError: a setting or the seed cannot be met, or there is a seed and no sampling.
        """
        if sampling is not None:
            return cls(Sampling.of(sampling), seed_or_fresh(seed))
        if seed is not None:
            raise DecodingError(
                f"seed was given {seed!r}, but without sampling nothing is drawn; give sampling too, or leave the seed out"
            )
        return None

    def line_seed(self, line: int) -> int:
        """The seed of a line, counted from 1; `sample` gives the same one to the sentence at that place."""
        return own_seed(self.seed, line - 1)
