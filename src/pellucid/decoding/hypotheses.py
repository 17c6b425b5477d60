"""Keeps the hypotheses of one sentence: how they are scored, which of them live, and when nothing better can come.

All of it is plain numbers, so that it can be followed by hand. `Sentence` takes one sentence's search a step further,
and its `Pool` holds what grows no more.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, NamedTuple

from pellucid.decoding.diverse import Rivals
from pellucid.decoding.phrases import needed, shared
from pellucid.decoding.rules import Rules
from pellucid.decoding.trace import FINISHED, LATE_END, LIVED, NO_ROOM, OUTSIDE, STUCK, Fate, Trace, Tried
from pellucid.errors import DecodingError

__all__ = ["Branch", "Hypothesis", "LengthRule", "Pool", "Prefix", "Sentence", "length_normaliser", "normalised"]

LengthRule = Literal["gnmt", "power"]
"""How a sum of log-probabilities is normalised for length, see `length_normaliser`."""


@dataclass(frozen=True)
class Hypothesis:
    """One sentence that a search found.

    `ids` leaves out the begin mark and the end mark. `log_prob` is the sum of the tokens' log-probabilities in nats,
    the end mark's too where the hypothesis is `finished`. `score` is the number by which hypotheses are ranked:
    `log_prob`, or the sum to which a repetition penalty has lowered it, normalised for length. One that is not
    `finished` was cut at the length limit, or had no token of any probability to go on with.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


def length_normaliser(n: int, length_penalty: float, length_rule: LengthRule = "gnmt") -> float:
    """What a log-probability of n tokens, end mark counted, is divided by.

    "gnmt" is ((5 + n) / 6) ** length_penalty (Wu et al. 2016, arXiv 1609.08144, eq. 14), "power" is n ** length_penalty,
    where a sentence of no tokens counts as one of one. A penalty of 0 keeps the raw sum, above 0 favours longer
    sentences, below 0 shorter ones.

    Raises:
        DecodingError: n is below 0, the result is no positive finite number, or the rule is unknown.

    >>> length_normaliser(7, 1.0), length_normaliser(7, 0.0), length_normaliser(7, 1.0, "power")
    (2.0, 1.0, 7.0)
    """
    if length_rule not in ("gnmt", "power"):
        raise DecodingError(f"length_rule was given {length_rule!r}, but known are 'gnmt' and 'power'; choose one")
    try:
        base = (5 + n) / 6 if length_rule == "gnmt" else float(max(n, 1))
        normaliser = base**length_penalty if n >= 0 else math.nan
    except OverflowError:
        normaliser = math.inf
    if 0 < normaliser < math.inf:
        return normaliser
    raise DecodingError(
        f"length_penalty {length_penalty} over {n} tokens gives {normaliser}, which cannot divide a log-probability; "
        "give a count of tokens and a penalty nearer to 0"
    )


def normalised(hypothesis: Hypothesis, length_penalty: float, length_rule: LengthRule = "gnmt") -> Hypothesis:
    """A hypothesis whose score is a plain sum, scored as a beam search of that penalty scores it."""
    tokens = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.score / length_normaliser(tokens, length_penalty, length_rule))


class Pool:
    """The hypotheses of one sentence that grow no more, best first: those that ended, and those that were cut."""

    def __init__(self, limit: int, length_penalty: float, n_best: int, length_rule: LengthRule = "gnmt") -> None:
        self.limit = limit
        self._length_penalty = length_penalty
        self._length_rule: LengthRule = length_rule
        self._n_best = n_best
        self._ended: list[Hypothesis] = []
        self._cut: list[Hypothesis] = []
        self._normaliser(limit)  # the extreme one: refuse it before any work is done

    def _normaliser(self, n: int) -> float:
        return length_normaliser(n, self._length_penalty, self._length_rule)

    def add(self, prefix: "Prefix", *, finished: bool) -> None:
        """Take a hypothesis in; of two with one score, the earlier stays ahead."""
        score = prefix.sum / self._normaliser(len(prefix.ids) + finished)
        kept = self._ended if finished else self._cut
        made = Hypothesis(prefix.ids, prefix.log_prob, score, finished)
        bisect.insort(kept, made, key=lambda hypothesis: -hypothesis.score)
        del kept[self._n_best :]

    def is_settled(self, best: float, length: int) -> bool:
        """Whether no live hypothesis of `length` tokens and a sum of at most `best` can still enter the best that ended.

        Its sum can only fall. So it scores highest by losing nothing more and ending where the normaliser helps most:
        at the limit for a penalty of 0 or above, at once for one below 0.
        """
        if len(self._ended) < self._n_best:
            return False
        last = self.limit if self._length_penalty >= 0 else length + 1
        return best / self._normaliser(last) <= self._ended[-1].score

    def best(self) -> list[Hypothesis]:
        """The best that ended; where they are too few, the best that were cut come after them."""
        return (self._ended + self._cut)[: self._n_best]


class Prefix(NamedTuple):
    """A live hypothesis: its tokens so far, the sum that it is ranked by, and their log-probability in nats.

    Both are one number unless rules have lowered the sum.
    """

    ids: tuple[int, ...]
    sum: float
    log_prob: float


class Branch(NamedTuple):
    """One way to go on: the parent's place in its sentence, the next token, and the two figures with it (`Prefix`)."""

    parent: int
    token: int
    sum: float
    log_prob: float


class Sentence:
    """One sentence's search: the hypotheses that live, best first, and the pool of those that do not.

    Args:
        pool: where hypotheses go that grow no more.
        rules: what the sentence must and must not be.
        trace: where to note what is looked at; None notes nothing.
        rivals: the choices of the other groups of a diverse beam; None where there are none.
    """

    def __init__(
        self, pool: Pool, rules: Rules | None = None, trace: Trace | None = None, rivals: Rivals | None = None
    ) -> None:
        self.pool = pool
        self.rules = rules
        self.trace = trace
        self.rivals = rivals
        self.live = [Prefix((), 0.0, 0.0)]

    def grow(self, branches: Sequence[Branch], stuck: Sequence[int], end_id: int, beam: int) -> list[int]:
        """Take one step along `branches`, best first; give the parents' places of those that live on.

        `stuck` are the places of those that have no token to go on with.
        """
        for place in stuck:
            self.pool.add(self.live[place], finished=False)
        step = len(self.live[0].ids)
        if self.rivals is not None:
            branches = self.rivals.ordered(step, branches, attrgetter("token"), attrgetter("sum"))[: 2 * beam]
        fates = self._fates(branches, end_id, beam)
        if self.trace is not None:
            self._note(branches, fates, stuck)
        grown: list[Prefix] = []
        parents: list[int] = []
        for (parent, token, total, log_prob), fate in zip(branches, fates, strict=True):
            if fate == LIVED:
                grown.append(Prefix((*self.live[parent].ids, token), total, log_prob))
                parents.append(parent)
                if self.rivals is not None:
                    self.rivals.choose(step, token)
            elif fate == FINISHED:
                self.pool.add(Prefix(self.live[parent].ids, total, log_prob), finished=True)
        if not grown and NO_ROOM in fates:
            for prefix in self.live:  # what is forced has no probability where it still had room
                self.pool.add(prefix, finished=False)
        self.live = grown
        if grown and self._is_over():
            self.live = []
        elif not grown and self.trace is not None:
            self.trace.ending = "over: no hypothesis lives on"
        return parents[: len(self.live)]

    def _note(self, branches: Sequence[Branch], fates: Sequence[Fate], stuck: Sequence[int]) -> None:
        """Write a step into the trace."""
        assert self.trace is not None
        ways = zip(branches, fates, strict=True)
        tried = [Tried(branch.parent, branch.token, branch.sum, fate) for branch, fate in ways]
        dead = [Tried(place, None, self.live[place].sum, STUCK) for place in stuck]
        self.trace.steps.append((*tried, *dead))

    def _fates(self, branches: Sequence[Branch], end_id: int, beam: int) -> list[Fate]:
        """What becomes of each branch: the `beam` best without end mark live on; an end mark among them finishes."""
        if self.rules is not None and self.rules.forced:
            return self._forced_fates(branches, end_id, beam)
        fates: list[Fate] = []
        lived = 0
        for rank, branch in enumerate(branches):
            if branch.token == end_id:
                fates.append(FINISHED if rank < beam else LATE_END)
            else:
                fates.append(LIVED if lived < beam else OUTSIDE)
                lived += fates[-1] == LIVED
        return fates

    def _forced_fates(self, branches: Sequence[Branch], end_id: int, beam: int) -> list[Fate]:
        """The same where phrases are forced: those with too little room die, and the beam is shared among the banks."""
        assert self.rules is not None
        fates: list[Fate] = [OUTSIDE] * len(branches)
        open_places, needs = [], []
        rank = 0
        for place, branch in enumerate(branches):
            if branch.token == end_id:
                fates[place] = FINISHED if rank < beam else LATE_END
                rank += 1
                continue
            ids = (*self.live[branch.parent].ids, branch.token)
            need = needed(ids, self.rules.forced)
            if len(ids) + need + 1 > self.pool.limit and need:
                fates[place] = NO_ROOM
                continue
            rank += 1
            open_places.append(place)
            needs.append(need)
        for kept in shared(beam, needs):
            fates[open_places[kept]] = LIVED
        return fates

    def _is_over(self) -> bool:
        """Whether the living have reached the limit, where they are cut, or can no longer change the result."""
        length = len(self.live[0].ids)
        if length < self.pool.limit:
            over = self.pool.is_settled(max(prefix.sum for prefix in self.live), length)
            if over and self.trace is not None:
                self.trace.ending = "over: no hypothesis that lives can still enter the best that finished"
            return over
        for prefix in self.live:
            self.pool.add(prefix, finished=False)
        if self.trace is not None:
            self.trace.ending = f"over: those that live are cut at the limit of {self.pool.limit} tokens"
        return True
