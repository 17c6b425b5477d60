"""The numbers a model translates in: as it was trained, bfloat16, or linear maps in 8-bit integers."""

import copy
import statistics
import time
from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from pellucid.decoding.products import EightBit
from pellucid.errors import ConfigError
from pellucid.model import Transformer
from pellucid.model.sublayer import FeedForward

__all__ = ["Precision", "converted", "fastest"]

Precision = Literal["float32", "bfloat16", "int8", "auto"]
"""The numbers that a translator computes with; "auto" is float32 or bfloat16, whichever is faster on this machine."""

ROWS = 128  # of the product that is timed: a beam of 4 for 32 sentences
GAIN = 1.2  # times that bfloat16 must be faster, for it is less exact


def converted(model: Transformer, precision: Precision) -> Transformer:
    """The model itself for "float32", as for "auto" where that is the faster one; else a copy in other numbers.

    "int8" keeps embeddings, norms and attention in floating point, and makes linear maps `EightBit`. The copy shares
    what is not converted, and does not follow later training.

    Raises:
        ConfigError: the precision is unknown.
    """
    if precision not in get_args(Precision):
        raise ConfigError(
            f"precision was given {precision!r}, but it knows {', '.join(map(repr, get_args(Precision)))}; choose one"
        )
    if precision == "auto":
        precision = fastest(model)
    if precision == "float32":
        return model
    made = copy.deepcopy(model)
    return made.bfloat16() if precision == "bfloat16" else _in_eight_bits(made)


def _in_eight_bits(module: Transformer) -> Transformer:
    """Put each linear map of a module in 8 bits."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                behind_relu = isinstance(parent, FeedForward) and parent.activation == "relu" and name == "outer"
                setattr(parent, name, EightBit.of(child, positive=behind_relu))
    return module


def fastest(model: Transformer) -> Literal["float32", "bfloat16"]:
    """The faster of the two on the model's device, measured on a product as its feed-forward blocks have it.

    On many CPUs bfloat16 is slower, as they have no instructions for it.
    """
    weight = next(matrix for name, matrix in model.named_parameters() if name.endswith("feed_forward.inner.weight"))
    states = torch.ones(ROWS, weight.shape[1], device=weight.device)
    laps: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    with torch.inference_mode():
        for _ in range(9):
            for dtype, times in laps.items():
                given, matrix = states.to(dtype), weight.to(dtype)
                started = time.perf_counter()
                F.linear(given, matrix).sum().item()  # which waits for a GPU to be done
                times.append(time.perf_counter() - started)
    single, half = (statistics.median(times[1:]) for times in laps.values())
    return "bfloat16" if half * GAIN < single else "float32"
