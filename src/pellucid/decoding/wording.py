"""What a translation must and must not say, as text, and how that becomes rules over ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice, repeat
from typing import Any

from pellucid.config import END_ID
from pellucid.config.settings import known
from pellucid.decoding.phrases import contains
from pellucid.decoding.rules import Rules
from pellucid.decoding.saying import begins_anywhere, says
from pellucid.errors import DecodingError
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Wording", "spellings", "wordings"]

MANY = 256  # ways to spell a forbidden phrase that are looked for
SPACE = "\u2581"  # what SentencePiece writes for the space before a word


@dataclass(frozen=True, slots=True)
class Wording:
    """What a translation must and must not say.

    Attributes:
        min_length: tokens that it has at least, the end mark counted.
        no_repeat_ngram: no run of so many tokens stands in it twice; 0 asks for nothing.
        repetition_penalty: see `Rules`.
        prefix: text that it begins with; its last word may go on.
        forced: phrases that it says, each beginning as a word does; the last word may go on ("Katze" in "Katzen").
        forbidden: phrases that it does not say as words of their own; longer words that are spelled with the same
            pieces may be lost with them.

    Raises:
        DecodingError: a setting cannot be met.
    """

    min_length: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float | int = 1.0
    prefix: str = ""
    forced: Sequence[str] = ()
    forbidden: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise DecodingError(f"prefix was given {self.prefix!r}, but it is text; give a string")
        for name in ("forced", "forbidden"):
            phrases = getattr(self, name)
            is_row = isinstance(phrases, Sequence) and not isinstance(phrases, str)
            if not is_row or not all(isinstance(phrase, str) and phrase.strip() for phrase in phrases):
                raise DecodingError(
                    f"{name} was given {phrases!r}, but it takes phrases; give a list of texts, none blank"
                )
        for phrase in self.forbidden:
            for kind, said in [("prefix", self.prefix), *(("forced phrase", one) for one in self.forced)]:
                if says(said, phrase):
                    raise DecodingError(
                        f"the {kind} {said!r} holds the forbidden phrase {phrase!r}; give up one of them"
                    )

    @classmethod
    def of(cls, given: "Wording | Mapping[str, Any]") -> "Wording":
        """The rules that were given by their names.

        Raises:
            DecodingError: one is unknown, or cannot have its value.

        >>> Wording.of({"perfix": "Das"})
        Traceback (most recent call last):
            ...
        pellucid.errors.DecodingError: rules were given the unknown 'perfix'; did you mean 'prefix'?
        """
        if isinstance(given, Wording):
            return given
        if not isinstance(given, Mapping):
            raise DecodingError(f"rules were given {given!r}, but they go by name; write rules=dict(prefix='Das')")
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise DecodingError(f"rules were given the unknown {name!r}; {known(str(name), names)}")
        return cls(**given)

    def rules(self, tokenizer: Tokenizer, limit: int, *, begins: bool = True) -> Rules:
        """The same over ids, for a translation of at most `limit` tokens; without the prefix where it does not begin.

        Raises:
            DecodingError: no translation can keep them, or the tokenizer cannot spell a phrase.
        """
        made = self.spelled(tokenizer, begins=begins)
        made.fit(limit, END_ID)
        return made

    def spelled(self, tokenizer: Tokenizer, *, begins: bool = True) -> Rules:
        """The same over ids, however long a translation may be; without the prefix where it does not begin.

        Raises:
            DecodingError: the tokenizer cannot spell a phrase, or one rule contradicts another.
        """
        prefix = _said(tokenizer, self.prefix) if begins and self.prefix else ()
        forced = tuple(_running(tokenizer, _said(tokenizer, phrase), phrase) for phrase in self.forced)
        # pieces of a longer word that is to be said ("Katz" in "Katzen") are left to the look at the text
        every = (ids for phrase in self.forbidden for ids in spellings(tokenizer, phrase))
        return Rules(
            min_length=self.min_length,
            no_repeat_ngram=self.no_repeat_ngram,
            repetition_penalty=self.repetition_penalty,
            prefix=prefix,
            forced=forced,
            forbidden=tuple(ids for ids in every if not any(contains(said, ids) for said in (prefix, *forced))),
        )


def _said(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of a text, which must say it again."""
    ids = tuple(tokenizer.encode(text))
    if not ids or " ".join(tokenizer.decode(ids).split()) != " ".join(text.split()):
        raise DecodingError(
            f"the vocabulary spells {text!r} as {tokenizer.decode(ids)!r}; ask for what it can spell, or train with it"
        )
    return ids


def _running(tokenizer: Tokenizer, ids: tuple[int, ...], phrase: str) -> tuple[int, ...]:
    """The ids of a phrase within a text: without the space before it, where its script puts none."""
    first = tokenizer.pieces(ids[:1])[0]
    if not begins_anywhere(phrase.lstrip()) or not first.startswith(SPACE):
        return ids
    if first == SPACE:
        return ids[1:]
    names = tokenizer.names()
    return next((way for way in spellings(tokenizer, phrase) if not names[way[0]].startswith(SPACE)), ids)


@lru_cache(maxsize=4096)
def spellings(tokenizer: Tokenizer, phrase: str) -> tuple[tuple[int, ...], ...]:
    """Ways to spell a phrase in pieces of the vocabulary; the tokenizer's own way first.

    A space stands before it, and, where it begins with a sign or in a script that puts no space between words, none.
    There may be very many ways for a long phrase: 256 are looked for with the space, and as many without.
    """
    own = tuple(tokenizer.encode(phrase))
    names = tokenizer.names()
    text = "".join(names[token] for token in own)
    first = phrase.strip()[:1]
    texts = [text, text.removeprefix(SPACE)] if begins_anywhere(first) or not first.isalnum() else [text]
    every = (way for text in texts for way in islice(_ways(text, _by_piece(tokenizer)), MANY))
    return tuple(dict.fromkeys([own, *every])) if own else ()


@lru_cache(maxsize=8)
def _by_piece(tokenizer: Tokenizer) -> Mapping[str, int]:
    """The id of each piece that can be said."""
    return {piece: token for token, piece in enumerate(tokenizer.names()) if token > END_ID}


def _ways(text: str, by_piece: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The rows of pieces that make up a text, those with longer pieces at the beginning first."""
    longest = max(map(len, by_piece))
    # At each place the pieces behind which the rest of the text can be spelled: no way is begun that has no end.
    following: list[list[tuple[int, int]]] = [[] for _ in text]
    for start in reversed(range(len(text))):
        for end in range(min(len(text), start + longest), start, -1):
            if (end == len(text) or following[end]) and (token := by_piece.get(text[start:end])) is not None:
                following[start].append((end, token))
    begun: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while begun:
        start, said = begun.pop()
        if start == len(text):
            yield said
        else:
            begun += [(end, (*said, token)) for end, token in reversed(following[start])]


def wordings(
    given: "Mapping[str, Any] | Wording | Iterable[Mapping[str, Any] | Wording] | None",
) -> Iterator[Wording | None]:
    """The rules of each line, without end where one serves for all.

    Raises:
        DecodingError: a line's cannot be; the line is named.
    """
    if given is None or isinstance(given, Wording | Mapping):
        return repeat(None if given is None else Wording.of(given))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DecodingError(f"rules were given {given!r}, but they go by name; write rules=dict(prefix='Das')")

    def each() -> Iterator[Wording | None]:
        for number, rules in enumerate(given, start=1):
            try:
                yield Wording.of(rules)
            except DecodingError as error:
                raise DecodingError(f"line {number}: {error}") from None

    return each()
