"""Whether a text says a phrase, in words of its own."""

import re

__all__ = ["begins_anywhere", "pattern", "says"]

# Letters of scripts that put no space between words: Thai to Khmer, kana, Chinese characters.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
SPACED_LETTER = rf"[^\W{UNSPACED}]"


def pattern(phrase: str) -> str:
    r"""What to look for: the phrase, whatever white space stands in it, with no letter of the same word beside it.

    Beside a sign, or a letter of a script that puts no space between words, anything may stand.

    >>> pattern("rote Katze").replace(SPACED_LETTER, "LETTER")
    '(?<!LETTER)rote\\s+Katze(?!LETTER)'
    """
    said = r"\s+".join(map(re.escape, phrase.split()))
    left = rf"(?<!{SPACED_LETTER})" if re.match(SPACED_LETTER, phrase) else ""
    right = rf"(?!{SPACED_LETTER})" if re.match(SPACED_LETTER, phrase[::-1]) else ""
    return f"{left}{said}{right}"


def says(text: str, phrase: str) -> bool:
    """Whether a text says a phrase as words of their own.

    >>> says('der "Hund"', "Hund"), says("die Hunde", "Hund")
    (True, False)
    """
    return re.search(pattern(phrase), text) is not None


def begins_anywhere(phrase: str) -> bool:
    r"""Whether a phrase begins with a letter of a script that puts no space between words.

    >>> begins_anywhere("\u732b"), begins_anywhere("Katze")
    (True, False)
    """
    return re.match(f"[{UNSPACED}]", phrase) is not None
