"""The kernels: each computes the formula, over masks, lengths, heads, biases and dtypes, and holds no more than it says."""

import itertools
import math
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as tried
from torch import Tensor

from large_masks import BATCH, HEADS, SIDE, Asked, asked, built, given, repeated, said, small_blocks
from largest import Largest
from pellucid.masks import Causal, Dense, Dilated, Full, Heads, Mask, Padding, Predicate, Window
from pellucid.model import MultiHeadAttention, attend, attention_weights
from pellucid.model.kernels import blocks as tiled
from pellucid.model.kernels.call import may_be_kept

EXACT = 1e-10


def computed(
    call: Asked, backend: str, leaves: list[Tensor], kept: Tensor | None, slope: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """What a backend gives, and its gradients of queries, keys, values and bias."""
    result = call.attended(backend, leaves, kept)
    wanting = [leaf for leaf in (*leaves, kept) if leaf is not None]
    return result, list(torch.autograd.grad(result, wanting, slope))


def assert_is_the_formula(call: Asked, *backends: str, tolerance: float = EXACT) -> None:
    """Values and all gradients are those of the formula, and zero where a query is blind."""
    leaves, kept, slope = given(call)
    wanted, slopes = computed(call, "formula", leaves, kept, slope)
    blind = call.blind()
    for backend in backends:
        result, gradients = computed(call, backend, leaves, kept, slope)
        torch.testing.assert_close(result, wanted, rtol=0, atol=tolerance, msg=said(backend))
        assert torch.count_nonzero(result[blind]) == 0, backend
        assert torch.count_nonzero(gradients[0][blind]) == 0, backend
        for name, ours, theirs in zip(("query", "key", "value", "bias"), gradients, slopes, strict=False):
            place = f"{backend}, the gradient of {name}"
            # A sum over n numbers is off by its length.
            scale = tolerance * max(1.0, float(theirs.abs().max()) if theirs.numel() else 0.0)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=scale, msg=said(place))


# --- values and gradients -------------------------------------------------------------------------------------

WINDOWED = "Causal() & Window(200, 0)"


@settings(max_examples=30)
@tried(asked())
@example(Asked("Causal()", 257, 257))
@example(Asked("Causal()", 257, 257, widths=(5, 7)))
@example(Asked("Causal()", 129, 257, first=128, bias="relative"))
@example(Asked(WINDOWED, 257, 257, bias="relative", key_heads=1))
@example(Asked("Heads((Causal(), Window(3, 0), ~Causal())) & Padding((200, 0))", 257, 257, key_heads=1))
@example(Asked("~Padding((140, 0)) & Window(40, 40)", 257, 257, bias=(1, HEADS, 1, 257)))
def test_tiles_and_the_fused_kernel_compute_the_formula(call: Asked) -> None:
    assert_is_the_formula(call, "blocks", "fused")


@settings(max_examples=15)
@tried(asked())
@example(Asked("Causal()", 129, 257, first=128, bias="relative", key_heads=1))
@example(Asked("Heads((Causal(), Window(3, 0), ~Causal())) & Padding((100, 0))", 129, 129, bias=(BATCH, 1, 129, 1)))
def test_flex_computes_the_formula(call: Asked) -> None:
    with pytest.MonkeyPatch.context() as patch:  # one operation at a time: a trace takes seconds
        patch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        assert_flex_is_the_formula(call, torch.float64, EXACT)


def assert_flex_is_the_formula(call: Asked, dtype: torch.dtype, tolerance: float) -> None:
    """Values are those of the formula, and zero where a query is blind; no gradients are asked for."""
    leaves, kept = call.tensors(dtype)
    plain = [leaf.detach() for leaf in leaves]
    with torch.no_grad():
        wanted, result = (call.attended(backend, plain, kept) for backend in ("formula", "flex"))
    torch.testing.assert_close(result, wanted, rtol=0, atol=tolerance)
    assert torch.count_nonzero(result[call.blind()]) == 0


@pytest.mark.usefixtures("traceable")
def test_flex_as_it_is_called_computes_the_formula() -> None:
    call = Asked("Causal() & Padding((100, 0))", 129, 129, bias="relative", key_heads=1)
    assert_flex_is_the_formula(call, torch.float64, EXACT)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # by torch itself
@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize(
    "call",
    [
        Asked("Causal() & Window(100, 0)", 257, 257, key_heads=1, widths=(16, 16)),
        Asked("Heads((Causal(), Window(3, 0), ~Causal())) & Padding((100, 0))", 129, 257, 128, widths=(16, 16)),
        Asked("Causal()", 257, 257, bias="relative", widths=(16, 16)),
    ],
    ids=lambda call: call.expression,
)
def test_flex_compiled_computes_the_formula(call: Asked) -> None:
    assert_flex_is_the_formula(call, torch.float32, 2e-6)


LONG = {
    "causal": Asked("Causal()", 1025, 1025, heads=1, key_heads=1),
    "causal, written out": Asked("Causal()", 1025, 1025, heads=1, key_heads=1, widths=(5, 7)),
    "a window": Asked("Window(130, 0)", 1025, 1025, heads=1, key_heads=1),
    "a window, written out": Asked("Window(130, 0)", 1025, 1025, heads=1, key_heads=1, widths=(5, 7)),
    "padding, a bias by offset": Asked("Causal() & Padding((700, 0))", 1025, 1025, heads=1, key_heads=1, bias="alike"),
    "heads, a bias by offset": Asked("Heads((Causal(), Full(), Window(9, 9)))", 257, 1025, 768, bias="relative"),
    "documents": Asked("Causal() & Chunked(256)", 1025, 1025, heads=1, key_heads=1),
    "a window of shared keys": Asked("Window(130, 0)", 769, 769, heads=2, key_heads=1),
    "a window and a bias by offset": Asked("Window(130, 9)", 769, 769, heads=2, key_heads=1, bias="relative"),
    "a window of each head": Asked("Heads((Window(99, 0), Window(300, 0), Chunked(128)))", 641, 769, 128),
    "a window with a key for all": Asked("Causal() & (Window(130, 0) | Global(3))", 769, 769, heads=1, key_heads=1),
    "documents of each sample": Asked("Causal() & Segments.from_lengths(((128, 473), (256, 345)))", 601, 601),
    "across": Asked("Padding((1000, 130))", 129, 1025, key_heads=1),
}


@settings(max_examples=15)
@tried(asked())
@example(Asked("Causal()", 257, 257, bias="alike"))
@example(Asked("Causal()", 129, 257, 128, widths=(5, 7), bias=(1, 1, 129, 257)))
@example(Asked("Causal() & (Window(40, 0) | Global(3)) & Padding((200, 90))", 257, 257))
@example(Asked("Heads((Causal(), Window(3, 0), ~Causal())) & Padding((200, 0))", 257, 257, key_heads=1, widths=(5, 7)))
def test_tiles_are_joined_into_the_formula(call: Asked) -> None:
    with small_blocks():
        assert_is_the_formula(call, "blocks")


@settings(max_examples=10)
@tried(repeated())
def test_tiles_that_repeat_compute_the_formula(call: Asked) -> None:
    assert_is_the_formula(call, "blocks")


@pytest.mark.parametrize("name", LONG)
def test_long_attention_is_the_formula(name: str) -> None:
    assert_is_the_formula(LONG[name], "blocks", "fused")


@pytest.mark.parametrize("name", LONG)
def test_long_attention_by_flex_is_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    assert_flex_is_the_formula(LONG[name], torch.float64, EXACT)


@settings(max_examples=15)
@tried(asked())
def test_single_precision_is_as_near_as_its_rounding(call: Asked) -> None:
    leaves, kept, slope = given(call)
    wanted, slopes = computed(call, "formula", leaves, kept, slope)
    single = [leaf.detach().float().requires_grad_() for leaf in leaves]
    narrow = None if kept is None else kept.detach().float().requires_grad_()
    for backend in ("blocks", "fused"):
        result, gradients = computed(call, backend, single, narrow, slope.float())
        assert result.dtype == torch.float32
        for ours, theirs in zip([result, *gradients], [wanted, *slopes], strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=5e-5, msg=backend)


@pytest.mark.parametrize("widths", [(16, 16), (16, 24)], ids=["flash", "written out"])
@pytest.mark.parametrize("bias", [(), "relative"], ids=["no bias", "bias"])
def test_bfloat16_is_as_near_as_its_rounding(widths: tuple[int, int], bias: Any) -> None:
    call = Asked("Causal() & Padding((200, 0))", 257, 257, bias=bias, key_heads=1, widths=widths)
    leaves, kept, slope = given(call, torch.bfloat16)
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    table = None if kept is None else kept.detach().float().requires_grad_()
    wanted, slopes = computed(call, "formula", wide, table, slope.float())
    for backend in ("blocks", "fused"):
        result, gradients = computed(call, backend, leaves, kept, slope)
        assert result.dtype == gradients[0].dtype == torch.bfloat16
        if backend == "fused":  # which rounds the gradient of each score before those of one offset are summed
            gradients, slopes = gradients[:3], slopes[:3]
        for ours, theirs in zip([result, *gradients], [wanted, *slopes], strict=True):
            # Two of the eight places that bfloat16 keeps, beside the largest number.
            near = 2**-6 * max(1.0, float(theirs.detach().abs().max()))
            torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=near, msg=backend)


@pytest.mark.parametrize("widths", [(2, 2), (2, 3)], ids=["flash", "written out"])
@pytest.mark.parametrize("bias", [(), "relative", (1, 2, 1, 5)], ids=["no bias", "by offset", "by key"])
def test_gradients_are_those_of_small_differences(bias: Any, widths: tuple[int, int]) -> None:
    call = Asked("Causal() & Padding((3, 0))", 3, 5, 1, 2, 1, bias, widths)
    leaves, kept = call.tensors()
    wanting = leaves if kept is None else [*leaves, kept]

    def attended(*tensors: Tensor) -> Tensor:
        return call.attended("blocks", list(tensors[:3]), tensors[3] if len(tensors) > 3 else None)

    assert torch.autograd.gradcheck(attended, wanting, fast_mode=True)


# --- how tensors are laid out, and what is asked of them ---------------------------------------------------------

ACROSS = Asked(WINDOWED, 257, 257, key_heads=1)
WRITTEN = ACROSS._replace(widths=(5, 7))
both_engines = pytest.mark.parametrize("call", [ACROSS, WRITTEN], ids=["flash", "written out"])


@both_engines
@pytest.mark.parametrize("layout", ["positions first", "last axis apart", "one sample for all"])
def test_layout_changes_nothing(call: Asked, layout: str) -> None:
    leaves, kept, slope = given(call)
    if layout == "positions first":  # as many heads are split off the states
        laid = [leaf.detach().transpose(1, 2).contiguous().transpose(1, 2) for leaf in leaves]
    elif layout == "last axis apart":
        laid = [leaf.detach().transpose(2, 3).contiguous().transpose(2, 3) for leaf in leaves]
    else:
        laid = [leaf.detach()[:1].expand_as(leaf) for leaf in leaves]
    plain = [leaf.contiguous().requires_grad_() for leaf in laid]
    assert not any(leaf.is_contiguous() for leaf in laid if leaf.shape[1] > 1)
    apart = [leaf.detach().requires_grad_() for leaf in laid]
    for ours, theirs in zip(
        itertools.chain(*_flat(computed(call, "blocks", apart, kept, slope))),
        itertools.chain(*_flat(computed(call, "formula", plain, kept, slope))),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)


def _flat(found: tuple[Tensor, list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [found[0]], found[1]


@both_engines
@pytest.mark.parametrize("reduce", [torch.sum, lambda x: x[:, :, :, 0].sum(), lambda x: x.sum((0, 1, 2))[1]])
def test_a_gradient_that_is_one_number_for_all_will_do(call: Asked, reduce: Callable[[Tensor], Tensor]) -> None:
    leaves, kept, _ = given(call)
    ours, theirs = (
        torch.autograd.grad(reduce(call.attended(backend, leaves, kept)), leaves) for backend in ("blocks", "formula")
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=EXACT)


@both_engines
@pytest.mark.parametrize("wanting", [(0,), (1,), (2,), (0, 2), (3,), (1, 3)], ids=str)
def test_gradients_reach_those_that_want_them(call: Asked, wanting: tuple[int, ...]) -> None:
    biased = call._replace(bias="relative")
    leaves, kept, slope = given(biased)
    assert kept is not None
    tensors = [leaf.detach() for leaf in (*leaves, kept)]
    for index in wanting:
        tensors[index].requires_grad_()
    found = [
        torch.autograd.grad(
            biased.attended(backend, tensors[:3], tensors[3]), [tensors[index] for index in wanting], slope
        )
        for backend in ("blocks", "formula")
    ]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)


@both_engines
def test_no_gradients_are_kept_where_none_are_wanted(call: Asked) -> None:
    leaves, kept, _ = given(call)
    wanted = call.attended("blocks", leaves, kept)
    assert wanted.requires_grad
    with torch.inference_mode():
        inside = call.attended("blocks", leaves, kept)
    assert inside.is_inference()
    assert torch.equal(inside, wanted)
    assert not call.attended("blocks", [leaf.detach() for leaf in leaves], kept).requires_grad


@both_engines
@pytest.mark.parametrize("bias", [(), "relative"], ids=["no bias", "bias"])
def test_two_runs_are_equal_to_the_bit(call: Asked, bias: Any) -> None:
    biased = call._replace(bias=bias)
    leaves, kept, slope = given(biased, torch.float32)
    one, other = (computed(biased, "blocks", leaves, kept, slope) for _ in range(2))
    for first, second in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
        assert torch.equal(first, second)


def test_what_the_caller_holds_is_left_as_it_was() -> None:
    for call in (ACROSS, WRITTEN, WRITTEN._replace(bias=(BATCH, HEADS, 257, 257))):
        leaves, kept, slope = given(call)
        tensors = [*leaves, slope] if kept is None else [*leaves, slope, kept]
        before = [tensor.detach().clone() for tensor in tensors]
        result, _ = computed(call, "blocks", leaves, kept, slope)
        after = result.detach().clone()
        computed(call, "blocks", leaves, kept, slope)
        assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))
        assert torch.equal(result, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_runs_where_torch_chooses_dtypes(dtype: torch.dtype) -> None:
    attention = MultiHeadAttention(HEADS * 8, HEADS, backend="blocks")
    states = torch.randn(BATCH, 257, HEADS * 8)
    wanted = attention(states, states, states, Causal() & Window(100, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        result = attention(states, states, states, Causal() & Window(100, 0))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), wanted, rtol=0, atol=0.02)
    result.float().sum().backward()
    for parameter in attention.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("backend", ["blocks", "fused", "flex", "auto"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 129, 257), (2, 0, 257), (2, 129, 0), (2, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("value_width", [5, 7])
def test_what_is_empty_gives_zeros(backend: Any, batch: int, queries: int, keys: int, value_width: int) -> None:
    query, key = (torch.randn(batch, HEADS, size, 5, requires_grad=True) for size in (queries, keys))
    value = torch.randn(batch, HEADS, keys, value_width, requires_grad=True)
    result = attend(query, key, value, Causal() & Window(100, 0), None, 0, backend)
    assert torch.equal(result, torch.zeros(batch, HEADS, queries, value_width))
    gradients = torch.autograd.grad(result.sum(), [query, key, value], allow_unused=True)
    assert all(gradient is None or torch.count_nonzero(gradient) == 0 for gradient in gradients)


@pytest.mark.parametrize("widths", [(5, 5), (5, 7)], ids=["flash", "written out"])
def test_a_bias_may_hide_too(widths: tuple[int, int]) -> None:
    call = Asked("Window(150, 150)", 257, 257, bias=(BATCH, 1, 257, 257), widths=widths)
    leaves, kept, slope = given(call)
    assert kept is not None
    # Whole tiles of some rows, with a key left in another tile, as a padding mask from elsewhere does.
    hiding = kept.detach().masked_fill(torch.arange(257) < 100, -math.inf)
    found = []
    for backend in ("formula", "blocks"):
        result = call.attended(backend, leaves, hiding)
        found.append([result, *torch.autograd.grad(result, leaves, slope)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)


# --- dropout ------------------------------------------------------------------------------------------------------

RATE = 0.25
DROPPED = Asked("Causal() & Window(150, 0)", 257, 257, heads=1, key_heads=1)


def dropped_as(seed: int, call: Asked, leaves: list[Tensor], kept: Tensor | None = None) -> Tensor:
    """What attention over tiles gives with the weights dropped that a seed drops."""
    torch.manual_seed(seed)
    return call.attended("blocks", leaves, kept, RATE)


def kept_weights(seed: int, call: Asked, leaves: list[Tensor], kept: Tensor | None = None) -> Tensor:
    """What dropout multiplies each weight by, found by letting each value be one of its own: (B, H, Q, K)."""
    every_weight = torch.eye(call.keys, dtype=leaves[0].dtype).expand(BATCH, call.heads, call.keys, call.keys)
    query, key, _ = (leaf.detach() for leaf in leaves)
    key = key.repeat_interleave(call.heads // call.key_heads, dim=1)
    found = dropped_as(seed, call, [query, key, every_weight], kept)
    weights = attention_weights(query, key, built(call.expression), call.bias_of(kept), call.first)
    return torch.where(weights > 0, found / weights, 0.0)


def test_the_share_of_weights_is_dropped_and_the_others_scaled() -> None:
    leaves, _ = DROPPED.tensors()
    factors = kept_weights(1, DROPPED, leaves)
    seen = built(DROPPED.expression).dense(257, 257).expand_as(factors)
    kept = factors[seen] != 0
    torch.testing.assert_close(factors[seen][kept], torch.full_like(factors[seen][kept], 1 / (1 - RATE)))
    assert float(kept.double().mean()) == pytest.approx(1 - RATE, abs=0.01)  # of 65,000: five standard deviations
    assert torch.count_nonzero(factors[~seen]) == 0


def test_each_tile_and_sample_drops_others() -> None:
    call = Asked(f"Chunked({SIDE})", 8 * SIDE, 8 * SIDE, heads=1, key_heads=1)
    with small_blocks():
        factors = kept_weights(1, call, call.tensors()[0])[:, 0] != 0
    own = torch.stack([factors[:, at : at + SIDE, at : at + SIDE] for at in range(0, 8 * SIDE, SIDE)])
    for one, other in ((own[1:], own[:-1]), (own[:, 0], own[:, 1])):
        # Two that know nothing of each other both keep a weight, or both drop it, as often as that.
        assert float((one == other).double().mean()) == pytest.approx(RATE**2 + (1 - RATE) ** 2, abs=0.03)


@pytest.mark.parametrize(
    "call", [DROPPED, Asked(WINDOWED, 257, 257, key_heads=1, bias="relative")], ids=["plain", "all"]
)
def test_gradients_are_of_the_weights_that_were_kept(call: Asked) -> None:
    leaves, kept, slope = given(call)
    wanting = leaves if kept is None else [*leaves, kept]
    factors = kept_weights(7, call, leaves, kept)
    ours = dropped_as(7, call, leaves, kept)
    query, key, value = leaves
    weights = attention_weights(query, key, built(call.expression), call.bias_of(kept), call.first)
    theirs = (weights * factors.detach()) @ value
    torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)
    found = (torch.autograd.grad(result, wanting, slope) for result in (ours, theirs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=EXACT * 10)


def test_dropout_follows_the_seed_and_is_new_at_each_call() -> None:
    leaves, _, slope = given(DROPPED)
    one, again, other = (dropped_as(seed, DROPPED, leaves) for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(other, call_again := DROPPED.attended("blocks", leaves, None, RATE))
    # The gradients are drawn from the call's own seed, whatever was drawn between.
    first = torch.autograd.grad(one, leaves, slope)
    torch.rand(3)
    assert call_again.requires_grad
    for mine, same in zip(first, torch.autograd.grad(again, leaves, slope), strict=True):
        assert torch.equal(mine, same)


def test_dropout_is_right_on_average() -> None:
    call = Asked(WINDOWED, 129, 129, heads=1, key_heads=1)
    leaves = [leaf.detach().float() for leaf in call.tensors()[0]]
    wanted = call.attended("formula", leaves, None)
    draws = torch.stack([call.attended("blocks", leaves, None, RATE) for _ in range(60)])
    spread = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - wanted).abs() <= 6 * spread + 1e-5).all())
    assert float((draws.mean(0) - wanted).square().mean()) < 0.1 * float((draws[0] - wanted).square().mean())


# --- what is held -------------------------------------------------------------------------------------------------

FAR = 4096
EIGHTH = FAR * FAR * 4 // 8  # bytes of an eighth of all scores, in float32


def largest_held(length: int, mask: Mask, bias: Any = (), values: int = 8, backend: Any = "blocks") -> int:
    """How many bytes the largest tensor has that attention makes, forward and backward."""
    call = Asked("Full()", length, length, heads=1, key_heads=1, bias=bias)
    _, kept = call.tensors(torch.float32)
    leaves = [torch.randn(1, 1, length, width, requires_grad=True) for width in (8, 8, values)]
    with Largest() as largest:  # type: ignore[no-untyped-call]
        result = attend(leaves[0], leaves[1], leaves[2], mask, call.bias_of(kept), 0, backend)
        torch.autograd.grad(result.sum(), leaves if kept is None else [*leaves, kept])
    return int(largest.size)


@pytest.mark.parametrize(("bias", "values"), [((), 8), ((), 9), ("alike", 8)], ids=["flash", "written out", "bias"])
@pytest.mark.parametrize("mask", [Window(255, 0), Causal() & Padding((4000,))], ids=repr)
def test_memory_does_not_grow_with_queries_times_keys(mask: Mask, bias: Any, values: int) -> None:
    # The gradient of a bias by offset sums along diagonals, for which a piece is widened to twice its size.
    assert largest_held(FAR, mask, bias, values) <= (2 * EIGHTH if bias else EIGHTH)


@pytest.mark.parametrize("bias", [(), "alike"], ids=["no bias", "bias"])
def test_a_window_is_held_in_proportion_to_its_length(bias: Any) -> None:
    short, long = (largest_held(length, Window(255, 0), bias) for length in (FAR // 2, FAR))
    assert long <= 2.1 * short
    assert long < EIGHTH // 4


def test_the_fused_kernel_under_a_mask_is_what_holds_all_cells() -> None:
    assert largest_held(FAR // 2, Window(255, 0), backend="fused") >= (FAR // 2) ** 2


@pytest.mark.parametrize(
    ("mask", "values", "bias", "dropout"),
    [
        (Full(), 8, (), 0.1),
        (Causal(), 8, (), 0.1),
        (Causal(), 9, (), 0.0),
        (Full(), 8, "alike", 0.0),
        (Dilated(2), 8, (), 0.0),
    ],
    ids=["dropout", "causal and dropout", "wide values", "distances", "a mask of which no block is whole"],
)
def test_what_is_chosen_holds_no_scores(mask: Mask, values: int, bias: Any, dropout: float) -> None:
    length = FAR // 2 + 1
    call = Asked("Full()", length, length, heads=1, key_heads=1, bias=bias)
    _, kept = call.tensors(torch.float32)
    leaves = [torch.randn(1, 1, length, width, requires_grad=True) for width in (8, 8, values)]
    with Largest() as largest:  # type: ignore[no-untyped-call]
        result = attend(leaves[0], leaves[1], leaves[2], mask, call.bias_of(kept), dropout=dropout)
        torch.autograd.grad(result.sum(), leaves)
    # The gradient of a bias by offset sums along the diagonals of a piece, which is widened to twice its size for it.
    assert int(largest.size) <= (2 * tiled.WRITTEN * 4 if bias else 0.9 * length**2 * 4)


# --- what is kept from call to call ---------------------------------------------------------------------------


def test_a_function_that_reads_something_else_now_is_asked_again() -> None:
    lengths = torch.tensor([1000])
    mask = Predicate(lambda b, h, q, k: (k <= q) & (k < lengths[b]) & (q - k < 200), batch=1)
    states = torch.randn(1, 1, 520, 3, dtype=torch.float64)
    before = attend(states, states, states, mask, backend="blocks")
    lengths[0] = 10
    after = attend(states, states, states, mask, backend="blocks")
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, attend(states, states, states, mask, backend="formula"), rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        (Causal() & Padding((5, 3)), True),
        (Dense(torch.ones(7, 7, dtype=torch.bool)), True),
        (Causal() | Dense(torch.ones(2, 1, 1024, 1024, dtype=torch.bool)), False),
        (~Predicate(lambda b, h, q, k: k <= q), False),
        (Heads((Causal(), Predicate(lambda b, h, q, k: k <= q) & Causal())), False),
    ],
    ids=["values", "a small tensor", "a large tensor", "a function", "a function of one head"],
)
def test_what_may_be_kept_is_a_value_and_small(mask: Mask, kept: bool) -> None:
    assert may_be_kept(mask) is kept


# --- what the kernels alone would do otherwise ------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["formula", "fused", "blocks", "auto"])
def test_no_heads_give_no_heads(backend: Any) -> None:
    states = torch.zeros(2, 0, 300, 5, requires_grad=True)
    result = attend(states, states, states, Window(99, 0), backend=backend)
    assert result.shape == (2, 0, 300, 5)
    assert torch.autograd.grad(result.sum(), states)[0].shape == states.shape


@pytest.mark.parametrize("mask", [None, Causal()], ids=repr)
@pytest.mark.parametrize("backend", ["formula", "fused", "blocks"])
def test_a_query_that_the_bias_blinds_is_given_zeros(backend: Any, mask: Mask | None) -> None:
    states = torch.randn(1, 1, 300, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(1, 1, 300, 300, dtype=torch.float64)
    bias[:, :, 7] = -math.inf
    result = attend(states, states, states, mask, bias, backend=backend)
    assert torch.count_nonzero(result[0, 0, 7]) == 0
    assert bool(torch.autograd.grad(result.sum(), states)[0].isfinite().all())


@pytest.mark.parametrize("length", [200, 600])
def test_where_torch_chooses_dtypes_a_length_changes_none(length: int) -> None:
    states = torch.randn(1, 1, length, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(states, states, states, Window(9, 0)).dtype == torch.bfloat16
