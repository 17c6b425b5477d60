"""The learning rate by step, and the optimiser that follows it."""

from collections.abc import Iterable

import torch
from torch import nn

from pellucid.config import TrainingConfig

__all__ = ["learning_rate", "optimizer"]


def learning_rate(step: int, settings: TrainingConfig) -> float:
    """The learning rate of a step, which counts from 1 (Vaswani et al. 2017, equation 3, scaled to a chosen peak).

    It rises in a straight line to `learning_rate` exactly at step `warmup`, and falls with 1 / sqrt(step) after. Over
    the last share `cooldown` of `steps` it is multiplied by a straight line that would reach zero one step past the
    end. The paper's own rate is the one whose peak is (d_model * warmup) ** -0.5.

    >>> settings = TrainingConfig(learning_rate=0.002, warmup=400)
    >>> [round(learning_rate(step, settings), 6) for step in (1, 200, 400, 1600)]
    [5e-06, 0.001, 0.002, 0.001]
    """
    rate: float = settings.learning_rate * min(step / settings.warmup, (settings.warmup / step) ** 0.5)
    cooling = int(settings.cooldown * settings.steps)
    return rate * min(1.0, max(settings.steps + 1 - step, 0) / (cooling + 1))


def optimizer(parameters: Iterable[nn.Parameter], settings: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), decaying matrices and not biases, norms or gains."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.dim() > 1 else vectors).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,  # one pass over the numbers: less than half the time of the plain loop
    )
