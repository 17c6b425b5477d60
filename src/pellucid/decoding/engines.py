"""What can take a step of a search: here, our own model, in whatever precision its weights have."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.config import BEGIN_ID, PAD_ID, UNKNOWN_ID
from pellucid.model import Cache, Transformer
from pellucid.shapes import Ids, Rows, States

__all__ = ["ModelEngine", "ModelState"]


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
    """Takes steps with a `Transformer`, in evaluation mode and without gradients."""

    def __init__(self, model: Transformer) -> None:
        self.model = model.eval()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.head.weight.device

    @torch.inference_mode()
    def begin(self, source: Ids, source_lengths: tuple[int, ...]) -> ModelState:
        """Read the sources (B, S); the first step follows."""
        return ModelState(self.model.encode(source.to(self.device), source_lengths), source_lengths)

    @torch.inference_mode()
    def step(self, ids: Int[Tensor, " rows"], state: ModelState) -> tuple[Float[Tensor, "rows vocabulary"], ModelState]:
        """Log-probabilities of each hypothesis' next token, in nats, and the state after it.

        They are the model's own, in float32 at least; padding, begin and unknown are no words, and made impossible.
        """
        logits, cache = self.model.decode(
            ids.to(self.device)[:, None], state.memory, state.source_lengths, cache=state.cache
        )
        last = logits[:, -1]
        log_probs = last.to(torch.promote_types(last.dtype, torch.float32)).log_softmax(dim=-1)
        log_probs[:, [PAD_ID, UNKNOWN_ID, BEGIN_ID]] = float("-inf")
        return log_probs, ModelState(state.memory, state.source_lengths, cache)
