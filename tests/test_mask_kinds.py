"""The kinds of mask: each is its one formula cell by cell, a value like any other, and refuses what it cannot mean."""

import copy
import dataclasses
import operator
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from mask_expressions import LENGTH, SHAPES, Shape, by_head, by_sample, cells, striped
from pellucid.errors import MaskError
from pellucid.masks import (
    Causal,
    Chunked,
    Dense,
    Dilated,
    Full,
    Global,
    Heads,
    Mask,
    Padding,
    Predicate,
    Prefix,
    Segments,
    Window,
)

B, H, Q, K = 2, 3, 5, 7

Cell = Callable[[int, int, int, int], Any]

IDS = ((0, 0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 5, 5, 5, 5, 5, 5), (3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3, 3))
FLAT, OF_SAMPLES, OF_HEADS = cells(1, LENGTH, K), cells(2, B, LENGTH, K), cells(3, B, H, LENGTH, K)
KEYS_ONLY, HEADS_ONLY = cells(4, B, 1, 1, K), cells(5, 1, H, LENGTH, 1)

KINDS: dict[str, tuple[Mask, Cell]] = {
    "full": (Full(), lambda b, h, q, k: True),
    "causal": (Causal(), lambda b, h, q, k: k <= q),
    "window": (Window(before=2, after=1), lambda b, h, q, k: q - 2 <= k <= q + 1),
    "padding": (Padding((4, 1)), lambda b, h, q, k: k < (4, 1)[b]),
    "prefix": (Prefix(3), lambda b, h, q, k: k < 3),
    "prefix of each": (Prefix((5, 2)), lambda b, h, q, k: k < (5, 2)[b]),
    "segments": (Segments(IDS), lambda b, h, q, k: IDS[b][q] == IDS[b][k]),
    "chunked": (Chunked(3), lambda b, h, q, k: q // 3 == k // 3),
    "dilated": (Dilated(3), lambda b, h, q, k: (q - k) % 3 == 0),
    "global": (Global((1, 5, 11)), lambda b, h, q, k: q in {1, 5, 11} or k in {1, 5, 11}),
    "global nowhere": (Global(()), lambda b, h, q, k: False),
    "heads": (
        Heads((Causal(), Padding((4, 1)), ~Chunked(2))),
        lambda b, h, q, k: (k <= q, k < (4, 1)[b], q // 2 != k // 2)[h],
    ),
    "dense": (Dense(FLAT), lambda b, h, q, k: bool(FLAT[q, k])),
    "dense of samples": (Dense(OF_SAMPLES), lambda b, h, q, k: bool(OF_SAMPLES[b, q, k])),
    "dense of heads": (Dense(OF_HEADS), lambda b, h, q, k: bool(OF_HEADS[b, h, q, k])),
    "dense of keys": (Dense(KEYS_ONLY), lambda b, h, q, k: bool(KEYS_ONLY[b, 0, 0, k])),
    "dense of queries": (Dense(HEADS_ONLY), lambda b, h, q, k: bool(HEADS_ONLY[0, h, q, 0])),
    "predicate": (Predicate(striped), striped),
    "predicate of samples": (Predicate(by_sample, batch=B), by_sample),
    "predicate of heads": (Predicate(by_head, heads=H), by_head),
}
SPECIMENS = pytest.mark.parametrize("mask", [mask for mask, _ in KINDS.values()], ids=list(KINDS))


def sentence(error: BaseException) -> str:
    """The message of an error, which says on one line what was wrong and, behind a semicolon, what to do."""
    message = str(error)
    assert message.count(";") >= 1
    assert "\n" not in message
    assert not message.endswith(".")
    return message


# --- formulas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "formula"), KINDS.values(), ids=KINDS)
@settings(max_examples=10)
@given(shape=SHAPES)
@example(shape=(Q, K, 0))
@example(shape=(K, Q, 0))
@example(shape=(1, K, 9))
@example(shape=(K, 1, 9))
@example(shape=(3, K, 4))
def test_each_kind_is_its_formula(mask: Mask, formula: Cell, shape: Shape) -> None:
    queries, keys, first = shape
    wanted = [
        [
            [[formula(b, h, first + row, k) for k in range(keys)] for row in range(queries)]
            for h in range(mask.heads or 1)
        ]
        for b in range(mask.batch or 1)
    ]
    assert mask.dense(*shape).tolist() == wanted


@SPECIMENS
@pytest.mark.parametrize("shape", [(0, 0, 0), (0, K, 3), (Q, 0, 0), (Q, 0, 3)], ids=str)
def test_an_empty_window_is_lawful_for_each_kind(mask: Mask, shape: Shape) -> None:
    queries, keys, _ = shape
    rows = (mask.batch or 1, mask.heads or 1, queries)
    assert mask.dense(*shape).shape == (*rows, keys)
    assert mask.broadcast(*shape).expand(*rows, keys).dtype == torch.bool
    assert mask.additive(*shape, dtype=torch.float64).shape == (*rows, keys)
    assert torch.cat(list(mask.strips(*shape)), dim=2).shape == (*rows, keys)
    assert torch.equal(mask.counts(*shape), torch.zeros(rows, dtype=torch.int64))
    assert torch.equal(mask.blind(*shape), torch.ones(rows, dtype=torch.bool))
    assert mask.density(*shape) == 0
    assert mask.draw(*shape).count("sees nothing") == torch.Size(rows).numel()


# --- values ---------------------------------------------------------------------------------------------------


VALUES = [mask for mask, _ in KINDS.values()]
VALUES += [
    ~Causal(),
    Causal() & Padding((4, 1)),
    Causal() | Dense(FLAT),
    Heads((~Full(), Global(3) - Causal(), Full())),
]


@pytest.mark.parametrize("mask", VALUES, ids=repr)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))],  # noqa: S301 - made a moment ago
    ids=["copy", "deepcopy", "pickle"],
)
def test_each_kind_is_copied_and_sent_whole(mask: Mask, again: Callable[[Mask], Mask]) -> None:
    other = again(mask)
    assert other == mask
    assert hash(other) == hash(mask)
    assert repr(other) == repr(mask)
    assert {mask: "found"}[other] == "found"
    assert torch.equal(other.dense(Q, K), mask.dense(Q, K))


def parts_of(mask: Mask) -> list[str]:
    """The names of what a mask is made of."""
    return [field.name for field in dataclasses.fields(mask)] if dataclasses.is_dataclass(mask) else ["parts"]


@pytest.mark.parametrize("mask", VALUES, ids=repr)
def test_no_part_of_a_mask_can_be_set_or_deleted(mask: Mask) -> None:
    mask = copy.deepcopy(mask)  # the others stay whole, if this one does not
    before = repr(mask)
    for name in (*parts_of(mask), "new"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(mask, name, 3)
        with pytest.raises((AttributeError, TypeError)):
            delattr(mask, name)
    assert repr(mask) == before
    assert not hasattr(mask, "new")
    assert not hasattr(mask, "__dict__")


def test_all_specimens_are_different_values() -> None:
    assert len(set(VALUES)) == len(VALUES)
    for place, mask in enumerate(VALUES):
        assert [place] == [index for index, other in enumerate(VALUES) if other == mask]
        written: object = repr(mask)
        assert mask != written


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (Full(), "Full()"),
        (Causal(), "Causal()"),
        (Window(2, 1), "Window(before=2, after=1)"),
        (Padding([4, 1]), "Padding((4, 1))"),
        (Padding([4]), "Padding((4,))"),
        (Prefix(3), "Prefix(3)"),
        (Prefix([3]), "Prefix((3,))"),
        (Prefix(torch.tensor([3, 1])), "Prefix((3, 1))"),
        (Segments([[0, 1], [2, 2]]), "Segments(((0, 1), (2, 2)))"),
        (Segments([[0, -1]]), "Segments(((0, -1),))"),
        (Chunked(3), "Chunked(3)"),
        (Chunked(size=3), "Chunked(3)"),
        (Dilated(2), "Dilated(2)"),
        (Dilated(step=2), "Dilated(2)"),
        (Global(3), "Global((3,))"),
        (Global([5, 0, 5, 3]), "Global((0, 3, 5))"),
        (Global(torch.tensor([5, 0])), "Global((0, 5))"),
        (Heads([Causal(), ~Prefix(2)]), "Heads((Causal(), ~Prefix(2)))"),
        (Heads([Causal()]), "Heads((Causal(),))"),
        (~Heads([Causal() | Full() - Prefix(1)]), "~Heads((Causal() | ~Prefix(1),))"),
        (Predicate(striped), "Predicate(striped)"),
        (Predicate(by_sample, batch=2, heads=3), "Predicate(by_sample, batch=2, heads=3)"),
        (Predicate(partial(striped)), "Predicate(partial)"),
    ],
)
def test_each_kind_prints_as_it_is_written(mask: Mask, written: str) -> None:
    assert repr(mask) == written


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Global([5, 0, 5]), Global((0, 5))),
        (Global(3), Global([3])),
        (Prefix([3, 1]), Prefix(torch.tensor([3, 1], dtype=torch.int32))),
        (Segments([[0, 1], [2, 2]]), Segments(torch.tensor([[0, 1], [2, 2]]))),
        (Heads([Causal() & Prefix(2), Full()]), Heads((Prefix(2) & Causal(), Full()))),
    ],
    ids=repr,
)
def test_what_means_the_same_is_equal(one: Mask, other: Mask) -> None:
    assert one == other
    assert hash(one) == hash(other)


# --- padding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ([[7, 8, 9, 0, 0], [7, 0, 0, 0, 0]], Padding((3, 1))),
        ([[0, 0, 7, 8, 9], [0, 0, 0, 0, 7]], ~Padding((2, 4))),
        ([[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], Padding((0, 0))),
        ([[7, 8, 9, 7, 8], [7, 8, 9, 7, 8]], Padding((5, 5))),
        ([[7, 8, 9, 7, 8], [7, 8, 0, 0, 0]], Padding((5, 2))),
        ([[7, 8, 9, 7, 8], [0, 0, 0, 7, 8]], ~Padding((0, 3))),
        ([[0, 0, 0, 0, 0], [7, 8, 0, 0, 0]], Padding((0, 2))),
        ([[0, 0, 0, 0, 0], [0, 0, 0, 7, 8]], ~Padding((5, 3))),
        ([[], []], Padding((0, 0))),
    ],
    ids=["right", "left", "all", "none", "none and right", "none and left", "all and right", "all and left", "no keys"],
)
def test_padding_is_found_on_its_side(tokens: list[list[int]], wanted: Mask) -> None:
    given = torch.tensor(tokens, dtype=torch.int64)
    assert Padding.from_tokens(given) == wanted
    assert given.tolist() == tokens
    assert Padding.from_tokens(given) == Padding.from_tokens(given.int())
    assert Padding.from_tokens(given.where(given != 0, 99), pad_id=99) == wanted
    assert Padding.from_keep(given != 0) == wanted


@pytest.mark.parametrize(
    "tokens",
    [[[7, 0, 8, 0, 9], [7, 8, 9, 7, 8]], [[0, 7, 8, 9, 0], [7, 0, 0, 0, 8]], [[7, 8, 0, 0, 0], [0, 0, 7, 8, 9]]],
    ids=["within", "around", "right and left"],
)
def test_scattered_padding_is_a_tensor(tokens: list[list[int]]) -> None:
    mask = Padding.from_tokens(torch.tensor(tokens))
    assert isinstance(mask, Dense)
    assert (mask.batch, mask.heads, mask.known) == (B, None, (None, Q))
    assert mask.dense(3, Q).tolist() == [[[[token != 0 for token in row]] * 3] for row in tokens]


@settings(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=Q, max_size=Q), min_size=B, max_size=B), st.integers(0, 3))
def test_every_padding_is_hidden_wherever_it_stands(keep: list[list[bool]], pad_id: int) -> None:
    tokens = torch.full((B, Q), pad_id).masked_fill_(torch.tensor(keep), pad_id + 1)
    assert Padding.from_tokens(tokens, pad_id).dense(K, Q).tolist() == [[[row] * K] for row in keep]


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 3, 5)], ids=str)
def test_padding_is_found_in_one_row_for_each_sample(shape: tuple[int, ...], unchecked: None) -> None:
    with pytest.raises(MaskError) as caught:
        Padding.from_tokens(torch.ones(shape, dtype=torch.int64))
    assert sentence(caught.value) == (
        f"padding was given with the shape {shape}, but it is (batch, keys) with a row for each sample; "
        "give one row for each"
    )


# --- documents ------------------------------------------------------------------------------------------------


def test_segments_are_made_from_lengths() -> None:
    mask = Segments.from_lengths(((2, 1, 4), (7,), (0, 3, 0, 4)))
    assert mask == Segments(((0, 0, 1, 2, 2, 2, 2), (0,) * 7, (1, 1, 1, 3, 3, 3, 3)))
    assert mask.batch == 3
    assert mask.known == (7, 7)


def test_samples_of_documents_are_equally_long() -> None:
    with pytest.raises(MaskError) as caught:
        Segments.from_lengths(((2, 1), (1, 1)))
    assert sentence(caught.value) == (
        "Segments was given the ids [[0, 0, 1], [0, 1]], but it needs a row of whole numbers for each sample, all of "
        "one length; number the documents of each row"
    )


@pytest.mark.parametrize("lengths", [((2, -1), (1, 1)), ((2.5, 1), (1, 1))], ids=["negative", "float"])
def test_a_document_s_length_is_a_whole_number(lengths: Any, unchecked: None) -> None:
    with pytest.raises(MaskError) as caught:
        Segments.from_lengths(lengths)
    assert sentence(caught.value).startswith("Segments was given the ")


# --- heads ----------------------------------------------------------------------------------------------------


def test_each_head_has_its_own_mask() -> None:
    parts = (Causal(), Padding((4, 1)) & Window(1, 0), Dense(OF_SAMPLES), Full())
    mask = Heads(parts)
    dense = mask.dense(Q, K, first_query=2)
    assert dense.shape == (B, 4, Q, K)
    for head, part in enumerate(parts):
        assert torch.equal(dense[:, head], part.dense(Q, K, first_query=2).expand(B, 1, Q, K)[:, 0])
    assert mask.known == (LENGTH, K)


def test_heads_join_masks_of_all_heads_and_of_samples() -> None:
    mask = (Heads((Causal(), Full(), ~Full())) & Padding((4, 1))) | Global(0)
    assert mask.dense(3, 4).int().tolist() == [
        [
            [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]],
            [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
            [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]],
        ],
        [
            [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]],
            [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]],
            [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]],
        ],
    ]


# --- tensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "inside", "batch", "heads", "known"),
    [
        ((Q, K), (1, 1, Q, K), None, None, (Q, K)),
        ((B, Q, K), (B, 1, Q, K), B, None, (Q, K)),
        ((B, H, Q, K), (B, H, Q, K), B, H, (Q, K)),
        ((1, H, Q, K), (1, H, Q, K), None, H, (Q, K)),
        ((B, 1, 1, K), (B, 1, 1, K), B, None, (None, K)),
        ((1, Q, 1), (1, 1, Q, 1), None, None, (Q, None)),
        ((1, 1), (1, 1, 1, 1), None, None, (None, None)),
    ],
    ids=str,
)
def test_a_tensor_has_two_to_four_axes(
    shape: tuple[int, ...],
    inside: tuple[int, ...],
    batch: int | None,
    heads: int | None,
    known: tuple[int | None, int | None],
) -> None:
    given = cells(7, *shape)
    mask = Dense(given)
    assert (mask.batch, mask.heads, mask.known) == (batch, heads, known)
    assert mask.cells.shape == inside
    wanted = given.reshape(inside).expand(batch or 1, heads or 1, Q, K)
    assert torch.equal(mask.dense(Q, K), wanted)
    assert torch.equal(mask.dense(2, 3, first_query=1), wanted[:, :, 1:3, :3])


def test_a_tensor_is_copied() -> None:
    given = cells(8, Q, K)
    mask, same, inverse = Dense(given), Dense(given.clone()), Dense(~given)
    before = hash(mask), repr(mask)
    given.logical_not_()
    assert torch.equal(mask.dense(Q, K)[0, 0], ~given)
    mask.cells.fill_(False)
    mask.dense(Q, K).fill_(False)
    mask.broadcast(Q, K).fill_(False)
    assert (hash(mask), repr(mask)) == before
    assert mask == same
    assert hash(mask) == hash(same)
    assert mask != inverse
    assert Dense(given) == inverse


def test_an_array_and_lists_are_tensors_too() -> None:
    given = cells(8, Q, K)
    assert Dense(given.numpy()) == Dense(given.tolist()) == Dense(given)
    tokens = [[7, 8, 0], [9, 0, 0]]
    assert Padding.from_tokens(tokens) == Padding.from_tokens(torch.tensor(tokens).numpy()) == Padding((2, 1))


def test_a_tensor_is_equal_by_content() -> None:
    given = cells(9, Q, K)
    assert Dense(given) == Dense(given[None]) == Dense(given[None, None]) == Dense(given.T.contiguous().T)
    assert len({Dense(given), Dense(given[None]), Dense(given.T.contiguous().T)}) == 1
    assert Dense(given, note="near Causal()") == Dense(given)
    assert hash(Dense(given, note="near Causal()")) == hash(Dense(given))
    changed = given.clone()
    changed[4, 6] ^= True
    assert Dense(changed) != Dense(given)
    same = torch.ones(1, 1, dtype=torch.bool)
    assert Dense(same) != Dense(same.expand(Q, K))
    assert Dense(torch.ones(2, 6, dtype=torch.bool)) != Dense(torch.ones(3, 4, dtype=torch.bool))
    assert Dense(same) != Full()


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (Dense(torch.tensor([[True, False], [True, True]])), "Dense(2 x 2, 3 of 4 seen)"),
        (Dense(torch.ones(B, Q, K, dtype=torch.bool)), "Dense(2 x 1 x 5 x 7, 70 of 70 seen)"),
        (Dense(torch.zeros(1, H, Q, K, dtype=torch.bool)), "Dense(3 x 5 x 7, 0 of 105 seen)"),
        (Dense(torch.ones(Q, 1, dtype=torch.bool), note="near Full()"), "Dense(5 x 1, 5 of 5 seen; near Full())"),
        (Dense(torch.ones(50, 70, dtype=torch.bool)), "Dense(50 x 70, 3,500 of 3,500 seen)"),
    ],
)
def test_a_tensor_prints_its_size(mask: Mask, written: str) -> None:
    assert repr(mask) == written


# --- functions ------------------------------------------------------------------------------------------------


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [3, 0, 0, 0, 0, 0, 3]])
LENGTHS, REACH, OFFSET = torch.tensor([5, 2]), torch.tensor([1, 4, 2]), torch.tensor(2)
GRID = cells(10, K, K)

MASK_MODS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "keys alone": lambda b, h, q, k: k < 3,
    "queries alone": lambda b, h, q, k: q > 1,
    "samples alone": lambda b, h, q, k: b == 0,
    "nothing": lambda b, h, q, k: q.new_ones((), dtype=torch.bool),
    "documents": lambda b, h, q, k: DOCUMENTS[b, q] == DOCUMENTS[b, k],
    "documents row by row": lambda b, h, q, k: DOCUMENTS[b][q] == DOCUMENTS[b][k],
    "causal documents": lambda b, h, q, k: (DOCUMENTS[b, q] == DOCUMENTS[b, k]) & (k <= q),
    "padding": lambda b, h, q, k: k < LENGTHS[b],
    "a reach for each head": lambda b, h, q, k: (q - k).abs() <= REACH[h],
    "an offset": lambda b, h, q, k: q + OFFSET >= k,
    "a table": lambda b, h, q, k: GRID[q, k],
    "a choice": lambda b, h, q, k: torch.where(q < 3, k <= q, k > q),
    "all four": lambda b, h, q, k: (q + 2 * k + 3 * h) % (b + 2) == 0,
}


@pytest.mark.parametrize("mask_mod", MASK_MODS.values(), ids=MASK_MODS)
@pytest.mark.parametrize(("batch", "heads"), [(B, H), (None, None), (B, None), (None, H)], ids=str)
def test_a_function_means_what_it_means_to_flex_attention(
    mask_mod: Callable[..., Any], batch: int | None, heads: int | None
) -> None:
    mask = Predicate(mask_mod, batch=batch, heads=heads)
    assert (mask.batch, mask.heads, mask.known) == (batch, heads, (None, None))
    for queries, keys in ((Q, K), (1, K), (K, 1)):
        wanted = create_mask(mask_mod, batch, heads, queries, keys, device="cpu")
        assert torch.equal(mask.dense(queries, keys), wanted)
    whole = create_mask(mask_mod, batch, heads, K, K, device="cpu")
    assert torch.equal(mask.dense(3, Q, first_query=4), whole[:, :, 4:, :Q])
    assert torch.equal(mask.dense(1, K, first_query=6), whole[:, :, 6:])


def test_a_function_joins_other_masks() -> None:
    documents = Predicate(MASK_MODS["documents"], batch=B)
    wanted = Segments(DOCUMENTS)
    for ours, theirs in (
        (documents & Causal(), wanted & Causal()),
        (~documents | Padding((4, 1)), ~wanted | Padding((4, 1))),
        (Heads((documents, Causal(), ~documents)), Heads((wanted, Causal(), ~wanted))),
    ):
        assert torch.equal(ours.dense(Q, K), theirs.dense(Q, K))
        assert torch.equal(ours.dense(2, K, first_query=5), theirs.dense(2, K, first_query=5))


def test_functions_are_equal_where_they_are_the_same_object() -> None:
    assert Predicate(striped) == Predicate(striped)
    assert hash(Predicate(striped)) == hash(Predicate(striped))
    assert Predicate(lambda b, h, q, k: q >= k) != Predicate(lambda b, h, q, k: q >= k)
    assert Predicate(striped, batch=2) != Predicate(striped) != Predicate(striped, heads=2)
    assert ~Predicate(striped) & Causal() == Causal() & ~Predicate(striped)


@pytest.mark.parametrize(
    ("mask_mod", "gave"),
    [
        (lambda b, h, q, k: q - k, "torch.int64"),
        (lambda b, h, q, k: (q - k).double(), "torch.float64"),
        (lambda b, h, q, k: torch.stack([q > k, q < k]), "torch.bool of shape"),
        (lambda b, h, q, k: (q > k, q < k), ""),
        (lambda b, h, q, k: True, "True"),
        (lambda b, h, q, k: None, "None"),
    ],
    ids=["whole number", "float", "two cells", "tuple", "True", "None"],
)
def test_a_function_gives_one_truth_value_for_each_cell(mask_mod: Callable[..., Any], gave: str) -> None:
    with pytest.raises(
        MaskError,
        match=rf"^Predicate\(<lambda>\) gave {gave}.*FlexAttention takes one bool.*; return a comparison",
    ) as caught:
        Predicate(mask_mod).dense(Q, K)
    assert sentence(caught.value)


@pytest.mark.parametrize("given", [{"batch": 0}, {"batch": -1}, {"heads": 0}, {"heads": -3}], ids=str)
def test_a_function_tells_one_or_more_apart(given: dict[str, int]) -> None:
    with pytest.raises(MaskError) as caught:
        Predicate(striped, **given)
    assert sentence(caught.value).startswith("Predicate was given ")


# --- what a mask knows ----------------------------------------------------------------------------------------


OF_SEVEN = Segments((IDS[0][:K], IDS[1][:K]))
OF_FIVE_BY_ELEVEN = Dense(torch.ones(5, 11, dtype=torch.bool))
LIMITED: list[tuple[Mask, int | None, int | None]] = [
    (OF_SEVEN, 7, 7),
    (OF_FIVE_BY_ELEVEN, 5, 11),
    (Dense(torch.ones(1, 11, dtype=torch.bool)), None, 11),
    (Dense(torch.ones(5, 1, dtype=torch.bool)), 5, None),
    (~OF_SEVEN, 7, 7),
    (Causal() & OF_SEVEN, 7, 7),
    (Causal() | OF_FIVE_BY_ELEVEN, 5, 11),
    (OF_SEVEN & OF_FIVE_BY_ELEVEN, 5, 7),
    (Causal() - OF_SEVEN, 7, 7),
    (Causal() ^ (OF_FIVE_BY_ELEVEN & ~OF_SEVEN), 5, 7),
    (Heads((Causal(), OF_FIVE_BY_ELEVEN, OF_SEVEN)), 5, 7),
]


@pytest.mark.parametrize(("mask", "queries", "keys"), LIMITED, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("ask", ["dense", "broadcast", "additive", "blind", "counts", "density", "draw", "strips"])
def test_what_a_mask_does_not_know_is_refused(mask: Mask, queries: int | None, keys: int | None, ask: str) -> None:
    def asked(*shape: int) -> object:
        answer = getattr(mask, ask)(*shape)
        return list(answer) if ask == "strips" else answer

    assert mask.known == (queries, keys)
    most, widest = queries or 13, keys or 13
    assert asked(most, widest) is not None
    assert asked(1, widest, most - 1) is not None
    for shape, what, known, wanted in (
        ((most + 1, widest, 0), "queries", queries, most + 1),
        ((1, widest, most), "queries", queries, most + 1),
        ((most, widest + 1, 0), "keys", keys, widest + 1),
    ):
        if known is None:
            assert asked(*shape) is not None
            continue
        with pytest.raises(MaskError) as caught:
            asked(*shape)
        assert sentence(caught.value).endswith(
            f" knows {known} {what} and was asked for {wanted}; ask for fewer, or make it from more"
        )


@pytest.mark.parametrize("mask", [mask for name, (mask, _) in KINDS.items() if not name.startswith(("segm", "dense"))])
def test_all_other_kinds_know_any_size(mask: Mask) -> None:
    assert mask.known == (None, None)
    assert mask.dense(2, 300, first_query=1000).shape[2:] == (2, 300)


# --- what is refused ------------------------------------------------------------------------------------------


def bools(*values: bool) -> Tensor:
    """A tensor of truth values."""
    return torch.tensor(values)


COUNTED = "but it needs a whole number from 0 up for each sample; count the"
REFUSED: dict[str, tuple[Callable[..., Mask], Any, str]] = {
    "no length": (Padding, (), r"Padding was given the lengths \(\), " + COUNTED + " real tokens of each"),
    "a negative length": (Padding, (5, -1), r"Padding was given the lengths \(5, -1\), " + COUNTED),
    "a length of half": (Padding, (5, 2.5), r"Padding was given the lengths \(5, 2.5\), " + COUNTED),
    "lengths of floats": (Padding, torch.tensor([5.0, 3.0]), r"Padding was given the lengths \[5.0, 3.0\], " + COUNTED),
    "rows of lengths": (Padding, torch.tensor([[5, 3]]), r"Padding was given the lengths \[\[5, 3\]\], " + COUNTED),
    "one length for all": (Padding, 5, "Padding was given the lengths 5, " + COUNTED),
    "lengths of text": (Padding, "53", "Padding was given the lengths '53', " + COUNTED),
    "no lengths at all": (Padding, None, "Padding was given the lengths None, " + COUNTED),
    "lengths of truth": (Padding, (True, False), r"Padding was given the lengths \(True, False\), " + COUNTED),
    "a row to keep": (Padding, bools(True, False), r"Padding was given the lengths \[True, False\], " + COUNTED),
    "no prefix": (Prefix, (), r"Prefix was given the lengths \(\), " + COUNTED + " keys of each prefix"),
    "a negative prefix": (Prefix, -1, r"Prefix was given the lengths \(?-1,?\)?, " + COUNTED),
    "negative prefixes": (Prefix, (3, -1), r"Prefix was given the lengths \(3, -1\), " + COUNTED),
    "a prefix of half": (Prefix, 2.5, "Prefix was given the lengths 2.5, " + COUNTED),
    "a prefix of truth": (Prefix, True, "Prefix was given the lengths True, " + COUNTED),
    "prefixes of truth": (Prefix, (True, False), r"Prefix was given the lengths \(True, False\), " + COUNTED),
    "no row of ids": (Segments, (), r"Segments was given the ids \(\), but it needs a row of whole numbers .*; number"),
    "one row of ids": (Segments, (0, 0, 1), r"Segments was given the ids \(0, 0, 1\), .*; number the documents of"),
    "ids of one axis": (Segments, torch.tensor([0, 0, 1]), r"Segments was given the ids \[0, 0, 1\], .*; number the"),
    "ragged ids": (Segments, ((0, 1), (0,)), r"Segments was given the ids \(\(0, 1\), \(0,\)\), .*all of one length;"),
    "ids of floats": (Segments, torch.zeros(1, 2), r"Segments was given the ids \[\[0.0, 0.0\]\], .*; number the"),
    "ids of truth": (Segments, ((True, False),), r"Segments was given the ids \(\(True, False\),\), .*; number the"),
    "no ids at all": (Segments, None, "Segments was given the ids None, .*; number the documents of each row"),
    "a size of nothing": (Chunked, 0, "Chunked was given the size 0, but it counts positions; give a whole number"),
    "a negative size": (Chunked, -2, "Chunked was given the size -2, but it counts positions; give a whole number"),
    "a size of half": (Chunked, 2.5, "Chunked was given the size 2.5, but it counts positions; give a whole number"),
    "a size of truth": (Chunked, True, "Chunked was given the size True, but it counts positions; give a whole number"),
    "no size": (Chunked, None, "Chunked was given the size None, but it counts positions; give a whole number"),
    "a step of nothing": (Dilated, 0, "Dilated was given the step 0, but it counts positions; give a whole number"),
    "a negative step": (Dilated, -2, "Dilated was given the step -2, but it counts positions; give a whole number"),
    "a step of half": (Dilated, 0.5, "Dilated was given the step 0.5, but it counts positions; give a whole number"),
    "a step of truth": (Dilated, True, "Dilated was given the step True, but it counts positions; give a whole number"),
    "a negative position": (Global, -1, r"Global was given the positions \(?-1,?\)?, but .*; name the positions that"),
    "negative positions": (Global, (0, -1), r"Global was given the positions \(0, -1\), but .*; name the positions"),
    "a position of half": (Global, 0.5, "Global was given the positions 0.5, but it needs whole numbers from 0 up;"),
    "a position of truth": (Global, True, r"Global was given the positions \(?True,?\)?, but it needs whole numbers"),
    "no position": (Global, None, "Global was given the positions None, but it needs whole numbers from 0 up; name"),
    "no head": (Heads, (), r"Heads was given \(\), but it needs a mask for each head that treats all heads alike;"),
    "heads in a head": (Heads, (Heads((Full(),)),), r"Heads was given \(Heads\(\(Full\(\),\)\),\), .*; give one for"),
    "heads within": (Heads, (Causal() & Heads((Full(), Prefix(2))),), "Heads was given .*alike; give one for each"),
    "a dense of heads": (Heads, (Dense(OF_HEADS),), r"Heads was given \(Dense\(2 x .*\),\), .*; give one for"),
    "one mask for heads": (Heads, Causal(), r"Heads was given Causal\(\), but it needs a mask for .*; give one for each"),
    "a name for a head": (Heads, ("causal",), r"Heads was given \('causal',\), but it needs a mask .*; give one for"),
    "heads of two batches": (
        Heads,
        (Padding((5,)), Causal(), Padding((5, 3))),
        r"masks of 1 and 2 samples were combined in Padding\(\(5,\)\) .*; combine masks of one batch",
    ),
    "no tensor": (Dense, "causal", "Dense was given something of type str, but it takes a tensor or an array; give one"),
    "a tensor of floats": (Dense, torch.ones(2, 3), "Dense was given a tensor of torch.float32, but a mask is bool"),
    "a tensor of numbers": (Dense, torch.ones(2, 3).long(), r"Dense was given a tensor of torch.int64, .*; convert it"),
    "a tensor of one axis": (Dense, bools(True), r"Dense was given a tensor of shape \(1,\), .*; give two to four"),
    "a tensor of five": (Dense, cells(1, 1, 1, 1, 2, 3), r"Dense was given a tensor of shape \(1, 1, 1, 2, 3\), .*; "),
    "a tensor of no sample": (Dense, cells(1, 0, 1, 2, 3), r"Dense was given a tensor of shape \(0, 1, 2, 3\), .*; "),
    "a tensor of no head": (Dense, cells(1, 2, 0, 2, 3), r"Dense was given a tensor of shape \(2, 0, 2, 3\), .*; "),
    "no function": (Predicate, 3, r"Predicate was given 3, but it takes a function of \(b, h, q, k\); give a mask_mod"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_kind_cannot_mean_is_refused(
    kind: Callable[..., Mask], given: Any, message: str, unchecked: None
) -> None:
    with pytest.raises(MaskError, match="^" + message) as caught:
        kind(given)
    assert sentence(caught.value)


@pytest.mark.parametrize(
    ("before", "after"), [(-1, 0), (0, -1), (0.5, 1), (1, 0.5), (True, 1), (1, False), (None, 1)], ids=str
)
def test_a_window_counts_whole_keys(before: Any, after: Any, unchecked: None) -> None:
    with pytest.raises(MaskError) as caught:
        Window(before, after)
    assert sentence(caught.value) == (
        f"Window was given before={before}, after={after}, but both count keys beside the query; give numbers from 0 up"
    )


@pytest.mark.parametrize("join", [Mask.__and__, Mask.__or__, Mask.__sub__, Mask.__xor__])
def test_a_mask_is_not_joined_with_a_tensor(join: Any, unchecked: None) -> None:
    with pytest.raises(MaskError, match=r"joined with a tensor of shape \(2, 3\), .*; wrap it in Dense\(...\)"):
        join(Causal(), torch.ones(2, 3, dtype=torch.bool))


def test_a_long_refusal_is_short(unchecked: None) -> None:
    for kind, numbers in ((Padding, [5] * 999 + [-1]), (Segments, [[0] * 999, [1]]), (Global, range(-999, 999))):
        with pytest.raises(MaskError) as caught:
            kind(numbers)  # type: ignore[arg-type]
        assert len(sentence(caught.value)) < 250


# --- what is kept, told and joined ----------------------------------------------------------------------------


def test_numbers_of_a_tensor_are_kept_as_plain_ones(unchecked: None) -> None:
    two: Any = torch.tensor(2)
    for made, plain in ((Window(two, two), Window(2, 2)), (Chunked(two), Chunked(2)), (Dilated(two), Dilated(2))):
        assert (made, hash(made), repr(made)) == (plain, hash(plain), repr(plain))


def test_a_function_is_told_how_many_samples_and_heads_there_are() -> None:
    lengths = torch.tensor([5, 3])
    mask = Predicate(lambda b, h, q, k: (k < lengths[b]) & (k >= h))
    joined = ~(Causal() & mask) | Heads((mask, mask, mask))
    told = joined.told(2, 3)
    assert (told.batch, told.heads) == (2, 3)
    keys = mask.to("flax", queries=1, keys=7, batch=2, heads=3)["mask"]
    assert torch.equal(torch.from_numpy(keys), mask.told(2, 3).dense(1, 7))
    assert keys.sum() == (5 + 4 + 3) + (3 + 2 + 1)
    assert Causal().told(2, 3) == Causal()


@pytest.mark.parametrize("join", [operator.and_, operator.or_, operator.sub, operator.xor])
def test_a_tensor_is_no_mask_until_it_is_wrapped(join: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(
        MaskError, match=r"^a mask was joined with a tensor of shape \(3, 3\), .*; wrap it in Dense\(...\)"
    ):
        join(Causal(), torch.ones(3, 3, dtype=torch.bool))


def test_a_mask_alone_is_not_one_for_each_head(unchecked: None) -> None:
    lone: Any = Causal()
    with pytest.raises(MaskError, match=r"^Heads was given Causal\(\), but it needs a mask for each head"):
        Heads(lone)
