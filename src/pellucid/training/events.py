"""What a training tells those who watch it; each event can be written as one line of metrics."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Event", "Saved", "StepTaken", "Stopped", "Validated"]


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A step that was reported: the loss in nats per target token, smoothed, over the steps since the last report."""

    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_left: float

    def record(self) -> dict[str, Any]:
        """As one line of metrics."""
        return {"kind": "step", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Validated:
    """A validation: the plain loss in nats per target token, and BLEU and chrF where lines were translated."""

    step: int
    scores: dict[str, float]
    is_best: bool

    def record(self) -> dict[str, Any]:
        """As one line of metrics."""
        return {"kind": "validation", "step": self.step, **self.scores, "best": self.is_best}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was written."""

    step: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """A training that was asked to stop before its last step, and saved what it had."""

    step: int


Event = StepTaken | Validated | Saved | Stopped
