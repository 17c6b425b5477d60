"""How fast this machine trains, timed once when a run begins, for the choices that are left to it.

What is chosen here is written into the run's settings, so that a resumption never measures, and never differs.
"""

import statistics
import time
from collections.abc import Sequence

import torch

from pellucid.config import RunConfig
from pellucid.model import Transformer
from pellucid.text.batch import Batch, Example
from pellucid.training.loss import Objective
from pellucid.training.schedule import optimizer
from pellucid.training.stream import BatchStream

__all__ = ["choose", "plausible", "seconds_per_step"]

LAPS, MOST_SECONDS = 12, 4.0
ROWS = 512  # states in the product that shows which precision is hopeless
HOPELESS = 1.5

CHOICES = ("float32", "bfloat16")
"""The precisions that "auto" chooses from; float64 is for those who ask for it."""


def choose(config: RunConfig, examples: Sequence[Example], device: torch.device, processes: int = 1) -> RunConfig:
    """Settle what the settings leave to this machine: `training.precision` "auto", and `training.minutes`.

    Args:
        config: the settings as asked for.
        examples: the pairs that will be trained on.
        device: where training will run.
        processes: how many processes share each batch; time is taken to fall with their number.

    Returns:
        The settings with precision and steps chosen, `minutes` dropped; the same where nothing was left open.
    """
    settings = config.training
    if settings.precision != "auto" and settings.minutes is None:
        return config
    named = CHOICES if settings.precision == "auto" else (settings.precision,)
    left = plausible(config, device, named) if len(named) > 1 else named
    # Whole steps take a while, and are timed only where something hangs on them.
    timed = len(left) > 1 or settings.minutes is not None
    seconds = seconds_per_step(config, examples, device, left) if timed else dict.fromkeys(left, 0.0)
    fastest = min(seconds, key=seconds.__getitem__)
    changes: dict[str, object] = {"precision": fastest}
    if settings.minutes is not None:
        steps = max(1, round(settings.minutes * 60 * processes / seconds[fastest]))
        changes |= {"steps": steps, "warmup": max(1, min(settings.warmup, steps // 5)), "minutes": None}
    return config.replace(training=settings.replace(**changes))


def plausible(config: RunConfig, device: torch.device, precisions: Sequence[str]) -> tuple[str, ...]:
    """The precisions that are not plainly slower than the fastest, tried on one product of the model's own widths.

    On a processor without bfloat16 products a single whole step of it would take longer than all other timing.
    """
    quick = {name: min(_product(config, device, name) for _ in range(3)) for name in precisions}
    return tuple(name for name in precisions if quick[name] <= HOPELESS * min(quick.values()))


def _product(config: RunConfig, device: torch.device, precision: str) -> float:
    """Seconds of one product as in the feed-forward block."""
    states = torch.ones(ROWS, config.model.d_model, dtype=getattr(torch, precision), device=device)
    weights = torch.ones(config.model.d_model, config.model.d_ff, dtype=states.dtype, device=device)
    float(states[0, 0])  # a device may run behind
    began = time.perf_counter()
    float((states @ weights)[0, 0])
    return time.perf_counter() - began


def seconds_per_step(
    config: RunConfig, examples: Sequence[Example], device: torch.device, precisions: Sequence[str]
) -> dict[str, float]:
    """Median seconds of one training step in each precision, taken in turn on the same batches.

    A model of its own is trained and thrown away; the caller's is not touched.
    """
    stream = BatchStream(examples, batch_tokens=config.data.batch_tokens, seed=config.training.seed)
    objective = Objective(Transformer(config.model).to(device), config.training.label_smoothing)
    if "float64" in precisions:  # it is asked for alone
        objective = objective.double()
    update = optimizer(objective.parameters(), config.training)
    taken: dict[str, list[float]] = {name: [] for name in precisions}
    ends = time.perf_counter() + MOST_SECONDS
    for lap in range(LAPS + 1):
        batch = stream.take().to(device)
        for name in precisions:
            seconds = _step(objective, update, batch, name)
            if lap:  # the first lap warms up
                taken[name].append(seconds)
        if lap and time.perf_counter() > ends:
            break
    return {name: statistics.median(times) * config.training.accumulate for name, times in taken.items()}


def _step(objective: Objective, update: torch.optim.Optimizer, batch: Batch, precision: str) -> float:
    """Seconds of one step of training."""
    began = time.perf_counter()
    device = batch.source.device.type
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
        loss = objective(batch.source, batch.target, batch.labels, batch.source_lengths, batch.target_lengths)
    (loss / batch.tokens).backward()
    update.step()
    update.zero_grad()
    float(loss.detach())  # a device may run behind
    return time.perf_counter() - began
