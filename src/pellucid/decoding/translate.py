"""Text in, text out: lines to ids, ids through a search, hypotheses to lines, in the order they came."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, repeat
from typing import Any, Literal

from torch import Tensor

from pellucid.config import DecodingConfig
from pellucid.decoding.chances import Drawing, Sampling
from pellucid.decoding.engines import Engine, ModelEngine
from pellucid.decoding.figures import with_figures
from pellucid.decoding.forbidden import silenced, without
from pellucid.decoding.hypotheses import LengthRule
from pellucid.decoding.lines import naming_the_line, strings
from pellucid.decoding.rules import Rules
from pellucid.decoding.search import Hypothesis
from pellucid.decoding.stream import settled_text
from pellucid.decoding.translation import Candidate, Translation
from pellucid.decoding.units import Sides, Unit, batches_of, joined, units_of
from pellucid.decoding.wish import Wish
from pellucid.decoding.wording import Wording, wordings
from pellucid.device import in_memory
from pellucid.errors import DecodingError
from pellucid.model import Transformer
from pellucid.text.batch import Example, collate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["READ_AHEAD", "Translator"]

TooLong = Literal["split", "truncate", "refuse"]

Worded = Mapping[str, Any] | Wording | Iterable[Mapping[str, Any] | Wording] | None

READ_AHEAD = 1024
"""Lines that are read, sorted by length and batched together; what bounds the memory of `translate_lines`."""

_NEEDS = ("translating", "lower decoding.batch_tokens in the run's run.toml, or the beam")

OUT_OF_MEMORY = in_memory(*_NEEDS)


class Translator:
    """A model with its tokenizers, ready to translate.

    Args:
        model: the network, which is put into evaluation mode whenever it translates, or another engine.
        source_tokenizer: text <-> ids of the source language.
        target_tokenizer: text <-> ids of the target language.
        settings: the defaults of every search.
    """

    def __init__(
        self,
        model: Transformer | Engine,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: DecodingConfig | None = None,
    ) -> None:
        self.engine: Engine = ModelEngine(model) if isinstance(model, Transformer) else model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.settings = settings or DecodingConfig()

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        attention: bool = False,
        sampling: Mapping[str, Any] | Sampling | None = None,
        seed: int | None = None,
        rules: Worded = None,
        length_rule: LengthRule | None = None,
        max_length: int | None = None,
        length_ratio: float | None = None,
        length_extra: int | None = None,
        too_long: TooLong | None = None,
        groups: int = 1,
        diversity: float | None = None,
        alternatives: int = 0,
    ) -> list[Translation]:
        """Translate lines: N in, N out, in order, blank for blank.

        Args:
            lines: one sentence each; not one string.
            beam: hypotheses kept side by side; 1 is greedy search. None takes the settings'.
            length_penalty: exponent of the length normaliser; None takes the settings'.
            n_best: candidates handed back for each line.
            attention: whether to hand back the cross-attention of each best candidate.
            sampling: instead of a beam, draw the candidates: `dict(temperature=0.8, top_p=0.9)`, see `Sampling`.
            seed: what a line's draws come from, together with its number; None takes it from torch's generator.
            rules: what translations must and must not say: `dict(prefix="Das", forced=["Katze"], forbidden=["Hund"])`,
                see `Wording`; one for all lines, or a row of them, one for each.
            length_rule: "gnmt" or "power", see `length_normaliser`; None takes the settings'.
            max_length: tokens of a translation at most, the end mark counted; None takes the settings', as for the next.
            length_ratio: times the source's tokens and `length_extra` more, a translation has at most; the lower counts.
            length_extra: see there.
            too_long: what is done with a line of more tokens than the model reads: "split" at sentence ends, or where
                none is, at clauses, spaces, letters; "truncate" with a warning; or "refuse". None takes the settings'.
                The k-th candidate of a split line is made of the k-th ones of its parts, and attention is left out.
            groups: parts of the beam that are told to differ, see `beam_search`.
            diversity: how much, in nats; None is 0.5.
            alternatives: with each candidate the log-probability of each token, and so many likeliest tokens at its place.

        Returns:
            A `Translation` for each line, the same whatever lines stand beside it.

        Raises:
            DecodingError: n_best is more than the beam, sampling stands beside a beam or has a setting that cannot be
                met, rules cannot be kept, a line is too long and to be refused, or lines are not a row of strings.
        """
        return list(
            self.translate_lines(
                lines, beam=beam, length_penalty=length_penalty, n_best=n_best, attention=attention,
                sampling=sampling, seed=seed, rules=rules, length_rule=length_rule, max_length=max_length,
                length_ratio=length_ratio, length_extra=length_extra, too_long=too_long, groups=groups,
                diversity=diversity, alternatives=alternatives,
            )
        )  # fmt: skip

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        attention: bool = False,
        sampling: Mapping[str, Any] | Sampling | None = None,
        seed: int | None = None,
        rules: Worded = None,
        length_rule: LengthRule | None = None,
        max_length: int | None = None,
        length_ratio: float | None = None,
        length_extra: int | None = None,
        too_long: TooLong | None = None,
        groups: int = 1,
        diversity: float | None = None,
        alternatives: int = 0,
        read_ahead: int = READ_AHEAD,
    ) -> Iterator[Translation]:
        """Translate any number of lines lazily, in bounded memory; otherwise as `translate`.

        `read_ahead` lines are read before the first is answered: 1 answers each line before the next one is read.
        """
        changes = {
            "beam": beam, "length_penalty": length_penalty, "length_rule": length_rule, "max_length": max_length,
            "length_ratio": length_ratio, "length_extra": length_extra, "too_long": too_long,
        }  # fmt: skip
        wish = Wish.of(
            self.settings, changes, n_best=n_best, sampling=sampling, seed=seed, groups=groups, diversity=diversity,
            alternatives=alternatives,
        )  # fmt: skip
        if read_ahead < 1:
            raise DecodingError(f"read_ahead is {read_ahead}, but it counts lines to read; give 1 or more")
        checked = strings(lines, "translate")
        windows = iter(lambda: list(islice(checked, read_ahead)), [])
        return self._in_windows(windows, wordings(rules), wish, attention)

    def _in_windows(
        self, windows: Iterable[list[str]], each: Iterator[Wording | None], wish: Wish, attention: bool
    ) -> Iterator[Translation]:
        read = 0
        for window in windows:
            own = list(islice(each, len(window)))
            if len(own) < len(window):
                raise DecodingError(f"line {read + len(own) + 1} has no rules; give as many as lines, or one for all")
            yield from self._window(units_of(window, own, read, wish, self._sides), window, wish, attention)
            read += len(window)
        rest = () if isinstance(each, repeat) else islice(each, READ_AHEAD)
        for number, one in enumerate(rest, start=read + 1):
            if one != Wording():
                raise DecodingError(f"line {number} has rules, but is not there; give as many as lines, or one for all")

    @property
    def _sides(self) -> Sides:
        return Sides(self.source_tokenizer, self.target_tokenizer, self.engine.most_tokens)

    @OUT_OF_MEMORY
    def _window(self, units: Sequence[Unit], lines: Sequence[str], wish: Wish, attention: bool) -> list[Translation]:
        """Translate the units of lines that fit in memory together, those of like length side by side."""
        found: list[tuple[Candidate, ...]] = [()] * len(units)
        weights: dict[int, Tensor] = {}
        for places in batches_of({place: len(unit.ids) for place, unit in enumerate(units)}, wish.settings):
            chosen = [units[place] for place in places]
            batch = collate([unit.example for unit in chosen])
            rules = [unit.rules or Rules() for unit in chosen]
            hypotheses = self.engine.search(batch, [unit.limit for unit in chosen], wish, rules)
            for place, unit, first in zip(places, chosen, hypotheses, strict=True):
                own = silenced(self.engine, unit, first, wish, self.target_tokenizer)
                found[place] = self._candidates(unit, own, wish.alternatives)
                if attention:
                    weights[place] = self.engine.cross_attention(collate([unit.said(own[0].ids)]))
        blank = Candidate("", (), 0.0, 0.0, finished=True)
        done = [Translation(line, (), (blank,) * wish.n_best) for line in lines]
        for row, group in groupby(range(len(units)), key=lambda place: units[place].row):
            places = list(group)
            pieces = [piece for place in places for piece in self.source_tokenizer.pieces(units[place].ids)]
            candidates = joined([(units[place].joint, found[place]) for place in places])
            candidates = without(candidates, units[places[0]].phrases, units[places[0]].number)
            looked = weights.get(places[0]) if len(places) == 1 else None
            done[row] = Translation(lines[row], (*pieces, "</s>"), candidates, looked)
        return done

    def _candidates(self, unit: Unit, hypotheses: Sequence[Hypothesis], alternatives: int) -> tuple[Candidate, ...]:
        candidates = tuple(
            Candidate(
                text=self.target_tokenizer.decode(hypothesis.ids),
                tokens=tuple(self.target_tokenizer.pieces(hypothesis.ids)),
                log_prob=hypothesis.log_prob,
                score=hypothesis.score,
                finished=hypothesis.finished,
            )
            for hypothesis in hypotheses
        )
        if not alternatives:
            return candidates
        batch = collate([unit.said(hypothesis.ids) for hypothesis in hypotheses])
        log_probs = self.engine.log_probs(batch)
        return with_figures(candidates, hypotheses, log_probs, self.target_tokenizer, alternatives)

    def stream(
        self,
        line: str,
        *,
        sampling: Mapping[str, Any] | Sampling | None = None,
        seed: int | None = None,
        rules: Mapping[str, Any] | Wording | None = None,
    ) -> Iterator[str]:
        """Translate one line, and give its text in pieces as they are chosen; nothing for a blank line.

        Together they are `translate([line], beam=1)[0].text`, or with `sampling` and the same seed that text.

        Args:
            line: the sentence.
            sampling: draw tokens as in `translate`; None takes the likeliest, as greedy search does.
            seed: as in `translate`.
            rules: as in `translate`, but nothing can be forced except a prefix, and what is said is not taken back: a
                forbidden phrase may come behind a sign, as in quotation marks.

        Raises:
            DecodingError: the line is no string, the sampling or its seed cannot be met, rules cannot be kept, or the
                line is too long and to be refused.
        """
        [line] = strings([line], "stream")
        drawing = Drawing.of(sampling, seed) or Drawing(Sampling(temperature=0), 0)
        wish = Wish(self.settings.replace(beam=1), 1, drawing)
        wording = None if rules is None else Wording.of(rules)
        return self._texts(units_of([line], [wording], 0, wish, self._sides), drawing)

    def _texts(self, units: Sequence[Unit], drawing: Drawing) -> Iterator[str]:
        """The text of each unit's translation, each piece as soon as it is chosen."""
        for unit in units:
            yield from [unit.joint] if unit.joint else []
            batch = collate([unit.example])
            with in_memory(*_NEEDS):
                tokens = self.engine.stream(batch, unit.limit, drawing, unit.rules)
                yield from settled_text(self.target_tokenizer, tokens)

    @OUT_OF_MEMORY
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            DecodingError: there are not as many sources as targets, or one of them is not a row of strings.
            PositionError: a line is longer than the positions that the model has learned.
        """
        sources, targets = list(strings(sources, "score")), list(strings(targets, "score"))
        if len(sources) != len(targets):
            raise DecodingError(
                f"score was given {len(sources)} sources and {len(targets)} targets; give a target for each source"
            )
        pairs = list(
            zip(self.source_tokenizer.encode_all(sources), self.target_tokenizer.encode_all(targets), strict=True)
        )
        scores = [0.0] * len(pairs)
        lengths = {row: len(source) + len(target) for row, (source, target) in enumerate(pairs)}
        for rows in batches_of(lengths, self.settings):
            batch = collate([Example(row + 1, *pairs[row]) for row in rows])
            with naming_the_line(batch):
                found = self.engine.score(batch)
            for row, log_prob in zip(rows, found, strict=True):
                scores[row] = log_prob
        return scores
