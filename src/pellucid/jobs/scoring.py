"""BLEU, chrF and TER of translations, by sacreBLEU, with the signatures that make them comparable (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu import BLEU, CHRF, TER

from pellucid.errors import TextError

__all__ = ["Metric", "Scores", "bleu_for", "score_corpus"]

TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""How BLEU cuts words where they are not spaced as in Europe; every other language has sacreBLEU's default, 13a."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure, from 0 to 100 (TER may pass it), and how it was computed."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one set of translations."""

    bleu: Metric
    chrf: Metric
    ter: Metric


def bleu_for(target_language: str) -> BLEU:
    """The BLEU that cuts words as they are written in a language: a code such as "de", "zh-CN" or "pt_BR", or "".

    Raises:
        TextError: the language's word cutter is not installed.
    """
    language = target_language.replace("_", "-").split("-")[0].lower()
    try:
        return BLEU(tokenize=TOKENIZERS.get(language, "13a"))
    except RuntimeError:
        raise TextError(
            f"BLEU for '{target_language}' needs sacreBLEU's word cutter {TOKENIZERS[language]}, which is not "
            f"installed; pip install 'sacrebleu[{language}]'"
        ) from None


def score_corpus(translations: Sequence[str], references: Sequence[str], target_language: str = "") -> Scores:
    """Compare translations with references, line by line.

    Args:
        translations: what was made.
        references: what should have been, a line each.
        target_language: see `bleu_for`.

    Raises:
        TextError: there are not as many of the one as of the other, there are none, or a language's word cutter is
            missing.

    >>> score_corpus(["Die Katze sitzt auf der Matte."], ["Die Katze sitzt auf der Matte."]).chrf.value
    100.0
    """
    if len(translations) != len(references) or not references:
        raise TextError(
            f"{len(translations)} translations cannot be compared with {len(references)} references; "
            "give one reference for each, and one at least"
        )

    def measured(name: str, metric: BLEU | CHRF | TER) -> Metric:
        value = metric.corpus_score(list(translations), [list(references)]).score
        return Metric(name, float(value), str(metric.get_signature()))

    return Scores(measured("BLEU", bleu_for(target_language)), measured("chrF", CHRF()), measured("TER", TER()))
