"""Text in, text out: lines to ids, ids through a search, hypotheses to lines, in the order they came."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pellucid.config import BEGIN_ID, END_ID, DecodingConfig
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.search import Hypothesis, beam_search, greedy_search, length_normaliser
from pellucid.decoding.translation import Candidate, Translation
from pellucid.device import in_memory, pick_device
from pellucid.errors import DecodingError, PositionError
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
    ) -> list[Translation]:
        """Translate lines: N in, N out, in order, blank for blank.

        Args:
            lines: one sentence each; not one string.
            beam: hypotheses kept side by side; 1 is greedy search. None takes the settings'.
            length_penalty: exponent of GNMT's length normaliser; None takes the settings'.
            n_best: candidates handed back for each line.
            attention: whether to hand back the cross-attention of each best candidate.

        Returns:
            A `Translation` for each line, the same whatever lines stand beside it.

        Raises:
            DecodingError: n_best is more than the beam, or lines are not a row of strings.
            PositionError: a line is longer than the positions that the model has learned.
        """
        return list(
            self.translate_lines(lines, beam=beam, length_penalty=length_penalty, n_best=n_best, attention=attention)
        )

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        attention: bool = False,
        read_ahead: int = READ_AHEAD,
    ) -> Iterator[Translation]:
        """Translate any number of lines lazily, in bounded memory; otherwise as `translate`.

        `read_ahead` lines are read before the first is answered: 1 answers each line before the next one is read.
        """
        settings = self.settings.replace(
            **{name: given for name, given in (("beam", beam), ("length_penalty", length_penalty)) if given is not None}
        )
        if not 1 <= n_best <= settings.beam:
            raise DecodingError(
                f"n_best is {n_best}, but a beam of {settings.beam} gives 1 to {settings.beam} candidates; "
                "widen the beam, or ask for fewer"
            )
        if read_ahead < 1:
            raise DecodingError(f"read_ahead is {read_ahead}, but it counts lines to read; give 1 or more")
        strings = _strings(lines, "translate")
        windows = iter(lambda: list(islice(strings, read_ahead)), [])
        return self._in_windows(windows, settings, n_best, attention)

    def _in_windows(
        self, windows: Iterable[list[str]], settings: DecodingConfig, n_best: int, attention: bool
    ) -> Iterator[Translation]:
        read = 0
        for window in windows:
            yield from self._window(window, settings, n_best, attention, read)
            read += len(window)

    @OUT_OF_MEMORY
    def _window(
        self, lines: Sequence[str], settings: DecodingConfig, n_best: int, attention: bool, read: int
    ) -> list[Translation]:
        """Translate lines that fit in memory together, those of like length side by side."""
        encoded = self.source_tokenizer.encode_all(lines)
        blank = Candidate("", (), 0.0, 0.0, finished=True)
        done = [Translation(line, (), (blank,) * n_best) for line in lines]
        lengths = {row: len(ids) for row, ids in enumerate(encoded) if ids and lines[row].strip()}
        for rows in self._batches(lengths, settings):
            batch = collate([Example(read + row + 1, encoded[row], []) for row in rows])
            for row, found in zip(rows, self._search(batch, settings, n_best), strict=True):
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

    def _search(self, batch: Batch, settings: DecodingConfig, n_best: int) -> list[list[Hypothesis]]:
        """Search for all sentences of a batch at once."""
        with _naming_the_line(batch):
            state = self.engine.begin(batch.source, batch.source_lengths)
        limits = [self._limit(length, settings) for length in batch.source_lengths]
        if settings.beam == 1:
            best = greedy_search(
                self.engine.step, state, batch=len(limits), start_id=BEGIN_ID, end_id=END_ID, max_length=limits
            )
            return [[_normalised(hypothesis, settings.length_penalty)] for hypothesis in best]
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

    @OUT_OF_MEMORY
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            DecodingError: there are not as many sources as targets, or one of them is not a row of strings.
            PositionError: a line is longer than the positions that the model has learned.
        """
        sources, targets = list(_strings(sources, "score")), list(_strings(targets, "score"))
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
            with _naming_the_line(batch):
                found = self.engine.score(batch)
            for row, log_prob in zip(rows, found, strict=True):
                scores[row] = log_prob
        return scores


def _strings(lines: Iterable[object], job: str) -> Iterator[str]:
    """The lines one by one, each seen to be a string; one string is refused at once, for its letters are no lines."""
    if isinstance(lines, str):
        raise DecodingError(f"{job} was given the one string {lines[:40]!r}, but it takes lines; put it in a list")

    def checked() -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise DecodingError(
                    f"{job} was given {line!r} as line {number}, but a line is a string; give '' for a blank one"
                )
            yield line

    return checked()


@contextmanager
def _naming_the_line(batch: Batch) -> Iterator[None]:
    """Name the line in an error about positions: the longest of a batch is one that has too many."""
    try:
        yield
    except PositionError as error:
        sizes = [max(pair) for pair in zip(batch.source_lengths, batch.target_lengths, strict=True)]
        raise PositionError(f"line {batch.lines[sizes.index(max(sizes))]}: {error}") from None


def _normalised(hypothesis: Hypothesis, length_penalty: float) -> Hypothesis:
    """A greedy hypothesis, scored as a beam would have scored it."""
    tokens = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.log_prob / length_normaliser(tokens, length_penalty))


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
