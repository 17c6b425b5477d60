"""Finds installed fonts that can draw given characters, and says which characters none of them can."""

import functools
import re
import unicodedata
from typing import NamedTuple

from matplotlib.font_manager import FontProperties, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font

__all__ = ["BASE", "Coverage", "cover"]

BASE = "DejaVu Sans"
"""The first choice: it ships with matplotlib, and draws Latin, Greek, Cyrillic and what labels add."""

# These claim characters that they do not draw: boxes for every script, or mathematics at borrowed code points.
_UNFIT = re.compile(r"\.?last ?resort|adobe.*blank|.*fallback sil|stixnonuni|stixsiz|cm[a-z]+\d+$", re.IGNORECASE)


class Coverage(NamedTuple):
    """Font families, first choice first, and the characters that none of them draws."""

    families: tuple[str, ...]
    missing: frozenset[str]


def cover(characters: frozenset[str]) -> Coverage:
    """Choose as few families as needed to draw the characters, widest first.

    A private or unassigned character is never covered: what a font shows there is the font's own affair.

    >>> cover(frozenset("Größe")).families
    ('DejaVu Sans',)
    """
    standard = frozenset(character for character in characters if unicodedata.category(character) not in ("Co", "Cn"))
    left = standard - _drawn_by_family(BASE, standard)
    families = [BASE]
    if left:
        _register_new_fonts()
        faces = _faces()
    while left:
        family = max(faces, key=lambda name: len(_drawn(*faces[name], left)), default=BASE)
        drawn = _drawn(*faces.pop(family, ("", 0)), left)
        if not drawn:
            break
        # A family's other faces may draw less; what counts is the face that matplotlib will take.
        drawn &= _drawn_by_family(family, left)
        if drawn:
            families.append(family)
            left -= drawn
    return Coverage(tuple(families), left | (characters - standard))


def _faces() -> dict[str, tuple[str, int]]:
    """One upright face of each known family, as a file and a number in it: Noto first, then by name."""
    entries = sorted(fontManager.ttflist, key=lambda entry: (not entry.name.startswith("Noto Sans"), entry.name))
    return {
        entry.name: (str(entry.fname), getattr(entry, "index", 0))
        for entry in reversed(entries)
        if entry.style == "normal" and not _UNFIT.match(entry.name)
    }


def _drawn_by_family(family: str, characters: frozenset[str]) -> frozenset[str]:
    """Those of the characters that the family's regular face draws."""
    path = fontManager.findfont(FontProperties(family=[family]))
    return _drawn(str(path), getattr(path, "face_index", 0), characters)


@functools.lru_cache(maxsize=4096)
def _drawn(path: str, face: int, characters: frozenset[str]) -> frozenset[str]:
    """Those of the characters for which the font file has a glyph: none, where it cannot be read or scaled."""
    try:
        font = FT2Font(path, face_index=face) if face else FT2Font(path)
    except (OSError, RuntimeError, ValueError):
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(character for character in characters if font.get_char_index(ord(character)))


def _register_new_fonts() -> None:
    """Tell matplotlib of fonts installed since it wrote its list, so that installing one is remedy enough."""
    known = {str(entry.fname) for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue  # a file that matplotlib cannot use is as good as not installed
