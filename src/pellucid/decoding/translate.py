"""Text in, text out: lines to ids, ids through a search, hypotheses to lines, in the order they came."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from pellucid.config import BEGIN_ID, END_ID, DecodingConfig
from pellucid.decoding.chances import Drawing, Sampling
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.hypotheses import normalised
from pellucid.decoding.lines import naming_the_line, strings
from pellucid.decoding.sampling import sample
from pellucid.decoding.search import Hypothesis, beam_search, greedy_search
from pellucid.decoding.stream import settled_text, tokens_as_chosen
from pellucid.decoding.translation import Candidate, Translation
from pellucid.device import in_memory, pick_device
from pellucid.errors import DecodingError
from pellucid.model import Transformer
from pellucid.run import Run, load_weights
from pellucid.text.batch import Batch, Example, collate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["READ_AHEAD", "Translator", "load"]

READ_AHEAD = 1024
"""Lines that are read, sorted by length and batched together; what bounds the memory of `translate_lines`."""

OUT_OF_MEMORY = in_memory("translating", "lower decoding.batch_tokens in the run's run.toml, or the beam")


class Translator:
    """A model with its tokenizers, ready to translate.

    Args:
        model: the network; it is put into evaluation mode whenever it translates.
        source_tokenizer: text <-> ids of the source language.
        target_tokenizer: text <-> ids of the target language.
        settings: the defaults of every search.
    """

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        settings: DecodingConfig | None = None,
    ) -> None:
        self.engine = ModelEngine(model)
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
        settings = self.settings.replace(
            **{name: given for name, given in (("beam", beam), ("length_penalty", length_penalty)) if given is not None}
        )
        drawing = Drawing.of(sampling, seed)
        if drawing is not None:
            settings = _drawn(settings, beam, n_best)
        elif not 1 <= n_best <= settings.beam:
            raise DecodingError(
                f"n_best is {n_best}, but a beam of {settings.beam} gives 1 to {settings.beam} candidates; "
                "widen the beam, or ask for fewer"
            )
        if read_ahead < 1:
            raise DecodingError(f"read_ahead is {read_ahead}, but it counts lines to read; give 1 or more")
        checked = strings(lines, "translate")
        windows = iter(lambda: list(islice(checked, read_ahead)), [])
        return self._in_windows(windows, settings, n_best, attention, drawing)

    def _in_windows(
        self,
        windows: Iterable[list[str]],
        settings: DecodingConfig,
        n_best: int,
        attention: bool,
        drawing: Drawing | None,
    ) -> Iterator[Translation]:
        read = 0
        for window in windows:
            yield from self._window(window, settings, n_best, attention, drawing, read)
            read += len(window)

    @OUT_OF_MEMORY
    def _window(
        self,
        lines: Sequence[str],
        settings: DecodingConfig,
        n_best: int,
        attention: bool,
        drawing: Drawing | None,
        read: int,
    ) -> list[Translation]:
        """Translate lines that fit in memory together, those of like length side by side."""
        encoded = self.source_tokenizer.encode_all(lines)
        blank = Candidate("", (), 0.0, 0.0, finished=True)
        done = [Translation(line, (), (blank,) * n_best) for line in lines]
        lengths = {row: len(ids) for row, ids in enumerate(encoded) if ids and lines[row].strip()}
        for rows in self._batches(lengths, settings):
            batch = collate([Example(read + row + 1, encoded[row], []) for row in rows])
            for row, found in zip(rows, self._search(batch, settings, n_best, drawing), strict=True):
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

    def _search(
        self, batch: Batch, settings: DecodingConfig, n_best: int, drawing: Drawing | None = None
    ) -> list[list[Hypothesis]]:
        """Search for all sentences of a batch at once, or draw them."""
        with naming_the_line(batch):
            state = self.engine.begin(batch.source, batch.source_lengths)
        limits = [self._limit(length, settings) for length in batch.source_lengths]
        if drawing is not None:
            return sample(
                self.engine.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits,
                samples=n_best, seed=[drawing.line_seed(line) for line in batch.lines],
                length_penalty=settings.length_penalty, **asdict(drawing.sampling),
            )  # fmt: skip
        if settings.beam == 1:
            best = greedy_search(
                self.engine.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits
            )
            return [[normalised(hypothesis, settings.length_penalty)] for hypothesis in best]
        return beam_search(
            self.engine.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits,
            beam=settings.beam, length_penalty=settings.length_penalty, n_best=n_best,
        )  # fmt: skip

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
        with naming_the_line(batch):
            state = OUT_OF_MEMORY(self.engine.begin)(batch.source, batch.source_lengths)
        yield from tokens_as_chosen(
            OUT_OF_MEMORY(self.engine.step), state, start_id=BEGIN_ID, end_id=END_ID,
            max_length=self._limit(batch.source_lengths[0], self.settings),
            sampling=drawing.sampling, seed=drawing.line_seed(1),
        )  # fmt: skip

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


def _drawn(settings: DecodingConfig, beam: int | None, n_best: int) -> DecodingConfig:
    """The settings where candidates are drawn: as many rows of a sentence stand side by side as a beam of n_best has."""
    if beam is not None:
        raise DecodingError(f"beam was given {beam} beside sampling, but a beam is not drawn; leave one of them out")
    if n_best < 1:
        raise DecodingError(f"n_best is {n_best}, but it counts candidates to draw; give 1 or more")
    return settings.replace(beam=n_best)


def load(path: str | Path, device: str = "auto") -> Translator:
    """Open a run and make its best weights ready to translate.

    Args:
        path: the folder that `pellucid train --out` wrote.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1".

    Raises:
        RunError: the folder holds no run, or a damaged one.
        ConfigError: the device is not there.
    """
    run = Run.open(Path(path))
    model = Transformer(run.config.model)
    load_weights(model, run.weights_file())
    model = model.to(pick_device(device))
    return Translator(model, run.source_tokenizer, run.target_tokenizer, run.config.decoding)
