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
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.hypotheses import Branch, Hypothesis, Pool, Sentence, length_normaliser
from pellucid.errors import DecodingError

__all__ = [
    "Hypothesis",
    "State",
    "Step",
    "beam_search",
    "best_tokens",
    "check_best",
    "check_step",
    "greedy_search",
    "length_normaliser",
    "limits_of",
    "select_rows",
]

_ROUNDING = 1e-3  # how far above zero a log-probability may stand by rounding, as an average of models does


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


def check_step(log_probs: Tensor, rows: int, end_id: int) -> None:
    """Refuse what cannot be a step's answer for `rows` rows."""
    if not log_probs.is_floating_point() or log_probs.ndim != 2 or log_probs.shape[0] != rows:
        raise DecodingError(
            f"the step gave {log_probs.dtype} of shape {tuple(log_probs.shape)} for {rows} ids; "
            f"give log-probabilities as floats of shape ({rows}, vocabulary)"
        )
    if not 0 <= end_id < log_probs.shape[1]:
        raise DecodingError(
            f"end_id was given {end_id}, but the step knows {log_probs.shape[1]} tokens, so that no sentence could "
            "end; give the end mark's id in the step's vocabulary"
        )


def check_best(values: Sequence[float]) -> None:
    """Refuse rows whose highest value shows that they are no log-probabilities; a NaN counts as highest."""
    for row, value in enumerate(values):
        if math.isnan(value):
            raise DecodingError(
                f"the step gave log-probabilities that are NaN in row {row}, and a search cannot rank them; "
                "look for an overflow or a NaN weight in the model"
            )
        if value > _ROUNDING:
            raise DecodingError(
                f"the step gave {value:.4g} in row {row}, but a log-probability is at most 0; "
                "apply log_softmax to the model's logits"
            )


def best_tokens(
    log_probs: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """The `count` likeliest tokens of each row, or all, likeliest first and of equals the lowest id first.

    `topk` alone keeps any of several equals. So it is asked for one more: only a row with equals on both sides of the
    cut needs a full sort. `max` takes the first of equals.
    """
    if count == 1:
        return log_probs.max(dim=-1, keepdim=True)
    values, tokens = log_probs.topk(min(count + 1, log_probs.shape[1]), dim=-1)
    if values.shape[1] > count:
        torn = (values[:, -2] == values[:, -1]) & (values[:, -1] > -math.inf)
        rows = torn.nonzero().flatten()
        values, tokens = values[:, :count], tokens[:, :count]
        if len(rows):
            ordered, order = log_probs[rows].sort(dim=-1, descending=True, stable=True)
            values = values.index_copy(0, rows, ordered[:, :count])
            tokens = tokens.index_copy(0, rows, order[:, :count])
    tokens, order = tokens.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(1, order)


def _branches(
    values: Float[Tensor, "rows count"], tokens: Int[Tensor, "rows count"], live: Sequence[Sentence], keep: int
) -> list[list[Branch]]:
    """The `keep` likeliest branches of each sentence, best first, none of probability zero.

    Each sentence's rows are laid side by side in a grid, so that one sort serves all sentences. Of equals the earlier
    parent's stands first, then the likelier token, then the lower id.
    """
    # in float64, where a sum loses nothing; rounding above zero would break the stopping rule
    gains = values.to("cpu", torch.float64).clamp_(max=0.0).numpy()
    if keep == 1:
        pairs = zip(live, tokens[:, 0].tolist(), gains[:, 0].tolist(), strict=True)
        found = [Branch(0, token, sentence.live[0].log_prob + gain) for sentence, token, gain in pairs]
        return [[branch] if branch.log_prob > -math.inf else [] for branch in found]
    width, count = max(len(sentence.live) for sentence in live), gains.shape[1]
    places = [width * i + place for i, sentence in enumerate(live) for place in range(len(sentence.live))]
    totals = [prefix.log_prob for sentence in live for prefix in sentence.live]
    grid = np.full((len(live) * width, count), -math.inf)
    grid[places] = np.array(totals)[:, None] + gains
    words = np.zeros(grid.shape, dtype=np.int64)
    words[places] = tokens.cpu().numpy()
    sums, words = grid.reshape(len(live), -1), words.reshape(len(live), -1)
    best = np.argsort(-sums, axis=1, kind="stable")[:, :keep]
    columns = best // count, np.take_along_axis(words, best, axis=1), np.take_along_axis(sums, best, axis=1)
    return [
        [Branch(*branch) for branch in zip(*rows, strict=True) if branch[-1] > -math.inf]
        for rows in zip(*(column.tolist() for column in columns), strict=True)
    ]


def select_rows(state: S, rows: list[int], old_rows: int, device: torch.device) -> S:
    """Those rows of a state; the state itself where no row moves."""
    return state if rows == list(range(old_rows)) else state.select(torch.tensor(rows, device=device))


def _search(
    step: Step[S], state: S, sentences: Sequence[Sentence], start_id: int, end_id: int, beam: int, keep: int
) -> list[list[Hypothesis]]:
    """Grow all sentences together, step by step: the `keep` best branches of each, of which `beam` may live on."""
    live = list(sentences)
    ids = torch.full((len(live),), start_id)
    while live:
        log_probs, state = step(ids, state)
        check_step(log_probs, len(ids), end_id)
        values, tokens = best_tokens(log_probs, keep)
        highest = values[:, 0].tolist()
        check_best(highest)
        rows: list[int] = []
        first = 0  # the sentence's first row
        for sentence, branches in zip(live, _branches(values, tokens, live, keep), strict=True):
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
    step: Step[S], state: S, *, batch: int, start_id: int, end_id: int, max_length: int | Sequence[int]
) -> list[Hypothesis]:
    """Follow the likeliest token of every step until it is the end mark: a beam of one that looks at one branch.

    Args:
        step: takes (ids, state), gives (log-probabilities in nats, state).
        state: what the step needs before the first token, one row for each sentence.
        batch: how many sentences; each is searched as if it were alone.
        start_id: the begin mark.
        end_id: the end mark.
        max_length: the most tokens of a sentence, end mark counted; one number, or one for each.

    Returns:
        One hypothesis for each sentence. Its `score` is its `log_prob`.

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
    sentences = [Sentence(Pool(limit, 0.0, 1)) for limit in limits_of(batch, max_length)]
    return [best for [best] in _search(step, state, sentences, start_id, end_id, beam=1, keep=1)]


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
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Keep the `beam` likeliest hypotheses of every sentence alive, and give the best that ended.

    Every step ranks the `2 * beam` likeliest branches of a sentence. An end mark among the first `beam` of them
    finishes its hypothesis; the `beam` best without end mark live on, which is why twice as many are ranked. A
    sentence is over when no live hypothesis can still score above its n_best-th finished one, so that the best ones
    are the same whatever `n_best` is. At the limit nothing is forced to end: what lives there is cut.

    A beam at least as wide as the branches of every step misses nothing. A beam of one finds what greedy search
    finds when the penalty is 0 or below; above 0 it may go on past greedy's end and find something better.

    Args:
        step: takes (ids, state), gives (log-probabilities in nats, state).
        state: what the step needs before the first token, one row for each sentence.
        batch: how many sentences; each is searched as if it were alone.
        start_id: the begin mark.
        end_id: the end mark.
        beam: how many hypotheses of a sentence live at once.
        max_length: the most tokens of a sentence, end mark counted; one number, or one for each.
        length_penalty: see `length_normaliser`.
        n_best: how many hypotheses to give, at most `beam`.

    Returns:
        For each sentence its best hypotheses, all different, the best first: those that finished, then, where
        they are fewer than `n_best`, those that did not. Fewer come back where there are no more.

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
    sentences = [Sentence(Pool(limit, length_penalty, n_best)) for limit in limits_of(batch, max_length)]
    return _search(step, state, sentences, start_id, end_id, beam, keep=2 * beam)
