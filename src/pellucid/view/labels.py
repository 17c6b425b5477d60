"""Makes text in any script fit to stand on a picture: safe, short, and in fonts that have its characters."""

import re
import unicodedata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pellucid.view.fonts import cover

__all__ = ["Lettering", "MissingGlyphs", "letter"]

LONGEST = 20  # characters of a token that are shown, unless asked for more
MOST_MARKS = 4  # combining marks on one letter; real scripts need no more, and a taller pile hides its neighbours
JOINERS = "\u200c\u200d"  # they shape letters in Persian and Hindi, so they stay between letters

EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")
# The word in a character's Unicode name where its script's name has ended.
_KIND = re.compile(
    r" (LETTER|SYLLABLE|SIGN|VOWEL|CONSONANT|DIGIT|NUMBER|NUMERIC|IDEOGRAPH|IDEOGRAPHIC|UNIFIED|COMPATIBILITY"
    r"|RADICAL|CAPITAL|SMALL|MARK|MODIFIER|COMBINING|INDEPENDENT|SUBJOINED|LIGATURE|CHARACTER|TONE|LOGOGRAM|ACCENT)\b"
)


class MissingGlyphs(UserWarning):
    """A picture holds characters that no installed font can draw."""


@dataclass(frozen=True)
class Lettering:
    """How the words of one picture are drawn: in which font families, and which characters are spelled out."""

    families: tuple[str, ...]
    missing: frozenset[str]

    @property
    def style(self) -> dict[str, Any]:
        """What every text of the picture is given: the fonts, and that a dollar sign is a dollar sign."""
        return {"fontfamily": list(self.families), "parse_math": False}

    def label(self, token: str, longest: int = LONGEST) -> str:
        r"""The token as it is drawn.

        A character that no font has stands as its code point, or as a box where the token has more than two;
        one that is no picture (a line break, say) as its code point; a mark without a letter sits on a dotted
        circle; a space at either end shows; what is longer than `longest` characters is cut.

        >>> letter(["a"]).label("a\tb"), letter(["a"]).label("▁ "), letter(["a"]).label("$x$")
        ('aU+0009 b', '▁␣', '$x$')
        """
        pieces = _pieces(token)
        if len(pieces) > longest:
            pieces = [*pieces[: longest - 1], "…"]
        boxes = sum(character in self.missing for piece in pieces for character in piece) > 2
        return "".join(self._spelled(piece, boxes) for piece in pieces).removesuffix(" ")

    def _spelled(self, piece: str, boxes: bool) -> str:
        """A piece with what no font has spelled out; a letter in a box takes its marks with it."""
        if boxes and piece[0] in self.missing:
            return "□"
        return "".join(
            character if character not in self.missing else "□" if boxes else f"{_code_point(character)} "
            for character in piece
        )

    def line(self, text: str) -> str:
        """A title as it is drawn: one line, however long."""
        return self.label(" ".join(text.split()), longest=len(text))


def letter(texts: Iterable[str]) -> Lettering:
    """Choose the fonts for all texts of one picture, and warn once where a script cannot be drawn.

    Warns:
        MissingGlyphs: a script that no installed font covers, named, with the package that mends it.
    """
    characters = frozenset("".join(texts))
    coverage = cover(frozenset(character for character in characters if not _invisible(character)))
    if coverage.missing:
        warnings.warn(_advice(coverage.missing), MissingGlyphs, stacklevel=3)
    return Lettering(*coverage)


def _pieces(token: str) -> list[str]:
    """The token as drawn pieces: a letter with its marks, or a code point for what is no picture."""
    blanks_before = len(token) - len(token.lstrip(" "))
    blanks_after = len(token.rstrip(" "))
    pieces: list[str] = []
    for index, character in enumerate(token):
        based = bool(pieces) and not pieces[-1].endswith((" ", "␣"))
        joins = character in JOINERS and 0 < index < len(token) - 1
        if unicodedata.category(character).startswith("M") or (joins and based):
            if not based:
                pieces.append("◌")
            if len(pieces[-1]) <= MOST_MARKS:
                pieces[-1] += character
        elif character == " " and not blanks_before <= index < blanks_after:
            pieces.append("␣")
        elif _invisible(character):
            pieces.append(_code_point(character) + " ")
        else:
            pieces.append(character)
    return pieces


def _invisible(character: str) -> bool:
    """Whether the character steers text instead of showing itself: controls, formats, surrogates, line ends."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _script(character: str) -> str:
    """The character's script in Unicode's words, as far as its name tells.

    >>> _script("中"), _script("あ"), _script("𒀀"), _script("𐎠"), _script("。"), _script("\ue000")
    ('CJK', 'HIRAGANA', 'CUNEIFORM', 'OLD PERSIAN', 'CJK', 'private use')
    """
    category = unicodedata.category(character)
    if category in ("Co", "Cn"):
        return "private use" if category == "Co" else "unassigned characters"
    name = unicodedata.name(character, "")
    if category[0] not in "LMN" or not name:
        return "CJK" if name.startswith(EAST_ASIAN) else "symbols"
    return re.sub(r"[ -][A-Z]*\d+$", "", _KIND.split(name)[0])


def _advice(missing: frozenset[str]) -> str:
    """One sentence: the scripts, a character of each, and what to install."""
    examples: dict[str, str] = {}
    for character in sorted(missing):
        examples.setdefault(_script(character), _code_point(character))
    named = ", ".join(f"{script} ({example})" for script, example in examples.items())
    eastern = [script.startswith(EAST_ASIAN) for script in examples]
    packages = [*["fonts-noto-cjk"] * any(eastern), *["fonts-noto-core"] * (not all(eastern))]
    return (
        f"no installed font can show {named}, so these are drawn as code points or boxes; install a font that "
        f"covers them, such as Noto (on Debian and Ubuntu: apt install {' '.join(packages)})"
    )
