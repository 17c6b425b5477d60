"""Pairs become batches: encoded, cut to a length, bucketed, padded; the first tensors.

A sentence of n tokens is n + 1 long: the source ends with the end mark; the target is fed to the decoder behind the
begin mark, and its labels, one place to the left, end with the end mark (Vaswani et al. 2017, section 3.1: "shifted
right"). Padding, id 0, stands at the end.

    tokens of the target         a  b  c
    target  (decoder's input)    <s>  a  b  c
    labels  (what it shall say)  a  b  c  </s>
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Int
from torch import Tensor

from pellucid.config import BEGIN_ID, END_ID, PAD_ID
from pellucid.errors import ShapeError
from pellucid.text.corpus import Corpus, Pair, name_lines
from pellucid.text.tokenizer import Tokenizer

__all__ = ["Batch", "EncodedCorpus", "Example", "collate", "encode_pairs", "padding_share", "plan_batches"]

ENCODED_AT_ONCE = 10_000  # pairs whose ids exist twice while they are packed; bounds the memory, keeps all cores busy


class Example(NamedTuple):
    """A pair as ids, without begin and end marks, and the number of its line, counted from 1."""

    line: int
    source: Sequence[int]
    target: Sequence[int]


@dataclass(frozen=True)
class EncodedCorpus:
    """A corpus as ids, and an account of the pairs that were too long.

    Attributes:
        examples: The pairs, in the order of their lines.
        pairs: How many pairs there were to encode.
        over_length: Lines of the pairs with a side over `max_length`: dropped, or truncated, as `policy` says.
        empty: Lines dropped because normalisation left nothing of one side.
        max_length: Tokens a side may have, with its end mark.
        policy: What was done to longer pairs.
    """

    examples: tuple[Example, ...]
    pairs: int
    over_length: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    max_length: int = 256
    policy: Literal["drop", "truncate"] = "drop"

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.examples)

    def report(self) -> str:
        """Say in one line what was dropped or truncated, and where.

        >>> EncodedCorpus((), pairs=100, over_length=(4, 17, 90), max_length=64).report()
        'dropped 3 of 100 pairs with more than 64 tokens on a side: lines 4, 17 and 90'
        """
        parts = [f"none of {self.pairs} pairs has more than {self.max_length} tokens on a side"]
        if self.over_length:
            done = "dropped" if self.policy == "drop" else "truncated"
            parts = [
                f"{done} {len(self.over_length)} of {self.pairs} pairs with more than {self.max_length} tokens on a "
                f"side: {name_lines(self.over_length)}"
            ]
        if self.empty:
            parts.append(
                f"dropped {len(self.empty)} with a side that normalisation leaves empty: {name_lines(self.empty)}"
            )
        return "; ".join(parts)


def encode_pairs(
    corpus: Corpus,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    max_length: int,
    over_length: Literal["drop", "truncate"],
) -> EncodedCorpus:
    """Encode both sides of every pair.

    Args:
        corpus: The pairs.
        source_tokenizer: text to ids, of the language to translate from.
        target_tokenizer: text to ids, of the language to translate into.
        max_length: Tokens a side may have, with its end mark.
        over_length: What becomes of a pair with a longer side: "drop" leaves it out, "truncate" cuts each such side
            to its first `max_length - 1` tokens.

    Returns:
        The examples, and the lines of the pairs that were dropped or truncated.
    """
    # One int object for each id, shared by all examples: a corpus then takes 8 bytes a token, not 36.
    shared = tuple(range(max(source_tokenizer.vocab_size, target_tokenizer.vocab_size)))
    examples: list[Example] = []
    long: list[int] = []
    empty: list[int] = []

    def keep(pair: Pair, source: Sequence[int], target: Sequence[int]) -> None:
        if not (source and target):
            empty.append(pair.line)
            return
        if max(len(source), len(target)) >= max_length:
            long.append(pair.line)
            if over_length == "drop":
                return
        sides = (tuple([shared[token] for token in ids[: max_length - 1]]) for ids in (source, target))
        examples.append(Example(pair.line, *sides))

    for start in range(0, len(corpus.pairs), ENCODED_AT_ONCE):
        pairs = corpus.pairs[start : start + ENCODED_AT_ONCE]
        sources = source_tokenizer.encode_all([pair.source for pair in pairs])
        targets = target_tokenizer.encode_all([pair.target for pair in pairs])
        for pair, source, target in zip(pairs, sources, targets, strict=True):
            keep(pair, source, target)
    return EncodedCorpus(tuple(examples), len(corpus.pairs), tuple(long), tuple(empty), max_length, over_length)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentence pairs side by side, padded at the end with 0.

    Attributes:
        source: Ids of the source and its end mark, (B, S).
        source_lengths: Real tokens of each source, the end mark counted.
        target: The begin mark and the ids of the target, (B, T): what the decoder is given.
        labels: The ids of the target and its end mark, (B, T): what the decoder shall say.
        target_lengths: Real tokens of each row of `target`, the begin mark counted; of `labels`, the end mark counted.
        lines: The line each pair came from, counted from 1.
        weight: What a loss over this batch counts: 1, or 0 for the filler that `part` gives where rows run out.
    """

    source: Int[Tensor, "batch source"]
    source_lengths: tuple[int, ...]
    target: Int[Tensor, "batch target"]
    labels: Int[Tensor, "batch target"]
    target_lengths: tuple[int, ...]
    lines: tuple[int, ...]
    weight: float = 1.0

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.lines)

    @property
    def tokens(self) -> int:
        """Real labels, end marks counted: what a loss is divided by. A filler has none."""
        return sum(self.target_lengths) if self.weight else 0

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return replace(
            self, source=self.source.to(device), target=self.target.to(device), labels=self.labels.to(device)
        )

    def part(self, index: int, count: int) -> Self:
        """The share of one of several processes: rows index, index + count, and so on, padded no more than they need.

        Each row is in one part. Every process must go through the model, or those that do would wait for it for ever;
        so where there are fewer rows than processes, a part without rows of its own is the first row with weight 0.
        A loss summed over tokens and times `weight`, added over the parts, is the loss of the whole batch.

        Args:
            index: Which part, from 0.
            count: How many parts there are.

        Raises:
            ShapeError: there is no such part.
        """
        if not 0 <= index < count:
            raise ShapeError(f"part {index} of {count} was asked for, but parts are numbered from 0; ask for a smaller")
        own = index < len(self)
        rows = slice(index, None, count) if own else slice(0, 1)
        source_lengths, target_lengths = self.source_lengths[rows], self.target_lengths[rows]
        source, target = max(source_lengths), max(target_lengths)
        return type(self)(
            source=self.source[rows, :source].contiguous(),
            source_lengths=source_lengths,
            target=self.target[rows, :target].contiguous(),
            labels=self.labels[rows, :target].contiguous(),
            target_lengths=target_lengths,
            lines=self.lines[rows],
            weight=self.weight if own else 0.0,
        )


def _pad(rows: Sequence[Sequence[int]]) -> Int[Tensor, "batch length"]:
    """Rows of ids as one int64 tensor, as wide as the longest."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[PAD_ID] * (width - len(row))] for row in rows], dtype=torch.int64)


def collate(examples: Sequence[Example]) -> Batch:
    """Put examples side by side, with their marks, padded at the end.

    >>> batch = collate([Example(1, (5, 6), (7,)), Example(2, (8,), (9, 10))])
    >>> batch.source.tolist(), batch.target.tolist(), batch.labels.tolist()
    ([[5, 6, 3], [8, 3, 0]], [[2, 7, 0], [2, 9, 10]], [[7, 3, 0], [9, 10, 3]])

    Args:
        examples: One or more pairs of ids without marks; a side may be empty, and is then its mark alone.

    Returns:
        The batch: int64 ids, on the CPU.

    Raises:
        ShapeError: there are no examples.
    """
    if not examples:
        raise ShapeError("a batch was to be made of no examples, but at least one is needed; leave the batch out")
    return Batch(
        source=_pad([(*example.source, END_ID) for example in examples]),
        source_lengths=tuple(len(example.source) + 1 for example in examples),
        target=_pad([(BEGIN_ID, *example.target) for example in examples]),
        labels=_pad([(*example.target, END_ID) for example in examples]),
        target_lengths=tuple(len(example.target) + 1 for example in examples),
        lines=tuple(example.line for example in examples),
    )


def plan_batches(examples: Sequence[Example], *, batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Share examples out over batches, those of like length together, and shuffle the batches.

    A batch's size is its rows times (longest source + longest target), marks and padding counted, and is at most
    `batch_tokens`; an example that is larger by itself stands alone. Every example is in one batch. Examples of
    equal lengths change places from epoch to epoch.

    Args:
        examples: What to share out.
        batch_tokens: The largest size of a batch.
        seed: With `epoch`, what decides the order: the same two numbers give the same plan.
        epoch: Which pass over the examples it is.

    Returns:
        For each batch, the places of its examples in `examples`.
    """
    shuffle = random.Random(f"batches/{seed}/{epoch}")
    lengths = [(len(example.source) + 1, len(example.target) + 1) for example in examples]
    order = list(range(len(examples)))
    shuffle.shuffle(order)
    # Targets run up within one length of source and down within the next, so neighbours are alike across the seam too.
    order.sort(key=lambda index: (lengths[index][0], lengths[index][1] * (-1) ** lengths[index][0]))
    batches: list[list[int]] = []
    batch: list[int] = []
    longest_source = longest_target = 0
    for index in order:
        source, target = lengths[index]
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
        if batch and (len(batch) + 1) * (longest_source + longest_target) > batch_tokens:
            batches.append(batch)
            batch, longest_source, longest_target = [], source, target
        batch.append(index)
    if batch:
        batches.append(batch)
    shuffle.shuffle(batches)
    return batches


def padding_share(examples: Sequence[Example], batches: Sequence[Sequence[int]]) -> float:
    """The part of all cells of these batches, source and target, that is padding: from 0, the best, to less than 1."""
    real = cells = 0
    for batch in batches:
        sources = [len(examples[index].source) + 1 for index in batch]
        targets = [len(examples[index].target) + 1 for index in batch]
        real += sum(sources) + sum(targets)
        cells += len(batch) * (max(sources) + max(targets))
    return 1 - real / cells if cells else 0.0
