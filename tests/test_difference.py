"""Differences of masks: exact pictures, cells and counts, then laws over random expressions, then what is refused."""

import dataclasses

import pytest
import torch
from hypothesis import given

from mask_expressions import EXPRESSIONS, SHAPES, Shape, built, table
from pellucid.errors import MaskError
from pellucid.masks import Causal, Chunked, Full, Heads, Mask, Padding, Segments, Window
from pellucid.masks.difference import Difference, difference

LEGEND = "rows: queries, columns: keys, ■ both, · neither, + only the second, - only the first"


def found(a: Mask, b: Mask, queries: int, keys: int, first_query: int = 0) -> Difference:
    """The difference of two masks that differ."""
    result = difference(a, b, queries=queries, keys=keys, first_query=first_query)
    assert result is not None
    return result


# --- pictures -------------------------------------------------------------------------------------------------


def test_both_masks_are_drawn_in_one_grid() -> None:
    result = found(Causal(), Window(1, 2), queries=3, keys=5)
    assert result.cell == (0, 0, 0, 1)
    assert (result.count, result.total, result.a_sees) == (7, 15, False)
    assert result.picture.split("\n") == [
        "Causal() and Window(before=1, after=2)",
        LEGEND,
        "  0 1 2 3 4",
        "0 ■ + + · ·",
        "1 ■ ■ + + ·",
        "2 - ■ ■ + +",
    ]


def test_a_difference_is_printed_as_a_sentence_and_the_picture() -> None:
    result = found(Causal() & Padding((2, 2)), Causal() & Padding((2, 3)), queries=3, keys=3)
    assert str(result) == (
        "1 of 18 cells differs, first sample 1, head 0, query 2, key 2, which only the second may look at\n"
        + result.picture
    )
    twice = str(found(Full(), Causal(), queries=2, keys=1_001))
    assert twice.startswith(
        "1,999 of 2,002 cells differ, first sample 0, head 0, query 0, key 1, which only the first may look at\n"
    )


def test_only_samples_and_heads_that_differ_are_drawn() -> None:
    a = Heads((Causal(), Full(), Causal()))
    b = Heads((Causal(), Full(), Full())) & Padding((5, 2))
    result = found(a, b, queries=3, keys=3)
    assert result.cell == (0, 2, 0, 1)
    assert (result.count, result.total) == (3 + 1 + 3 + 2, 2 * 3 * 9)
    assert result.picture.split("\n")[2:] == [
        "sample 0, head 2",
        "  0 1 2",
        "0 ■ + +",
        "1 ■ ■ +",
        "2 ■ ■ ■",
        "sample 1, head 0",
        "  0 1 2",
        "0 ■ · ·",
        "1 ■ ■ ·",
        "2 ■ ■ -",
        "sample 1, head 1",
        "  0 1 2",
        "0 ■ ■ -",
        "1 ■ ■ -",
        "2 ■ ■ -",
        "sample 1, head 2",
        "  0 1 2",
        "0 ■ + ·",
        "1 ■ ■ ·",
        "2 ■ ■ -",
    ]


def test_cached_rows_are_named_by_their_positions() -> None:
    result = found(Causal(), Window(2, 0), queries=2, keys=12, first_query=9)
    assert result.cell == (0, 0, 9, 0)
    assert result.a_sees
    assert result.picture.split("\n")[2:] == [
        "    0  1  2  3  4  5  6  7  8  9 10 11",
        " 9  -  -  -  -  -  -  -  ■  ■  ■  ·  ·",
        "10  -  -  -  -  -  -  -  -  ■  ■  ■  ·",
    ]


@pytest.mark.parametrize(
    ("cell", "rows", "columns"),
    [
        ((50, 61), (18, 81), (29, 92)),
        ((3, 99), (0, 63), (36, 99)),
        ((88, 0), (25, 88), (0, 63)),
    ],
)
def test_a_large_mask_is_drawn_around_the_first_difference(
    cell: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    queries, keys = 89, 100
    one = torch.zeros(queries, keys, dtype=torch.bool)
    one[cell] = True
    result = difference(one, ~Full(), queries=queries, keys=keys)
    assert result is not None
    assert (result.cell, result.count, result.total) == ((0, 0, *cell), 1, 8_900)
    lines = result.picture.split("\n")
    assert lines[1] == (
        f"{LEGEND}; around the first difference, queries {rows[0]} to {rows[1]}, keys {columns[0]} to {columns[1]}"
    )
    assert lines[2].split() == [str(key) for key in range(columns[0], columns[1] + 1)]
    assert [line.split()[0] for line in lines[3:]] == [str(row) for row in range(rows[0], rows[1] + 1)]
    marked = [
        (row, key) for row, line in enumerate(lines[3:]) for key, mark in enumerate(line.split()[1:]) if mark == "-"
    ]
    assert marked == [(cell[0] - rows[0], cell[1] - columns[0])]


def test_of_a_wide_mask_only_the_keys_are_cut() -> None:
    result = found(Causal(), Causal() & Window(70, 0), queries=3, keys=5_000, first_query=4_000)
    assert result.cell == (0, 0, 4_000, 0)
    lines = result.picture.split("\n")
    assert lines[1].endswith("queries 4000 to 4002, keys 0 to 63")
    assert len(lines) == 2 + 1 + 3


def test_samples_that_differ_elsewhere_are_not_drawn_in_the_part_around_the_first() -> None:
    result = found(Padding((100, 10)), Padding((100, 3)) & Padding((90, 5)), queries=2, keys=100)
    assert result.cell == (0, 0, 0, 90)
    assert "sample 0" in result.picture
    assert "sample 1" not in result.picture


# --- sizes ----------------------------------------------------------------------------------------------------


def test_no_more_than_some_million_cells_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    dense = Mask.dense

    def watched(mask: Mask, queries: int, keys: int, first_query: int = 0) -> torch.Tensor:
        looked_at.append(queries * keys)
        return dense(mask, queries, keys, first_query)

    monkeypatch.setattr(Mask, "dense", watched)
    result = found(Causal(), Window(2_999, 0), queries=3_001, keys=3_011)
    assert (result.cell, result.count, result.total) == ((0, 0, 3_000, 0), 1, 3_001 * 3_011)
    assert sum(looked_at) == 3_001 * 3_011
    assert max(looked_at) <= 2**22 < sum(looked_at)


def test_the_first_cell_is_that_of_the_first_sample_wherever_its_row_is() -> None:
    later, sooner = Padding((1_800, 1_000)), Padding((1_799, 3))
    result = found(Causal() & later, Causal() & sooner, queries=1_900, keys=1_900)
    assert result.cell == (0, 0, 1_799, 1_799)
    assert result.count == sum(1_900 - key for key in (1_799, *range(3, 1_000)))


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_where_there_is_no_cell_nothing_differs(queries: int, keys: int) -> None:
    assert difference(Full(), ~Full(), queries=queries, keys=keys) is None


# --- what is compared -----------------------------------------------------------------------------------------


def test_masks_that_are_written_otherwise_may_be_equal_at_a_size() -> None:
    assert difference(Causal(), Window(6, 0), queries=7, keys=5) is None
    assert difference(Causal(), Window(5, 0), queries=7, keys=5) is not None
    assert difference(Causal(), Full(), queries=1, keys=8, first_query=7) is None
    assert difference(Chunked(3), Segments(((0, 0, 0, 1, 1, 1, 2),)), queries=7, keys=7) is None
    assert difference(Padding((5, 5)), Full(), queries=3, keys=5) is None


def test_a_tensor_is_a_mask_whose_first_row_stands_at_the_first_query() -> None:
    rows = Causal().dense(2, 7, first_query=3)[0, 0]
    assert difference(rows, Causal(), queries=2, keys=7, first_query=3) is None
    assert difference(Causal(), rows.expand(2, 3, 2, 7), queries=2, keys=7, first_query=3) is None
    result = difference(rows[None], Full(), queries=2, keys=7, first_query=3)
    assert result is not None
    assert (result.cell, result.count, result.a_sees) == ((0, 0, 3, 4), 5, False)
    assert difference(rows[:1], rows[:1], queries=1, keys=7, first_query=3) is None


def test_a_tensor_of_floats_is_refused() -> None:
    with pytest.raises(MaskError, match=r"torch.float32, but a mask is bool, True = may look; convert it"):
        difference(torch.ones(2, 3), Full(), queries=2, keys=3)


def test_what_tells_samples_apart_is_compared_with_what_does_not() -> None:
    one, other = Heads((Full(), ~Full(), Full())), Padding((3, 7))
    result = found(one, other, queries=5, keys=7)
    assert result.cell == (0, 0, 0, 3)
    assert (result.count, result.total) == (2 * 5 * 4 + 5 * (3 + 7), 2 * 3 * 5 * 7)
    back = found(other, one, queries=5, keys=7)
    assert (back.cell, back.count, back.a_sees) == (result.cell, result.count, not result.a_sees)


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (Padding((1, 2)), Padding((1, 2, 3)), "samples"),
        (Heads((Causal(), Full())), Heads((Causal(), Full(), Full())), "heads"),
    ],
)
def test_masks_of_different_numbers_are_not_compared(a: Mask, b: Mask, what: str) -> None:
    with pytest.raises(MaskError) as caught:
        difference(a, b, queries=2, keys=2)
    assert str(caught.value) == (
        f"difference was given {a!r} of 2 {what} and {b!r} of 3, but it compares cell by cell; give masks of as many {what}"
    )


def test_a_mask_that_does_not_reach_the_size_is_named() -> None:
    with pytest.raises(
        MaskError, match=r"^Dense\(2 x 3, 6 of 6 seen\) knows 2 queries and was asked for 4; ask for fewer"
    ):
        difference(Causal(), torch.ones(2, 3, dtype=torch.bool), queries=4, keys=3)
    with pytest.raises(MaskError, match="never negative; give counts from 0 up"):
        difference(Causal(), Full(), queries=-1, keys=3)


def test_a_difference_is_a_value() -> None:
    result = found(Causal(), Full(), 2, 3)
    assert result == found(Causal(), Full(), 2, 3)
    assert hash(result) == hash(found(Causal(), Full(), 2, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.count = 7  # type: ignore[misc]


# --- laws -----------------------------------------------------------------------------------------------------


@given(EXPRESSIONS, EXPRESSIONS, SHAPES)
def test_a_difference_is_what_the_tensors_say(one: str, other: str, shape: Shape) -> None:
    a, b = built(one), built(other)
    left, right = table(a, shape), table(b, shape)
    result = difference(a, b, queries=shape[0], keys=shape[1], first_query=shape[2])
    wrong = (left != right).nonzero().tolist()
    if not wrong:
        assert result is None
        return
    assert result is not None
    sample, head, row, key = wrong[0]
    assert result.cell == (sample, head, shape[2] + row, key)
    assert result.a_sees == bool(left[sample, head, row, key])
    assert result.count / result.total == len(wrong) / left.numel()
    drawn = "\n".join(result.picture.split("\n")[2:])
    assert drawn.count("+") + drawn.count("-") == result.count
