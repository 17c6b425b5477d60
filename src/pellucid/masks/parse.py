"""Reads a mask from text: the expression that it prints, or the same in a few keys less; parsed, never evaluated.

    causal & padding(5, 3)             Causal() & Padding((5, 3))
    window(2, 0) | global(0, 4)        Window(before=2, after=0) | Global((0, 4))
    causal | prefix(3)                 Causal() | Prefix(3)
    segments(0, 0, 1)                  Segments(((0, 0, 1),))
    heads(causal, full)                Heads((Causal(), Full()))

Operators bind as in Python: `~` first, then `-`, `&`, `^` and `|`. Capitals make no difference.
"""

import ast
import difflib
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.kinds import Causal, Chunked, Dilated, Full, Global, Window
from pellucid.masks.samples import Heads, Padding, Prefix, Segments

__all__ = ["parse"]

LONGEST = 2000  # characters: more than anyone types, and little enough for the parser's stack


class _Kind(NamedTuple):
    """How a kind is written: its class, an example, its arguments, and whether several values make one tuple of them."""

    build: Callable[..., Mask]
    example: str
    names: tuple[str, ...] = ()
    gathers: bool = False
    sort: str = "whole numbers"


KINDS: Mapping[str, _Kind] = {
    "full": _Kind(Full, "full"),
    "causal": _Kind(Causal, "causal"),
    "window": _Kind(Window, "window(2, 0)", ("before", "after")),
    "chunked": _Kind(Chunked, "chunked(4)", ("size",)),
    "dilated": _Kind(Dilated, "dilated(2)", ("step",)),
    "global": _Kind(Global, "global(0, 4)", ("at",), gathers=True),
    "padding": _Kind(Padding, "padding(5, 3)", ("lengths",), gathers=True),
    "prefix": _Kind(Prefix, "prefix(3)", ("lengths",), gathers=True),
    "segments": _Kind(Segments, "segments((0, 0, 1), (0, 1, 1))", ("ids",), gathers=True, sort="whole numbers in rows"),
    "heads": _Kind(Heads, "heads(causal, full)", ("masks",), gathers=True, sort="masks"),
}
JOINS: Mapping[type[ast.operator], Callable[[Mask, Mask], Mask]] = {
    ast.BitAnd: Mask.__and__,
    ast.BitOr: Mask.__or__,
    ast.BitXor: Mask.__xor__,
    ast.Sub: Mask.__sub__,
}


def parse(text: str) -> Mask:
    """The mask that is written there.

    Raises:
        MaskError: the text is no such expression; the message shows the part that is not understood.

    >>> parse("causal & padding(5, 3)")
    Causal() & Padding((5, 3))
    >>> parse("causal and full")
    Traceback (most recent call last):
        ...
    pellucid.errors.MaskError: 'causal and full' uses and, or, not; write a & b, a | b or ~a
    """
    if len(text) > LONGEST:
        raise MaskError(f"a mask of {len(text):,} characters was given, but {LONGEST:,} are read; write it in Python")
    # `global` is a word of Python's own, which its parser would stumble over.
    written = re.sub(r"\bglobal\b", "Global", text.strip())
    try:
        return _mask(ast.parse(written, mode="eval").body, written)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MaskError(f"{reprlib.repr(text)} is no expression of masks; write it as causal & padding(5, 3)") from None


def _mask(node: ast.expr, text: str) -> Mask:
    """A mask from an expression."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in JOINS:
            return JOINS[type(op)](_mask(left, text), _mask(right, text))
        case ast.UnaryOp(op=ast.Invert(), operand=part):
            return ~_mask(part, text)
        case ast.Name(id=name):
            return _kind(name, [], {})
        case ast.Call(func=ast.Name(id=name), args=places, keywords=keywords):
            values = [_value(place, text) for place in places]
            return _kind(name, values, {word.arg or "**": _value(word.value, text) for word in keywords})
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            raise MaskError(f"{_part(node, text)} uses and, or, not; write a & b, a | b or ~a")
    raise MaskError(
        f"{_part(node, text)} is no mask; masks are {', '.join(KINDS)}, joined by &, |, -, ^ and turned round by ~"
    )


def _value(node: ast.expr, text: str) -> Any:
    """An argument: a whole number, a row of arguments, or a mask."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, text) for part in parts)
        case ast.Constant():
            raise MaskError(f"{_part(node, text)} stands where a whole number is needed; give one")
    return _mask(node, text)


def _kind(name: str, places: list[Any], words: dict[str, Any]) -> Mask:
    """A kind of mask from what stands in its brackets."""
    kind = KINDS.get(name.lower())
    if kind is None:
        near = difflib.get_close_matches(name.lower(), KINDS, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(KINDS)}"
        raise MaskError(f"unknown mask '{name}'; {meant}")
    if kind.gathers and not words:
        single = len(places) == 1 and (isinstance(places[0], tuple) or kind.build in (Prefix, Global))
        places = [places[0] if single else tuple(places)]
    named = dict(zip(kind.names, places, strict=False))
    strange = [word for word in words if word not in kind.names or word in named]
    if strange or len(places) > len(kind.names) or len(named) + len(words) < len(kind.names):
        wanted = ", ".join(kind.names) or "nothing"
        also = f" and {', '.join(words)}" if words else ""
        raise MaskError(
            f"{name} takes {wanted} in its brackets, and was given {len(places)} values{also}; "
            f"write {name.lower()}({', '.join(kind.names)})"
        )
    return _built(name, kind, {**named, **words})


def _built(name: str, kind: _Kind, values: dict[str, Any]) -> Mask:
    """The mask from its values, once they are seen to be of the right sort.

    Raises:
        MaskError: masks stand where numbers are needed, or the other way round.
    """
    for word, value in values.items():
        parts = value if kind.gathers and isinstance(value, tuple) else (value,)
        if kind.build is Heads:
            values = {word: parts}
        if kind.build is Segments:
            # One row of numbers is the row of one sample.
            rows = (parts,) if all(isinstance(part, int) for part in parts) else parts
            sound = all(isinstance(row, tuple) and all(isinstance(one, int) for one in row) for row in rows)
            values = {word: rows}
        else:
            sound = all(isinstance(part, Mask if kind.build is Heads else int) for part in parts)
        if not sound:
            raise MaskError(f"{name} takes {kind.sort}, and was given {word}={value!r}; write it as in {kind.example}")
    return kind.build(**values)


def _part(node: ast.expr, text: str) -> str:
    """The part of the text that a node stands for, quoted."""
    return reprlib.repr(ast.get_source_segment(text, node) or text)
