"""Keeps the hypotheses of one sentence: how they are scored, which of them live, and when nothing better can come.

All of it is plain numbers, so that it can be followed by hand. `Sentence` takes one sentence's search a step further,
and its `Pool` holds what grows no more.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pellucid.errors import DecodingError

__all__ = ["Branch", "Hypothesis", "Pool", "Prefix", "Sentence", "length_normaliser", "normalised"]


@dataclass(frozen=True)
class Hypothesis:
    """One sentence that a search found.

    `ids` leaves out the begin mark and the end mark. `log_prob` is the sum of the tokens' log-probabilities in nats,
    the end mark's too where the hypothesis is `finished`. `score` is `log_prob` normalised for length, the number by
    which hypotheses are ranked. One that is not `finished` was cut at the length limit, or had no token of any
    probability to go on with.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


def length_normaliser(n: int, length_penalty: float) -> float:
    """What a log-probability of n tokens, end mark counted, is divided by: ((5 + n) / 6) ** length_penalty.

    GNMT's rule (Wu et al. 2016, arXiv 1609.08144, eq. 14). A penalty of 0 keeps the raw sum, above 0 favours longer
    sentences, below 0 shorter ones.

    Raises:
        DecodingError: n is below 0, or the result is no positive finite number.

    >>> length_normaliser(7, 1.0), length_normaliser(7, 0.0)
    (2.0, 1.0)
    """
    try:
        normaliser = ((5 + n) / 6) ** length_penalty if n >= 0 else math.nan
    except OverflowError:
        normaliser = math.inf
    if 0 < normaliser < math.inf:
        return normaliser
    raise DecodingError(
        f"length_penalty {length_penalty} over {n} tokens gives {normaliser}, which cannot divide a log-probability; "
        "give a count of tokens and a penalty nearer to 0"
    )


def normalised(hypothesis: Hypothesis, length_penalty: float) -> Hypothesis:
    """The same hypothesis, scored as a beam search of that penalty scores it."""
    tokens = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.log_prob / length_normaliser(tokens, length_penalty))


class Pool:
    """The hypotheses of one sentence that grow no more, best first: those that ended, and those that were cut."""

    def __init__(self, limit: int, length_penalty: float, n_best: int) -> None:
        self.limit = limit
        self._length_penalty = length_penalty
        self._n_best = n_best
        self._ended: list[Hypothesis] = []
        self._cut: list[Hypothesis] = []
        length_normaliser(limit, length_penalty)  # the extreme one: refuse it before any work is done

    def add(self, ids: tuple[int, ...], log_prob: float, *, finished: bool) -> None:
        """Take a hypothesis in; of two with one score, the earlier stays ahead."""
        score = log_prob / length_normaliser(len(ids) + finished, self._length_penalty)
        kept = self._ended if finished else self._cut
        bisect.insort(kept, Hypothesis(ids, log_prob, score, finished), key=lambda hypothesis: -hypothesis.score)
        del kept[self._n_best :]

    def is_settled(self, log_prob: float, length: int) -> bool:
        """Whether no live hypothesis of `length` tokens and at most `log_prob` can still enter the best that ended.

        Its log-probability can only fall. So it scores highest by losing nothing more and ending where the
        normaliser helps most: at the limit for a penalty of 0 or above, at once for one below 0.
        """
        if len(self._ended) < self._n_best:
            return False
        last = self.limit if self._length_penalty >= 0 else length + 1
        return log_prob / length_normaliser(last, self._length_penalty) <= self._ended[-1].score

    def best(self) -> list[Hypothesis]:
        """The best that ended; where they are too few, the best that were cut come after them."""
        return (self._ended + self._cut)[: self._n_best]


class Prefix(NamedTuple):
    """A live hypothesis: its tokens so far, and the sum of their log-probabilities in nats."""

    ids: tuple[int, ...]
    log_prob: float


class Branch(NamedTuple):
    """One way to go on: the parent's place in its sentence, the next token, the log-probability of both together."""

    parent: int
    token: int
    log_prob: float


class Sentence:
    """One sentence's search: the hypotheses that live, best first, and the pool of those that do not."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.live = [Prefix((), 0.0)]

    def grow(self, branches: Sequence[Branch], stuck: Sequence[int], end_id: int, beam: int) -> list[int]:
        """Take one step along `branches`, best first; give the parents' places of those that live on.

        `stuck` are the places of those that have no token to go on with.
        """
        for place in stuck:
            self.pool.add(*self.live[place], finished=False)
        grown: list[Prefix] = []
        parents: list[int] = []
        for rank, (parent, token, log_prob) in enumerate(branches):
            ids = self.live[parent].ids
            if token != end_id and len(grown) < beam:
                grown.append(Prefix((*ids, token), log_prob))
                parents.append(parent)
            elif token == end_id and rank < beam:
                self.pool.add(ids, log_prob, finished=True)
        self.live = grown
        if grown and self._is_over():
            self.live = []
        return parents[: len(self.live)]

    def _is_over(self) -> bool:
        """Whether the living have reached the limit, where they are cut, or can no longer change the result."""
        length = len(self.live[0].ids)
        if length < self.pool.limit:
            return self.pool.is_settled(self.live[0].log_prob, length)
        for ids, log_prob in self.live:
            self.pool.add(ids, log_prob, finished=False)
        return True
