"""Groups of a diverse beam: each chooses after the ones before it, and is told to say something else than they do."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from pellucid.errors import DecodingError

__all__ = ["Rivals", "check_groups"]

B = TypeVar("B")


class Rivals:
    """What the groups of one sentence have chosen at each step (Vijayakumar et al. 2016, arXiv 1610.02424, section 4).

    A token that earlier groups chose at this step counts `diversity` nats less for each of them (Hamming diversity), as
    often as it was chosen. It counts so for the choice alone: sums and scores stay as they are.
    """

    def __init__(self, diversity: float) -> None:
        self._diversity = diversity
        self._chosen: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def ordered(
        self, step: int, branches: Sequence[B], token: Callable[[B], int], total: Callable[[B], float]
    ) -> list[B]:
        """The branches in the order in which the next group prefers them."""
        chosen = self._chosen[step]
        return sorted(branches, key=lambda branch: self._diversity * chosen[token(branch)] - total(branch))

    def choose(self, step: int, token: int) -> None:
        """Note that a group goes on with a token."""
        self._chosen[step][token] += 1


def check_groups(beam: int, groups: int, diversity: float) -> None:
    """Refuse groups that do not divide the beam.

    Raises:
        DecodingError: they do not, or the diversity is below 0.
    """
    if groups < 1 or beam % groups:
        raise DecodingError(f"groups was given {groups} with a beam of {beam}; give a number that divides the beam")
    if not 0 <= diversity < float("inf"):
        raise DecodingError(f"diversity was given {diversity}, but it is taken off; give a number from 0 up")
