"""The text of a training: read, checked, held out, learned as a vocabulary, and encoded."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pellucid.config import RunConfig
from pellucid.errors import TextError
from pellucid.text.batch import EncodedCorpus, Example, encode_pairs
from pellucid.text.corpus import Corpus, hold_out, read_parallel, read_tsv
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Encoded", "TextFiles", "encode", "fingerprint", "learn", "read"]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Where parallel text lies: two files, or one of tab-separated pairs."""

    source: Path | None = None
    target: Path | None = None
    pairs: Path | None = None

    def read(self, what: str, options: str) -> Corpus | None:
        """The pairs in them, or None where no file is named.

        Raises:
            TextError: one file of two is missing, both ways are named, or the files cannot be read as pairs.
        """
        if self.pairs is not None:
            if self.source is not None or self.target is not None:
                raise TextError(f"{what} was given both as two files and as pairs; give {options}")
            return read_tsv(self.pairs)
        if (self.source is None) != (self.target is None):
            raise TextError(f"{what} was given one side of its text only; give {options}")
        if self.source is None or self.target is None:
            return None
        return read_parallel(self.source, self.target)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Training and validation pairs as ids, and as text the validation pairs that are within the length limit."""

    train: EncodedCorpus
    validation: EncodedCorpus
    validation_text: Corpus

    def fingerprint(self) -> str:
        """A short name for exactly this text in this order, so that a run is not resumed on other."""
        return fingerprint([*self.train.examples, *self.validation.examples])


def read(
    training: TextFiles, validation: TextFiles, config: RunConfig, note: Callable[[str], None]
) -> tuple[Corpus, Corpus]:
    """Read the training and validation pairs, holding some out where none are given, and say what was left out."""
    corpus = training.read("the training text", "--source and --target, or --pairs")
    if corpus is None:
        raise TextError("no training text was given; give --source and --target, or --pairs")
    note(f"read {len(corpus.pairs):,} pairs")
    if corpus.empty:
        note(corpus.report())
    held = validation.read("the validation text", "--valid-source and --valid-target, or --valid-pairs")
    if held is None:
        everything = len(corpus.pairs)
        corpus, held = hold_out(corpus, config.data.held_out, config.training.seed)
        if not held.pairs:
            raise TextError(
                f"the training text has {everything} pairs, too few to hold a tenth of them out for validation; "
                "give --valid-source and --valid-target, or --valid-pairs"
            )
        note(
            f"held out {len(held.pairs):,} pairs for validation, drawn with seed {config.training.seed}; "
            f"{len(corpus.pairs):,} are left to train on, none sharing a side with those"
        )
    elif held.empty:
        note(f"validation: {held.report()}")
    return corpus, held


def learn(corpus: Corpus, config: RunConfig) -> tuple[Tokenizer, Tokenizer]:
    """Learn the vocabulary, or the two, from the training pairs alone."""

    def learned(lines: Sequence[str], size: int) -> Tokenizer:
        return Tokenizer.learn(
            lines,
            vocab_size=size,
            kind=config.data.tokenizer,
            normalization=config.data.normalization,
            sample_lines=config.data.vocabulary_lines,
        )

    sources, targets = [pair.source for pair in corpus.pairs], [pair.target for pair in corpus.pairs]
    if config.data.shared_vocabulary:
        # One language after the other: a sample taken evenly then holds as much of each, at any ratio.
        shared = learned([*sources, *targets], config.model.source_vocab_size)
        return shared, shared
    return learned(sources, config.model.source_vocab_size), learned(targets, config.model.target_vocab_size)


def encode(
    corpus: Corpus, held: Corpus, source: Tokenizer, target: Tokenizer, config: RunConfig, note: Callable[[str], None]
) -> Encoded:
    """Turn text into ids, and say which pairs were too long.

    Raises:
        TextError: no pair is short enough to train or to validate on.
    """
    limits = (config.data.max_length, config.data.over_length)
    train, validation = (encode_pairs(text, source, target, *limits) for text in (corpus, held))
    left_out = {*validation.over_length, *validation.empty}
    whole = replace(held, pairs=tuple(pair for pair in held.pairs if pair.line not in left_out))
    encoded = Encoded(train, validation, whole)
    for what, part in (("training", encoded.train), ("validation", encoded.validation)):
        if part.over_length or part.empty:
            note(f"{what}: {part.report()}")
        if not part.examples:
            raise TextError(
                f"no {what} pair is left: {part.report()}; raise data.max_length, or set data.over_length = 'truncate'"
            )
    if config.training.validation_lines and not whole.pairs:
        raise TextError(
            f"every validation pair has more than data.max_length = {config.data.max_length} tokens on a side, so none "
            "can be translated; raise it, or set training.validation_lines = 0 and training.best = 'loss'"
        )
    return encoded


def fingerprint(examples: Sequence[Example]) -> str:
    """A short name for exactly these examples in this order, so that a run is not resumed on other text.

    >>> fingerprint([Example(1, [5, 6], [7])]) == fingerprint([Example(1, [5], [6, 7])])
    False
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(array("q", [len(example.source), *example.source, len(example.target), *example.target]))
    return f"sha256:{digest.hexdigest()[:32]}"
