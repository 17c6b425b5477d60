"""What checks are made on: a module, the inputs that are drawn for it, and how it is called with them."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.calling import Call, plain_call
from pellucid.check.lengths import LENGTHS
from pellucid.errors import ConfigError
from pellucid.jobs.target import required
from pellucid.masks import Mask

__all__ = ["Inputs", "Subject", "with_lengths"]

USUAL_IDS = "2,12"  # samples and length, where ids are asked for and no shape is
MOST_NUMBERS = 2**26  # of one input


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a module is to be called with: normal floats, or ids.

    Attributes:
        shapes: one for each input, as in "2,12,64": samples, positions, width.
        vocabulary: draw ids from 1 to one less than this, for shapes of samples and positions.
        length_first: positions stand before samples.
        seed: of the numbers that are drawn.
    """

    shapes: tuple[str, ...] = ()
    vocabulary: int | None = None
    length_first: bool = False
    seed: int = 0

    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs.

        Raises:
            ConfigError: a shape is none, or does not fit what is to be drawn.
        """
        if self.vocabulary is not None and self.vocabulary < 2:
            raise ConfigError(
                f"--ids was given {self.vocabulary}, but ids are drawn from 1 to one less; give the size of the "
                "vocabulary, 2 at least"
            )
        if not self.shapes and self.vocabulary is None:
            raise ConfigError(
                "no inputs were described; give --shape 2,12,64 (samples, positions, width), or --ids VOCABULARY for a "
                "model of tokens"
            )
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [self._sizes(shape) for shape in self.shapes or (USUAL_IDS,)]
        if self.vocabulary is None:
            return tuple(torch.randn(size, generator=generator) for size in sizes)
        return tuple(torch.randint(1, self.vocabulary, size, generator=generator) for size in sizes)

    def _sizes(self, shape: str) -> tuple[int, ...]:
        try:
            sizes = tuple(int(number) for number in shape.split(","))
        except ValueError:
            sizes = ()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ConfigError(
                f"--shape was given '{shape}'; write samples, positions and what else there is as whole numbers, with "
                "commas between, as in 2,12,64"
            )
        if self.vocabulary is not None and len(sizes) != 2:
            raise ConfigError(f"--shape was given '{shape}' with --ids; give samples and positions, as in {USUAL_IDS}")
        if math.prod(sizes) > MOST_NUMBERS:
            raise ConfigError(
                f"--shape was given '{shape}', which is {math.prod(sizes):,} numbers; give {MOST_NUMBERS:,} at most"
            )
        return sizes


@dataclass(frozen=True, slots=True)
class Subject:
    """A module and all that a check of it may need."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    call: Call | None
    axis: int = 1
    mask: Mask | None = None
    layers: int = 1

    def batch_first(self) -> "Subject":
        """The same with samples before positions, for checks that want it so."""
        if self.axis == 1:
            return self
        called = plain_call(self.call)
        turned = tuple(value.transpose(0, 1) for value in self.inputs)

        def call(module: Any, *inputs: Tensor) -> Tensor:
            return called(module, *(value.transpose(0, 1) for value in inputs)).transpose(0, 1)

        return replace(self, inputs=turned, call=call, axis=1)


def with_lengths(module: nn.Module, inputs: int, axis: int) -> Call | None:
    """A call of a module that cannot do without lengths: no input is padded, but for the first where its lengths are given.

    It is call(module, *inputs) or call(module, *inputs, lengths); None where the module wants no lengths.
    """
    wants = required(module.forward)[inputs:]
    places = {name: place for place, names in enumerate(LENGTHS[:inputs]) for name in names}
    if not wants or not set(wants) <= places.keys():
        return None

    def call(module: Any, *given: Any) -> Any:
        sides = [torch.full((x.shape[1 - axis],), x.shape[axis]) for x in given[:inputs]]
        sides[0] = given[inputs] if len(given) > inputs else sides[0]
        return module(*given[:inputs], **{name: sides[places[name]] for name in wants})

    return call
