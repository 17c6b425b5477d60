"""Text in, text out: lines to ids, ids through a search, hypotheses to lines, in the order they came."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pellucid.config import DecodingConfig
from pellucid.decoding.chances import Drawing, Sampling
from pellucid.decoding.engines import Engine, ModelEngine
from pellucid.decoding.lines import naming_the_line, strings
from pellucid.decoding.search import Hypothesis
from pellucid.decoding.stream import settled_text
from pellucid.decoding.translation import Candidate, Translation
from pellucid.decoding.wish import Wish
from pellucid.device import in_memory
from pellucid.errors import DecodingError
from pellucid.model import Transformer
from pellucid.text.batch import Example, collate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["READ_AHEAD", "Translator"]

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
    ) -> list[Translation]:
        """Translate lines: N in, N out, in order, blank for blank.

        Args:
            lines: one sentence each; not one string.
            beam: hypotheses kept side by side; 1 is greedy search. None takes the settings'.
            length_penalty: exponent of GNMT's length normaliser; None takes the settings'.
            n_best: candidates handed back for each line.
            attention: whether to hand back the cross-attention of each best candidate.
            sampling: instead of a beam, draw the candidates: `dict(temperature=0.8, top_p=0.9)`, see `Sampling`.
            seed: what a line's draws come from, together with its number; None takes it from torch's generator.

        Returns:
            A `Translation` for each line, the same whatever lines stand beside it.

        Raises:
            DecodingError: n_best is more than the beam, sampling stands beside a beam or has a setting that cannot be
                met, or lines are not a row of strings.
            PositionError: a line is longer than the positions that the model has learned.
        """
        return list(
            self.translate_lines(
                lines, beam=beam, length_penalty=length_penalty, n_best=n_best, attention=attention,
                sampling=sampling, seed=seed,
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
        read_ahead: int = READ_AHEAD,
    ) -> Iterator[Translation]:
        """Translate any number of lines lazily, in bounded memory; otherwise as `translate`.

        `read_ahead` lines are read before the first is answered: 1 answers each line before the next one is read.
        """
        wish = Wish.of(
            self.settings, beam=beam, length_penalty=length_penalty, n_best=n_best, sampling=sampling, seed=seed
        )
        if read_ahead < 1:
            raise DecodingError(f"read_ahead is {read_ahead}, but it counts lines to read; give 1 or more")
        checked = strings(lines, "translate")
        windows = iter(lambda: list(islice(checked, read_ahead)), [])
        return self._in_windows(windows, wish, attention)

    def _in_windows(self, windows: Iterable[list[str]], wish: Wish, attention: bool) -> Iterator[Translation]:
        read = 0
        for window in windows:
            yield from self._window(window, wish, attention, read)
            read += len(window)

    @OUT_OF_MEMORY
    def _window(self, lines: Sequence[str], wish: Wish, attention: bool, read: int) -> list[Translation]:
        """Translate lines that fit in memory together, those of like length side by side."""
        encoded = self.source_tokenizer.encode_all(lines)
        blank = Candidate("", (), 0.0, 0.0, finished=True)
        done = [Translation(line, (), (blank,) * wish.n_best) for line in lines]
        lengths = {row: len(ids) for row, ids in enumerate(encoded) if ids and lines[row].strip()}
        for rows in self._batches(lengths, wish.settings):
            batch = collate([Example(read + row + 1, encoded[row], []) for row in rows])
            limits = [self._limit(length, wish.settings) for length in batch.source_lengths]
            with naming_the_line(batch):
                hypotheses = self.engine.search(batch, limits, wish)
            for row, found in zip(rows, hypotheses, strict=True):
                candidates = tuple(self._candidate(hypothesis) for hypothesis in found)
                pair = collate([Example(read + row + 1, encoded[row], found[0].ids)])
                weights = self.engine.cross_attention(pair) if attention else None
                pieces = (*self.source_tokenizer.pieces(encoded[row]), "</s>")
                done[row] = Translation(lines[row], pieces, candidates, weights)
        return done

    @staticmethod
    def _batches(lengths: Mapping[int, int], settings: DecodingConfig) -> Iterator[list[int]]:
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

    def _limit(self, source_length: int, settings: DecodingConfig) -> int:
        """Tokens a translation may have: a multiple of its own source, and no more than the model has positions."""
        limit = int(settings.length_ratio * source_length) + settings.length_extra
        return min(limit, self.engine.most_tokens or limit)

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        return Candidate(
            text=self.target_tokenizer.decode(hypothesis.ids),
            tokens=tuple(self.target_tokenizer.pieces(hypothesis.ids)),
            log_prob=hypothesis.log_prob,
            score=hypothesis.score,
            finished=hypothesis.finished,
        )

    def stream(
        self, line: str, *, sampling: Mapping[str, Any] | Sampling | None = None, seed: int | None = None
    ) -> Iterator[str]:
        """Translate one line, and give its text in pieces as they are chosen; nothing for a blank line.

        Together they are `translate([line], beam=1)[0].text`, or with `sampling` and the same seed that text.

        Args:
            line: the sentence.
            sampling: draw tokens as in `translate`; None takes the likeliest, as greedy search does.
            seed: as in `translate`.

        Raises:
            DecodingError: the line is no string, or the sampling or its seed cannot be met.
            PositionError: the line is longer than the positions that the model has learned.
        """
        [line] = strings([line], "stream")
        drawing = Drawing.of(sampling, seed) or Drawing(Sampling(temperature=0), 0)
        return settled_text(self.target_tokenizer, self._tokens(line, drawing))

    def _tokens(self, line: str, drawing: Drawing) -> Iterator[int]:
        """The ids of a line's translation, each as soon as it is chosen."""
        ids = self.source_tokenizer.encode(line)
        if not (ids and line.strip()):
            return
        batch = collate([Example(1, ids, [])])
        limit = self._limit(batch.source_lengths[0], self.settings)
        with in_memory(*_NEEDS):
            with naming_the_line(batch):
                tokens = self.engine.stream(batch, limit, drawing)
            yield from tokens

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
        for rows in self._batches(lengths, self.settings):
            batch = collate([Example(row + 1, *pairs[row]) for row in rows])
            with naming_the_line(batch):
                found = self.engine.score(batch)
            for row, log_prob in zip(rows, found, strict=True):
                scores[row] = log_prob
        return scores
