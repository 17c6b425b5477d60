"""What a sentence must and must not be, and what that does to the next token's log-probabilities."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.decoding.numbers import require_number, require_whole
from pellucid.decoding.phrases import Phrase, contains, needed
from pellucid.errors import DecodingError

__all__ = ["Rules", "ruled", "rules_of"]

MOST = 1e6  # of a repetition penalty: far beyond any use, and far below where float32 ends
ALONE = -1  # where forbidden phrases of one token stand among those that are found by their last token but one


@dataclass(frozen=True, slots=True)
class Rules:
    """What one sentence must and must not be, in ids.

    Attributes:
        min_length: tokens that it has at least, the end mark counted, as `max_length` counts it; 1 asks for nothing.
        no_repeat_ngram: no run of so many tokens may stand in it twice (Paulus et al. 2017, arXiv 1705.04304, section
            2.5); 0 asks for nothing.
        repetition_penalty: log-probabilities of tokens that stand in it already are multiplied by this before tokens
            are ranked or drawn; 1 asks for nothing. The idea is CTRL's (Keskar et al. 2019, arXiv 1909.05858, section
            4.1), there on logits, whose sign would turn it round.
        prefix: what it begins with.
        forced: phrases that stand in it, in any order; one given twice stands twice. Near the limit there must be room
            to say those that lack one after another, though some could share a token.
        forbidden: phrases that stand nowhere in it.

    Raises:
        DecodingError: a setting is out of its range, or one contradicts another.

    >>> Rules(prefix=(5,), forbidden=((5, 6),)).min_length
    1
    """

    min_length: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float | int = 1.0
    prefix: Phrase = ()
    forced: tuple[Phrase, ...] = ()
    forbidden: tuple[Phrase, ...] = ()
    _ways: dict[int, list[Phrase]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        require_whole("min_length", self.min_length, 1, "it counts tokens, the end mark too")
        require_whole("no_repeat_ngram", self.no_repeat_ngram, 0, "it is a length, or 0 for none")
        require_number(
            "repetition_penalty",
            self.repetition_penalty,
            1,
            MOST,
            "it lowers what was said already, and 1 does nothing",
        )
        for kind, phrases in (("forced", self.forced), ("forbidden", self.forbidden)):
            if not all(phrases):
                raise DecodingError(f"a {kind} phrase is empty; give it one token at least, or leave it out")
        for phrase in self.forbidden:
            for kind, said in [("prefix", self.prefix), *(("phrase that is forced,", one) for one in self.forced)]:
                if contains(said, phrase):
                    raise DecodingError(
                        f"the {kind} {list(said)} holds the forbidden phrase {list(phrase)}; give up one of the two"
                    )
        for kind, said in [("prefix", self.prefix), *(("phrase that is forced,", one) for one in self.forced)]:
            if self._repeats(said):
                raise DecodingError(
                    f"the {kind} {list(said)} says a run of {self.no_repeat_ngram} tokens twice, which no_repeat_ngram "
                    "forbids; raise it, or ask for less"
                )
        for phrase in self.forbidden:
            self._ways.setdefault(phrase[-2] if len(phrase) > 1 else ALONE, []).append(phrase)

    def _repeats(self, ids: Phrase) -> bool:
        """Whether a run that may stand once stands in ids twice."""
        size = self.no_repeat_ngram
        runs = [ids[start : start + size] for start in range(len(ids) - size + 1)] if size else []
        return len(set(runs)) < len(runs)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return self == Rules()

    def fit(self, limit: int, end_id: int) -> None:
        """Refuse what no sentence of at most `limit` tokens, end mark counted, can be.

        Raises:
            DecodingError: it is so, or a phrase holds the end mark.
        """
        for phrase in (self.prefix, *self.forced, *self.forbidden):
            if end_id in phrase:
                raise DecodingError(f"the phrase {list(phrase)} holds the end mark {end_id}, which ends a sentence")
        least = max(self.min_length, len(self.prefix) + needed(self.prefix, self.forced) + 1)
        if least > limit:
            raise DecodingError(
                f"the rules ask for {least} tokens, end mark counted, but at most {limit} may be said; allow more "
                "by max_length, and for a line of text by length_ratio and length_extra too, or ask for less"
            )

    def only(self, ids: Sequence[int]) -> int | None:
        """The one token that may follow, while the prefix is being said."""
        return self.prefix[len(ids)] if len(ids) < len(self.prefix) else None

    def banned(self, ids: tuple[int, ...], end_id: int) -> set[int]:
        """Tokens that may not follow."""
        ways = chain(self._ways.get(ALONE, ()), self._ways.get(ids[-1], ()) if ids else ())
        banned = {phrase[-1] for phrase in ways if ids[len(ids) - len(phrase) + 1 :] == phrase[:-1]}
        if len(ids) + 1 < self.min_length or needed(ids, self.forced):
            banned.add(end_id)
        if size := self.no_repeat_ngram:
            last = ids[len(ids) - size + 1 :]
            starts = range(len(ids) - size + 1) if len(last) == size - 1 else ()
            banned.update(ids[start + size - 1] for start in starts if ids[start : start + size - 1] == last)
        return banned


def rules_of(
    batch: int, rules: "Rules | Sequence[Rules] | None", limits: Sequence[int], end_id: int
) -> list[Rules | None]:
    """The rules of each sentence, None where they ask for nothing; each fits its limit.

    Raises:
        DecodingError: there are not as many as sentences, or they cannot be kept.
    """
    each = [rules] * batch if rules is None or isinstance(rules, Rules) else list(rules)
    if len(each) != batch:
        raise DecodingError(
            f"{len(each)} rules were given for a batch of {batch}; give one for all sentences, or one for each"
        )
    kept = [None if one is None or one.is_empty else one for one in each]
    for one, limit in zip(kept, limits, strict=True):
        if one is not None:
            one.fit(limit, end_id)
    return kept


def ruled(
    log_probs: Float[Tensor, "rows vocabulary"], rows: Iterable[tuple[Rules | None, tuple[int, ...]]], end_id: int
) -> Float[Tensor, "rows vocabulary"]:
    """The log-probabilities by which the tokens after each row's ids are ranked: lowered, or minus infinity.

    The answer is the argument itself where no row has rules.

    Raises:
        DecodingError: a rule names a token that the vocabulary does not have.
    """
    lowered: list[tuple[int, int, float]] = []
    banned: list[tuple[int, int]] = []
    only: list[tuple[int, int]] = []
    for row, (rules, ids) in enumerate(rows):
        if rules is None:
            continue
        if rules.repetition_penalty != 1:
            lowered += [(row, token, rules.repetition_penalty) for token in set(ids)]
        banned += [(row, token) for token in rules.banned(ids, end_id)]
        if (token := rules.only(ids)) is not None:
            only.append((row, token))
    if not (lowered or banned or only):
        return log_probs
    factors = [factor for _, _, factor in lowered]
    weighed = [(row, token) for row, token, _ in lowered]
    _require_known([token for _, token in (*weighed, *banned, *only)], log_probs.shape[1])
    log_probs = log_probs.clone()
    if lowered:
        cells = _cells(weighed, log_probs.device)
        log_probs[cells] *= torch.tensor(factors, dtype=log_probs.dtype, device=log_probs.device)
    if banned:
        log_probs[_cells(banned, log_probs.device)] = -math.inf
    if only:
        cells = _cells(only, log_probs.device)
        kept = log_probs[cells]
        log_probs[cells[0]] = -math.inf
        log_probs[cells] = kept
    return log_probs


def _cells(cells: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and tokens as indices."""
    rows, tokens = torch.tensor(cells, device=device).T
    return rows, tokens


def _require_known(tokens: Sequence[int], vocabulary: int) -> None:
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise DecodingError(
                f"the rules name token {token}, but the step knows {vocabulary}, from 0; give its own ids"
            )
