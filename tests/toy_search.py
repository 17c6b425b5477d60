"""A toy model that a search can be held to: tables of weights, and an oracle that looks at every sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from hypothesis import strategies as st
from torch import Tensor

from pellucid.decoding.search import Hypothesis, beam_search, greedy_search

START, END = 97, 0
Table = list[list[int]]
Path = tuple[tuple[int, ...], float]


@dataclass(frozen=True)
class History:
    """A state that remembers, for each row, its sentence and every token it was given."""

    sentences: Tensor
    tokens: Tensor

    def select(self, rows: Tensor) -> Self:
        return type(self)(self.sentences[rows], self.tokens[rows])


def begin(batch: int) -> History:
    return History(torch.arange(batch), torch.zeros(batch, 0, dtype=torch.int64))


def next_log_probs(table: Table, history: Sequence[int]) -> list[float]:
    """A row of the table that depends on every token of the history and on their order."""
    key = 1
    for token in history:
        key = (key * 31 + token + 7) % 10007
    weights = table[key % len(table)]
    return [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]


@dataclass
class Toy:
    """A model with one table a sentence; it notes how many rows each step had."""

    tables: Sequence[Table]
    rows: list[int] = field(default_factory=list)

    def __call__(self, ids: Tensor, state: History, /) -> tuple[Tensor, History]:
        assert ids.dtype == torch.int64
        tokens = torch.cat([state.tokens, ids[:, None]], dim=1)
        assert bool((tokens[:, 0] == START).all())
        assert not bool((tokens[:, 1:] == END).any())
        self.rows.append(len(ids))
        pairs = zip(state.sentences.tolist(), tokens[:, 1:].tolist(), strict=True)
        answers = [next_log_probs(self.tables[sentence], history) for sentence, history in pairs]
        return torch.tensor(answers, dtype=torch.float64), History(state.sentences, tokens)


def beam(
    tables: Sequence[Table], width: int, limits: int | list[int], penalty: float = 0.6, n_best: int = 1
) -> list[list[Hypothesis]]:
    return beam_search(
        Toy(tables),
        begin(len(tables)),
        batch=len(tables),
        start_id=START,
        end_id=END,
        beam=width,
        max_length=limits,
        length_penalty=penalty,
        n_best=n_best,
    )


def greedy(tables: Sequence[Table], limits: int | list[int]) -> list[Hypothesis]:
    state = begin(len(tables))
    return greedy_search(Toy(tables), state, batch=len(tables), start_id=START, end_id=END, max_length=limits)


def hypothesis_of(path: Path, finished: bool, penalty: float) -> Hypothesis:
    ids, log_prob = path
    return Hypothesis(ids, log_prob, log_prob / ((5 + len(ids) + finished) / 6) ** penalty, finished)


def ranked(ended: Sequence[Path], cut: Sequence[Path], penalty: float) -> list[Hypothesis]:
    """All finished ones, best first, then all others; of equals the earlier stays ahead."""
    finished = sorted((hypothesis_of(path, True, penalty) for path in ended), key=lambda found: -found.score)
    return finished + sorted((hypothesis_of(path, False, penalty) for path in cut), key=lambda found: -found.score)


def enumerate_all(table: Table, limit: int, penalty: float) -> list[Hypothesis]:
    """The oracle: every sequence of any probability within the limit."""
    ended: list[Path] = []
    cut: list[Path] = []

    def visit(ids: tuple[int, ...], total: float) -> None:
        ways = [(token, value) for token, value in enumerate(next_log_probs(table, ids)) if value > -math.inf]
        if len(ids) == limit or not ways:
            cut.append((ids, total))
            return
        for token, value in ways:
            if token == END:
                ended.append((ids, total + value))
            else:
                visit((*ids, token), total + value)

    visit((), 0.0)
    return ranked(ended, cut, penalty)


def tables(vocabulary: int, highest: int = 9) -> st.SearchStrategy[Table]:
    """Small weights, so that ties, impossible tokens and dead ends all occur."""
    row = st.lists(st.integers(0, highest), min_size=vocabulary, max_size=vocabulary)
    return st.lists(row, min_size=7, max_size=7)
