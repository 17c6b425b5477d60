"""Asks schemes of positions what they tell, through their three public doors alone, so that anybody's own answers too."""

import copy
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import ConfigError, PositionError, ShapeError
from pellucid.model.positions import Learned, Positions

__all__ = ["Biases", "Vectors", "ask", "likeness", "named"]


class Vectors(NamedTuple):
    """What the first or second door tells of each position it knows: a row to show, and a vector to compare."""

    name: str
    door: str
    table: Float[Tensor, "known width"]
    vectors: Float[Tensor, "known width"]
    meaning: str
    likeness: str

    @property
    def known(self) -> int:
        """How many positions the door knows, from 0 on."""
        return len(self.table)


class Biases(NamedTuple):
    """What the third door tells: a row of numbers for each head, one for each offset k - q from 1 - known on."""

    name: str
    door: str
    scores: Float[Tensor, "heads _offsets"]

    @property
    def known(self) -> int:
        """How many positions the door knows, from 0 on."""
        return (self.scores.shape[1] + 1) // 2


def named(schemes: Mapping[str, Positions] | Sequence[Positions] | Positions) -> list[tuple[str, Positions]]:
    """The schemes with their names: those given, or their classes', numbered where a class comes twice."""
    if isinstance(schemes, Mapping):
        named = list(schemes.items())
    else:
        several = list(schemes) if isinstance(schemes, Sequence) and not isinstance(schemes, str) else [schemes]
        classes = [type(scheme).__name__ for scheme in several]
        often, seen = Counter(classes), Counter[str]()
        named = []
        for name, scheme in zip(classes, several, strict=True):
            seen[name] += 1
            named.append((f"{name} {seen[name]}" if often[name] > 1 else name, scheme))
    strangers = [scheme for _, scheme in named if not isinstance(scheme, Positions)]
    if strangers or not named:
        what = f"{strangers[0]!r}, which is no scheme of positions" if strangers else "no schemes"
        raise ConfigError(f"positions were to be drawn of {what}; give schemes, such as positions.ALiBi(num_heads=8)")
    return named


@torch.no_grad()
def ask(name: str, scheme: Positions, length: int, width: int) -> list[Vectors | Biases]:
    """What the scheme tells through each door that it opens; of one that opens none, that nothing is told."""
    scheme = copy.deepcopy(scheme).eval()  # the caller's own may be in training, with a dropout in it
    wide = scheme.weight.shape[1] if isinstance(scheme, Learned) else getattr(scheme, "d_model", width)
    told = [
        one
        for one in (
            _added(name, scheme, _empty(scheme).new_zeros(1, length, wide)),
            _turned(name, scheme, _empty(scheme).new_ones(1, 1, length, getattr(scheme, "head_dim", width))),
            _biased(name, scheme, length),
        )
        if one is not None
    ]
    alike = torch.ones(length, wide, dtype=torch.float64)
    nothing = Vectors(name, "nothing is told", 0 * alike, alike, "value added", "share of the score at 0")
    return told or [nothing]


def _added(name: str, scheme: Positions, states: Float[Tensor, "1 length d_model"]) -> Vectors | None:
    """What `forward` adds to states of zeros."""

    def door(length: int) -> Tensor:
        return _answer(name, scheme, states[:, :length])

    known = _known(door, states.shape[1])
    table = _plain(door(known)[0])
    if known == states.shape[1] and not table.any():
        return None
    return Vectors(name, "added to embeddings", table, table, "value added", "cosine of two positions")


def _turned(name: str, scheme: Positions, ones: Float[Tensor, "1 1 length head_dim"]) -> Vectors | None:
    """What `rotate` leaves of each dimension, and where it turns heads of ones to."""

    def door(length: int) -> Tensor:
        return _answer(name, scheme.rotate, ones[:, :, :length])

    known = _known(door, ones.shape[2])
    turned = door(known)
    if known == ones.shape[2] and torch.equal(turned, ones):
        return None
    # One dimension at a time, as which of them are a pair is the scheme's own affair.
    units = torch.eye(ones.shape[3], dtype=ones.dtype, device=ones.device)
    kept = [scheme.rotate(unit.expand(1, 1, known, -1))[0, 0, :, place] for place, unit in enumerate(units)]
    table = _plain(torch.stack(kept, dim=-1))
    meaning, likeness = "cosine of the turn", "share of the score at 0"
    return Vectors(name, "turns queries and keys", table, _plain(turned[0, 0]), meaning, likeness)


def _biased(name: str, scheme: Positions, length: int) -> Biases | None:
    """What `bias` adds for each offset: the row of the last query, and from the first query's all but its own place."""
    known = _known(lambda count: scheme.bias(count, count), length)
    bias = scheme.bias(known, known)
    if bias is None:
        return None
    behind, ahead = bias.scores(1, known, first_query=max(known - 1, 0)), bias.scores(1, known)
    return Biases(name, "added to scores", _plain(torch.cat([behind[0, :, 0], ahead[0, :, 0, 1:]], dim=-1)))


def _known(ask: Callable[[int], object], length: int) -> int:
    """The most positions, up to `length`, that can be asked about."""

    def refused(count: int) -> bool:
        try:
            ask(count)
        except PositionError:
            return True
        return False

    known = bisect_left(range(1, length + 1), True, key=refused)
    return max(known, 1)  # a scheme that refuses position 0 too is asked about it once more, and says why


def _answer(name: str, door: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    """What a door makes of what it is given, in the same shape."""
    try:
        made = door(given)
    except (RuntimeError, ShapeError) as error:
        raise ShapeError(
            f"{name} could not take a tensor of shape {tuple(given.shape)}: {' '.join(str(error).split())}; give the "
            "scheme its d_model or head_dim as an attribute, or give the width"
        ) from error
    if made.shape != given.shape:
        raise ShapeError(
            f"{name} was given a tensor of shape {tuple(given.shape)} and handed back {tuple(made.shape)}; let each "
            "door hand back the shape that it is given"
        )
    return made


def _empty(scheme: Positions) -> Tensor:
    """A tensor of the type and at the place of the scheme's own numbers; in float64 where it has none."""
    own = itertools.chain(scheme.parameters(), scheme.buffers())
    return next((one for one in own if one.is_floating_point()), torch.empty(0, dtype=torch.float64))


def _plain(numbers: Tensor) -> Tensor:
    """The numbers as they are drawn."""
    return numbers.detach().cpu().double()


def likeness(vectors: Float[Tensor, "known width"]) -> Float[Tensor, "3 known"]:
    """The cosines of all pairs of positions, by their distance: their mean, the least and the most."""
    unit = F.normalize(vectors, dim=1)
    cosines = unit @ unit.T
    apart = [cosines.diagonal(distance) for distance in range(len(vectors))]
    return torch.stack([torch.stack([one.mean(), one.min(), one.max()]) for one in apart], dim=1)
