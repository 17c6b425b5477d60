"""Label-smoothed cross-entropy, in nats per target token, without ever holding all logits at once.

With smoothing e over V words, the wanted distribution is 1 - e + e / V at the gold word and e / V at every other
(Szegedy et al. 2016, section 7; torch's convention). The loss of one token with log-probabilities p is
-(1 - e) p[gold] - e mean(p).

The projection onto words is the widest matrix of the model, and its logits the largest tensor. Tokens are therefore
taken in chunks: each chunk's logits become its loss and its gradient at once and are then forgotten.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pellucid.config import PAD_ID
from pellucid.model import Transformer
from pellucid.shapes import Ids, Lengths

__all__ = ["CHUNK", "Objective", "smoothed_cross_entropy", "smoothing_floor"]

CHUNK = 512
"""Tokens whose logits are held at once; a few hundred keep them in a processor's cache."""


class _Projected(torch.autograd.Function):
    """Sum over tokens of the loss of states @ weight.T, with its gradients computed on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        gold: Tensor,
        smoothing: float,
        chunk: int,
        compute: torch.dtype,
        needed: bool,
    ) -> Tensor:
        words = len(weight)
        matrix = weight.to(compute)
        total = states.new_zeros((), dtype=torch.promote_types(compute, torch.float32))
        states_grad = torch.empty_like(states) if needed else None
        weight_grad = torch.zeros_like(weight) if needed else None
        for part in range(0, len(states), chunk):
            rows, wanted = states[part : part + chunk].to(compute), gold[part : part + chunk, None]
            log_probs = (rows @ matrix.T).to(total.dtype).log_softmax(dim=1)
            total -= (1 - smoothing) * log_probs.gather(1, wanted).sum()
            if smoothing:
                total -= smoothing * log_probs.mean(dim=1).sum()
            if states_grad is None or weight_grad is None:
                continue
            # The gradient at the logits: the model's distribution less the wanted one.
            slope = log_probs.exp_().sub_(smoothing / words)
            slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, smoothing - 1))
            slope = slope.to(compute)
            states_grad[part : part + chunk] = slope @ matrix
            if compute == weight.dtype:
                weight_grad.addmm_(slope.T, rows)
            else:
                weight_grad += slope.T @ rows
        ctx.save_for_backward(states_grad, weight_grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        states_grad, weight_grad = ctx.saved_tensors
        scale = grads[0]
        return states_grad * scale, weight_grad * scale, None, None, None, None, None


def smoothed_cross_entropy(
    states: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    gold: Int[Tensor, " tokens"],
    smoothing: float = 0.0,
    chunk: int = CHUNK,
) -> Float[Tensor, ""]:
    """The loss of predicting each gold id from its state through the projection `states @ weight.T`.

    Args:
        states: one for each real token.
        weight: the projection onto words.
        gold: the ids that should have been predicted.
        smoothing: the share of probability spread evenly over all words.
        chunk: tokens whose logits are held at once; it changes time and memory, never the result beyond rounding.

    Returns:
        The sum over tokens, in nats; divide by their number for nats per token. It is summed in float32 at least.

    >>> float(smoothed_cross_entropy(torch.zeros(3, 2), torch.zeros(4, 2), torch.tensor([0, 1, 3])) / 3)
    1.386...
    """
    device = states.device.type
    mixed = torch.is_autocast_enabled(device)
    compute = torch.get_autocast_dtype(device) if mixed else states.dtype
    # Asked here: inside, torch neither knows whether gradients are wanted nor counts what they need without them.
    needed = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    with torch.autocast(device, enabled=False):
        loss: Tensor = _Projected.apply(  # type: ignore[no-untyped-call]
            states, weight, gold, smoothing, chunk, compute, needed
        )
    return loss


def smoothing_floor(vocabulary: int, smoothing: float) -> float:
    """The least loss a token can have, in nats: the entropy of the smoothed distribution.

    >>> round(smoothing_floor(vocabulary=100, smoothing=0.1), 4)
    0.7778
    """
    wanted = torch.full((vocabulary,), smoothing / vocabulary, dtype=torch.float64)
    wanted[0] += 1 - smoothing
    return float(-torch.special.xlogy(wanted, wanted).sum())


class Objective(nn.Module):
    """A model with its loss, as one module, so that whatever wraps a module for many processes wraps both."""

    def __init__(self, model: Transformer, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self,
        source: Ids,
        target: Ids,
        labels: Ids,
        source_lengths: Lengths,
        target_lengths: Lengths,
    ) -> Float[Tensor, ""]:
        """The loss of a batch, summed over its real target tokens; padding has no part in it."""
        states = self.model.states(source, target, source_lengths, target_lengths)
        real = labels.flatten() != PAD_ID
        return smoothed_cross_entropy(
            states.flatten(0, 1)[real], self.model.head.weight, labels.flatten()[real], self.smoothing
        )
