"""What can find translations of a batch: here, our own model, in whatever precision its weights have."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.config import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from pellucid.decoding.chances import Drawing
from pellucid.decoding.hypotheses import Hypothesis, normalised
from pellucid.decoding.sampling import sample
from pellucid.decoding.search import beam_search, greedy_search
from pellucid.decoding.stream import tokens_as_chosen
from pellucid.decoding.wish import Wish
from pellucid.model import Cache, Transformer
from pellucid.shapes import Ids, Rows, States
from pellucid.text.batch import Batch

__all__ = ["Engine", "ModelEngine", "ModelState"]


@runtime_checkable
class Engine(Protocol):
    """Finds translations of a batch of sources and scores given ones."""

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a sentence may have, its mark counted; None where positions have no end."""
        ...

    def search(self, batch: Batch, limits: Sequence[int], wish: Wish) -> list[list[Hypothesis]]:
        """The `wish.n_best` candidates of each source of a batch, of at most `limits` tokens, end mark counted.

        Raises:
            DecodingError: this engine cannot do what is asked for.
            PositionError: a source is longer than the positions that the model has learned.
        """
        ...

    def stream(self, batch: Batch, limit: int, drawing: Drawing) -> Iterator[int]:
        """The tokens of the one source in a batch, each as soon as it is chosen; the source is read before.

        Raises:
            DecodingError: this engine cannot do what is asked for.
            PositionError: the source is longer than the positions that the model has learned.
        """
        ...

    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted."""
        ...

    def cross_attention(self, batch: Batch) -> Float[Tensor, "layers heads target source"]:
        """What each target token of the one pair in a batch looked at while it was chosen, the end mark too."""
        ...


@dataclass(frozen=True, slots=True)
class ModelState:
    """What the model remembers of each live hypothesis: its source, and its own past once it has one."""

    memory: States
    source_lengths: tuple[int, ...]
    cache: Cache | None = None

    def select(self, rows: Rows) -> "ModelState":
        """The state of the given hypotheses in the given order."""
        rows = rows.to(self.memory.device)
        lengths = tuple(self.source_lengths[row] for row in rows.tolist())
        cache = None if self.cache is None else self.cache.select(rows)
        return ModelState(self.memory.index_select(0, rows), lengths, cache)


class ModelEngine:
    """Takes steps with a `Transformer`, in evaluation mode and without gradients.

    The mode is set when work begins, not before: an engine made for a model in training leaves its dropout on.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.head.weight.device

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a sentence may have, its mark counted; None where positions have no end."""
        config = self.model.config
        return config.max_positions if config.positions == "learned" else None

    @torch.inference_mode()
    def begin(self, source: Ids, source_lengths: tuple[int, ...]) -> ModelState:
        """Read the sources (B, S); the first step follows.

        Raises:
            PositionError: a source is longer than the positions that the model has learned.
        """
        self.model.eval()
        return ModelState(self.model.encode(source.to(self.device), source_lengths), source_lengths)

    @torch.inference_mode()
    def step(self, ids: Int[Tensor, " rows"], state: ModelState) -> tuple[Float[Tensor, "rows vocabulary"], ModelState]:
        """Log-probabilities of each hypothesis' next token, in nats, and the state after it.

        They are the model's own, in float32 at least; padding, begin and unknown are no words, and made impossible.
        """
        logits, cache = self.model.decode(
            ids.to(self.device)[:, None], state.memory, state.source_lengths, cache=state.cache
        )
        log_probs = _log_softmax(logits[:, -1])
        log_probs[:, [PAD_ID, UNKNOWN_ID, BEGIN_ID]] = float("-inf")
        return log_probs, ModelState(state.memory, state.source_lengths, cache)

    def search(self, batch: Batch, limits: Sequence[int], wish: Wish) -> list[list[Hypothesis]]:
        """The candidates of each source, found by greedy or beam search, or drawn.

        Raises:
            PositionError: a source is longer than the positions that the model has learned.
        """
        state = self.begin(batch.source, batch.source_lengths)
        penalty = wish.settings.length_penalty
        if wish.drawing is not None:
            return sample(
                self.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits,
                samples=wish.n_best, seed=[wish.drawing.line_seed(line) for line in batch.lines],
                length_penalty=penalty, **asdict(wish.drawing.sampling),
            )  # fmt: skip
        if wish.settings.beam == 1:
            best = greedy_search(
                self.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits
            )
            return [[normalised(hypothesis, penalty)] for hypothesis in best]
        return beam_search(
            self.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits,
            beam=wish.settings.beam, length_penalty=penalty, n_best=wish.n_best,
        )  # fmt: skip

    def stream(self, batch: Batch, limit: int, drawing: Drawing) -> Iterator[int]:
        """The tokens of the one source in a batch, each as soon as it is chosen; the source is read before.

        Raises:
            PositionError: the source is longer than the positions that the model has learned.
        """
        state = self.begin(batch.source, batch.source_lengths)
        return tokens_as_chosen(
            self.step, state, start_id=BEGIN_ID, end_id=END_ID, max_length=limit,
            sampling=drawing.sampling, seed=drawing.line_seed(batch.lines[0]),
        )  # fmt: skip

    @torch.inference_mode()
    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            PositionError: a side is longer than the positions that the model has learned.
        """
        self.model.eval()
        batch = batch.to(self.device)
        logits = self.model(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
        gold = _log_softmax(logits).gather(2, batch.labels[:, :, None])[:, :, 0]
        return [float(row[:length].sum()) for row, length in zip(gold, batch.target_lengths, strict=True)]

    @torch.inference_mode()
    def cross_attention(self, batch: Batch) -> Float[Tensor, "layers heads target source"]:
        """What each target token of the one pair in a batch looked at while it was chosen, the end mark too.

        It is one pass over the whole sentence. Where that filled the last learned position, no end mark could follow.
        """
        self.model.eval()
        batch = batch.to(self.device)
        _, weights = self.model(batch.source, batch.target[:, : self.most_tokens], need_weights=True)
        return torch.cat(weights.cross).cpu()


def _log_softmax(logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows vocabulary"]:
    """Log-probabilities, in float32 at least: half precision would lose too much of their sums."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
