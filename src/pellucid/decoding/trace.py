"""What a beam search looked at, step by step, and what became of it: to be printed, or drawn by `view.search`."""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Fate", "Trace", "Tried"]

LIVED, FINISHED = "lives on", "finished"
OUTSIDE = "outside the beam"
LATE_END = "its end ranks below the beam"
NO_ROOM = "no room left for what is forced"
STUCK = "no token to go on with"

Fate = str
"""What became of a candidate: "lives on", "finished", or why it died."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A way to go on that a step ranked.

    Attributes:
        parent: the place of the hypothesis that it goes on with, among those that lived after the step before.
        token: the next token, or None where there was none to go on with.
        sum: the log-probability of all its tokens in nats, as rules have lowered it.
        fate: what became of it.
    """

    parent: int
    token: int | None
    sum: float
    fate: Fate


@dataclass(slots=True)
class Trace:
    """One sentence's search.

    Attributes:
        steps: of each step the candidates, best first.
        ending: why the search was over, and what it meant for those that lived.
    """

    steps: list[tuple[Tried, ...]] = field(default_factory=list)
    ending: str = ""

    def lived(self, step: int) -> list[Tried]:
        """The candidates that lived after a step, in the order in which the next one's `parent` counts them."""
        return [tried for tried in self.steps[step] if tried.fate == LIVED]

    def tokens(self, step: int, place: int) -> tuple[int, ...]:
        """The tokens of a candidate of a step, the parents' before its own."""
        tried = self.steps[step][place]
        said: list[int] = [] if tried.token is None else [tried.token]
        while step > 0:
            step -= 1
            tried = self.lived(step)[tried.parent]
            if tried.token is not None:
                said.append(tried.token)
        return tuple(reversed(said))

    def draw(self, words: Callable[[int], str] = str) -> str:
        """The search as text: a line for each candidate, with its sum in nats and its fate."""
        lines = []
        for step in range(len(self.steps)):
            lines.append(f"step {step + 1}")
            for place, tried in enumerate(self.steps[step]):
                said = " ".join(words(token) for token in self.tokens(step, place))
                lines.append(f"  {tried.sum:9.3f}  {said}  [{tried.fate}]")
        return "\n".join([*lines, self.ending])

    def __str__(self) -> str:
        return self.draw()
