"""The ways to go on with the live hypotheses of each sentence, best first."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.hypotheses import Branch, Prefix, Sentence
from pellucid.decoding.phrases import next_tokens
from pellucid.decoding.rules import Rules

__all__ = ["histories", "ranked_branches", "with_rules"]


def ranked_branches(
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
        sums = [(token, sentence.live[0].sum + gain) for sentence, token, gain in pairs]
        return [[Branch(0, token, total, total)] if total > -math.inf else [] for token, total in sums]
    width, count = max(len(sentence.live) for sentence in live), gains.shape[1]
    places = [width * i + place for i, sentence in enumerate(live) for place in range(len(sentence.live))]
    totals = [prefix.sum for sentence in live for prefix in sentence.live]
    grid = np.full((len(live) * width, count), -math.inf)
    grid[places] = np.array(totals)[:, None] + gains
    words = np.zeros(grid.shape, dtype=np.int64)
    words[places] = tokens.cpu().numpy()
    totals_of, words_of = grid.reshape(len(live), -1), words.reshape(len(live), -1)
    best = np.argsort(-totals_of, axis=1, kind="stable")[:, :keep]
    columns = (best // count, np.take_along_axis(words_of, best, axis=1), np.take_along_axis(totals_of, best, axis=1))
    return [
        [Branch(parent, token, total, total) for parent, token, total in zip(*rows, strict=True) if total > -math.inf]
        for rows in zip(*(column.tolist() for column in columns), strict=True)
    ]


def histories(live: Sequence[Sentence]) -> list[tuple[Rules | None, tuple[int, ...]]]:
    """The rules and the tokens of each row."""
    return [(sentence.rules, prefix.ids) for sentence in live for prefix in sentence.live]


def with_rules(
    found: Sequence[Sequence[Branch]],
    live: Sequence[Sentence],
    ranked: Float[Tensor, "rows vocabulary"],
    log_probs: Float[Tensor, "rows vocabulary"],
) -> list[list[Branch]]:
    """The branches with those that go on with what is forced, and with the step's own log-probabilities."""
    ways: list[tuple[int, int]] = []  # of each branch the row and the token
    every: list[list[Branch]] = []
    parents: list[Prefix] = []
    first = 0
    for sentence, branches in zip(live, found, strict=True):
        met = {(branch.parent, branch.token) for branch in branches}
        forced = sentence.rules.forced if sentence.rules is not None else ()
        more = [
            Branch(place, token, 0.0, 0.0)
            for place, prefix in enumerate(sentence.live)
            for token in sorted(next_tokens(prefix.ids, forced))
            if (place, token) not in met
        ]
        every.append([*branches, *more])
        ways += [(first + branch.parent, branch.token) for branch in every[-1]]
        parents += [sentence.live[branch.parent] for branch in every[-1]]
        first += len(sentence.live)
    rows, tokens = torch.tensor(ways, dtype=torch.long, device=log_probs.device).view(-1, 2).T
    gains, own = (
        numbers[rows, tokens].to("cpu", torch.float64).clamp(max=0.0).tolist() for numbers in (ranked, log_probs)
    )
    figures = iter(zip(parents, gains, own, strict=True))
    made = [
        [
            Branch(branch.parent, branch.token, prefix.sum + gain, prefix.log_prob + log_prob)
            for branch, (prefix, gain, log_prob) in zip(branches, figures, strict=False)
        ]
        for branches in every
    ]
    return [
        sorted((branch for branch in branches if branch.sum > -math.inf), key=lambda branch: -branch.sum)
        for branches in made
    ]
