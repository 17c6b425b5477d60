"""How weights are found: the loss, the schedule, the order of batches, and the loop."""

from pellucid.training.events import Event, Saved, StepTaken, Stopped, Validated
from pellucid.training.loss import Objective, smoothed_cross_entropy, smoothing_floor
from pellucid.training.pace import choose
from pellucid.training.schedule import learning_rate, optimizer
from pellucid.training.stream import BatchStream
from pellucid.training.trainer import Trainer

__all__ = [
    "BatchStream",
    "Event",
    "Objective",
    "Saved",
    "StepTaken",
    "Stopped",
    "Trainer",
    "Validated",
    "choose",
    "learning_rate",
    "optimizer",
    "smoothed_cross_entropy",
    "smoothing_floor",
]
