"""Translates with an exported model by CTranslate2 (github.com/OpenNMT/CTranslate2), as our own engine does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.config import BEGIN_ID, END_ID, PAD_ID
from pellucid.decoding.chances import Drawing
from pellucid.decoding.exported import NATIVE, PLACES, require_library, require_places
from pellucid.decoding.hypotheses import Hypothesis, length_normaliser
from pellucid.decoding.rules import Rules
from pellucid.decoding.wish import Wish
from pellucid.errors import ConfigError, DecodingError, RunError
from pellucid.text.batch import Batch
from pellucid.text.tokenizer import Tokenizer

__all__ = ["CTranslate2Engine"]

COMPUTE = {None: "default", "float32": "float32", "int8": "int8", "bfloat16": "bfloat16", "auto": "auto"}


class CTranslate2Engine:
    """Searches with CTranslate2: greedy search and beams.

    Its length penalty divides by n ** alpha: our "power" rule. Under "gnmt" it searches by its own, and scores are
    given by GNMT's. It makes padding, begin and unknown impossible before it normalises, ours after, so that
    log-probabilities are higher by what those had.

    Args:
        folder: what `pellucid export --to ctranslate2` wrote.
        source: text <-> ids of the source language.
        target: text <-> ids of the target language.
        precision: "float32", "int8", "bfloat16", or "auto" for what CTranslate2 finds fastest here; None is what the
            folder was written in.
        most_tokens: positions that the model has.
        threads: how many a batch is computed with; None takes torch's number.

    Raises:
        InteropError: CTranslate2 is not installed, or cannot read the folder.
        ConfigError: the precision is unknown.
    """

    def __init__(
        self,
        folder: Path,
        source: Tokenizer,
        target: Tokenizer,
        precision: str | None = None,
        *,
        most_tokens: int = PLACES,
        threads: int | None = None,
    ) -> None:
        require_library("ctranslate2", "CTranslate2", "ctranslate2")
        import ctranslate2

        if precision not in COMPUTE:
            names = ", ".join(repr(name) for name in COMPUTE if name)
            raise ConfigError(f"precision was given {precision!r}, but it knows {names}; choose one")
        try:
            self._translator: Any = ctranslate2.Translator(
                str(folder), compute_type=COMPUTE[precision], intra_threads=threads or torch.get_num_threads()
            )
        except (RuntimeError, ValueError) as error:
            raise RunError(f"CTranslate2 cannot read {folder} ({error}); export the run again") from None
        self._source, self._target = source.names(), target.names()
        self._ids = {word: token for token, word in enumerate(self._target)}
        self._most_tokens = most_tokens

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a sentence may have, its mark counted."""
        return self._most_tokens

    def search(
        self, batch: Batch, limits: Sequence[int], wish: Wish, rules: Sequence[Rules] | None = None
    ) -> list[list[Hypothesis]]:
        """The candidates of each source, found by greedy or beam search.

        Raises:
            DecodingError: something is asked for that CTranslate2 does not do; it is named.
        """
        rule = _one_rule(rules or [Rules()])
        _refuse(wish, rule)
        settings = wish.settings
        found: list[list[Hypothesis]] = []
        results = self._results(self._words(batch), max(limits), wish, rule)
        for row, (limit, result) in enumerate(zip(limits, results, strict=True)):
            if limit < max(limits) and max(map(len, result.hypotheses)) > limit:
                [result] = self._results([self._words(batch)[row]], limit, wish, rule)  # under its own limit
            made = [self._hypothesis(*pair, wish) for pair in zip(result.hypotheses, result.scores, strict=True)]
            order = sorted(made, key=lambda one: (not one.finished, -one.score))
            found.append(order if settings.beam > 1 else made)
        return found

    def _results(self, words: list[list[str]], limit: int, wish: Wish, rule: Rules) -> list[Any]:
        settings = wish.settings
        impossible = [[self._target[PAD_ID]], [self._target[BEGIN_ID]]]
        results: list[Any] = self._translator.translate_batch(
            words, beam_size=settings.beam, num_hypotheses=wish.n_best, return_scores=True, return_end_token=True,
            length_penalty=settings.length_penalty if settings.beam > 1 else 0.0,
            max_input_length=0, max_decoding_length=limit, min_decoding_length=rule.min_length - 1, disable_unk=True,
            no_repeat_ngram_size=rule.no_repeat_ngram,
            suppress_sequences=[*impossible, *([self._target[token] for token in phrase] for phrase in rule.forbidden)],
        )  # fmt: skip
        return results

    def _words(self, batch: Batch) -> list[list[str]]:
        """The pieces of each source, the end mark last."""
        rows = zip(batch.source.tolist(), batch.source_lengths, strict=True)
        return [[self._source[token] for token in row[:length]] for row, length in rows]

    def _hypothesis(self, words: Sequence[str], score: float, wish: Wish) -> Hypothesis:
        ids = tuple(self._ids[word] for word in words)
        finished = bool(ids) and ids[-1] == END_ID
        settings = wish.settings
        if settings.beam > 1:
            score = score * length_normaliser(len(ids), settings.length_penalty, "power")
        normaliser = length_normaliser(len(ids), settings.length_penalty, settings.length_rule)
        return Hypothesis(ids[:-1] if finished else ids, score, score / normaliser, finished)

    def stream(
        self,
        batch: Batch,  # noqa: ARG002 - it is the interface's
        limit: int,  # noqa: ARG002
        drawing: Drawing,  # noqa: ARG002
        rules: Rules | None = None,  # noqa: ARG002
    ) -> Iterator[int]:
        """Nothing: CTranslate2 gives whole sentences.

        Raises:
            DecodingError: always.
        """
        raise DecodingError(f"CTranslate2 gives whole sentences, and none token by token; {NATIVE}")

    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted.

        Raises:
            PositionError: a side is longer than the positions that the export knows.
        """
        require_places(max((*batch.source_lengths, *batch.target_lengths), default=0), self._most_tokens)
        rows = zip(batch.labels.tolist(), batch.target_lengths, strict=True)
        targets = [[self._target[token] for token in row[: length - 1]] for row, length in rows]
        results = self._translator.score_batch(self._words(batch), targets, max_input_length=0)
        return [float(sum(result.log_probs)) for result in results]

    def log_probs(
        self,
        batch: Batch,  # noqa: ARG002 - it is the interface's
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Nothing: CTranslate2 gives them as whole vocabularies only while it searches.

        Raises:
            DecodingError: always.
        """
        raise DecodingError(f"CTranslate2 does not hand out alternatives of given texts; {NATIVE}")

    def cross_attention(
        self,
        batch: Batch,  # noqa: ARG002 - it is the interface's
    ) -> Float[Tensor, "layers heads target source"]:
        """Nothing: CTranslate2 gives an average at most.

        Raises:
            DecodingError: always.
        """
        raise DecodingError(f"CTranslate2 does not hand out the attention of each layer and head; {NATIVE}")


def _one_rule(rules: Sequence[Rules]) -> Rules:
    """The one rule of a batch.

    Raises:
        DecodingError: its sentences have several.
    """
    if any(rule != rules[0] for rule in rules):
        raise DecodingError(f"CTranslate2 follows one rule for all lines, and each was given its own; {NATIVE}")
    return rules[0]


def _refuse(wish: Wish, rule: Rules) -> None:
    """Refuse what CTranslate2 does not do, or does otherwise."""
    asked = {
        "sampling with a seed for each line": wish.drawing is not None,
        "diverse groups": wish.groups > 1,
        "repetition penalty on log-probabilities": rule.repetition_penalty != 1,
        "forced prefix": bool(rule.prefix),
        "forced phrases": bool(rule.forced),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise DecodingError(f"the CTranslate2 engine has no {name}; {NATIVE}")
