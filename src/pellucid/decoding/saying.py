"""Whether a text says a phrase, in words of its own."""

import re
import unicodedata
from collections.abc import Iterator

__all__ = ["begins_anywhere", "places", "says"]

# Scripts that put no space between words: Thai to Khmer, kana, Chinese characters.
UNSPACED = (
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u3040", "\u30ff"),
    ("\u3400", "\u4dbf"),
    ("\u4e00", "\u9fff"),
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)
WITHIN_WORDS = "_\u00ad\u200c\u200d"  # a soft hyphen and what joins letters, or keeps them from joining


def says(text: str, phrase: str) -> bool:
    """Whether a text says a phrase as words of their own.

    >>> says('der "Hund"', "Hund"), says("die Hunde", "Hund")
    (True, False)
    """
    return next(places(text, phrase), None) is not None


def places(text: str, phrase: str) -> Iterator[tuple[int, int]]:
    """Where a text says a phrase: its beginning and its end, whatever white space stands in it.

    No letter of the same word stands beside it. Beside a sign, or a letter of a script that puts no space between
    words, anything may.

    >>> list(places("Hunde, Hund", "Hund"))
    [(7, 11)]
    """
    words = phrase.split()
    if not words or any(word not in text for word in words):
        return
    wanted, start = re.compile(r"\s+".join(map(re.escape, words))), 0
    while (match := wanted.search(text, start)) is not None:
        start, end = match.span()
        if not (_is_one_word(text[start - 1 : start], text[start]) or _is_one_word(text[end - 1], text[end : end + 1])):
            yield start, end
        start += 1


def begins_anywhere(phrase: str) -> bool:
    r"""Whether a phrase begins with a letter of a script that puts no space between words.

    >>> begins_anywhere("\u732b"), begins_anywhere("Katze")
    (True, False)
    """
    return any(first <= phrase[:1] <= last for first, last in UNSPACED)


def _is_one_word(one: str, other: str) -> bool:
    """Whether two characters side by side are of one word; "" is none."""
    return _is_letter(one) and _is_letter(other)


def _is_letter(character: str) -> bool:
    """Whether it is a letter, a mark on one or a digit, of a script that puts spaces between words."""
    if not character or begins_anywhere(character):
        return False
    return character in WITHIN_WORDS or unicodedata.category(character)[0] in "LMN"
