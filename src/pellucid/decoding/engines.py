"""What can find translations of a batch: here, our own model, in whatever precision its weights have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.chances import Drawing
from pellucid.decoding.hypotheses import Hypothesis
from pellucid.decoding.past import Past
from pellucid.decoding.precision import Precision, converted
from pellucid.decoding.reader import Reader
from pellucid.decoding.rules import Rules
from pellucid.decoding.stepper import Source, Stepper
from pellucid.decoding.stepping import SteppingEngine, log_softmax, words_alone
from pellucid.decoding.wish import Wish
from pellucid.model import Transformer
from pellucid.shapes import Ids, Rows
from pellucid.text.batch import Batch

__all__ = ["Engine", "ModelEngine", "ModelState"]


@runtime_checkable
class Engine(Protocol):
    """Finds translations of a batch of sources and scores given ones."""

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a sentence may have, its mark counted; None where positions have no end."""
        ...

    def search(
        self, batch: Batch, limits: Sequence[int], wish: Wish, rules: Sequence[Rules] | None = None
    ) -> list[list[Hypothesis]]:
        """The `wish.n_best` candidates of each source of a batch, of at most `limits` tokens, end mark counted.

        Raises:
            DecodingError: this engine cannot do what is asked for.
            PositionError: a source is longer than the positions that the model has learned.
        """
        ...

    def stream(self, batch: Batch, limit: int, drawing: Drawing, rules: Rules | None = None) -> Iterator[int]:
        """The tokens of the one source in a batch, each as soon as it is chosen; the source is read before.

        Raises:
            DecodingError: this engine cannot do what is asked for.
            PositionError: the source is longer than the positions that the model has learned.
        """
        ...

    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted."""
        ...

    def log_probs(self, batch: Batch) -> Float[Tensor, "batch target vocabulary"]:
        """The log-probability in nats of every token at each place of the targets, on the CPU."""
        ...

    def cross_attention(self, batch: Batch) -> Float[Tensor, "layers heads target source"]:
        """What each target token of the one pair in a batch looked at while it was chosen, the end mark too."""
        ...


@dataclass(frozen=True, slots=True)
class ModelState:
    """What the model remembers of each live hypothesis: its past, and its source, which its sentence shares."""

    stepper: Stepper
    source: Source
    past: Past

    @property
    def source_lengths(self) -> tuple[int, ...]:
        """Real tokens of each hypothesis' source."""
        return tuple(self.source.lengths[sentence] for sentence in self.source.grid.groups)

    def select(self, rows: Rows) -> "ModelState":
        """The state of the given hypotheses in the given order."""
        chosen = rows.tolist()
        return ModelState(self.stepper, self.source.select(chosen), self.past.select(chosen))


class ModelEngine(SteppingEngine[ModelState]):
    """Takes steps with a `Transformer`, in evaluation mode and without gradients.

    The mode is set when work begins, not before: an engine made for a model in training leaves its dropout on. What a
    step needs of the weights is laid out anew when they have changed.

    Args:
        model: the network.
        precision: the numbers that it computes with, see `converted`.

    Raises:
        ConfigError: the precision is unknown.
    """

    def __init__(self, model: Transformer, precision: Precision = "float32") -> None:
        self.model = converted(model, precision)
        self._stacks: tuple[Reader, Stepper] | None = None
        self._marks: list[tuple[int, int]] = []
        self._numbers = torch.empty(0)

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
        reader, stepper = self._laid_out()
        read = stepper.read(reader.read(source.to(self.device), source_lengths), source_lengths)
        return ModelState(stepper, read, stepper.begin(read))

    def _laid_out(self) -> tuple[Reader, Stepper]:
        """Both stacks as their weights now are, in evaluation mode.

        A changed weight shows by its place, its version, or, as torch's fused optimizers and changes through `.data`
        count no versions, by the numbers of the vectors and of each matrix' first column. One that leaves all these as
        they were is not seen.
        """
        modules = list(self.model.modules())
        weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
        marks = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
        looked_at = [weight.detach().flatten(1)[:, 0] if weight.dim() > 1 else weight.detach() for weight in weights]
        numbers = torch.cat(looked_at) if looked_at else torch.empty(0)
        if any(module.training for module in modules):
            self.model.eval()
            self._stacks = None
        if self._stacks is None or marks != self._marks or not torch.equal(numbers, self._numbers):
            self._stacks, self._marks, self._numbers = (Reader(self.model), Stepper(self.model)), marks, numbers
        return self._stacks

    @torch.inference_mode()
    def step(self, ids: Int[Tensor, " rows"], state: ModelState) -> tuple[Float[Tensor, "rows vocabulary"], ModelState]:
        """Log-probabilities of each hypothesis' next token, in nats, and the state after it.

        They are the model's own, in float32 at least; padding, begin and unknown are no words, and made impossible.
        """
        logits, past = state.stepper.step(ids.to(self.device), state.source, state.past)
        return words_alone(log_softmax(logits)), ModelState(state.stepper, state.source, past)

    @torch.inference_mode()
    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            PositionError: a side is longer than the positions that the model has learned.
        """
        self.model.eval()
        batch = batch.to(self.device)
        logits = self.model(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
        gold = log_softmax(logits).gather(2, batch.labels[:, :, None])[:, :, 0]
        return [float(row[:length].sum()) for row, length in zip(gold, batch.target_lengths, strict=True)]

    @torch.inference_mode()
    def log_probs(self, batch: Batch) -> Float[Tensor, "batch target vocabulary"]:
        """The log-probability in nats of every token at each place of the targets, on the CPU.

        Where a target fills the last learned position, no place is left for its end mark.
        """
        self.model.eval()
        batch = batch.to(self.device)
        logits = self.model(batch.source, batch.target[:, : self.most_tokens], batch.source_lengths)
        return log_softmax(logits).cpu()

    @torch.inference_mode()
    def cross_attention(self, batch: Batch) -> Float[Tensor, "layers heads target source"]:
        """What each target token of the one pair in a batch looked at while it was chosen, the end mark too.

        It is one pass over the whole sentence. Where that filled the last learned position, no end mark could follow.
        """
        self.model.eval()
        batch = batch.to(self.device)
        _, weights = self.model(batch.source, batch.target[:, : self.most_tokens], need_weights=True)
        return torch.cat(weights.cross).cpu()
