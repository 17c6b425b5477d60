"""Phrases that a sentence must hold: what is still to be said of them, and how a beam is shared among the ways to say it.

A phrase counts each time that it stands in the sentence; runs that overlap both count. What is *needed* is the number
of tokens that are surely enough to say the rest, one phrase after another, beginning with the one that is under way.
It falls by one with each token that goes on with that phrase, so that a sentence with room for what is needed can
always be finished.
"""

from collections import Counter
from collections.abc import Sequence

__all__ = ["Phrase", "contains", "needed", "next_tokens", "shared"]

Phrase = tuple[int, ...]
"""Ids that stand in a row."""


def _times(ids: Phrase, phrase: Phrase) -> int:
    """How often a phrase stands in ids."""
    return sum(ids[start : start + len(phrase)] == phrase for start in range(len(ids) - len(phrase) + 1))


def contains(ids: Phrase, phrase: Phrase) -> bool:
    """Whether a phrase stands in ids.

    >>> contains((5, 6, 7), (6, 7)), contains((5, 6, 7), (7, 6))
    (True, False)
    """
    return _times(ids, phrase) > 0


def _under_way(ids: Phrase, phrase: Phrase) -> int:
    """How many tokens of a phrase the ids end with, short of all."""
    return next(
        (size for size in range(min(len(phrase) - 1, len(ids)), 0, -1) if ids[len(ids) - size :] == phrase[:size]), 0
    )


def _missing(ids: Phrase, phrases: Sequence[Phrase]) -> dict[Phrase, int]:
    """How often each phrase must still be said."""
    asked = Counter(phrases)
    missing = {phrase: times - _times(ids, phrase) for phrase, times in asked.items()}
    return {phrase: times for phrase, times in missing.items() if times > 0}


def needed(ids: Phrase, phrases: Sequence[Phrase]) -> int:
    """Tokens that are enough to say what is missing.

    >>> needed((5,), [(5, 6, 7), (8,)])
    3
    """
    missing = _missing(ids, phrases)
    begun = max((_under_way(ids, phrase) for phrase in missing), default=0)
    return sum(len(phrase) * times for phrase, times in missing.items()) - begun


def next_tokens(ids: Phrase, phrases: Sequence[Phrase]) -> set[int]:
    """Tokens that go on with a phrase that is missing, or begin one.

    >>> sorted(next_tokens((5,), [(5, 6, 7), (8,)]))
    [5, 6, 8]
    """
    missing = _missing(ids, phrases)
    return {phrase[place] for phrase in missing for place in {0, _under_way(ids, phrase)}}


def shared(beam: int, still_needed: Sequence[int]) -> list[int]:
    """Which of several candidates, best first, live on where `beam` may: their places, best first.

    Candidates that need as many tokens are a bank. Each bank is given the same share of the beam, one at least while
    places last, those that need least first; what is left over goes to the best of all (after Post & Vilar 2018, arXiv
    1804.06609, section 3.2, dynamic beam allocation).

    >>> shared(3, [2, 2, 2, 1, 0])
    [0, 3, 4]
    """
    banks = sorted(set(still_needed))
    share = max(beam // len(banks), 1) if banks else 0
    kept: list[int] = []
    for bank in banks:
        places = [place for place, need in enumerate(still_needed) if need == bank]
        kept += places[: min(share, beam - len(kept))]
    rest = [place for place in range(len(still_needed)) if place not in kept]
    return sorted(kept + rest[: beam - len(kept)])
