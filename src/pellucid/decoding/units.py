"""What a search is given of lines: each line's ids and rules, or, where it is too long, those of its parts; and back."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pellucid.config import END_ID, DecodingConfig
from pellucid.decoding.long import Part, parts_of
from pellucid.decoding.rules import Rules
from pellucid.decoding.translation import Candidate
from pellucid.decoding.wish import Wish
from pellucid.decoding.wording import Wording
from pellucid.errors import DecodingError
from pellucid.text.batch import Example
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Shortened", "Sides", "Unit", "batches_of", "joined", "units_of"]

T = TypeVar("T")


class Shortened(UserWarning):
    """A line was longer than the model reads, and only its beginning was translated."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is searched for by itself.

    Attributes:
        row: the line's place in its window.
        number: the line's number, from 1.
        ids: its tokens, without the end mark.
        limit: tokens that its translation may have.
        rules: what that must and must not be.
        joint: what joins it to the part of the line before it.
        phrases: what its translation must not say, as it would be written there.
        part: its place in the line, from 0.
    """

    row: int
    number: int
    ids: list[int]
    limit: int
    rules: Rules | None
    joint: str = ""
    phrases: tuple[str, ...] = ()
    part: int = 0

    @property
    def example(self) -> Example:
        """What a batch is made of, without a target."""
        return self.said([])

    def said(self, target: Sequence[int]) -> Example:
        """The same with what is said of it.

        Draws come from its number: the line's, and of a later part of a line another, which no line has.
        """
        return Example(self.number + (self.part << 32), self.ids, list(target))


@dataclass(frozen=True, slots=True)
class Sides:
    """The tokenizers of both languages, and how many tokens the model has places for on each side, or None."""

    source: Tokenizer
    target: Tokenizer
    most: int | None

    def longest(self, wish: Wish) -> int | None:
        """Tokens that a source may have, its end mark not counted."""
        ends = [end for end in (wish.settings.max_source_length, self.most) if end is not None]
        return min(ends) - 1 if ends else None


def units_of(
    lines: Sequence[str], wordings: Sequence[Wording | None], read: int, wish: Wish, sides: Sides
) -> list[Unit]:
    """The units of lines, of which `read` came before; none of a blank line.

    Raises:
        DecodingError: a line is too long and is to be refused, or its rules cannot be kept; it is named.
    """
    longest, spelled, units = sides.longest(wish), Spelled(sides.target), []
    encoded = zip(lines, wordings, sides.source.encode_all(lines), strict=True)
    for row, (line, wording, ids) in enumerate(encoded):
        if not (ids and line.strip()):
            continue
        number = read + row + 1
        parts = [(Part(line), ids)]
        if longest is not None and len(ids) > longest:
            parts = _shortened(line, ids, number, longest, wish, sides)
        if len(parts) > 1 and wording is not None and wording.forced:
            raise DecodingError(
                f"line {number}: it is too long and was split, and a phrase cannot be forced into one of several parts; "
                "force none, or choose too_long='truncate'"
            )
        for place, (part, own) in enumerate(parts):
            limit = wish.limit(len(own) + 1, sides.most)
            try:
                rules, phrases = spelled.rules(wording, limit, begins=place == 0)
            except DecodingError as error:
                raise DecodingError(f"line {number}: {error}") from None
            units.append(Unit(row, number, own, limit, rules, part.joint, phrases, place))
    return units


class Spelled:
    """Wordings over ids, each spelled once however many lines it is for.

    Args:
        tokenizer: of the target language.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int, bool], tuple[Wording, Rules, tuple[str, ...]]] = {}

    def rules(self, wording: Wording | None, limit: int, *, begins: bool) -> tuple[Rules | None, tuple[str, ...]]:
        """A wording's rules for a translation of at most `limit` tokens, and the phrases that it must not say.

        Raises:
            DecodingError: no translation can keep them, or the tokenizer cannot spell a phrase.
        """
        if wording is None:
            return None, ()
        key = (id(wording), begins)  # the wording is kept, so that no other can have its id
        if key not in self._known:
            written = (self._tokenizer.decode(self._tokenizer.encode(phrase)) for phrase in wording.forbidden)
            rules = wording.spelled(self._tokenizer, begins=begins)
            self._known[key] = wording, rules, tuple(phrase for phrase in written if phrase.strip())
        _, rules, phrases = self._known[key]
        rules.fit(limit, END_ID)
        return rules, phrases


def batches_of(lengths: Mapping[int, int], settings: DecodingConfig) -> Iterator[list[int]]:
    """Put rows of like length together so that a batch's hypotheses have `batch_tokens` source tokens at most.

    The longest come first: what is too long for the model or for the memory shows before any work is done.
    """
    batch: list[int] = []
    for row in sorted(lengths, key=lambda row: (-lengths[row], row)):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) * settings.beam > settings.batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _shortened(
    line: str, ids: list[int], number: int, longest: int, wish: Wish, sides: Sides
) -> list[tuple[Part, list[int]]]:
    """What is translated of a line that is too long."""
    told = f"line {number} has {len(ids)} tokens, but {longest} are read at most"
    if wish.settings.too_long == "refuse":
        raise DecodingError(f"{told}; split the line, or choose too_long='split' or 'truncate'")
    if wish.settings.too_long == "truncate":
        warnings.warn(f"{told}; the rest was left out", Shortened, stacklevel=1)
        return [(Part(line), ids[:longest])]
    parts = parts_of(line, lambda text: len(sides.source.encode(text)) <= longest)
    pairs = [(part, sides.source.encode(part.text)) for part in parts]
    for part, own in pairs:
        if len(own) > longest:  # one letter, spelled in bytes
            warnings.warn(f"{told}, and {part.text!r} has {len(own)}; its rest was left out", Shortened, stacklevel=1)
    return [(part, own[:longest]) for part, own in pairs if own]


def joined(parts: Sequence[tuple[str, Sequence[Candidate]]]) -> tuple[Candidate, ...]:
    """The candidates of a line from those of its parts: the k-th of each, joined as the parts were.

    Log-probabilities and scores are sums. Where a part has fewer candidates, its last stands for the rest.
    """
    if len(parts) == 1:
        return tuple(parts[0][1])
    made = []
    for place in range(max(len(candidates) for _, candidates in parts)):
        chosen = [(joint, candidates[min(place, len(candidates) - 1)]) for joint, candidates in parts]
        text = "".join((joint if number else "") + one.text for number, (joint, one) in enumerate(chosen))
        ones = [one for _, one in chosen]
        made.append(
            Candidate(
                text=text,
                tokens=tuple(token for one in ones for token in one.tokens),
                log_prob=sum(one.log_prob for one in ones),
                score=sum(one.score for one in ones),
                finished=all(one.finished for one in ones),
                token_log_probs=_together([one.token_log_probs for one in ones]),
                alternatives=_together([one.alternatives for one in ones]),
            )
        )
    return tuple(made)


def _together(parts: Sequence[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """What stands at the places of all parts, or None where one part tells nothing."""
    told = [part for part in parts if part is not None]
    return tuple(one for part in told for one in part) if len(told) == len(parts) else None
