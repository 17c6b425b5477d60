"""Translate a stream of lines, or measure translations of a file against references."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.decoding import READ_AHEAD, Translation, load
from pellucid.errors import TextError
from pellucid.jobs.scoring import Scores, bleu_for, score_corpus
from pellucid.run import Run
from pellucid.text.corpus import read_lines

__all__ = ["READ_AHEAD", "Evaluation", "evaluate", "pair_scores", "translations"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Translations of a test set, and how near they come to the references."""

    scores: Scores
    translations: tuple[str, ...]


def translations(
    run: Path,
    lines: Iterable[str],
    *,
    beam: int | None,
    length_penalty: float | None,
    n_best: int,
    read_ahead: int,
    device: str,
    sampling: Mapping[str, Any] | None = None,
    seed: int | None = None,
    rules: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    precision: str | None = None,
) -> Iterator[Translation]:
    """Translate lines lazily with the best weights of a run.

    `rules` are those of all lines, or a row of them, one for each; `options` are more of `translate`'s.

    Raises:
        ConfigError: the precision is unknown.
    """
    return load(run, device, precision=precision).translate_lines(  # type: ignore[arg-type] # load refuses another
        lines, beam=beam, length_penalty=length_penalty, n_best=n_best, read_ahead=read_ahead,
        sampling=sampling, seed=seed, rules=rules, **(options or {}),
    )  # fmt: skip


def evaluate(
    run: Path,
    source: Path,
    reference: Path,
    *,
    search: Mapping[str, Any] | None = None,
    target_language: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    note: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Translate a file and compare it with its reference.

    Args:
        run: the run folder.
        source: lines to translate.
        reference: what they should become.
        search: settings of `translate` instead of the run's, by name: `dict(beam=1)`.
        target_language: chooses how BLEU cuts words; None takes the run's data.target_language.
        device: where to compute.
        precision: the numbers to compute in; None takes float32, or what an export was written in.
        note: is given, after each line, how many are translated, and how many there are.

    Raises:
        TextError: the two files have no lines, or not the same number of them.
    """
    sources, references = _matched(source, reference)
    if not sources:
        raise TextError(f"{source} and {reference} have no lines, but scores need one pair at least; check the files")
    if target_language is None:
        target_language = Run.open(run).config.data.target_language
    bleu_for(target_language)  # a word cutter that is missing shows before the work, not after it
    found: list[str] = []
    translator = load(run, device, precision=precision)  # type: ignore[arg-type] # load refuses another
    for translation in translator.translate_lines(sources, **(search or {})):
        found.append(translation.text)
        note(len(found), len(sources))
    return Evaluation(score_corpus(found, references, target_language), tuple(found))


def pair_scores(
    run: Path, source: Path, target: Path, device: str = "auto", precision: str | None = None
) -> list[float]:
    """The log-probability of each target line given its source line, in nats, the end mark counted.

    Raises:
        TextError: the two files do not have the same number of lines.
    """
    translator = load(run, device, precision=precision)  # type: ignore[arg-type] # load refuses another
    return translator.score(*_matched(source, target))


def _matched(one: Path, other: Path) -> tuple[list[str], list[str]]:
    """The lines of two files, as many of the one as of the other."""
    first, second = list(read_lines(one)), list(read_lines(other))
    if len(first) != len(second):
        raise TextError(
            f"{one} has {len(first)} lines and {other} has {len(second)}; give files that match line by line"
        )
    return first, second
