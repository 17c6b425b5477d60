"""Write a run as another engine reads it, and see on the spot that it says the same."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pellucid.decoding import Translator, load
from pellucid.decoding.ctranslate2 import CTranslate2Engine
from pellucid.decoding.exported import places_of, written_for
from pellucid.decoding.onnx import OnnxEngine
from pellucid.disk import settle
from pellucid.errors import ConfigError, RunError
from pellucid.interop.ctranslate2 import to_ctranslate2
from pellucid.interop.onnx import to_onnx
from pellucid.model import Transformer
from pellucid.run import Run, load_weights
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Verified", "export"]

KNOWN = {"ctranslate2": ("float32", "int8"), "onnx": ("float32",)}
"""The engines that are written for, and the numbers of each."""
NEAR = 1e-3  # nats that the log-probability of a sentence may stand apart in float32
PROBES = 7  # lines that are made up of the vocabulary where none are given
ATTEMPTS = 23  # ids apart that their tokens stand


@dataclass(frozen=True, slots=True)
class Verified:
    """How an export stood beside the run on some lines.

    Attributes:
        lines: how many were translated and scored by both.
        others: the numbers of those whose greedy translations differ, from 1.
        largest: the largest difference of a translation's log-probability, in nats.
    """

    lines: int
    others: tuple[int, ...]
    largest: float

    def __str__(self) -> str:
        said = f"other tokens in line {', '.join(map(str, self.others))}" if self.others else "the same tokens"
        return f"{self.lines} lines, greedy: {said}; log-probabilities within {self.largest:.1e} nats"


def export(
    run: Path, to: str, out: Path, precision: Literal["float32", "int8"] = "float32", lines: Sequence[str] | None = None
) -> Verified:
    """Write the best weights of a run for another engine, with tokenizers and settings, in a folder that appears whole.

    Args:
        run: the run folder.
        to: "ctranslate2" or "onnx".
        out: a new folder.
        precision: "float32", or, for CTranslate2, "int8" for weights in 8 bits, which translates faster and a little
            otherwise.
        lines: what to compare translations of; the vocabulary's own words where none are given.

    Raises:
        ConfigError: the engine is unknown, or the run has settings that it has no place for.
        RunError: the folder exists, or what was written does not say what the run says.
        InteropError: the engine is not installed.
    """
    if to not in KNOWN:
        raise ConfigError(f"--to was given '{to}', but it knows {' and '.join(map(repr, KNOWN))}; choose one")
    if precision not in KNOWN[to]:
        known = " and ".join(map(repr, KNOWN[to]))
        raise ConfigError(f"precision was given '{precision}', but exports to '{to}' are in {known}; choose one")
    if out.exists():
        raise RunError(f"{out} exists already; choose a new folder")
    opened = Run.open(run)
    if written_for(run) != "native":
        raise RunError(f"{run} is an export itself, for '{written_for(run)}'; give the run that it was made from")
    model = Transformer(opened.config.model)
    load_weights(model, opened.weights_file())
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        made = draft / "export"
        if to == "onnx":
            to_onnx(model, made)
        else:
            numbers = None if precision == "float32" else precision
            to_ctranslate2(model, opened.source_tokenizer, opened.target_tokenizer, made, numbers)
        for name in ("run.toml", "tokenizer.model", "source.model", "target.model"):
            if (run / name).is_file():
                shutil.copyfile(run / name, made / name)
        verified = verify(run, made, to, precision, _probes(opened) if lines is None else lines)
        if precision == "float32" and (verified.others or verified.largest > NEAR):
            raise RunError(f"the export does not say what {run} says ({verified}); report it, and use the run itself")
        settle(made, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return verified


def _probes(run: Run) -> list[str]:
    """Lines of the source vocabulary's own words."""
    words = run.source_tokenizer.vocab_size
    ids = [[4 + (7 * line + ATTEMPTS * place) % (words - 4) for place in range(line + 2)] for line in range(PROBES)]
    return [text for row in ids if (text := run.source_tokenizer.decode(row)).strip()]


def verify(run: Path, folder: Path, to: str, precision: str, lines: Sequence[str]) -> Verified:
    """Translate and score lines by both."""
    opened, ours = Run.open(run), load(run, "cpu")
    sides, places = (opened.source_tokenizer, opened.target_tokenizer), places_of(opened.config.model)
    engine = (
        OnnxEngine(folder, precision, most_tokens=places)
        if to == "onnx"
        else CTranslate2Engine(folder, *sides, precision, most_tokens=places)
    )
    settings = opened.config.decoding
    settings = settings.replace(
        max_source_length=min(settings.max_source_length or places, places),
        max_length=min(settings.max_length or places, places),
    )
    ours.settings, theirs = settings, Translator(engine, *sides, settings)
    numbers, compared = _comparable(lines, sides[0], places)
    one, other = ours.translate(compared, beam=1), theirs.translate(compared, beam=1)
    pairs = zip(numbers, one, other, strict=True)
    others = tuple(number for number, first, second in pairs if first.tokens != second.tokens)
    # as text, a translation may have more tokens than it was made of
    told = [
        (line, found.text) for line, found in zip(compared, one, strict=True) if _fits(found.text, sides[1], places)
    ]
    sources, targets = [line for line, _ in told], [text for _, text in told]
    scores = zip(ours.score(sources, targets), theirs.score(sources, targets), strict=True)
    return Verified(len(compared), others, max((abs(a - b) for a, b in scores), default=0.0))


def _comparable(lines: Sequence[str], tokenizer: Tokenizer, places: int) -> tuple[list[int], list[str]]:
    """The lines that both read whole, and their numbers.

    Raises:
        RunError: there is none.
    """
    kept = [
        (number, line) for number, line in enumerate(lines, start=1) if line.strip() and _fits(line, tokenizer, places)
    ]
    if not kept:
        raise RunError(
            f"none of the {len(lines)} lines can be compared: they are blank, or longer than {places} tokens; give "
            "others by --lines, or leave it out"
        )
    return [number for number, _ in kept], [line for _, line in kept]


def _fits(text: str, tokenizer: Tokenizer, places: int) -> bool:
    return len(tokenizer.encode(text)) < places
