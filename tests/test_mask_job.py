"""`pellucid mask` draws, counts, converts, plans and pictures a mask written as text; each slip has its sentence."""

import ast
from pathlib import Path

import numpy
import pytest
import torch

from pellucid import masks
from pellucid.errors import ConfigError, MaskError
from pellucid.jobs import mask as room
from pellucid.jobs.mask import Attention, Size, arguments, describe, picture, planned
from pellucid.model import attend
from pellucid.model.kernels import Backend

QUERIES, KEYS = 5, 7


def test_a_mask_is_drawn_and_counted() -> None:
    assert describe("causal & padding(2, 0)", Size(queries=3, keys=2, first_query=1)) == (
        (masks.Causal() & masks.Padding((2, 0))).draw(3, 2, 1)
        + "\n\n6 of 12 cells may be looked at (50.0%); each query sees 0 to 2 keys; 3 rows see nothing"
    )
    assert describe("full", Size(queries=0, keys=3)).endswith("\n\n0 of 0 cells may be looked at (0.0%)")


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("causal", 8),
        ("causal & padding(5, 3)", 5),
        ("~padding(2, 11) | prefix(4)", 11),
        ("causal | prefix(4, 13)", 13),
        ("segments(0, 0, 1)", 3),
        ("heads(causal, padding(3, 9))", 9),
        ("padding(0, 0)", 8),
    ],
)
def test_a_mask_s_own_numbers_say_how_large_it_is(expression: str, size: int) -> None:
    assert Size().of(masks.parse(expression)) == (size, size, 0)
    assert Size(queries=2, first_query=7).of(masks.parse(expression)) == (2, size, 7)
    assert Size(queries=0, keys=0).of(masks.parse(expression)) == (0, 0, 0)


def test_queries_may_begin_past_what_is_usual_where_a_mask_has_no_end() -> None:
    assert Size(first_query=100).of(masks.Causal()) == (8, 8, 100)
    assert Size(first_query=2).of(masks.Segments([[0, 0, 1]])) == (1, 3, 2)


def values(printed: str) -> dict[str, object]:
    """What the printed lines would give if they were pasted: names and plain values, types looked at by the test."""
    found = {}
    for line in printed.split("\n"):
        if not line.startswith(("#", "import ")):
            name, _, value = line.partition(" = ")
            inside = value[value.index("(") + 1 : value.rindex(")")].partition("], dtype")[0] if "(" in value else value
            found[name] = ast.literal_eval(inside + "]" * (inside.count("[") - inside.count("]")))
    return found


def test_arguments_are_printed_as_python() -> None:
    size = Size(QUERIES, KEYS)
    mask = masks.parse("causal & padding(6, 3)")
    printed = arguments("causal & padding(6, 3)", size, "sdpa")
    assert printed.startswith("# torch.nn.functional.scaled_dot_product_attention\n# bool: True = may look")
    assert values(printed) == {"attn_mask": mask.dense(QUERIES, KEYS).tolist()}
    assert arguments("causal", size, "sdpa").endswith("\nis_causal = True")
    assert arguments("full", size, "sdpa").endswith("\n# no argument: nothing is hidden")


def test_a_blind_row_is_told_among_the_arguments() -> None:
    printed = arguments("padding(0, 2)", Size(2, 2), "sdpa")
    assert "# Padding((0, 2)) lets query 0 of sample 0, head 0 look at nothing (2 such rows);" in printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (True, "True"),
        (torch.tensor([True, False]), "torch.tensor([True, False])"),
        (torch.tensor([1, 0]), "torch.tensor([1, 0])"),
        (torch.tensor([0.5], dtype=torch.float64), "torch.tensor([0.5], dtype=torch.float64)"),
        (torch.zeros(5000), "...  # torch.float32, shape (5000,)"),
        (numpy.array([True]), "numpy.array([True])"),
        (numpy.array([1], dtype=numpy.int32), "numpy.array([1], dtype='int32')"),
        (numpy.zeros(5000), "...  # numpy float64, shape (5000,)"),
        (1.5, "...  # 1.5"),
    ],
)
def test_values_are_written_as_python_writes_them(value: object, printed: str) -> None:
    assert room._literal(value) == printed


@pytest.mark.parametrize("expression", ["causal", "causal & padding(5, 3)", "heads(causal, window(1, 1))"])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_mask_is_put_in_a_picture(tmp_path: Path, expression: str, ending: str) -> None:
    place = tmp_path / f"mask.{ending}"
    picture(expression, Size(QUERIES, KEYS, 2), place)
    start = place.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<svg" in start or b"<?xml" in start
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


@pytest.mark.parametrize(
    ("expression", "size", "message"),
    [
        (
            "causal",
            Size(3000, 3),
            r"1 masks of 3,000 queries and 3 keys was asked for, but it shows 1 to 6 of 1 to 2,048",
        ),
        ("causal", Size(0, 3), r"0 queries"),
        ("padding(1, 2, 3, 4, 5, 6, 7)", Size(), r"a picture of 7 masks"),
    ],
)
def test_what_no_picture_can_show_is_refused(tmp_path: Path, expression: str, size: Size, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        picture(expression, size, tmp_path / "mask.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mask\.jpg, but it is PNG or SVG"):
        picture("causal", Size(), tmp_path / "mask.jpg")
    with pytest.raises(ConfigError, match=r"nowhere/mask\.png cannot be written"):
        picture("causal", Size(), tmp_path / "nowhere" / "mask.png")


# --- plans ---------------------------------------------------------------------------------------------------

LONG = Size(queries=1031, keys=1033, first_query=11)
USUAL = Attention(head_dim=5)


@pytest.mark.parametrize(
    ("expression", "attention", "backend", "kernel"),
    [
        ("full", Attention(batch=3, heads=2, head_dim=5), "auto", "fused"),
        ("causal & window(23, 0)", USUAL, "auto", "blocks"),
        ("causal & window(23, 0)", Attention(batch=3, heads=2, head_dim=5, learns=True), "auto", "blocks"),
        ("padding(290, 37, 150)", USUAL, "auto", "blocks"),
        ("heads(chunked(64), window(23, 0))", Attention(batch=3, head_dim=5, dtype="float64"), "auto", "blocks"),
        ("full", USUAL, "blocks", "blocks"),
        ("window(23, 0)", USUAL, "formula", "formula"),
        ("window(23, 0)", USUAL, "fused", "fused"),
        ("causal", Attention(head_dim=5, dropout=0.25), "flex", "blocks"),
        ("causal", Attention(head_dim=5, learns=True), "flex", "blocks"),
    ],
)
def test_a_plan_is_what_attend_does(expression: str, attention: Attention, backend: Backend, kernel: str) -> None:
    mask = masks.parse(expression)
    batch, heads = attention.batch or mask.batch or 1, attention.heads or mask.heads or 8
    query, key = (
        torch.zeros(batch, heads, length, 5, dtype=room.DTYPES[attention.dtype], requires_grad=attention.learns)
        for length in (1031, 1033)
    )
    _, done = attend(query, key, key, mask, None, 11, backend, dropout=attention.dropout, explain=True)
    assert done.backend == kernel
    assert planned(expression, LONG, attention, backend) == str(done)


def test_what_is_planned_takes_no_memory() -> None:
    attention = Attention(batch=3, heads=7, head_dim=5, dtype="bfloat16", learns=True)
    query, key = attention.tensors(masks.Causal(), 2**20, 11)
    assert (query.shape, key.shape) == ((3, 7, 2**20, 5), (3, 7, 11, 5))
    for tensor in (query, key):
        assert (tensor.dtype, tensor.requires_grad) == (torch.bfloat16, True)
        assert tensor.untyped_storage().nbytes() == 2
    query, key = Attention().tensors(
        masks.Padding((5, 3)) & masks.Heads((masks.Full(), masks.Causal(), masks.Full())), 5, 11
    )
    assert (query.shape, key.shape) == ((2, 3, 5, 64), (2, 3, 11, 64))
    assert (query.dtype, query.requires_grad) == (torch.float32, False)
    assert Attention().tensors(masks.Causal(), 5, 11)[0].shape == (1, 8, 5, 64)


@pytest.mark.parametrize(
    ("size", "attention"),
    [
        (Size(2**28, 1), Attention()),
        (Size(8, 8), Attention(batch=10**13, heads=10**7)),
        (Size(8, 8), Attention(head_dim=10**22)),
        (Size(2**18, 2**18), Attention(batch=2**20, heads=2**20)),
    ],
)
def test_a_plan_of_what_no_tensor_has_is_refused(size: Size, attention: Attention) -> None:
    with pytest.raises(
        MaskError, match=r"which no tensor has; ask for 1,048,576 of each at most, and for fewer together"
    ):
        planned("causal", size, attention)


@pytest.mark.parametrize("attention", [Attention(batch=0), Attention(heads=0), Attention(head_dim=0)])
def test_a_plan_of_nothing_is_refused(attention: Attention) -> None:
    with pytest.raises(
        MaskError, match=r"8 queries, 8 keys.* but where one of them is 0, nothing is computed; ask for 1"
    ):
        planned("causal", Size(), attention)
    with pytest.raises(MaskError, match=r"with 5 queries, 0 keys"):
        planned("causal", Size(5, 0), Attention())


@pytest.mark.parametrize("size", [Size(2**18 + 1, 2**18), Size(2**19, 2**19)])
def test_what_would_take_too_long_is_refused(size: Size) -> None:
    with pytest.raises(MaskError, match=r"Causal\(\) has .* cells .*, and 68,719,476,736 are planned at most; ask for"):
        planned("causal", size, Attention())
    with pytest.raises(MaskError, match=r"and 8,589,934,592 are counted at most; ask for fewer with --queries"):
        describe("causal", size)
    with pytest.raises(MaskError, match=r"68,719,738,880 cells at 131,072 queries and 262,145 keys"):
        planned("causal & padding(7, 5)", Size(2**17, 2**18 + 1), Attention())
