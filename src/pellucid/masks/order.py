"""Whether one mask sees no more than another at any size: proved from the expressions, or refuted by a cell."""

import re

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.joins import And, Not, Or
from pellucid.masks.kinds import Causal, Chunked, Dilated, Full, Global, Window
from pellucid.masks.samples import Heads, Padding, Prefix

__all__ = ["sees_no_more"]

FEWEST, MOST = 96, 1024  # queries and keys among which a cell is looked for that refutes


def sees_no_more(a: Mask, b: Mask) -> bool:
    """Whether `a` lets no query see what `b` hides, at any size.

    Raises:
        MaskError: the expressions give no proof, and no cell refutes it that is as near as the numbers in them.

    >>> Window(2, 0) <= Causal(), Causal() <= Window(2, 0)
    (True, False)
    """
    if _proved(a, b):
        return True
    rest = a - b
    # Two masks differ near the positions that they name, if anywhere.
    named = max(map(int, re.findall(r"\d+", repr(rest))), default=0)
    most = min(MOST, max(FEWEST, 2 * named + 2))
    queries, keys = (most if known is None else min(known, most) for known in rest.known)
    try:
        if bool(rest.counts(queries, keys).any()):
            return False
        if rest.known == (queries, keys):
            return True  # every cell that they speak of has been looked at
    except IndexError:
        pass  # a function that reads a table, which ends before the cells that are looked at
    raise MaskError(
        f"whether {a!r} sees no more than {b!r} cannot be told from the expressions; ask it of a size: "
        "not (a - b).dense(queries, keys).any()"
    )


def _proved(a: Mask, b: Mask) -> bool:
    """Whether the expressions prove it."""
    if a == b or b.sees_everything or a == ~Full():
        return True
    match a, b:
        case Or(parts=parts), _:
            return all(_proved(part, b) for part in parts)
        case _, And(parts=parts):
            return all(_proved(a, part) for part in parts)
        case Not(part=Or(parts=parts)), _:
            return _proved(_joined(And, parts), b)
        case _, Not(part=And(parts=parts)):
            return _proved(a, _joined(Or, parts))
        case Not(part=And(parts=parts)), _:
            return _proved(_joined(Or, parts), b)
        case _, Not(part=Or(parts=parts)):
            return _proved(a, _joined(And, parts))
        case Not(part=one), Not(part=other):
            return _proved(other, one)
    if isinstance(a, And) and any(_proved(part, b) for part in a.parts):
        return True
    if isinstance(b, Or) and any(_proved(a, part) for part in b.parts):
        return True
    return _kind_in_kind(a, b)


def _joined(join: type[And] | type[Or], parts: tuple[Mask, ...]) -> Mask:
    """By De Morgan: the parts of a negated join, each negated, under the other operator."""
    return join(*(~part for part in parts))


def _kind_in_kind(a: Mask, b: Mask) -> bool:
    """Whether one kind's numbers prove it of another's."""
    match a, b:
        case Window(before=0, after=0), Causal() | Chunked() | Dilated():
            return True  # every query sees itself
        case Window(), Causal():
            return a.after == 0
        case Window(), Window():
            return a.before <= b.before and a.after <= b.after
        case Chunked(), Chunked():
            return b.size % a.size == 0
        case Chunked(), Window():
            return min(b.before, b.after) >= a.size - 1
        case Dilated(), Dilated():
            return a.step % b.step == 0
        case Global(), Global():
            return set(a.at) <= set(b.at)
        case Padding() | Prefix(), Padding() | Prefix():
            return _shorter(a.lengths, b.lengths)
        case Heads(), _:
            others = b.masks if isinstance(b, Heads) else (b,) * len(a.masks)
            return len(others) == len(a.masks) and all(map(_proved, a.masks, others))
        case _, Heads():
            return all(_proved(a, other) for other in b.masks)
    return False


def _shorter(a: int | tuple[int, ...], b: int | tuple[int, ...]) -> bool:
    """Whether no sample's keys are more than the other's."""
    if isinstance(a, int) or isinstance(b, int):
        most = a if isinstance(a, int) else max(a)
        least = b if isinstance(b, int) else min(b)
        return most <= least
    return len(a) == len(b) and all(map(int.__le__, a, b))
