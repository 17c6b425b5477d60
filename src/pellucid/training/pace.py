"""How fast this machine trains, timed once when a run begins, for the choices that are left to it.

What is chosen here is written into the run's settings, so that a resumption never measures, and never differs.
"""

import statistics
import time
from collections.abc import Sequence

import torch

from pellucid.config import RunConfig
from pellucid.model import Transformer
from pellucid.text.batch import Example
from pellucid.training.loss import Objective
from pellucid.training.schedule import optimizer
from pellucid.training.stream import BatchStream

__all__ = ["choose", "seconds_per_step"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    named = [settings.precision] if settings.precision in DTYPES else list(DTYPES)
    seconds = seconds_per_step(config, examples, device, named)
    fastest = min(seconds, key=seconds.__getitem__)
    changes: dict[str, object] = {"precision": fastest if settings.precision == "auto" else settings.precision}
    if settings.minutes is not None:
        steps = max(1, round(settings.minutes * 60 * processes / seconds[fastest]))
        changes |= {"steps": steps, "warmup": max(1, min(settings.warmup, steps // 5)), "minutes": None}
    return config.replace(training=settings.replace(**changes))


def seconds_per_step(
    config: RunConfig, examples: Sequence[Example], device: torch.device, precisions: Sequence[str], rounds: int = 6
) -> dict[str, float]:
    """Median seconds of one training step in each precision, taken in turn on the same batches.

    A model of its own is trained and thrown away; the caller's is not touched.
    """
    stream = BatchStream(examples, batch_tokens=config.data.batch_tokens, seed=config.training.seed)
    objective = Objective(Transformer(config.model).to(device), config.training.label_smoothing)
    update = optimizer(objective.parameters(), config.training)
    taken: dict[str, list[float]] = {name: [] for name in precisions}
    for lap in range(rounds + 1):
        batch = stream.take()
        ids = [tensor.to(device) for tensor in (batch.source, batch.target, batch.labels)]
        for name in precisions:
            began = time.perf_counter()
            with torch.autocast(device.type, DTYPES[name], enabled=name == "bfloat16"):
                loss = objective(*ids, batch.source_lengths, batch.target_lengths) / batch.tokens
            loss.backward()
            update.step()
            update.zero_grad()
            float(loss.detach())  # waits for a device that runs behind
            if lap:  # the first lap warms up
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) * config.training.accumulate for name, times in taken.items()}
