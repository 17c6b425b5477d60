"""The choice of a kernel: which one computes what, the reason in words, and calls that are refused in a sentence."""

import re
from typing import Any

import pytest
import torch

from pellucid.errors import ConfigError, MaskError, ShapeError
from pellucid.masks import Causal, Full, Global, Heads, Mask, Padding, Segments, Window
from pellucid.model import MultiHeadAttention, attend
from pellucid.model.bias import Relative
from pellucid.model.kernels import Call, Explanation, choose

B, H, D = 2, 3, 5
LONG = 2048
PACKED = Segments.from_lengths(((256, 512, 256, 1024),) * B)


def called(
    mask: Mask | None,
    queries: int = LONG,
    keys: int = LONG,
    first: int = 0,
    *,
    bias: Any = None,
    dropout: float = 0.0,
    learns: bool = False,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
) -> Call:
    """A call of these sizes; its numbers are all zero."""
    query = torch.zeros(B, H, queries, D, dtype=dtypes[0], requires_grad=learns)
    key = torch.zeros(B, H, keys, D, dtype=dtypes[1])
    return Call.of(query, key, key, mask, bias, first, dropout)


# --- what is chosen -------------------------------------------------------------------------------------------

CHOSEN: dict[str, tuple[Call, str, str]] = {
    "small": (called(Window(2, 0), 256, 256), "fused", r"256 x 256 cells are too few to leave any out"),
    "a cached step": (called(Window(50, 0), 1, LONG, LONG - 1), "fused", r"1 x 2048 cells are too few"),
    "no mask": (called(None), "fused", r"nothing is hidden"),
    "full": (called(Full()), "fused", r"nothing is hidden"),
    "padding of nothing": (called(Padding((LONG,) * B)), "fused", r"nothing is hidden"),
    "causal": (called(Causal()), "fused", r"torch's kernel has a flag that hides the future"),
    "causal and padding of nothing": (called(Causal() & Padding((LONG,) * B)), "fused", r"a flag"),
    "causal with a bias": (called(Causal(), bias=torch.zeros(1, H, 1, 1)), "blocks", r"the tiles .* cost about \d+%"),
    "causal later": (called(Causal(), 1024, LONG, 1024), "blocks", r"the tiles that are seen cost about \d+%"),
    "a window": (called(Window(255, 0)), "blocks", r"the tiles that are seen cost about \d+% of what all cells"),
    "a window with a bias": (
        called(Window(255, 0), bias=Relative(torch.zeros(1, 4095), -2047)),
        "blocks",
        r"cost about",
    ),
    "a window and dropout": (called(Window(255, 0), dropout=0.1), "blocks", r"cost about"),
    "documents": (called(Causal() & PACKED), "blocks", r"cost about"),
    "heads": (called(Heads((Window(255, 0), Causal(), Window(9, 9)))), "blocks", r"cost about"),
    "sinks": (called(Causal() & (Window(255, 0) | Global(range(4)))), "blocks", r"cost about"),
    "nothing to leave out": (
        called(Heads((Full(), Full(), ~Window(1, 0))), 1024, 1024),
        "fused",
        r"would cost about \d+% of what",
    ),
    "nothing to leave out of a large mask": (
        called(Heads((Full(), Full(), ~Window(1, 0)))),
        "blocks",
        r"would be given a mask of all cells",
    ),
    "causal and dropout": (called(Causal(), dropout=0.1), "blocks", r"would hold all scores, for the dropout"),
    "distances": (called(None, bias=Relative(torch.zeros(1, 4095), -2047)), "blocks", r"all scores, for the bias"),
    "dtypes that differ": (
        called(Window(255, 0), dtypes=(torch.float32, torch.float64)),
        "fused",
        r"queries, keys and values differ in dtype",
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_structure_and_sizes_choose(name: str) -> None:
    call, kernel, reason = CHOSEN[name]
    chosen, words = choose(call, "auto")
    assert chosen == kernel
    assert re.search(reason, words)


@pytest.mark.parametrize("backend", ["formula", "fused", "blocks", "flex"])
def test_what_is_asked_for_is_taken(backend: Any) -> None:
    kernel, reason = choose(called(Window(255, 0)), backend)
    assert kernel == backend
    assert reason.startswith("it was asked for")


def test_what_holds_all_scores_says_so() -> None:
    exact = called(Window(255, 0), dtypes=(torch.float64, torch.float64))  # in which FlexAttention isn't compiled
    assert choose(exact, "flex") == ("flex", "it was asked for, though it holds all scores")
    assert choose(exact, "formula") == ("formula", "it was asked for, though it holds all scores")
    assert choose(exact, "blocks") == ("blocks", "it was asked for")


@pytest.mark.parametrize(
    ("call", "backend", "kernel", "reason"),
    [
        (called(Causal(), dropout=0.1), "flex", "blocks", "FlexAttention has no dropout"),
        (called(Causal(), learns=True), "flex", "blocks", "FlexAttention has no backward pass on a CPU"),
        (
            called(Full(), bias=torch.zeros(1, H, 1, 1, requires_grad=True)),
            "flex",
            "blocks",
            "FlexAttention has no backward pass on a CPU",
        ),
        (called(Causal(), 5, 0), "flex", "blocks", "FlexAttention takes no empty tensors"),
        (called(Causal(), 0, 5), "flex", "blocks", "FlexAttention takes no empty tensors"),
        (
            called(Causal(), dtypes=(torch.float32, torch.float64)),
            "blocks",
            "fused",
            "queries, keys and values differ in dtype",
        ),
    ],
)
def test_what_a_kernel_cannot_do_another_does(call: Call, backend: Any, kernel: str, reason: str) -> None:
    assert choose(call, backend) == (kernel, f"{backend} was asked for, but {reason}")


def test_a_single_query_with_a_bias_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.model.kernels.choice.compiles", lambda _: True)
    bias = torch.zeros(1, H, 1, 1)
    kernel, reason = choose(called(Causal(), 1, LONG, LONG - 1, bias=bias), "flex")
    assert kernel == "blocks"
    assert reason.endswith("kernel for a single query on a CPU does not compile with a bias")
    assert choose(called(Causal(), 2, LONG, LONG - 2, bias=bias), "flex")[0] == "flex"


def test_no_gradients_are_asked_for_where_they_are_turned_off() -> None:
    query, key = torch.randn(1, H, 130, D, requires_grad=True), torch.randn(1, H, 130, D)
    with torch.no_grad():
        assert choose(Call.of(query, key, key, Causal(), None, 0, 0.0), "flex")[0] == "flex"


def test_flex_takes_tensors_of_a_model_where_gradients_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query, key = torch.randn(2, 1, H, 130, D, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        result = attend(query, key, key, Causal(), backend="flex")
        torch.testing.assert_close(result, attend(query, key, key, Causal(), backend="formula"), rtol=0, atol=1e-12)


# --- what is explained ----------------------------------------------------------------------------------------


def test_an_explanation_comes_with_the_same_output() -> None:
    query, key, value = torch.randn(3, 1, H, 1024, D)
    mask = Causal() & Window(100, 0)
    output, explanation = attend(query, key, value, mask, explain=True)
    assert isinstance(explanation, Explanation)
    assert torch.equal(output, attend(query, key, value, mask))
    assert explanation.backend == "blocks"
    assert explanation.tiles == 8
    assert explanation.computed == pytest.approx((128 * 128 + 7 * 128 * 256) / 1024**2)
    assert explanation.refused == {}
    lines = str(explanation).splitlines()
    assert lines[0] == f"blocks: {explanation.reason}"
    assert explanation.reason.startswith("the tiles that are seen cost about ")
    assert lines[1] == "blocks computes 23.4% of the cells, in 8 tiles"
    assert "\n".join(lines[2:]) == explanation.picture == mask.draw(1024, 1024)


def test_an_explanation_names_who_cannot() -> None:
    query = torch.randn(B, H, 300, D, requires_grad=True)
    _, explanation = attend(query, query, query, Window(9, 0), backend="flex", dropout=0.5, explain=True)
    assert explanation.backend == "blocks"
    assert explanation.reason == "flex was asked for, but FlexAttention has no dropout"
    assert explanation.refused == {"flex": "FlexAttention has no dropout"}
    assert "not flex: FlexAttention has no dropout" in str(explanation).splitlines()


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (Full(), 1.0),
        (~Full(), 0.0),
        (Causal(), 0.5),
        (Padding((256, 0)), 0.25),
        (Heads((Full(), ~Full(), ~Full())), 1 / 3),
    ],
    ids=repr,
)
def test_the_share_that_is_computed_is_of_all_cells(mask: Mask, share: float) -> None:
    query = torch.zeros(B, H, 512, D)
    _, explanation = attend(query, query, query, mask, explain=True)
    assert explanation.computed == pytest.approx(share, abs=0.001)  # the diagonal's own cells apart


@pytest.mark.parametrize("backend", ["auto", "formula", "fused", "blocks", "flex"])
def test_every_backend_is_explained(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query = torch.zeros(1, 1, 2, D, dtype=torch.float64)
    _, explanation = attend(query, query, query, Full(), backend=backend, explain=True)
    assert explanation.backend == ("fused" if backend == "auto" else backend)


# --- what is refused ------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_told_all_that_are_known(unchecked: None) -> None:
    query = torch.zeros(B, H, 5, D)
    wanted = "attend was given backend='quick', but it knows 'auto', 'formula', 'fused', 'blocks', 'flex'; choose one"
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
        attend(query, query, query, backend="quick")  # type: ignore[call-overload]


@pytest.mark.parametrize("bias", [(5, 7), (B, H, 5, 6), (B, H + 1, 5, 7), (3, 1, 1, 1), (1, 1, 5, 7, 1)], ids=str)
def test_a_bias_of_another_shape_is_refused(bias: tuple[int, ...], unchecked: None) -> None:
    query, key = torch.zeros(B, H, 5, D), torch.zeros(B, H, 7, D)
    wanted = (
        rf"given a bias of {re.escape(str(bias))} for scores of \(2, 3, 5, 7\); give \(batch, heads, queries, keys\)"
    )
    with pytest.raises(ShapeError, match=wanted):
        attend(query, key, key, bias=torch.zeros(bias))


def test_a_relative_bias_of_other_heads_is_refused() -> None:
    query = torch.zeros(B, H, 5, D)
    with pytest.raises(ShapeError, match=r"given a bias of \(1, 2, 1, 1\) for scores of \(2, 3, 5, 5\); give"):
        attend(query, query, query, bias=Relative(torch.zeros(2, 9), -4))


@pytest.mark.parametrize("backend", ["formula", "fused", "blocks", "flex"])
@pytest.mark.parametrize(("width", "least"), [(8, -4), (8, -3), (3, -1)])
def test_a_relative_bias_that_does_not_know_every_offset_is_refused(
    width: int, least: int, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query = torch.zeros(B, H, 5, D, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"a relative bias of the offsets .* was asked for .*; make it for as many"):
        attend(query, query, query, bias=Relative(torch.zeros(1, width).double(), least), backend=backend)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64], ids=str)
def test_a_bias_that_is_no_floats_is_refused(dtype: torch.dtype, unchecked: None) -> None:
    query = torch.zeros(B, H, 5, D)
    with pytest.raises(ShapeError, match=rf"^attention was given a bias of {dtype}, but .*; give floats, or mask=$"):
        attend(query, query, query, bias=torch.zeros(1, 1, 5, 5, dtype=dtype))


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((B, 6, 5, D), (B, 4, 7, D), (B, 4, 7, D)),
        ((B, 2, 5, D), (B, 4, 7, D), (B, 4, 7, D)),
        ((B, H, 5, D), (B, H, 7, D + 1), (B, H, 7, D)),
        ((B, H, 5, D), (B, H, 7, D), (B, H, 8, D)),
        ((B, H, 5, D), (B, H, 7, D), (B, 1, 7, D)),
        ((B, H, 5, D), (1, H, 7, D), (1, H, 7, D)),
        ((H, 5, D), (H, 7, D), (H, 7, D)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_sizes_that_do_not_fit_are_named(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> None:
    given = (
        f"attention was given queries {query}, keys {key} and values {value}; it needs (batch, heads, length, head_dim)"
    )
    with pytest.raises(ShapeError, match=f"^{re.escape(given)}.* or a number that divides it$"):
        attend(torch.zeros(query), torch.zeros(key), torch.zeros(value))


# --- accelerators, which the tests have not: what would be chosen there -----------------------------------------

ELSEWHERE: dict[str, tuple[Mask, int, float, str]] = {
    "no mask": (Full(), 64, 0.0, "fused"),
    "causal": (Causal(), 64, 0.0, "fused"),
    "mostly seen": (Causal() | Window(LONG, 900), 64, 0.0, "fused"),
    "a window": (Window(255, 0), 64, 0.0, "flex"),
    "a window and dropout": (Window(255, 0), 64, 0.1, "blocks"),
    "a window and narrow heads": (Window(255, 0), 8, 0.0, "blocks"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_accelerator_is_given_what_leaves_out_most(name: str) -> None:
    mask, width, dropout, kernel = ELSEWHERE[name]
    states = torch.empty(B, H, LONG, width, device="meta")
    assert choose(Call(states, states, states, mask, dropout=dropout), "auto")[0] == kernel


# --- slips ----------------------------------------------------------------------------------------------------


def test_a_tensor_is_no_mask(unchecked: None) -> None:
    states = torch.zeros(1, 1, 5, 3)
    with pytest.raises(MaskError, match=r"a mask of type Tensor; wrap a tensor in masks.Dense"):
        attend(states, states, states, torch.ones(5, 5, dtype=torch.bool))  # type: ignore[call-overload]


def test_a_query_stands_at_a_position(unchecked: None) -> None:
    states = torch.zeros(1, 1, 5, 3)
    with pytest.raises(ShapeError, match="first_query=-3, but positions count from 0"):
        attend(states, states, states, first_query=-3)


def test_attention_refuses_an_unknown_backend_when_it_is_made(unchecked: None) -> None:
    with pytest.raises(ConfigError, match="backend='quick', but it knows 'auto'"):
        MultiHeadAttention(12, 3, backend="quick")  # type: ignore[arg-type]


def test_keys_without_heads_are_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match="as many heads of keys as of queries"):
        attend(torch.zeros(1, 2, 5, 3), torch.zeros(1, 0, 5, 3), torch.zeros(1, 0, 5, 3))
