"""Recognition of tensors: expressions by table, then what spoils them, then laws over random masks and tensors."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from mask_expressions import EXPRESSIONS, SHAPES, Shape, built, cells
from pellucid.errors import MaskError
from pellucid.masks import Causal, Dense, Full, Heads, Mask, Padding, Segments, Window
from pellucid.masks.candidates import tightest
from pellucid.masks.recognise import recognise

# What is recognised as it was written, at 7 queries and 11 keys.
AS_WRITTEN = [
    # one kind, in either polarity
    "Causal()",
    "~Causal()",
    "Window(before=2, after=1)",
    "Window(before=3, after=0)",
    "Window(before=0, after=2)",
    "~Window(before=1, after=2)",
    "Padding((5, 3))",
    "Padding((4, 4))",
    "Padding((11, 0))",
    "~Padding((2, 0))",
    "~Padding((3, 3))",
    "Chunked(3)",
    "~Chunked(4)",
    "Dilated(2)",
    "Dilated(3)",
    "~Dilated(2)",
    "Global((0, 4))",
    "~Global((2,))",
    "Segments(((0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4), (0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3)))",
    "Segments(((0, 1, 0, 1, 2, 0, 1, 3, 0, 1, 2),))",
    "~Segments(((0, 1, 0, 1, 2, 0, 1, 3, 0, 1, 2),))",
    # conjunctions
    "Causal() & Padding((5, 3))",
    "Causal() & ~Padding((1, 2))",
    "Causal() & Padding((6, 3)) & ~Padding((0, 1))",
    "Padding((9, 4)) & ~Padding((0, 2))",
    "Window(before=2, after=1) & Padding((7, 3))",
    "Window(before=2, after=0) & Padding((7, 3))",
    "Causal() & Chunked(3)",
    "Chunked(4) & Padding((7, 6))",
    "Causal() & Dilated(2)",
    "Window(before=4, after=2) & Dilated(2)",
    "Causal() & Segments(((0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 6), (0, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6)))",
    "Causal() & Segments(((0, 1, 0, 1, 0, 0, 1, 2, 3, 4, 5), (0, 0, 1, 1, 0, 2, 2, 3, 4, 5, 6)))",
    # the inverse of a conjunction
    "~(Causal() & Padding((5, 3)))",
    "~(Causal() & Chunked(3))",
    "~(Window(before=2, after=1) & Padding((7, 3)))",
    "~Causal() | Padding((2, 3))",
    # unions, also within a conjunction
    "Causal() | Prefix(3)",
    "Causal() | Prefix((4, 2))",
    "Causal() | Chunked(4)",
    "Window(before=1, after=1) | Global((0,))",
    "Window(before=1, after=1) | Prefix(2)",
    "Window(before=1, after=1) | Dilated(3)",
    "Chunked(3) | Global((0,))",
    "(Causal() | Prefix((4, 2))) & Padding((7, 6))",
    "(Causal() | Prefix(3)) & Padding((7, 6))",
    "(Causal() | Chunked(4)) & Padding((7, 6))",
    "Causal() & (Window(before=1, after=0) | Prefix(2)) & Padding((7, 5))",
    "Causal() & (Window(before=1, after=0) | Dilated(3))",
    "(Window(before=1, after=1) | Global((3,))) & Padding((11, 7))",
    # heads
    "Heads((Causal(), Window(before=2, after=0), Full()))",
    "Heads((Causal() & Padding((5, 3)), Padding((5, 3)), ~Full()))",
]

# Queries, keys, the first query; the mask; what it is in so small a window.
CASES = [
    # nothing and everything
    ((3, 5, 0), "Full()", "Full()"),
    ((3, 5, 0), "~Full()", "~Full()"),
    ((1, 1, 0), "Causal()", "Full()"),
    ((1, 1, 0), "Padding((1, 0))", "Padding((1, 0))"),
    ((1, 1, 0), "~Causal()", "~Full()"),
    ((1, 8, 7), "Causal()", "Full()"),
    ((3, 5, 0), "Padding((5, 9))", "Full()"),
    ((3, 5, 0), "Padding((9, 4))", "Padding((5, 4))"),
    ((3, 5, 0), "Heads((Full(), Padding((5, 6)), Window(2, 4)))", "Full()"),
    # numbers that the size leaves open, and parts that it makes idle
    ((3, 5, 0), "Causal() & Window(2, 0)", "Causal()"),
    ((5, 5, 0), "Causal() & Window(2, 3)", "Window(before=2, after=0)"),
    ((5, 5, 0), "Causal() & Window(9, 3) & Padding((5, 2))", "Causal() & Padding((5, 2))"),
    ((5, 5, 0), "Window(9, 9) & Padding((5, 2))", "Padding((5, 2))"),
    ((5, 5, 0), "Window(9, 1)", "Window(before=4, after=1)"),
    ((5, 5, 0), "Window(0, 0) & Dilated(3)", "Chunked(1)"),
    ((5, 5, 0), "Causal() | Prefix(1)", "Causal()"),
    ((5, 5, 0), "Causal() & Prefix(3)", "Causal() & Padding((3,))"),
    ((7, 7, 0), "Chunked(4) & Chunked(2)", "Chunked(2)"),
    ((7, 7, 0), "Dilated(2) & Dilated(3)", "Dilated(6)"),
    ((7, 7, 0), "~(~Causal() | ~Padding((5, 3)))", "Causal() & Padding((5, 3))"),
    ((7, 7, 0), "Causal() - Window(1, 0)", "~Window(before=1, after=6)"),
    (
        (7, 7, 0),
        "Causal() & Window(2, 2) & Segments(((0, 0, 0, 0, 1, 1, 1),))",
        "Window(before=2, after=0) & Chunked(4)",
    ),
    # cached rows
    ((1, 8, 3), "Causal()", "Causal()"),
    ((1, 8, 6), "Window(2, 0) & Padding((8, 5))", "Chunked(4) & Padding((7, 5))"),
    ((2, 8, 6), "Causal() & Padding((8, 3))", "Causal() & Padding((8, 3))"),
    ((3, 8, 4), "Window(2, 1)", "Window(before=2, after=1)"),
    ((3, 11, 5), "Causal() & Chunked(4)", "Causal() & Chunked(4)"),
    ((3, 11, 5), "~(Causal() & Padding((7, 3)))", "~(Causal() & Padding((7, 3)))"),
    ((3, 11, 5), "Dilated(3)", "Dilated(3)"),
    ((2, 5, 90), "Window(88, 0)", "Window(before=88, after=0)"),
    ((2, 5, 90), "~Full()", "~Full()"),
]


def rendered(mask: Mask, tensor: Tensor, first_query: int = 0) -> Tensor:
    """What the mask sees, in the shape of a tensor."""
    queries, keys = tensor.shape[-2:]
    dense = mask.dense(queries, keys, first_query)
    return dense.expand(tensor.shape) if tensor.dim() == 4 else dense.reshape(tensor.shape)


def spoiled(mask: Mask) -> str:
    """The note of a mask that was not recognised."""
    assert isinstance(mask, Dense)
    return mask.note


# --- expressions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", AS_WRITTEN)
def test_what_is_written_is_recognised(expression: str) -> None:
    tensor = built(expression).dense(7, 11)
    assert repr(recognise(tensor)) == expression


@pytest.mark.parametrize(("shape", "expression", "wanted"), CASES)
def test_the_shortest_expression_is_found(shape: Shape, expression: str, wanted: str) -> None:
    tensor = built(expression).dense(*shape)
    found = recognise(tensor, first_query=shape[2])
    assert repr(found) == wanted
    assert torch.equal(rendered(found, tensor, shape[2]), tensor)


def test_a_tensor_may_have_two_to_four_axes() -> None:
    tensor = (Causal() & Padding((3,))).dense(5, 7)
    assert repr(recognise(tensor[0, 0])) == "Causal() & Padding((3,))"
    assert repr(recognise(tensor[0])) == "Causal() & Padding((3,))"
    assert repr(recognise(tensor.expand(2, 1, 5, 7))) == "Causal() & Padding((3, 3))"
    assert repr(recognise(tensor[0].expand(2, 5, 7))) == "Causal() & Padding((3, 3))"
    assert repr(recognise(tensor.expand(2, 3, 5, 7))) == "Causal() & Padding((3, 3))"


def test_a_tensor_that_is_not_in_one_piece_is_recognised_and_left_alone() -> None:
    tensor = (Causal() & Padding((3, 5))).dense(5, 7).transpose(2, 3).contiguous().transpose(2, 3)
    before = tensor.clone()
    assert repr(recognise(tensor)) == "Causal() & Padding((3, 5))"
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 5), (0, 1, 3, 5)])
def test_a_tensor_without_cells_sees_all_there_is(shape: tuple[int, ...]) -> None:
    assert recognise(torch.zeros(shape, dtype=torch.bool)) == Full()


def test_documents_in_pieces_are_numbered_as_they_appear() -> None:
    ids = ((7, 7, 2, 9, 2, 7, 9), (1, 1, 1, 1, 1, 1, 1))
    tensor = Segments(ids).dense(7, 7)
    assert recognise(tensor) == Segments(((0, 0, 1, 2, 1, 0, 2), (0, 0, 0, 0, 0, 0, 0)))


# --- what spoils an expression ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "cell", "where"),
    [
        ("Causal()", (0, 0, 3, 1), "query 3, key 1"),
        ("Causal()", (0, 0, 1, 3), "query 1, key 3"),
        ("Full()", (0, 0, 2, 5), "query 2, key 5"),
        ("Chunked(3)", (0, 0, 4, 3), "query 4, key 3"),
        ("Window(before=2, after=1)", (0, 0, 4, 3), "query 4, key 3"),
        ("Causal() & Padding((6, 4))", (0, 0, 4, 2), "sample 0, query 4, key 2"),
        ("Causal() & Padding((6, 4))", (1, 0, 5, 3), "sample 1, query 5, key 3"),
        ("Causal() & Padding((6, 4))", (1, 0, 1, 3), "sample 1, query 1, key 3"),
        ("Padding((6, 4))", (1, 0, 0, 2), "sample 1, query 0, key 2"),
    ],
)
def test_a_cell_that_spoils_an_expression_is_named(expression: str, cell: tuple[int, ...], where: str) -> None:
    tensor = built(expression).dense(7, 7).clone()
    tensor[cell] = ~tensor[cell]
    found = recognise(tensor)
    assert spoiled(found) == f"nearest {expression}, spoiled first at {where}"
    assert torch.equal(rendered(found, tensor), tensor)
    assert f"nearest {expression}" in repr(found)


def test_the_first_of_several_spoiling_cells_is_that_of_the_first_sample() -> None:
    tensor = (Causal() & Padding((512, 500))).dense(512, 512).clone()
    tensor[0, 0, 401, 17] = tensor[0, 0, 410, 3] = tensor[1, 0, 40, 20] = False
    assert spoiled(recognise(tensor)) == (
        "nearest Causal() & Padding((512, 500)), spoiled first at sample 0, query 401, key 17"
    )


def test_the_head_that_is_spoiled_is_named() -> None:
    tensor = Heads((Causal() & Padding((7, 4)), Full(), Causal())).dense(7, 7).clone()
    tensor[1, 2, 4, 1] = False
    found = recognise(tensor)
    assert spoiled(found) == "nearest Causal(), spoiled first at sample 1, head 2, query 4, key 1"
    assert torch.equal(found.dense(7, 7), tensor)


def test_the_query_that_is_spoiled_is_named_by_its_position() -> None:
    tensor = Causal().dense(5, 11, first_query=4).clone()
    tensor[0, 0, 2, 1] = False
    found = recognise(tensor, first_query=4)
    assert spoiled(found) == "nearest Causal(), spoiled first at query 6, key 1"
    assert torch.equal(found.dense(5, 11, first_query=4), tensor)
    assert not found.dense(4, 11).any()


def test_a_lone_row_that_is_not_recognised_speaks_of_every_query() -> None:
    rows = cells(7, 2, 1, 11)
    found = recognise(rows, first_query=3)
    assert isinstance(found, Dense)
    for first_query in (0, 3, 90):
        assert torch.equal(found.dense(1, 11, first_query)[:, 0], rows)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_tensor_that_is_no_bool_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(MaskError) as caught:
        recognise(torch.ones(3, 5, dtype=dtype))
    assert str(caught.value) == (
        f"recognise was given a tensor of {dtype}, but it takes bool, True = may look; convert it with masks.read(...), "
        "which knows what each library means"
    )


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5, 7, 1)])
def test_a_tensor_of_another_rank_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MaskError) as caught:
        recognise(torch.ones(shape, dtype=torch.bool))
    assert str(caught.value) == (
        f"recognise was given a tensor of shape {shape}, but it takes (Q, K), (batch, Q, K) or (batch, heads, Q, K); "
        "give two to four axes"
    )


def test_a_position_is_not_negative() -> None:
    with pytest.raises(MaskError, match="first_query=-1, but positions are never negative; give the position of row 0"):
        recognise(torch.ones(3, 5, dtype=torch.bool), first_query=-1)


# --- laws -----------------------------------------------------------------------------------------------------


@given(EXPRESSIONS, SHAPES)
def test_what_is_recognised_gives_the_tensor_again(expression: str, shape: Shape) -> None:
    tensor = built(expression).dense(*shape)
    found = recognise(tensor, first_query=shape[2])
    assert torch.equal(rendered(found, tensor, shape[2]), tensor)


@given(st.integers(0, 999), st.integers(1, 3), st.integers(1, 2), SHAPES)
def test_random_cells_are_given_again(seed: int, batch: int, heads: int, shape: Shape) -> None:
    tensor = cells(seed, batch, heads, shape[0], shape[1])
    found = recognise(tensor, first_query=shape[2])
    assert torch.equal(rendered(found, tensor, shape[2]), tensor)


@given(
    st.sampled_from(["Causal()", "Window(2, 1)", "Chunked(3)", "Dilated(2)", "Segments(((0, 1, 0, 1, 1, 2, 2),))"]),
    st.sampled_from(["Full()", "Padding((5, 3))", "Padding((7, 1))", "~Padding((2, 0))"]),
)
def test_either_polarity_is_recognised(one: str, other: str) -> None:
    assume("Segments" not in one or other == "Full()")
    mask = built(f"{one} & {other}")
    tensor = mask.dense(7, 7)
    found, inverse = recognise(tensor), recognise(~tensor)
    assert not isinstance(found, Dense)
    assert not isinstance(inverse, Dense)
    assert inverse == ~found or len(repr(inverse)) <= len(repr(~found))


@given(EXPRESSIONS, SHAPES)
def test_what_is_recognised_is_recognised_again(expression: str, shape: Shape) -> None:
    tensor = built(expression).dense(*shape)
    found = recognise(tensor, first_query=shape[2])
    again = recognise(rendered(found, tensor, shape[2]), first_query=shape[2])
    assert repr(again) == repr(found)


@given(EXPRESSIONS, SHAPES)
def test_every_part_sees_all_that_is_seen(expression: str, shape: Shape) -> None:
    tensor = built(expression).dense(*shape)[:, :1].contiguous()
    assume(tensor.any())
    for part in tightest(tensor, shape[2]):
        assert not (tensor & ~part.dense(*shape)).any(), repr(part)


# --- large tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "sparse", "band", "documents"])
def test_a_tensor_of_half_a_million_cells_is_given_again(kind: str) -> None:
    size = 512
    tensors = {
        "random": cells(1, 2, 1, size, size),
        "sparse": torch.rand(2, 1, size, size) < 0.004,
        "band": Window(3, 3).dense(size, size).repeat(2, 1, 1, 1),
        "documents": Segments(torch.randint(0, 9, (2, size))).dense(size, size),
    }
    tensors["band"][1, 0, 77, 76] = False
    found = recognise(tensors[kind])
    assert torch.equal(rendered(found, tensors[kind]), tensors[kind])
