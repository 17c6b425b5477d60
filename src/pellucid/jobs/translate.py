"""Translate a stream of lines, or measure translations of a file against references."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pellucid.decoding.translate import Translation, Translator, load
from pellucid.errors import TextError
from pellucid.jobs.scoring import Scores, score_corpus
from pellucid.text.corpus import read_lines

__all__ = ["Evaluation", "evaluate", "pair_scores", "translations"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Translations of a test set, and how near they come to the references."""

    scores: Scores
    translations: tuple[str, ...]


def translations(
    run: Path, lines: Iterable[str], *, beam: int | None, length_penalty: float | None, n_best: int, device: str
) -> Iterator[Translation]:
    """Translate lines lazily with the best weights of a run."""
    return load(run, device).translate_lines(lines, beam=beam, length_penalty=length_penalty, n_best=n_best)


def evaluate(
    run: Path,
    source: Path,
    reference: Path,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    target_language: str | None = None,
    device: str = "auto",
    note: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Translate a file and compare it with its reference.

    Raises:
        TextError: the two files do not have the same number of lines.
    """
    sources, references = _matched(source, reference)
    translator: Translator = load(run, device)
    found = []
    for translation in translator.translate_lines(sources, beam=beam, length_penalty=length_penalty):
        found.append(translation.text)
        note(len(found))
    return Evaluation(score_corpus(found, references, target_language or ""), tuple(found))


def pair_scores(run: Path, source: Path, target: Path, device: str = "auto") -> list[float]:
    """The log-probability of each target line given its source line, in nats, the end mark counted."""
    return load(run, device).score(*_matched(source, target))


def _matched(one: Path, other: Path) -> tuple[list[str], list[str]]:
    first, second = list(read_lines(one)), list(read_lines(other))
    if len(first) != len(second):
        raise TextError(
            f"{one} has {len(first):,} lines and {other} has {len(second):,}; give files that match line by line"
        )
    return first, second
