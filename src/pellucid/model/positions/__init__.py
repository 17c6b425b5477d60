"""Position schemes, swapped by one setting: each says where a token stands, by one of three doors."""

from pellucid.model.positions.absolute import Learned, NoPositions, Sinusoidal
from pellucid.model.positions.alibi import ALiBi
from pellucid.model.positions.converters import halves_to_interleaved, interleaved_to_halves, rotary_weights
from pellucid.model.positions.interface import First, Positions
from pellucid.model.positions.rotary import Rotary
from pellucid.model.positions.t5 import T5Relative
from pellucid.model.positions.turn import Turn

__all__ = [
    "ALiBi",
    "First",
    "Learned",
    "NoPositions",
    "Positions",
    "Rotary",
    "Sinusoidal",
    "T5Relative",
    "Turn",
    "halves_to_interleaved",
    "interleaved_to_halves",
    "rotary_weights",
]
