"""Text in, text out: lines to ids, ids through a search, hypotheses to lines, in the order they came."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.config import BEGIN_ID, END_ID, DecodingConfig
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.search import Hypothesis, beam_search, greedy_search, length_normaliser
from pellucid.errors import ConfigError, DecodingError, PositionError
from pellucid.model import Transformer
from pellucid.run import Run, load_weights
from pellucid.text.batch import Batch, Example, collate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Candidate", "Translation", "Translator", "load", "pick_device"]

WINDOW = 1024
"""Lines that are read ahead, sorted by length and batched; what bounds the memory of `translate_lines`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to translate a line.

    Attributes:
        text: the translation.
        tokens: its pieces.
        log_prob: sum of the tokens' log-probabilities in nats, the end mark counted.
        score: log_prob over GNMT's length normaliser.
        finished: whether it ended by itself, rather than at the length limit.
    """

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True, slots=True)
class Translation:
    """A line and its translations, best first; the best one's text, tokens and figures are its own attributes.

    Attributes:
        source: the line as it was given.
        source_tokens: its pieces, the end mark last.
        hypotheses: the candidates, best first.
        attention: where asked for, cross-attention (layers, heads, target tokens and end mark, source tokens).
    """

    source: str
    source_tokens: tuple[str, ...]
    hypotheses: tuple[Candidate, ...]
    attention: Float[Tensor, "layers heads target source"] | None = None

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The pieces of the best translation."""
        return self.hypotheses[0].tokens

    @property
    def log_prob(self) -> float:
        """The best one's log-probability in nats, the end mark counted."""
        return self.hypotheses[0].log_prob

    @property
    def score(self) -> float:
        """The best one's normalised log-probability."""
        return self.hypotheses[0].score


class Translator:
    """A model with its tokenizers, ready to translate.

    Args:
        model: the network; it is put into evaluation mode.
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
    ) -> Iterator[Translation]:
        """Translate any number of lines lazily, in bounded memory; otherwise as `translate`."""
        if isinstance(lines, str):
            raise DecodingError(
                f"translate was given the one string {lines[:40]!r}, but it takes lines; put it in a list"
            )
        settings = self.settings.replace(
            **{name: given for name, given in (("beam", beam), ("length_penalty", length_penalty)) if given is not None}
        )
        if not 1 <= n_best <= settings.beam:
            raise DecodingError(
                f"n_best is {n_best}, but a beam of {settings.beam} gives 1 to {settings.beam} candidates; "
                "widen the beam, or ask for fewer"
            )
        return self._in_windows(iter(lines), settings, n_best, attention)

    def _in_windows(
        self, lines: Iterator[str], settings: DecodingConfig, n_best: int, attention: bool
    ) -> Iterator[Translation]:
        read = 0
        while window := list(islice(lines, WINDOW)):
            yield from self._window(window, settings, n_best, attention, read)
            read += len(window)

    def _window(
        self, lines: Sequence[str], settings: DecodingConfig, n_best: int, attention: bool, read: int
    ) -> list[Translation]:
        """Translate lines that fit in memory together, those of like length side by side."""
        for line in lines:
            if not isinstance(line, str):
                raise DecodingError(f"translate was given {line!r} among its lines, but a line is a string")
        encoded = self.source_tokenizer.encode_all(lines)
        blank = Candidate("", (), 0.0, 0.0, finished=True)
        done = [Translation(line, (), (blank,) * n_best) for line in lines]
        order = sorted((row for row, ids in enumerate(encoded) if ids), key=lambda row: (len(encoded[row]), row))
        for rows in self._batches(order, encoded, settings):
            batch = collate([Example(read + row + 1, encoded[row], []) for row in rows])
            for row, found in zip(rows, self._search(batch, settings, n_best), strict=True):
                candidates = tuple(self._candidate(hypothesis) for hypothesis in found)
                weights = self._attention(encoded[row], found[0]) if attention else None
                pieces = (*self.source_tokenizer.pieces(encoded[row]), "</s>")
                done[row] = Translation(lines[row], pieces, candidates, weights)
        return done

    @staticmethod
    def _batches(
        order: Sequence[int], encoded: Sequence[Sequence[int]], settings: DecodingConfig
    ) -> Iterator[list[int]]:
        """Cut rows sorted by length so that a batch's hypotheses have `batch_tokens` source tokens at most."""
        batch: list[int] = []
        for row in order:
            if batch and (len(batch) + 1) * (len(encoded[row]) + 1) * settings.beam > settings.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _search(self, batch: Batch, settings: DecodingConfig, n_best: int) -> list[list[Hypothesis]]:
        """Search for all sentences of a batch at once."""
        try:
            state = self.engine.begin(batch.source, batch.source_lengths)
        except PositionError as error:
            longest = max(range(len(batch.lines)), key=batch.source_lengths.__getitem__)
            raise PositionError(f"line {batch.lines[longest]}: {error}") from None
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
        """Tokens a translation may have: a multiple of its own source, and no more than learned positions."""
        limit = int(settings.length_ratio * source_length) + settings.length_extra
        config = self.engine.model.config
        return min(limit, config.max_positions) if config.positions == "learned" else limit

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        return Candidate(
            text=self.target_tokenizer.decode(hypothesis.ids),
            tokens=tuple(self.target_tokenizer.pieces(hypothesis.ids)),
            log_prob=hypothesis.log_prob,
            score=hypothesis.score,
            finished=hypothesis.finished,
        )

    @torch.inference_mode()
    def _attention(self, source: Sequence[int], found: Hypothesis) -> Float[Tensor, "layers heads target source"]:
        """What each target token looked at while it was chosen: one teacher-forced pass over the finished sentence."""
        batch = collate([Example(1, source, found.ids)]).to(self.engine.device)
        _, weights = self.engine.model(batch.source, batch.target, need_weights=True)
        return torch.cat(weights.cross).cpu()

    @torch.inference_mode()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            DecodingError: there are not as many sources as targets.
        """
        if len(sources) != len(targets):
            raise DecodingError(
                f"score was given {len(sources)} sources and {len(targets)} targets; give a target for each source"
            )
        model, scores = self.engine.model, [0.0] * len(sources)
        pairs = list(
            zip(self.source_tokenizer.encode_all(sources), self.target_tokenizer.encode_all(targets), strict=True)
        )
        lengths = [[0] * (len(source) + len(target)) for source, target in pairs]
        order = sorted(range(len(pairs)), key=lambda row: len(lengths[row]))
        for rows in self._batches(order, lengths, self.settings):
            batch = collate([Example(row + 1, *pairs[row]) for row in rows]).to(self.engine.device)
            logits = model(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
            gold = log_probs.gather(2, batch.labels[:, :, None])[:, :, 0]
            for index, row in enumerate(rows):
                scores[row] = float(gold[index, : batch.target_lengths[index]].sum())
        return scores


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


def pick_device(name: str) -> torch.device:
    """The device of that name, tried once; "auto" is the GPU where there is one, else the CPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ConfigError(f"the device '{name}' is not on this machine; take 'cpu' or 'auto'") from None
    return torch.device(name)
