"""Lines that are longer than a model reads: cut into parts that it does read, where a reader would pause."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Part", "parts_of"]

# A full stop ends no sentence behind one letter ("p.m."), a number of two digits ("12. Mai") or a title ("Dr."), nor does
# any mark before a small letter.
STOP = r"(?<=\.)(?<!\b\w\.)(?<!\b\d\d\.)(?<!\b[A-Z][a-z]\.)"
JOINER = "\u200d"
SMALL = "a-z\u00df-\u00f6\u00f8-\u00ff\u03b1-\u03c9\u0430-\u045f"

# Where a line may be cut, the better places first: behind the end of a sentence, behind a clause, at a space.
PAUSES = (
    re.compile(rf"(?:{STOP}|(?<=[!?…।॥؟۔։።]))[\"'”’»)\]]*\s+(?=[^\s{SMALL}])|(?<=[。！？])[」』”’）]*\s*"),
    re.compile(r"(?<=[,;:–—،؛])\s+|(?<=[，；：、])\s*"),
    re.compile(r"\s+"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a line, and what joins it to the part before it: a space where there was one."""

    text: str
    joint: str = ""


def parts_of(line: str, fits: Callable[[str], bool]) -> list[Part]:
    """Cut a line into as long parts as fit, where a sentence ends, else at a clause, else at a space, else anywhere.

    Args:
        line: not blank.
        fits: whether a text is short enough; one letter is taken to be.

    >>> [part.text for part in parts_of("One two. Three, four five.", lambda text: len(text) <= 11)]
    ['One two.', 'Three,', 'four five.']
    """
    return _parts(line.strip(), "", fits, PAUSES)


def _parts(text: str, joint: str, fits: Callable[[str], bool], pauses: Sequence[re.Pattern[str]]) -> list[Part]:
    if fits(text):
        return [Part(text, joint)]
    if not pauses:
        return _letters(text, joint, fits)
    pieces, found, at = _pieces(text, pauses[0]), list[Part](), 0
    while at < len(pieces):
        size = _reach(found[-1].text, pieces[at:], fits) if found else 0
        if size:
            found[-1] = Part(_joined(found[-1].text, pieces[at : at + size]), found[-1].joint)
        else:
            (piece, gap), size = pieces[at], 1
            found += _parts(piece, (gap and " ") if found else joint, fits, pauses[1:])
        at += size
    return found


def _joined(text: str, pieces: Sequence[tuple[str, str]]) -> str:
    """A text with pieces behind it, each with the space before it."""
    return text + "".join(f"{gap}{piece}" for piece, gap in pieces)


def _reach(text: str, pieces: Sequence[tuple[str, str]], fits: Callable[[str], bool]) -> int:
    """How many of the pieces fit behind a text."""
    return _most(len(pieces), lambda size: fits(_joined(text, pieces[:size])))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest size up to `limit` that fits, 0 where none does: looked for in steps that double, then halve."""
    size, over = 0, 1
    while over <= limit and fits(over):
        size, over = over, 2 * over
    over = min(over, limit + 1)
    while over - size > 1:
        middle = (size + over) // 2
        size, over = (middle, over) if fits(middle) else (size, middle)
    return size


def _pieces(text: str, pause: re.Pattern[str]) -> list[tuple[str, str]]:
    """The pieces between pauses, each with the space before it; closing quotes stay with what they close."""
    pieces = []
    start, gap = 0, ""
    for match in pause.finditer(text):
        said = match.group()
        end = match.start() + len(said.rstrip())
        if end == len(text) or end == start:
            continue
        pieces.append((text[start:end], gap))
        start, gap = match.end(), said[len(said.rstrip()) :]
    pieces.append((text[start:], gap))
    return [(piece, gap) for piece, gap in pieces if piece]


def _letters(text: str, joint: str, fits: Callable[[str], bool]) -> list[Part]:
    """Parts of one long word, each as long as fits; marks stay with their letters where they can."""
    found: list[Part] = []
    while text:
        size = whole = max(_reach("", [(letter, "") for letter in text], fits), 1)
        while size and _goes_on(text[size - 1 : size + 1]):
            size -= 1
        size = size or whole
        found.append(Part(text[:size], joint))
        text, joint = text[size:], ""
    return found


def _goes_on(pair: str) -> bool:
    """Whether the second of two characters is a mark on the first, or joined to it."""
    return len(pair) == 2 and (JOINER in pair or unicodedata.category(pair[1])[0] == "M")
