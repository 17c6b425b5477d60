"""Phrases that a translation must not say, looked for in its text: what no list of spellings can promise."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pellucid.decoding.engines import Engine
from pellucid.decoding.hypotheses import Hypothesis
from pellucid.decoding.phrases import Phrase
from pellucid.decoding.saying import places, says
from pellucid.decoding.translation import Candidate
from pellucid.decoding.units import Unit
from pellucid.decoding.wish import Wish
from pellucid.errors import DecodingError
from pellucid.text.batch import collate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["StillSaid", "silenced", "without"]

TRIES = 8  # searches at most around what a line's translation says


class StillSaid(UserWarning):
    """A translation says a phrase that was forbidden."""


def silenced(engine: Engine, unit: Unit, found: list[Hypothesis], wish: Wish, tokenizer: Tokenizer) -> list[Hypothesis]:
    """Search again while the best hypothesis says a forbidden phrase, without the pieces that it said it in.

    Pieces that begin no word, as behind a quotation mark, spell parts of longer words too. So they are forbidden at
    first only behind the piece that they followed, and everywhere where that does not help. What is forbidden hangs on
    the best hypothesis alone, so that it is the same however many others are asked for.
    """
    rules = unit.rules
    for attempt in range(TRIES):
        runs = tuple(_runs(tokenizer, found[0].ids, unit.phrases, before=attempt < TRIES // 2))
        if rules is None or not runs:
            break
        try:
            rules = replace(rules, forbidden=(*rules.forbidden, *runs))
        except DecodingError:
            break  # the prefix, or a phrase that is forced, holds these pieces
        [found] = engine.search(collate([unit.example]), [unit.limit], wish, [rules])
    return found


def _runs(tokenizer: Tokenizer, ids: Phrase, phrases: Sequence[str], *, before: bool) -> Iterator[Phrase]:
    """The pieces that say phrases, each run of them with the piece before it if that is wanted."""
    text = tokenizer.decode(ids)
    found = [place for phrase in phrases for place in places(text, phrase)]
    if not found:
        return
    said = [tokenizer.decode(ids[:size]) for size in range(len(ids) + 1)]
    for begins, ends in found:
        start = max(size for size, own in enumerate(said) if len(own) <= begins and text.startswith(own))
        end = next(size for size, own in enumerate(said) if own[:ends] == text[:ends])
        yield ids[max(start - before, 0) : end]


def without(candidates: Sequence[Candidate], phrases: Sequence[str], number: int) -> tuple[Candidate, ...]:
    """The candidates of a line that say no forbidden phrase, and, with a warning, the best of them if it does."""
    best, *others = candidates
    for phrase in phrases:
        if says(best.text, phrase):
            told = f"line {number} still says {phrase!r}, which is forbidden; look at it, or forbid less"
            warnings.warn(told, StillSaid, stacklevel=1)
    return (best, *(one for one in others if not any(says(one.text, phrase) for phrase in phrases)))
