"""Finds the likeliest sentences by greedy and beam search over a step function, without knowing any model.

A *step* takes the last token of every live hypothesis and a state, and gives the log-probabilities of the next token
and the state after it. A *state* can be asked for some of its rows, in any order and with repeats. That is all a search
needs: whatever the state remembers (a cache, a history, nothing) is its own affair.

Rows are the live hypotheses of the unfinished sentences and nothing else: a sentence whose search is over leaves the
batch. What a search finds for a sentence never depends on the sentences beside it, since all choices, ties included,
are made within the sentence.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Literal, Protocol, TypeVar, overload, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.branches import histories, ranked_branches, with_rules
from pellucid.decoding.diverse import Rivals, check_groups
from pellucid.decoding.hypotheses import Hypothesis, LengthRule, Pool, Sentence, length_normaliser
from pellucid.decoding.ranking import best_tokens, check_best, check_step
from pellucid.decoding.rules import Rules, ruled, rules_of
from pellucid.decoding.trace import Trace
from pellucid.errors import DecodingError

__all__ = [
    "Hypothesis",
    "State",
    "Step",
    "beam_search",
    "greedy_search",
    "length_normaliser",
    "limits_of",
    "select_rows",
]

S = TypeVar("S", bound="State")


@runtime_checkable
class State(Protocol):
    """What a step remembers of each row; a value, so that selecting leaves the old one as it was."""

    def select(self: S, rows: Int[Tensor, " new_rows"]) -> S:
        """The state whose row i is this one's row rows[i]; rows may be missing, repeated and in any order."""
        ...


@runtime_checkable
class Step(Protocol[S]):
    """One step of any model: last tokens in, log-probabilities of the next ones out."""

    def __call__(self, ids: Int[Tensor, " rows"], state: S, /) -> tuple[Float[Tensor, "rows vocabulary"], S]:
        """Give log p(next token) in nats for every row, and the state that has seen `ids`.

        The first `ids` are on torch's default device, later ones wherever the log-probabilities were; a model
        elsewhere moves them.
        """
        ...


def limits_of(batch: int, max_length: int | Sequence[int]) -> list[int]:
    """The length limit of each sentence."""
    limits = [max_length] * batch if isinstance(max_length, int) else list(max_length)
    if batch < 0 or len(limits) != batch:
        raise DecodingError(
            f"{len(limits)} length limits were given for a batch of {batch}; give one number for all sentences, "
            "or one for each"
        )
    if limits and min(limits) < 1:
        raise DecodingError(f"max_length was given {min(limits)}, but it counts the end mark; give at least 1")
    return limits


def select_rows(state: S, rows: list[int], old_rows: int, device: torch.device) -> S:
    """Those rows of a state; the state itself where no row moves."""
    return state if rows == list(range(old_rows)) else state.select(torch.tensor(rows, device=device))


def _search(
    step: Step[S], state: S, sentences: Sequence[Sentence], start_id: int, end_id: int, beam: int, keep: int
) -> list[list[Hypothesis]]:
    """Grow all sentences together, step by step: the `keep` best branches of each, of which `beam` may live on."""
    live = list(sentences)
    follow = any(sentence.rules is not None for sentence in live)
    ids = torch.full((len(live),), start_id)
    while live:
        log_probs, state = step(ids, state)
        check_step(log_probs, len(ids), end_id)
        ranked = ruled(log_probs, histories(live), end_id) if follow else log_probs
        values, tokens = best_tokens(ranked, keep)
        highest = values[:, 0].tolist()
        check_best(highest)
        found = ranked_branches(values, tokens, live, keep)
        if ranked is not log_probs:
            found = with_rules(found, live, ranked, log_probs)
        rows: list[int] = []
        first = 0  # the sentence's first row
        for sentence, branches in zip(live, found, strict=True):
            width = len(sentence.live)
            stuck = [place for place in range(width) if highest[first + place] == -math.inf]
            rows += [first + parent for parent in sentence.grow(branches, stuck, end_id, beam)]
            first += width
        live = [sentence for sentence in live if sentence.live]
        if live:
            state = select_rows(state, rows, len(ids), log_probs.device)
            last = [prefix.ids[-1] for sentence in live for prefix in sentence.live]
            ids = torch.tensor(last, device=log_probs.device)
    return [sentence.pool.best() for sentence in sentences]


@torch.no_grad()
def greedy_search(
    step: Step[S],
    state: S,
    *,
    batch: int,
    start_id: int,
    end_id: int,
    max_length: int | Sequence[int],
    rules: Rules | Sequence[Rules] | None = None,
) -> list[Hypothesis]:
    """Follow the likeliest token of every step until it is the end mark: a beam of one that looks at one branch.

    Args:
        step: takes (ids, state), gives (log-probabilities in nats, state).
        state: what the step needs before the first token, one row for each sentence.
        batch: how many sentences; each is searched as if it were alone.
        start_id: the begin mark.
        end_id: the end mark.
        max_length: the most tokens of a sentence, end mark counted; one number, or one for each.
        rules: what sentences must and must not be; one for all, or one for each. Phrases that are forced come as soon
            as they may, where a beam finds a better place for them.

    Returns:
        One hypothesis for each sentence. Its `score` is its `log_prob`, unless a repetition penalty has lowered it.

    Raises:
        DecodingError: a setting cannot be met, or the step gives something else than log-probabilities.

    >>> class Nothing:
    ...     def select(self, rows):
    ...         return self
    >>> def step(ids, state):  # token 1 is likeliest after 0, and the end mark 2 after 1
    ...     return torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).log()[ids], state
    >>> [found] = greedy_search(step, Nothing(), batch=1, start_id=0, end_id=2, max_length=5)
    >>> found.ids, round(math.exp(found.log_prob), 3), found.finished
    ((1,), 0.3, True)
    """
    limits = limits_of(batch, max_length)
    each = zip(limits, rules_of(batch, rules, limits, end_id), strict=True)
    sentences = [Sentence(Pool(limit, 0.0, 1), own) for limit, own in each]
    return [best for [best] in _search(step, state, sentences, start_id, end_id, beam=1, keep=1)]


@overload
def beam_search(
    step: Step[S],
    state: S,
    *,
    batch: int,
    start_id: int,
    end_id: int,
    beam: int = 4,
    max_length: int | Sequence[int],
    length_penalty: float = 0.6,
    length_rule: LengthRule = "gnmt",
    n_best: int = 1,
    rules: Rules | Sequence[Rules] | None = None,
    groups: int = 1,
    diversity: float = 0.5,
    trace: Literal[False] = False,
) -> list[list[Hypothesis]]: ...


@overload
def beam_search(
    step: Step[S],
    state: S,
    *,
    batch: int,
    start_id: int,
    end_id: int,
    beam: int = 4,
    max_length: int | Sequence[int],
    length_penalty: float = 0.6,
    length_rule: LengthRule = "gnmt",
    n_best: int = 1,
    rules: Rules | Sequence[Rules] | None = None,
    groups: int = 1,
    diversity: float = 0.5,
    trace: Literal[True],
) -> tuple[list[list[Hypothesis]], list[Trace]]: ...


@torch.no_grad()
def beam_search(
    step: Step[S],
    state: S,
    *,
    batch: int,
    start_id: int,
    end_id: int,
    beam: int = 4,
    max_length: int | Sequence[int],
    length_penalty: float = 0.6,
    length_rule: LengthRule = "gnmt",
    n_best: int = 1,
    rules: Rules | Sequence[Rules] | None = None,
    groups: int = 1,
    diversity: float = 0.5,
    trace: bool = False,
) -> list[list[Hypothesis]] | tuple[list[list[Hypothesis]], list[Trace]]:
    """Keep the `beam` likeliest hypotheses of every sentence alive, and give the best that ended.

    Every step ranks the `2 * beam` likeliest branches of a sentence. An end mark among the first `beam` of them
    finishes its hypothesis; the `beam` best without end mark live on, which is why twice as many are ranked. A
    sentence is over when no live hypothesis can still score above its n_best-th finished one, so that the best ones
    are the same whatever `n_best` is. At the limit nothing is forced to end: what lives there is cut.

    A beam at least as wide as the branches of every step misses nothing. A beam of one finds what greedy search
    finds when the penalty is 0 or below; above 0 it may go on past greedy's end and find something better.

    Where rules force phrases, the beam is shared among hypotheses that have said more and less of them (`shared`),
    and no hypothesis lives that has too little room for the rest.

    Args:
        step: takes (ids, state), gives (log-probabilities in nats, state).
        state: what the step needs before the first token, one row for each sentence.
        batch: how many sentences; each is searched as if it were alone.
        start_id: the begin mark.
        end_id: the end mark.
        beam: how many hypotheses of a sentence live at once.
        max_length: the most tokens of a sentence, end mark counted; one number, or one for each.
        length_penalty: see `length_normaliser`.
        length_rule: see `length_normaliser`.
        n_best: how many hypotheses to give, at most `beam`.
        rules: what sentences must and must not be; one for all, or one for each.
        groups: parts of the beam that are searched side by side, each told to differ from those before it: diverse
            beam search (Vijayakumar et al. 2016, arXiv 1610.02424).
        diversity: nats that a token counts less in a group for each time that an earlier one chose it at this step.
        trace: whether to hand back, too, a `Trace` of each sentence; print it.

    Returns:
        For each sentence its best hypotheses, all different, the best first: those that finished, then, where
        they are fewer than `n_best`, those that did not. Fewer come back where there are no more. With `trace` a pair
        of them and the traces.

    Raises:
        DecodingError: a setting cannot be met, or the step gives something else than log-probabilities.

    >>> class Nothing:
    ...     def select(self, rows):
    ...         return self
    >>> def step(ids, state):  # token 1 is likeliest after 0, and the end mark 2 after 1
    ...     return torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).log()[ids], state
    >>> [found] = beam_search(step, Nothing(), batch=1, start_id=0, end_id=2, max_length=5, n_best=2)
    >>> [best.ids for best in found]
    [(1,), ()]
    """
    if beam < 1:
        raise DecodingError(f"beam was given {beam}, but one hypothesis at least must live; give 1 or more")
    if not 1 <= n_best <= beam:
        raise DecodingError(
            f"n_best was given {n_best} with a beam of {beam}; give a number from 1 to beam, or widen the beam"
        )
    check_groups(beam, groups, diversity)
    if trace and groups > 1:
        raise DecodingError(f"trace was asked for with {groups} groups, but it follows one beam; leave groups at 1")
    limits = limits_of(batch, max_length)
    sentences = [
        Sentence(Pool(limit, length_penalty, n_best, length_rule), own, Trace() if trace else None, rivals)
        for limit, own in zip(limits, rules_of(batch, rules, limits, end_id), strict=True)
        for rivals in [Rivals(diversity) if groups > 1 else None]
        for _ in range(groups)
    ]
    if groups > 1 and sentences:
        state = state.select(torch.arange(batch).repeat_interleave(groups))
    width = beam // groups
    every = _search(step, state, sentences, start_id, end_id, width, keep=2 * width + (beam if groups > 1 else 0))
    found = [_merged(every[first : first + groups], n_best) for first in range(0, len(every), groups)]
    return (found, [sentence.trace for sentence in sentences if sentence.trace is not None]) if trace else found


def _merged(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """The best of all groups, each once: those that finished first."""
    different: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in chain.from_iterable(groups):
        different.setdefault(hypothesis.ids, hypothesis)
    order = sorted(different.values(), key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
    return order[:n_best] if len(groups) > 1 else list(groups[0])
