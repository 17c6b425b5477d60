"""Pairs become batches: every example once, the budget kept, and padding that changes nothing."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.config import BEGIN_ID, END_ID, PAD_ID
from pellucid.errors import ShapeError
from pellucid.text.batch import Batch, EncodedCorpus, Example, collate, encode_pairs, padding_share, plan_batches
from pellucid.text.corpus import Corpus, Pair
from pellucid.text.tokenizer import Tokenizer

LETTERS = "a b c d e f g h"  # each a token with its space, so that a test can count
TOKENIZER = Tokenizer.learn([LETTERS], vocab_size=8000, kind="bpe")

IDS = st.lists(st.integers(4, 30), max_size=13).map(tuple)
EXAMPLES = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=60).map(
    lambda sides: [Example(line, *pair) for line, pair in enumerate(sides, start=1)]
)


def letters(count: int) -> str:
    return " ".join((LETTERS.split() * count)[:count])


def corpus(*lengths: tuple[int, int]) -> Corpus:
    """Pairs of so many tokens, on lines 10, 20, 30 and so on."""
    pairs = [Pair(10 * n, letters(source), letters(target)) for n, (source, target) in enumerate(lengths, start=1)]
    return Corpus(tuple(pairs), 10 * len(pairs))


def lengths(encoded: EncodedCorpus) -> list[tuple[int, int, int]]:
    return [(example.line, len(example.source), len(example.target)) for example in encoded.examples]


def examples_of(*lengths: tuple[int, int]) -> list[Example]:
    return [Example(line, (5,) * source, (7,) * target) for line, (source, target) in enumerate(lengths, start=1)]


# --- text to ids --------------------------------------------------------------------------------------------


def test_pairs_are_encoded_each_side_by_its_own_tokenizer() -> None:
    other = Tokenizer.learn(["xyz xyz"], vocab_size=300)
    encoded = encode_pairs(Corpus((Pair(3, "a b", "xyz zz"),), 3), TOKENIZER, other, 11, "drop")
    assert encoded.examples == (Example(3, tuple(TOKENIZER.encode("a b")), tuple(other.encode("xyz zz"))),)
    assert encoded.report() == "none of 1 pairs has more than 11 tokens on a side"
    assert len(encoded) == 1


def test_a_pair_over_the_limit_is_dropped_and_its_line_reported() -> None:
    # The limit counts the end mark: four tokens make five.
    encoded = encode_pairs(corpus((4, 4), (5, 1), (1, 5), (1, 1)), TOKENIZER, TOKENIZER, 5, "drop")
    assert lengths(encoded) == [(10, 4, 4), (40, 1, 1)]
    assert (encoded.over_length, encoded.empty, encoded.pairs) == ((20, 30), (), 4)
    assert encoded.report() == "dropped 2 of 4 pairs with more than 5 tokens on a side: lines 20 and 30"


def test_or_it_is_truncated_and_its_line_reported() -> None:
    encoded = encode_pairs(corpus((4, 4), (5, 1), (1, 7), (1, 1)), TOKENIZER, TOKENIZER, 5, "truncate")
    assert lengths(encoded) == [(10, 4, 4), (20, 4, 1), (30, 1, 4), (40, 1, 1)]
    assert encoded.examples[1].source == tuple(TOKENIZER.encode(letters(4)))
    assert encoded.over_length == (20, 30)
    assert encoded.report() == "truncated 2 of 4 pairs with more than 5 tokens on a side: lines 20 and 30"


@pytest.mark.parametrize("policy", ["drop", "truncate"])
def test_a_side_that_encodes_to_nothing_drops_the_pair(policy: str) -> None:
    pairs = (Pair(1, "▁", letters(50)), Pair(2, "a", "▁▁"), Pair(3, "a", "b"))
    encoded = encode_pairs(Corpus(pairs, 3), TOKENIZER, TOKENIZER, 5, policy)  # type: ignore[arg-type]
    assert [example.line for example in encoded.examples] == [3]
    assert (encoded.empty, encoded.over_length) == ((1, 2), ())
    assert encoded.report().endswith("; dropped 2 with a side that normalisation leaves empty: lines 1 and 2")


def test_a_corpus_larger_than_one_helping_keeps_its_order() -> None:
    pairs = tuple(Pair(line, letters(line % 7 + 1), letters(line % 5 + 1)) for line in range(1, 20_012))
    encoded = encode_pairs(Corpus(pairs, len(pairs)), TOKENIZER, TOKENIZER, 9, "drop")
    assert lengths(encoded) == [(line, line % 7 + 1, line % 5 + 1) for line in range(1, 20_012)]


def test_nothing_to_encode_gives_no_examples() -> None:
    assert encode_pairs(Corpus((), 0), TOKENIZER, TOKENIZER, 5, "drop").examples == ()


# --- ids to tensors -----------------------------------------------------------------------------------------


def test_a_batch_is_shifted_marked_and_padded() -> None:
    batch = collate([Example(4, (11, 12, 13), (21,)), Example(9, [14], [22, 23, 24, 25])])
    assert batch.source.tolist() == [[11, 12, 13, END_ID], [14, END_ID, PAD_ID, PAD_ID]]
    assert batch.target.tolist() == [[BEGIN_ID, 21, PAD_ID, PAD_ID, PAD_ID], [BEGIN_ID, 22, 23, 24, 25]]
    assert batch.labels.tolist() == [[21, END_ID, PAD_ID, PAD_ID, PAD_ID], [22, 23, 24, 25, END_ID]]
    assert (batch.source_lengths, batch.target_lengths, batch.lines) == ((4, 2), (2, 5), (4, 9))
    assert (batch.tokens, batch.weight, len(batch)) == (7, 1.0, 2)
    assert {tensor.dtype for tensor in (batch.source, batch.target, batch.labels)} == {torch.int64}


def test_an_empty_side_is_its_mark() -> None:
    batch = collate([Example(1, (), ())])
    assert (batch.source.tolist(), batch.target.tolist(), batch.labels.tolist()) == ([[3]], [[2]], [[3]])


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ShapeError, match="a batch was to be made of no examples, but at least one is needed"):
        collate([])


@given(EXAMPLES)
def test_padding_never_changes_a_token(examples: list[Example]) -> None:
    batch = collate(examples)
    assert batch.source.shape[1] == max(batch.source_lengths)
    assert batch.target.shape == batch.labels.shape == (len(examples), max(batch.target_lengths))
    for row, example in enumerate(examples):
        source, target = batch.source_lengths[row], batch.target_lengths[row]
        assert batch.source[row, :source].tolist() == [*example.source, END_ID]
        assert batch.target[row, :target].tolist() == [BEGIN_ID, *example.target]
        assert batch.labels[row, :target].tolist() == [*example.target, END_ID]
        for ids, length in ((batch.source, source), (batch.target, target), (batch.labels, target)):
            assert set(ids[row, length:].tolist()) <= {PAD_ID}
    assert batch.tokens == int((batch.labels != PAD_ID).sum())


def test_a_batch_moves_as_a_whole() -> None:
    batch = collate(examples_of((2, 3), (5, 1)))
    moved = batch.to("meta")
    assert {moved.source.device.type, moved.target.device.type, moved.labels.device.type} == {"meta"}
    assert (moved.source_lengths, moved.lines, moved.tokens) == (batch.source_lengths, batch.lines, batch.tokens)
    assert batch.source.device.type == "cpu"


def test_a_batch_cannot_be_changed() -> None:
    batch = collate(examples_of((2, 3)))
    with pytest.raises(AttributeError):
        batch.lines = (2,)  # type: ignore[misc]


# --- one batch over several processes -----------------------------------------------------------------------


def rows(batch: Batch) -> list[list[int | list[int]]]:
    """Each row without its padding: line, source, target, labels."""
    return [
        [
            line,
            batch.source[row, :source].tolist(),
            batch.target[row, :target].tolist(),
            batch.labels[row, :target].tolist(),
        ]
        for row, (line, source, target) in enumerate(
            zip(batch.lines, batch.source_lengths, batch.target_lengths, strict=True)
        )
    ]


@given(EXAMPLES, st.integers(1, 11))
def test_parts_cover_each_row_once(examples: list[Example], count: int) -> None:
    batch = collate(examples)
    parts = [batch.part(index, count) for index in range(count)]
    own = [row for part in parts if part.weight for row in rows(part)]
    assert sorted(own) == sorted(rows(batch))
    assert sum(part.tokens for part in parts) == batch.tokens
    for index, part in enumerate(parts):
        assert part.weight == (1.0 if index < len(batch) else 0.0)
        assert len(part) >= 1
        assert part.source.shape == (len(part), max(part.source_lengths))  # padded no more than it needs
        assert part.target.shape == part.labels.shape == (len(part), max(part.target_lengths))
        assert part.source.is_contiguous()
        assert part.labels.is_contiguous()


def test_a_process_without_rows_gets_the_first_row_weightless() -> None:
    batch = collate(examples_of((2, 3), (5, 1), (1, 1)))
    spare = batch.part(3, 5)
    assert rows(spare) == rows(batch)[:1]
    assert (spare.weight, spare.tokens) == (0.0, 0)
    assert spare.part(0, 2).weight == 0.0  # a filler's part counts no more than the filler
    assert [batch.part(index, 2).lines for index in range(2)] == [(1, 3), (2,)]


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_part_that_does_not_exist_is_named(index: int, count: int) -> None:
    with pytest.raises(ShapeError, match=rf"^part {index} of {count} was asked for, but parts are numbered"):
        collate(examples_of((1, 1))).part(index, count)


# --- which examples go together -----------------------------------------------------------------------------


def size(examples: Sequence[Example], batch: Sequence[int]) -> int:
    return (
        collate([examples[index] for index in batch]).source.numel()
        + collate([examples[index] for index in batch]).target.numel()
    )


@given(EXAMPLES, st.integers(1, 200), st.integers(0, 5), st.integers(0, 5))
def test_a_plan_has_every_example_once_within_the_budget(
    examples: list[Example], budget: int, seed: int, epoch: int
) -> None:
    plan = plan_batches(examples, batch_tokens=budget, seed=seed, epoch=epoch)
    assert sorted(index for batch in plan for index in batch) == list(range(len(examples)))
    assert all(plan)
    for batch in plan:
        assert size(examples, batch) <= budget or len(batch) == 1
    assert plan == plan_batches(examples, batch_tokens=budget, seed=seed, epoch=epoch)


def test_a_batch_is_full_before_the_next_begins() -> None:
    plan = plan_batches(examples_of(*[(4, 2)] * 25), batch_tokens=56, seed=1, epoch=0)
    assert sorted(len(batch) for batch in plan) == [4, 7, 7, 7]  # 7 rows of 5 + 3 fill it exactly
    plan = plan_batches(examples_of((4, 40), *[(4, 2)] * 14), batch_tokens=56, seed=1, epoch=0)
    assert sorted(len(batch) for batch in plan) == [1, 7, 7]  # a long one before them takes none of their room


def test_an_example_over_the_budget_stands_alone() -> None:
    examples = examples_of((2, 2), (50, 50), (2, 2), (60, 1), (3, 2))
    plan = plan_batches(examples, batch_tokens=30, seed=1, epoch=0)
    assert [1] in plan
    assert [3] in plan
    assert sorted(next(batch for batch in plan if 0 in batch)) == [0, 2, 4]


def test_no_examples_make_no_batches() -> None:
    assert plan_batches([], batch_tokens=100, seed=1, epoch=0) == []


def test_seed_and_epoch_decide_the_plan() -> None:
    examples = examples_of(*[(n % 5 + 1, n % 3 + 1) for n in range(110)])

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return plan_batches(examples, batch_tokens=70, seed=seed, epoch=epoch)

    def companies(plan: list[list[int]]) -> set[frozenset[int]]:
        return {frozenset(batch) for batch in plan}

    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)
    assert companies(plan(1, 0)) != companies(plan(1, 1))  # examples of equal length meet others in each epoch
    assert plan(1, 11) != plan(11, 1)


def test_batches_come_in_no_order_of_length() -> None:
    examples = examples_of(*[(n // 5, n // 5) for n in range(110)])
    longest = [len(examples[batch[-1]].source) for batch in plan_batches(examples, batch_tokens=70, seed=1, epoch=0)]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_a_plan_is_the_same_on_every_machine() -> None:
    plan = plan_batches(examples_of(*[(n % 3, n % 2) for n in range(7)]), batch_tokens=12, seed=1, epoch=0)
    assert plan == [[4, 1], [5, 2], [3, 6, 0]]  # or a run could not be resumed on another


def test_examples_of_like_length_stand_together() -> None:
    spread = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 40, (2000, 2), generator=spread).tolist()
    examples = examples_of(*[(source, target) for source, target in sizes])
    plan = plan_batches(examples, batch_tokens=500, seed=1, epoch=0)
    assert padding_share(examples, plan) < 0.1  # were targets not sorted within one length of source: 0.26
    unsorted = [list(range(start, start + 10)) for start in range(0, 2000, 10)]
    assert padding_share(examples, unsorted) > 0.3


def test_the_padding_share_counts_both_sides() -> None:
    examples = examples_of((3, 1), (1, 5))  # with marks (4, 2), (2, 6): 14 of 2 x (4 + 6) cells are real
    assert padding_share(examples, [[0, 1]]) == pytest.approx(6 / 20)
    assert padding_share(examples, [[0], [1]]) == 0.0
    assert padding_share(examples, []) == 0.0
