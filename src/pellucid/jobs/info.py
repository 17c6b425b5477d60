"""What a run is: its settings, the numbers of its parameters, its vocabulary and how far it has been trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.config import RunConfig
from pellucid.model import Transformer
from pellucid.run import Run

__all__ = ["Facts", "count_parameters", "inspect"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What `pellucid info` shows.

    Attributes:
        config: every setting.
        parameters: how many each part has; shared ones are counted where they are first met.
        vocabularies: sizes of the source and target vocabularies.
        step: the newest checkpoint's step, or 0.
        validation: the newest line of metrics about a validation, or nothing.
        best: the line of metrics about the best validation, or nothing.
    """

    config: RunConfig
    parameters: dict[str, int]
    vocabularies: tuple[int, int]
    step: int
    validation: dict[str, Any]
    best: dict[str, Any]


def inspect(path: Path) -> Facts:
    """Read the facts of a run.

    Raises:
        RunError: the folder holds no run, or a damaged one.
    """
    run = Run.open(path)
    validations = [record for record in run.metrics() if record.get("kind") == "validation"]
    bests = [record for record in validations if record.get("best")]
    checkpoints = run.checkpoints()
    return Facts(
        config=run.config,
        parameters=count_parameters(run.config),
        vocabularies=(run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size),
        step=int(checkpoints[-1].name) if checkpoints else 0,
        validation=validations[-1] if validations else {},
        best=bests[-1] if bests else {},
    )


def count_parameters(config: RunConfig) -> dict[str, int]:
    """The number of parameters of each part of the model, and of the whole.

    >>> count_parameters(RunConfig())["all"]
    11674624
    """
    with torch.device("meta"):
        model = Transformer(config.model)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = name.removeprefix("stacks.").split(".")[0].replace("_", " ")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return {**counts, "all": sum(counts.values())}
