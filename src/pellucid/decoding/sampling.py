"""Draws sentences at random from a step function's probabilities, without knowing any model.

Each token is drawn by inverse transform from one uniform number, and the numbers of a sentence come from its own seed:
its draws depend neither on the sentences beside it nor on how many they are. What the step gave is weighed on the CPU
in float64, so that a draw is the same for any batch that gives the same log-probabilities.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

from pellucid.decoding.chances import Sampling, own_seed, pick, seed_or_fresh
from pellucid.decoding.hypotheses import Hypothesis, LengthRule, length_normaliser, normalised
from pellucid.decoding.ranking import check_best, check_step
from pellucid.decoding.rules import Rules, ruled, rules_of
from pellucid.decoding.search import State, Step, greedy_search, limits_of, select_rows
from pellucid.errors import DecodingError

__all__ = ["Draw", "grow", "sample"]

S = TypeVar("S", bound=State)


class Draw:
    """One sentence while it is drawn.

    Args:
        row: where it stands among the rows of the next step.
        limit: the most tokens it may have, its end mark counted.
        seed: what its numbers come from.
        rules: what the sentence must and must not be, phrases that are forced left out.
    """

    def __init__(self, row: int, limit: int, seed: int, rules: Rules | None = None) -> None:
        self.row = row
        self.rules = rules
        self.ids: list[int] = []
        self.log_prob = self.sum = 0.0  # the step's own, and as a repetition penalty has lowered it
        self.finished = False
        self.is_over = False
        self._limit = limit
        self._generator = torch.Generator().manual_seed(seed)

    def number(self) -> float:
        """The next of its uniform numbers, from 0 up to 1."""
        return torch.rand((), generator=self._generator, dtype=torch.float64).item()

    def found(self, length_penalty: float, length_rule: LengthRule) -> Hypothesis:
        """What was drawn, scored as a search of that penalty scores it."""
        made = Hypothesis(tuple(self.ids), self.log_prob, self.sum, self.finished)
        return normalised(made, length_penalty, length_rule)

    def take(self, token: int, log_prob: float, lowered: float, end_id: int) -> None:
        """Go on with a token, which may be the end mark."""
        self.log_prob += min(log_prob, 0.0)  # rounding may have lifted it above zero
        self.sum += min(lowered, 0.0)
        if token == end_id:
            self.finished = self.is_over = True
        else:
            self.ids.append(token)
            self.is_over = len(self.ids) == self._limit


def grow(
    step: Step[S], state: S, draws: Sequence[Draw], *, batch: int, start_id: int, end_id: int, sampling: Sampling
) -> Iterator[None]:
    """Give each draw one more token a turn, until all are over: at an end mark, at the limit, or with no way to go on.

    At first the state has `batch` rows, a sentence each, and several draws may stand on one of them.
    """
    live = list(draws)
    ids = torch.full((batch,), start_id)
    while live:
        with torch.no_grad():  # not around the yield: what happens there is the caller's
            log_probs, state = step(ids, state)
            check_step(log_probs, len(ids), end_id)
            check_best(log_probs.amax(dim=-1).tolist())
            own = log_probs[[draw.row for draw in live]]
            weighed = ruled(own, [(draw.rules, tuple(draw.ids)) for draw in live], end_id)
            highest = weighed.amax(dim=-1)
            for draw, most in zip(live, highest.tolist(), strict=True):
                draw.is_over = most == -math.inf
            if live := [draw for draw in live if not draw.is_over]:
                going = highest > -math.inf
                own, weighed = own[going], weighed[going]
                tokens = pick(weighed, [draw.number() for draw in live], sampling)
                taken = (each.gather(1, tokens[:, None])[:, 0].tolist() for each in (own, weighed))
                for draw, token, *gains in zip(live, tokens.tolist(), *taken, strict=True):
                    draw.take(token, *gains, end_id)
            if live := [draw for draw in live if not draw.is_over]:
                state = select_rows(state, [draw.row for draw in live], len(ids), log_probs.device)
                ids = torch.tensor([draw.ids[-1] for draw in live], device=log_probs.device)
                for row, draw in enumerate(live):
                    draw.row = row
        yield


def sample(
    step: Step[S],
    state: S,
    *,
    batch: int,
    start_id: int,
    end_id: int,
    max_length: int | Sequence[int],
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | int | None = None,
    min_p: float | int | None = None,
    samples: int = 1,
    seed: int | Sequence[int] | None = None,
    length_penalty: float = 0.0,
    length_rule: LengthRule = "gnmt",
    rules: Rules | Sequence[Rules] | None = None,
) -> list[list[Hypothesis]]:
    """Draw sentences token by token from the step's probabilities, tempered and cut off as `Sampling` says.

    No token of probability zero is ever drawn, and the cuts always leave one. A temperature of 0 is greedy search.

    Args:
        step: takes (ids, state), gives (log-probabilities in nats, state).
        state: what the step needs before the first token, one row for each sentence.
        batch: how many sentences; each is drawn as if it were alone.
        start_id: the begin mark.
        end_id: the end mark.
        max_length: the most tokens of a sentence, end mark counted; one number, or one for each.
        temperature: see `Sampling`, as for the three after it.
        top_k: the k likeliest tokens.
        top_p: the fewest likeliest tokens that have p together.
        min_p: the tokens at least min_p times as likely as the likeliest.
        samples: how many hypotheses to draw of each sentence.
        seed: one number, of which each sentence takes its own by its place (`own_seed`), or one for each sentence;
            None takes it from torch's generator.
        length_penalty: see `length_normaliser`; it changes scores, not draws.
        length_rule: the same.
        rules: what sentences must and must not be, before anything is cut off; one for all, or one for each. Phrases
            cannot be forced into what is drawn.

    Returns:
        For each sentence its hypotheses in the order they were drawn, and not ranked: the first ones are the same
        however many are drawn, and some may be alike. `log_prob` is the step's own, neither tempered nor cut off.

    Raises:
        DecodingError: a setting cannot be met, or the step gives something else than log-probabilities.

    >>> class Nothing:
    ...     def select(self, rows):
    ...         return self
    >>> def step(ids, state):  # token 1 is likeliest after 0, and the end mark 2 after 1
    ...     return torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).log()[ids], state
    >>> [found] = sample(step, Nothing(), batch=1, start_id=0, end_id=2, max_length=5, samples=4, top_k=2, seed=1)
    >>> len(found), {token for one in found for token in one.ids}  # 0 is never among the two likeliest
    (4, {1})
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    if samples < 1:
        raise DecodingError(f"samples was given {samples}, but it counts hypotheses to draw; give 1 or more")
    limits, seeds = limits_of(batch, max_length), _seeds_of(batch, seed)
    for limit in limits:
        length_normaliser(limit, length_penalty, length_rule)  # the extreme one: refuse it before any work is done
    followed = rules_of(batch, rules, limits, end_id)
    if any(one is not None and one.forced for one in followed):
        raise DecodingError("phrases cannot be forced into what is drawn; search with a beam, or force a prefix")
    if temperature == 0:
        best = greedy_search(step, state, batch=batch, start_id=start_id, end_id=end_id, max_length=limits, rules=rules)
        return [[normalised(hypothesis, length_penalty, length_rule)] * samples for hypothesis in best]
    draws = [
        [Draw(row, limit, own_seed(own, number), kept) for number in range(samples)]
        for row, (limit, own, kept) in enumerate(zip(limits, seeds, followed, strict=True))
    ]
    every = [draw for sentence in draws for draw in sentence]
    for _ in grow(step, state, every, batch=batch, start_id=start_id, end_id=end_id, sampling=sampling):
        pass
    return [[one.found(length_penalty, length_rule) for one in sentence] for sentence in draws]


def _seeds_of(batch: int, seed: int | Sequence[int] | None) -> list[int]:
    """The seed of each sentence."""
    if not isinstance(seed, Sequence):
        common = seed_or_fresh(seed)
        return [own_seed(common, place) for place in range(batch)]
    if len(seed) != batch:
        raise DecodingError(
            f"{len(seed)} seeds were given for a batch of {batch}; give one number for all sentences, or one for each"
        )
    return [seed_or_fresh(one) for one in seed]
