"""Engines that take one step at a time: searched with, drawn from and streamed by our own searches."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.config import BEGIN_ID, END_ID
from pellucid.decoding.chances import Drawing
from pellucid.decoding.hypotheses import Hypothesis, normalised
from pellucid.decoding.rules import Rules
from pellucid.decoding.sampling import sample
from pellucid.decoding.search import State, beam_search, greedy_search
from pellucid.decoding.stream import tokens_as_chosen
from pellucid.decoding.wish import Wish
from pellucid.shapes import Ids
from pellucid.text.batch import Batch

__all__ = ["SteppingEngine", "log_softmax", "words_alone"]

S = TypeVar("S", bound=State)


class SteppingEngine(ABC, Generic[S]):
    """What every engine can do that reads sources and takes steps: search, draw and stream."""

    @abstractmethod
    def begin(self, source: Ids, source_lengths: tuple[int, ...]) -> S:
        """Read the sources (B, S); the first step follows.

        Raises:
            PositionError: a source is longer than the positions that the model has learned.
        """

    @abstractmethod
    def step(self, ids: Int[Tensor, " rows"], state: S) -> tuple[Float[Tensor, "rows vocabulary"], S]:
        """Log-probabilities of each hypothesis' next token, in nats, and the state after it."""

    def search(
        self, batch: Batch, limits: Sequence[int], wish: Wish, rules: Sequence[Rules] | None = None
    ) -> list[list[Hypothesis]]:
        """The candidates of each source, found by greedy or beam search, or drawn.

        Raises:
            PositionError: a source is longer than the positions that the model has learned.
        """
        state = self.begin(batch.source, batch.source_lengths)
        settings, count = wish.settings, len(limits)
        penalty, rule = settings.length_penalty, settings.length_rule
        if wish.drawing is not None:
            return sample(
                self.step, state, batch=count, start_id=BEGIN_ID, end_id=END_ID, max_length=limits, rules=rules,
                samples=wish.n_best, seed=[wish.drawing.line_seed(line) for line in batch.lines],
                length_penalty=penalty, length_rule=rule, **asdict(wish.drawing.sampling),
            )  # fmt: skip
        if settings.beam == 1:
            best = greedy_search(
                self.step, state, batch=count, start_id=BEGIN_ID, end_id=END_ID, max_length=limits, rules=rules
            )
            return [[normalised(hypothesis, penalty, rule)] for hypothesis in best]
        return beam_search(
            self.step, state, batch=count, start_id=BEGIN_ID, end_id=END_ID, max_length=limits, rules=rules,
            beam=settings.beam, length_penalty=penalty, length_rule=rule, n_best=wish.n_best,
            groups=wish.groups, diversity=wish.diversity,
        )  # fmt: skip

    def stream(self, batch: Batch, limit: int, drawing: Drawing, rules: Rules | None = None) -> Iterator[int]:
        """The tokens of the one source in a batch, each as soon as it is chosen; the source is read before.

        Raises:
            PositionError: the source is longer than the positions that the model has learned.
        """
        state = self.begin(batch.source, batch.source_lengths)
        return tokens_as_chosen(
            self.step, state, start_id=BEGIN_ID, end_id=END_ID, max_length=limit,
            sampling=drawing.sampling, seed=drawing.line_seed(batch.lines[0]), rules=rules,
        )  # fmt: skip


def log_softmax(logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows vocabulary"]:
    """Log-probabilities, in float32 at least: half precision would lose too much of their sums."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)


def words_alone(log_probs: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """The same tensor, with what is no word made impossible: padding, unknown and begin, the first ids."""
    log_probs[:, : BEGIN_ID + 1] = -math.inf
    return log_probs
