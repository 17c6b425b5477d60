"""Masks: small ones as pictures, the algebra as laws over random expressions of all kinds, and what is refused."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from largest import Largest
from mask_expressions import BATCH, EXPRESSIONS, HEADS, SHAPES, SHORT, WRITTEN, Shape, built, table
from pellucid import masks
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
    Prefix,
    Segments,
    Seq2SeqMasks,
    Window,
    seq2seq,
    sizes,
)
from pellucid.masks.joins import And, Not, Or

B, S, T = 2, 5, 7

# So few that two of them are often equal.
FEW: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["Full()", "Causal()", "Chunked(2)", "Prefix((3, 1))"]),
    lambda parts: st.one_of(
        st.builds("~{}".format, parts), st.builds("({} {} {})".format, parts, st.sampled_from("&|"), parts)
    ),
    max_leaves=3,
)


def pictures(drawn: str) -> list[str]:
    """The lines of a drawing below its title."""
    return drawn.split("\n")[1:]


# --- pictures -------------------------------------------------------------------------------------------------


def test_full_is_drawn() -> None:
    assert Full().draw(queries=2, keys=3) == (
        "Full()   rows: queries, columns: keys, ■ may look, · may not\n"
        "  0 1 2\n"
        "0 ■ ■ ■\n"
        "1 ■ ■ ■"
    )  # fmt: skip


def test_causal_is_drawn() -> None:
    assert pictures(Causal().draw(queries=5, keys=5)) == [
        "  0 1 2 3 4",
        "0 ■ · · · ·",
        "1 ■ ■ · · ·",
        "2 ■ ■ ■ · ·",
        "3 ■ ■ ■ ■ ·",
        "4 ■ ■ ■ ■ ■",
    ]


def test_a_wide_causal_mask_begins_at_the_top_left() -> None:
    assert pictures(Causal().draw(queries=2, keys=5)) == ["  0 1 2 3 4", "0 ■ · · · ·", "1 ■ ■ · · ·"]


def test_a_tall_causal_mask_sees_every_key_below_the_square() -> None:
    assert pictures(Causal().draw(queries=4, keys=2)) == ["  0 1", "0 ■ ·", "1 ■ ■", "2 ■ ■", "3 ■ ■"]


def test_a_cached_causal_step_is_named_by_its_position() -> None:
    assert pictures(Causal().draw(queries=2, keys=12, first_query=9)) == [
        "    0  1  2  3  4  5  6  7  8  9 10 11",
        " 9  ■  ■  ■  ■  ■  ■  ■  ■  ■  ■  ·  ·",
        "10  ■  ■  ■  ■  ■  ■  ■  ■  ■  ■  ■  ·",
    ]


def test_window_is_drawn() -> None:
    assert pictures(Window(before=2, after=1).draw(queries=6, keys=7)) == [
        "  0 1 2 3 4 5 6",
        "0 ■ ■ · · · · ·",
        "1 ■ ■ ■ · · · ·",
        "2 ■ ■ ■ ■ · · ·",
        "3 · ■ ■ ■ ■ · ·",
        "4 · · ■ ■ ■ ■ ·",
        "5 · · · ■ ■ ■ ■",
    ]


def test_a_window_of_nothing_beside_the_query_is_the_query_itself() -> None:
    assert pictures(Window(before=0, after=0).draw(queries=3, keys=3)) == ["  0 1 2", "0 ■ · ·", "1 · ■ ·", "2 · · ■"]


def test_a_cached_window_that_has_left_the_keys_behind_sees_nothing() -> None:
    assert pictures(Window(before=1, after=0).draw(queries=2, keys=3, first_query=3)) == [
        "  0 1 2",
        "3 · · ■",
        "4 · · ·  sees nothing",
    ]


def test_padding_is_drawn_for_each_sample() -> None:
    assert Padding((3, 0)).draw(queries=2, keys=4) == (
        "Padding((3, 0))   rows: queries, columns: keys, ■ may look, · may not\n"
        "sample 0\n"
        "  0 1 2 3\n"
        "0 ■ ■ ■ ·\n"
        "1 ■ ■ ■ ·\n"
        "sample 1\n"
        "  0 1 2 3\n"
        "0 · · · ·  sees nothing\n"
        "1 · · · ·  sees nothing"
    )


def test_a_decoder_mask_is_drawn() -> None:
    assert (Causal() & Padding((3, 1))).draw(queries=3, keys=3) == (
        "Causal() & Padding((3, 1))   rows: queries, columns: keys, ■ may look, · may not\n"
        "sample 0\n"
        "  0 1 2\n"
        "0 ■ · ·\n"
        "1 ■ ■ ·\n"
        "2 ■ ■ ■\n"
        "sample 1\n"
        "  0 1 2\n"
        "0 ■ · ·\n"
        "1 ■ · ·\n"
        "2 ■ · ·"
    )


# --- what a mask means ----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(SHORT, SHORT, SHAPES)
def test_operators_are_those_of_sets(one: str, other: str, shape: Shape) -> None:
    a, b = built(one), built(other)
    left, right = table(a, shape), table(b, shape)
    assert torch.equal(table(a & b, shape), left & right)
    assert torch.equal(table(a | b, shape), left | right)
    assert torch.equal(table(~a, shape), ~left)
    assert torch.equal(table(a - b, shape), left & ~right)
    assert torch.equal(table(a ^ b, shape), left ^ right)


@settings(max_examples=15)
@given(SHORT, SHORT, SHORT, SHAPES)
def test_the_algebra_is_boolean(one: str, other: str, third: str, shape: Shape) -> None:
    a, b, c = built(one), built(other), built(third)

    def same(left: Mask, right: Mask) -> bool:
        return torch.equal(table(left, shape), table(right, shape))

    assert same(~(a & b), ~a | ~b)
    assert same(~(a | b), ~a & ~b)
    assert same(~~a, a)
    assert same(a & (a | b), a)
    assert same(a | (a & b), a)
    assert same(a & (b | c), (a & b) | (a & c))
    assert same(a & ~a, ~Full())
    assert same(a | ~a, Full())


@settings(max_examples=30)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS)
def test_equality_is_structural_in_any_order(one: str, other: str, third: str) -> None:
    a, b, c = built(one), built(other), built(third)
    assert ~~a == a
    for left, right in ((a & b, b & a), (a | b, b | a), (a & b & c, c & (b & a)), (a | b | c, c | (b | a))):
        assert left == right
        assert hash(left) == hash(right)
    assert a & a == a
    assert a | a == a


@settings(max_examples=15)
@given(SHORT, SHORT, SHORT, SHAPES)
def test_equal_masks_are_equal_tensors(one: str, other: str, third: str, shape: Shape) -> None:
    a, b, c = built(one), built(other), built(third)
    for left, right in ((a & b, b & a), (a | b | c, c | (b | a)), (a - b, ~b & a), (a ^ b, b ^ a), (a, built(one))):
        assert left == right
        assert torch.equal(table(left, shape), table(right, shape))


@settings(max_examples=30)
@given(FEW, FEW, SHAPES)
def test_unequal_tensors_are_of_unequal_masks(one: str, other: str, shape: Shape) -> None:
    a, b = built(one), built(other)
    assert torch.equal(table(a, shape), table(b, shape)) or a != b
    assert (a == b) == (b == a)


@given(EXPRESSIONS, SHAPES)
def test_a_cached_step_is_a_row_of_the_whole_mask(expression: str, shape: Shape) -> None:
    mask = built(expression)
    queries, keys, first = shape
    whole = mask.dense(first + queries, keys)
    assert torch.equal(mask.dense(queries, keys, first_query=first), whole[:, :, first:])
    for row in range(queries):
        assert torch.equal(mask.dense(1, keys, first_query=first + row)[:, :, 0], whole[:, :, first + row])


@given(EXPRESSIONS, SHAPES)
@example("Causal()", (1, 7, 5))
@example("Heads((Causal(), ~Causal(), Full()))", (1, 7, 6))
@example("Chunked(6) | Global(7)", (1, 7, 0))
@example("Prefix(6) & ~Dilated(1)", (2, 7, 0))
@example("Segments.from_lengths(((7, 10), (8, 9)))", (2, 7, 6))
def test_within_means_the_same_in_its_window(expression: str, shape: Shape) -> None:
    mask = built(expression)
    assert torch.equal(table(mask.within(*shape), shape), table(mask, shape))


@settings(max_examples=25)
@given(EXPRESSIONS, SHAPES)
def test_broadcast_expands_to_dense(expression: str, shape: Shape) -> None:
    mask = built(expression)
    narrow, dense = mask.broadcast(*shape), mask.dense(*shape)
    assert dense.shape == (mask.batch or 1, mask.heads or 1, *shape[:2])
    assert dense.dtype == torch.bool
    assert torch.equal(narrow.expand_as(dense), dense)


@settings(max_examples=25)
@given(EXPRESSIONS, SHAPES)
def test_blind_rows_are_those_without_a_key(expression: str, shape: Shape) -> None:
    mask = built(expression)
    rows = [[[not any(cells) for cells in picture] for picture in sample] for sample in mask.dense(*shape).tolist()]
    assert mask.blind(*shape).tolist() == rows


@settings(max_examples=20)
@given(EXPRESSIONS, SHAPES, st.integers(1, 40))
def test_counts_density_and_strips_agree_with_dense(expression: str, shape: Shape, most: int) -> None:
    mask, keys = built(expression), shape[1]
    dense = mask.dense(*shape)
    counts = [[[sum(row) for row in picture] for picture in sample] for sample in dense.tolist()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "CELLS", most)
        strips = list(mask.strips(*shape))
        assert torch.equal(torch.cat(strips, dim=2), dense)
        assert all(strip.numel() <= most or strip.shape[2] == 1 for strip in strips)
        assert mask.counts(*shape).tolist() == counts
        assert mask.density(*shape) == int(dense.sum()) / dense.numel()
        assert mask.blind(*shape).tolist() == [[[not seen for seen in head] for head in sample] for sample in counts]
    assert mask.counts(*shape).tolist() == counts
    assert len(strips) == -(-shape[0] // max(1, most // (dense.shape[0] * dense.shape[1] * keys)))


@settings(max_examples=25)
@given(EXPRESSIONS, SHAPES)
def test_a_drawing_shows_every_cell(expression: str, shape: Shape) -> None:
    mask = built(expression)
    drawn = mask.draw(*shape).removeprefix(repr(mask))
    assert drawn.count("■") - 1 == int(mask.dense(*shape).sum())
    assert drawn.count("sees nothing") == int(mask.blind(*shape).sum())


@given(WRITTEN)
def test_the_repr_rebuilds_the_mask(expression: str) -> None:
    mask = built(expression)
    rebuilt = built(repr(mask))
    assert rebuilt == mask
    assert repr(rebuilt) == repr(mask)


@given(EXPRESSIONS)
def test_a_mask_can_be_copied_and_sent_to_another_process(expression: str) -> None:
    mask = built(expression)
    assert copy.deepcopy(mask) == mask
    assert pickle.loads(pickle.dumps(mask)) == mask  # noqa: S301 - made a moment ago


def test_brackets_stand_where_they_are_needed() -> None:
    a, b, c = Causal(), Window(1, 2), Padding((S, 3))
    assert repr((a | b) & ~c) == "(Causal() | Window(before=1, after=2)) & ~Padding((5, 3))"
    assert repr((a & b) | c) == "Causal() & Window(before=1, after=2) | Padding((5, 3))"
    assert repr(~(a & b)) == "~(Causal() & Window(before=1, after=2))"


# --- simplification -------------------------------------------------------------------------------------------


@given(EXPRESSIONS)
def test_full_and_its_inverse_leave_nothing_behind(expression: str) -> None:
    mask = built(expression)
    assert mask & Full() == Full() & mask == mask
    assert mask | Full() == Full() | mask == Full()
    assert mask & ~Full() == ~Full() & mask == ~Full()
    assert mask | ~Full() == ~Full() | mask == mask


@pytest.mark.parametrize(
    ("mask", "shape", "wanted"),
    [
        (Causal(), (1, 8, 7), Full()),
        (Causal(), (1, 8, 6), Causal()),
        (Causal(), (2, 2, 0), Causal()),
        (Padding((5, 7)), (1, 5, 0), Full()),
        (Padding((5, 7)), (1, 6, 0), Padding((5, 7))),
        (Window(4, 4), (5, 5, 0), Full()),
        (Window(3, 4), (5, 5, 0), Window(3, 4)),
        (Window(4, 3), (5, 5, 0), Window(4, 3)),
        (Window(9, 0), (1, 8, 7), Full()),
        (Causal() & Padding((8, 8)), (1, 8, 7), Full()),
        (Causal() & Padding((8, 3)), (1, 8, 7), Padding((8, 3))),
        (Causal() & Padding((8, 8)), (8, 8, 0), Causal()),
        (Causal() | Padding((2, 3)), (1, 8, 7), Full()),
        (~Causal(), (1, 8, 7), ~Full()),
        (Prefix(5), (7, 5, 3), Full()),
        (Prefix(5), (7, 6, 0), Prefix(5)),
        (Prefix((5, 7)), (1, 5, 0), Full()),
        (Prefix((5, 7)), (1, 6, 0), Prefix((5, 7))),
        (Chunked(7), (3, 7, 4), Full()),
        (Chunked(7), (4, 7, 4), Chunked(7)),
        (Chunked(7), (1, 8, 0), Chunked(7)),
        (Dilated(1), (5, 7, 3), Full()),
        (Dilated(2), (5, 7, 3), Dilated(2)),
        (Segments(((1, 1, 1, 2), (3, 3, 3, 3))), (1, 3, 2), Full()),
        (Segments(((1, 1, 1, 2), (3, 3, 3, 3))), (1, 4, 2), Segments(((1, 1, 1, 2), (3, 3, 3, 3)))),
        (Segments(((1, 1, 1, 2), (3, 3, 3, 3))), (1, 3, 3), Segments(((1, 1, 1, 2), (3, 3, 3, 3)))),
        (Heads((Causal(), Prefix(8), Chunked(8))), (1, 8, 7), Full()),
        (Heads((Causal(), Prefix(7), Chunked(8))), (1, 8, 7), Heads((Full(), Prefix(7), Full()))),
        (Heads((~Causal(), ~Prefix(8))), (1, 8, 7), ~Full()),
        (Heads((Causal() & Prefix(9), Causal())), (8, 8, 0), Causal()),
        (Causal() | Prefix(8) & Chunked(2), (5, 8, 0), Causal() | Chunked(2)),
    ],
)
def test_what_hides_nothing_at_this_size_falls_away(mask: Mask, shape: Shape, wanted: Mask) -> None:
    assert mask.within(*shape) == wanted


def test_only_full_sees_everything_at_any_size() -> None:
    assert Full().sees_everything
    others = (Causal(), Window(99, 99), Padding((99,)), Prefix(99), Chunked(99), Dilated(1), Global(0), ~Full())
    assert not any(mask.sees_everything for mask in (*others, Heads((Full(), Full())), Causal() | ~Causal()))


def test_kernels_are_given_no_axis_along_which_nothing_changes() -> None:
    assert Padding((S, 3)).broadcast(queries=T, keys=S).shape == (B, 1, 1, S)
    assert Causal().broadcast(queries=T, keys=S).shape == (1, 1, T, S)
    assert Full().broadcast(queries=T, keys=S).shape == (1, 1, 1, S)
    assert (Causal() & Padding((S, 3))).broadcast(queries=T, keys=S).shape == (B, 1, T, S)
    assert (Padding((S, 3)) | ~Prefix(2)).broadcast(queries=T, keys=S).shape == (B, 1, 1, S)
    assert Prefix(2).broadcast(queries=T, keys=S).shape == (1, 1, 1, S)
    assert Chunked(2).broadcast(queries=T, keys=S).shape == (1, 1, T, S)
    assert Heads((Padding((S, 3)), Full(), Prefix(2))).broadcast(queries=T, keys=S).shape == (B, HEADS, 1, S)
    assert Heads((Causal(), Full(), Prefix(2))).broadcast(queries=T, keys=S).shape == (1, HEADS, T, S)


@pytest.mark.parametrize("shape", [(B, 1, 1, S), (B, HEADS, 1, S), (1, 1, T, 1), (1, HEADS, 1, 1), (1, 1, 1, 1)])
def test_a_tensor_s_axes_of_size_1_stay_so_for_kernels(shape: tuple[int, ...]) -> None:
    assert Dense(torch.ones(shape, dtype=torch.bool)).broadcast(queries=T, keys=S).shape == shape


def test_nested_joins_are_flat_and_without_repeats() -> None:
    a, b, c = Causal(), Window(1, 2), Padding((S, 3))
    joined = (a & b) & (c & a)
    assert isinstance(joined, And)
    assert joined.parts == (a, b, c)
    either = (a | b) | (c | a)
    assert isinstance(either, Or)
    assert either.parts == (a, b, c)


# --- numbers to be added to scores --------------------------------------------------------------------------------

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=12)
@given(SHORT, SHORT, SHAPES)
def test_two_additive_masks_and_large_scores_stay_finite(
    dtype: torch.dtype, one: str, other: str, shape: Shape
) -> None:
    a, b = built(one), built(other)
    added = a.additive(*shape, dtype=dtype)
    assert added.dtype == dtype
    assert added.shape == a.dense(*shape).shape
    assert torch.equal(added == 0, a.dense(*shape))
    both = added + b.additive(*shape, dtype=dtype)
    assert torch.equal((both == 0).expand(BATCH, HEADS, *shape[:2]), table(a, shape) & table(b, shape))
    for scores in (torch.full_like(both, 100), torch.full_like(both, -100)):
        total = both + torch.where(both == 0, -scores, scores)
        assert torch.isfinite(total).all()
        weights = total.softmax(-1)
        assert torch.isfinite(weights).all()
        hidden = ~(both == 0) & (both == 0).any(-1, keepdim=True)
        assert not weights[hidden].any()


@settings(max_examples=20)
@given(SHORT, SHAPES)
def test_additive_and_bool_attend_alike(expression: str, shape: Shape) -> None:
    mask = built(expression)
    look = table(mask, shape)
    scores = 5 * torch.randn(look.shape, dtype=torch.float64)
    ours = (scores + mask.additive(*shape, dtype=torch.float64)).softmax(-1)
    wanted = scores.masked_fill(~look, float("-inf")).softmax(-1)
    seeing = look.any(-1)
    torch.testing.assert_close(ours[seeing], wanted[seeing], rtol=0, atol=1e-12)
    assert torch.isfinite(ours).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=str)
def test_an_additive_mask_holds_floats(dtype: torch.dtype) -> None:
    with pytest.raises(MaskError, match=rf"{dtype} was asked for, but it holds floats; ask for dense\(...\) instead$"):
        Causal().additive(2, 3, dtype=dtype)


# --- what is held -------------------------------------------------------------------------------------------------


def watched() -> Largest:
    """A watch over what is done within."""
    return Largest()  # type: ignore[no-untyped-call]


LONG = 8192


def test_dense_is_what_holds_all_cells() -> None:
    with watched() as largest:
        (Causal() & Padding((S, 3))).dense(130, 70)
    assert largest.cells == B * 130 * 70


@pytest.mark.parametrize("ask", [Mask.counts, Mask.density, Mask.blind, Mask.draw], ids=lambda ask: ask.__name__)
def test_a_large_mask_is_looked_at_in_strips(ask: Callable[..., object]) -> None:
    mask = Causal() & Padding((5000,))
    with watched() as largest:
        ask(mask, LONG, LONG)
    assert LONG < largest.cells <= 2**22 + 2**16


def test_what_needs_no_cells_makes_none() -> None:
    mask = Causal() & Padding((LONG, 5000))
    with watched() as largest:
        assert repr(mask) == "Causal() & Padding((8192, 5000))"
        assert hash(mask) == hash(Padding((LONG, 5000)) & Causal())
        assert mask == Padding((LONG, 5000)) & Causal()
        assert mask.within(LONG, LONG) == mask
        assert mask <= Causal()
    assert largest.cells == 0


@pytest.mark.parametrize(
    ("mask", "cells"),
    [
        (Padding((LONG, 5000)), 2 * LONG),
        (~Padding((LONG, 5000)) | Prefix(7), 2 * LONG),
        (Heads((Padding((LONG, 5000)), Prefix(7), Full())), 2 * 3 * LONG),
    ],
    ids=["padding", "join", "heads"],
)
def test_what_speaks_of_keys_alone_costs_no_queries(mask: Mask, cells: int) -> None:
    with watched() as largest:
        look = mask.broadcast(LONG, LONG)
    assert look.numel() == largest.cells == cells


def test_scattered_padding_costs_no_queries() -> None:
    tokens = torch.ones(B, 1024, dtype=torch.int64)
    tokens[0, 3] = tokens[1, 5] = 0
    mask = Padding.from_tokens(tokens)
    with watched() as largest:
        assert mask.broadcast(1024, 1024).shape == (B, 1, 1, 1024)
    assert largest.cells <= B * 1024


# --- values ---------------------------------------------------------------------------------------------------


def test_masks_written_otherwise_are_not_equal() -> None:
    different = [
        Full(),
        Causal(),
        ~Causal(),
        Window(1, 2),
        Window(2, 1),
        Padding((1, 2)),
        Padding((2, 1)),
        Causal() & Window(1, 2),
        Causal() | Window(1, 2),
        ~(Causal() & Window(1, 2)),
        Prefix(2),
        Prefix((2,)),
        Prefix((2, 1)),
        Padding((2,)),
        Chunked(2),
        Dilated(2),
        Global(2),
        Global((2, 1)),
        Segments(((2, 1),)),
        Heads((Causal(),)),
        Heads((Causal(), Full())),
        Heads((Full(), Causal())),
        ~Heads((Full(), Causal())),
        Dense(torch.tensor([[True, False]])),
        Dense(torch.tensor([[True], [False]])),
        Dense(torch.tensor([[False, True]])),
    ]
    assert len(set(different)) == len(different)
    for place, mask in enumerate(different):
        assert [place] == [index for index, other in enumerate(different) if other == mask]


@pytest.mark.parametrize(
    "lengths",
    [(S, 3), [S, 3], torch.tensor([S, 3]), torch.tensor([S, 3], dtype=torch.int32), range(S, 1, -2)],
    ids=["tuple", "list", "int64", "int32", "range"],
)
def test_lengths_may_be_numbers_or_a_tensor(lengths: list[int]) -> None:
    assert Padding(lengths) == Padding((S, 3))
    assert Padding(lengths).lengths == (S, 3)
    assert Padding(lengths).batch == B


@pytest.mark.parametrize("mask", [Full(), Causal(), Window(1, 2), Padding((1, 2)), ~Causal(), Causal() & Window(1, 2)])
@pytest.mark.parametrize("name", ["before", "lengths", "part", "parts", "new"])
def test_a_mask_cannot_be_changed(mask: Mask, name: str) -> None:
    before = hash(mask), repr(mask)
    with pytest.raises((AttributeError, TypeError)):
        setattr(mask, name, 3)
    assert (hash(mask), repr(mask)) == before
    assert not hasattr(mask, "new")


def test_what_dense_hands_out_is_the_caller_s() -> None:
    mask = Padding((S, 3))
    mask.dense(queries=T, keys=S).fill_(False)
    assert mask.dense(queries=T, keys=S).sum() == T * (S + 3)


def test_the_numbers_of_samples_are_agreed() -> None:
    assert Causal().batch is None
    assert (Causal() & Padding((S, 3)) & Padding((1, 1))).batch == B
    assert (~Padding((S, 3))).batch == B
    assert (Causal() & Padding((S, 3))).heads is None
    assert (Causal() & Prefix((S, 3)) & Segments(((0, 1), (1, 1)))).batch == B
    assert (Causal() & Prefix(S)).batch is None


def test_the_numbers_of_heads_are_agreed() -> None:
    heads = Heads((Causal(), Padding((S, 3)), ~Window(1, 2)))
    assert (heads.batch, heads.heads) == (B, HEADS)
    assert ((heads & Prefix(2)).batch, (~heads | Full() & Prefix(2)).heads) == (B, HEADS)
    assert Heads((Causal(),)).heads == 1


# --- the three masks of an encoder-decoder ----------------------------------------------------------------------


def test_seq2seq_makes_three_masks_from_lengths() -> None:
    triple = seq2seq(source_lengths=(S, 3), target_lengths=torch.tensor([T, 2]))
    assert triple == Seq2SeqMasks(Padding((S, 3)), Causal() & Padding((T, 2)), Padding((S, 3)))
    assert triple.encoder.dense(S, S).shape == (B, 1, S, S)
    assert triple.decoder.dense(T, T).shape == (B, 1, T, T)
    assert triple.cross.dense(T, S).shape == (B, 1, T, S)
    assert masks.seq2seq is seq2seq


def test_seq2seq_without_lengths_pads_nothing() -> None:
    assert seq2seq() == Seq2SeqMasks(Full(), Causal(), Full())
    assert seq2seq(source_lengths=(S, 3)).decoder == Causal()
    assert seq2seq(target_lengths=(T, 2)).cross == Full()


def test_the_triple_serves_a_cached_step() -> None:
    decoder = seq2seq((S, 3), (T, 2)).decoder
    whole = decoder.dense(T, T)
    for step in range(T):
        row = decoder.dense(queries=1, keys=step + 1, first_query=step)
        assert torch.equal(row[:, :, 0], whole[:, :, step, : step + 1])


# --- what is refused ------------------------------------------------------------------------------------------


def test_a_mask_has_no_truth_value() -> None:
    with pytest.raises(MaskError, match=r"write a & b, a \| b or ~a"):
        Causal() and Padding((S, 3))
    with pytest.raises(MaskError, match="no truth value"):
        Causal() or Padding((S, 3))
    with pytest.raises(MaskError, match="no truth value"):
        not Causal()


@pytest.mark.parametrize("join", [And, Or, Mask.__and__, Mask.__or__, Mask.__sub__, Mask.__xor__])
def test_masks_of_different_batches_are_not_combined(join: Callable[[Mask, Mask], Mask]) -> None:
    with pytest.raises(MaskError, match=r"masks of 2 and 3 samples .*Padding\(\(5, 3\)\).*combine masks of one batch"):
        join(Padding((S, 3)), Padding((S, 3, 1)))


@pytest.mark.parametrize("join", [And, Or, Mask.__and__, Mask.__or__, Mask.__sub__, Mask.__xor__])
def test_masks_of_different_heads_are_not_combined(join: Callable[[Mask, Mask], Mask]) -> None:
    one, other = Heads((Causal(), Full())), Heads((Causal(), Full(), Prefix(2)))
    with pytest.raises(
        MaskError, match=r"^masks of 2 and 3 heads .*Heads\(\(Causal\(\), Full\(\)\)\) with .*; combine"
    ):
        join(one, other)


def test_a_mask_is_combined_with_masks_only() -> None:
    for combine in (Mask.__and__, Mask.__or__, Mask.__sub__, Mask.__xor__):
        assert combine.__wrapped__(Causal(), True) is NotImplemented  # type: ignore[attr-defined]


@pytest.mark.parametrize("sizes", [(-1, 3, 0), (3, -1, 0), (3, 3, -1)])
def test_sizes_are_never_negative(sizes: Shape) -> None:
    with pytest.raises(MaskError, match="never negative; give counts from 0 up"):
        Causal().dense(*sizes)


def test_an_empty_window_is_lawful() -> None:
    assert Causal().dense(queries=0, keys=3).shape == (1, 1, 0, 3)
    assert Padding((S, 3)).blind(queries=2, keys=0).tolist() == [[[True, True]]] * B


@pytest.mark.parametrize(("before", "after"), [(-1, 0), (0, -1)])
def test_a_window_counts_from_zero(before: int, after: int) -> None:
    with pytest.raises(MaskError, match=f"before={before}, after={after}.*give numbers from 0 up"):
        Window(before=before, after=after)


@pytest.mark.parametrize("lengths", [(), (S, -1), torch.tensor([-1, S])], ids=["none", "negative", "tensor"])
def test_padding_needs_a_length_for_each_sample(lengths: tuple[int, ...]) -> None:
    with pytest.raises(MaskError, match="whole number from 0 up for each sample; count the real tokens"):
        Padding(lengths)


def test_seq2seq_needs_as_many_sources_as_targets() -> None:
    with pytest.raises(MaskError, match="2 source lengths and 3 target lengths; give one for each sentence"):
        seq2seq(source_lengths=(S, 3), target_lengths=(T, 2, 1))


def test_the_inverse_of_the_inverse_is_the_part() -> None:
    inverse = ~Causal()
    assert isinstance(inverse, Not)
    assert ~inverse is inverse.part
