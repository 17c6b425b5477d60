"""Rotary positions: complex numbers as the oracle, the law of distance, both layouts of pairs, and longer texts."""

import cmath
import math
from typing import Any, Literal, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pellucid.errors import ConfigError, ShapeError
from pellucid.model.positions import Rotary, rotary_weights

B, H, L, HEAD_DIM, D = 2, 3, 7, 10, 13  # a head is turned in pairs: its width is even, twice a prime
Pairs = Literal["halves", "interleaved"]
Scaling = Literal["none", "linear", "ntk", "yarn"]

both_layouts = pytest.mark.parametrize("pairs", get_args(Pairs))
every_scaling = pytest.mark.parametrize("scaling", get_args(Scaling))
PLACES = st.integers(0, 1000)


def scaled(scaling: Scaling, pairs: Pairs = "halves", head_dim: int = HEAD_DIM) -> Rotary:
    """A scheme of each scaling, with numbers of its own."""
    factor = 1.0 if scaling == "none" else 3.0
    return Rotary(head_dim, pairs, 500.0, scaling, factor, 61 if scaling == "yarn" else None)


def turned(vector: list[float], place: int, base: float, pairs: Pairs) -> list[float]:
    """Equation 34: each pair is one complex number, multiplied by e^(i * place * theta)."""
    half, result = len(vector) // 2, list(vector)
    for pair in range(half):
        one, other = (pair, pair + half) if pairs == "halves" else (2 * pair, 2 * pair + 1)
        number = complex(vector[one], vector[other]) * cmath.exp(1j * place * base ** (-2 * pair / len(vector)))
        result[one], result[other] = number.real, number.imag
    return result


@both_layouts
@given(half=st.integers(1, 7), first=st.integers(-300, 300), base=st.sampled_from([10000.0, 500.0, 3.5]))
def test_a_turn_is_a_complex_number_of_length_one(pairs: Pairs, half: int, first: int, base: float) -> None:
    heads = torch.randn(B, H, 3, 2 * half, dtype=torch.float64)
    rotated = Rotary(2 * half, pairs, base).rotate(heads, first)
    for b in range(B):
        for h in range(H):
            for row in range(3):
                wanted = turned(heads[b, h, row].tolist(), first + row, base, pairs)
                for number, right in zip(rotated[b, h, row].tolist(), wanted, strict=True):
                    assert math.isclose(number, right, rel_tol=0, abs_tol=1e-12)


@given(st.sampled_from(get_args(Pairs)), st.sampled_from(get_args(Scaling)), PLACES, PLACES, st.integers(-1000, 1000))
def test_a_score_depends_on_the_distance_alone(
    pairs: Pairs, scaling: Scaling, query: int, key: int, shift: int
) -> None:
    positions = scaled(scaling, pairs)
    one, other = torch.randn(2, 1, 1, 1, HEAD_DIM, dtype=torch.float64)

    def score(at: int, of: int) -> Tensor:
        return (positions.rotate(one, at) * positions.rotate(other, of)).sum()

    torch.testing.assert_close(score(query + shift, key + shift), score(query, key), rtol=0, atol=1e-11)
    if query != key:  # and it does depend on it
        assert abs(score(query, key) - score(key, query)) > 1e-9


@both_layouts
@every_scaling
def test_lengths_are_kept_but_for_the_temperature_of_yarn(pairs: Pairs, scaling: Scaling) -> None:
    heads = torch.randn(B, H, L, HEAD_DIM, dtype=torch.float64)
    grown = 0.1 * math.log(3.0) + 1 if scaling == "yarn" else 1.0
    positions = scaled(scaling, pairs)
    assert math.isclose(positions.magnitude, grown)
    lengths = positions.rotate(heads, first=5).norm(dim=-1)
    torch.testing.assert_close(lengths, heads.norm(dim=-1) * grown, rtol=0, atol=1e-12)


@every_scaling
def test_both_layouts_are_one_turn_under_a_permutation(scaling: Scaling) -> None:
    order = [*range(0, HEAD_DIM, 2), *range(1, HEAD_DIM, 2)]
    heads = torch.randn(B, H, L, HEAD_DIM)
    interleaved = scaled(scaling, "interleaved").rotate(heads, first=11)
    assert torch.equal(scaled(scaling).rotate(heads[..., order], first=11), interleaved[..., order])


@both_layouts
@every_scaling
def test_a_step_is_turned_as_the_row_of_the_whole(pairs: Pairs, scaling: Scaling) -> None:
    positions, heads = scaled(scaling, pairs), torch.randn(B, H, L, HEAD_DIM)
    whole = positions.rotate(heads)
    for row in range(L):
        assert torch.equal(positions.rotate(heads[:, :, row : row + 1], first=row), whole[:, :, row : row + 1])


@both_layouts
def test_each_sample_may_begin_at_a_position_of_its_own(pairs: Pairs) -> None:
    positions, heads = Rotary(HEAD_DIM, pairs), torch.randn(3, H, L, HEAD_DIM)
    rotated = positions.rotate(heads, first=torch.tensor([0, -4, 6], dtype=torch.int32))
    for sample, first in enumerate((0, -4, 6)):
        assert torch.equal(rotated[sample], positions.rotate(heads[sample : sample + 1], first)[0])


@both_layouts
def test_a_gradient_is_turned_back(pairs: Pairs) -> None:
    positions = Rotary(HEAD_DIM, pairs)
    heads = torch.randn(B, H, 1, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(B, H, 1, HEAD_DIM, dtype=torch.float64)
    (back,) = torch.autograd.grad(positions.rotate(heads, first=17), heads, slope)
    torch.testing.assert_close(back, positions.rotate(slope, first=-17), rtol=0, atol=1e-12)


@both_layouts
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_turn_keeps_the_dtype_and_is_rounded_once(pairs: Pairs, dtype: torch.dtype) -> None:
    positions, heads = Rotary(HEAD_DIM, pairs), torch.randn(B, H, L, HEAD_DIM).to(dtype)
    far = positions.rotate(heads, first=10**6)
    assert far.dtype == dtype
    wide = positions.rotate(heads.to(torch.promote_types(dtype, torch.float32)), first=10**6)
    assert torch.equal(far, wide.to(dtype))
    exact = positions.rotate(heads.double(), first=10**6)
    torch.testing.assert_close(wide.double(), exact, rtol=0, atol=2e-6)


@every_scaling
def test_other_doors_stay_closed_and_nothing_is_learned(scaling: Scaling) -> None:
    positions, states = scaled(scaling), torch.randn(B, L, D)
    assert positions(states, first=3) is states
    assert positions.bias(queries=L, keys=5) is None
    assert positions.state_dict() == {}


def test_nothing_that_the_caller_holds_is_changed() -> None:
    heads = torch.randn(B, H, L, HEAD_DIM)
    before, first = heads.clone(), torch.tensor([3, -2])
    assert not torch.equal(Rotary(HEAD_DIM).rotate(heads, first), heads)
    assert torch.equal(heads, before)
    assert first.tolist() == [3, -2]


def test_no_heads_and_no_length_are_nothing_to_turn() -> None:
    assert Rotary(HEAD_DIM).rotate(torch.zeros(B, H, 0, HEAD_DIM), first=5).shape == (B, H, 0, HEAD_DIM)
    nobody = torch.zeros(0, dtype=torch.int64)
    assert Rotary(HEAD_DIM).rotate(torch.zeros(0, H, L, HEAD_DIM), first=nobody).shape == (0, H, L, HEAD_DIM)


# --- longer texts --------------------------------------------------------------------------------------------


def test_linear_reads_a_position_as_a_fraction_of_it() -> None:
    heads = torch.randn(B, H, 1, HEAD_DIM, dtype=torch.float64)
    stretched = Rotary(HEAD_DIM, scaling="linear", factor=4.0).rotate(heads, first=28)
    torch.testing.assert_close(stretched, Rotary(HEAD_DIM).rotate(heads, first=7), rtol=0, atol=1e-12)


def test_ntk_stretches_the_slowest_pair_and_leaves_the_fastest() -> None:
    plain = Rotary(HEAD_DIM).frequencies()
    ratio = Rotary(HEAD_DIM, scaling="ntk", factor=4.0).frequencies() / plain
    # base * factor^(d / (d - 2)) slows pair i by factor^(2 i / (d - 2)): here i / 4 of the way from 1 to 4, by powers.
    wanted = torch.tensor([1.0, 4**-0.25, 4**-0.5, 4**-0.75, 0.25], dtype=torch.float64)
    torch.testing.assert_close(ratio, wanted, rtol=0, atol=1e-14)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    # Of 2048 positions, 64 * ln(2048 / (32 * 2 pi)) / (2 ln 10000) = 8.06, and with 1 turn 20.1: pairs 8 and 21.
    plain = Rotary(64).frequencies()
    ratio = Rotary(64, scaling="yarn", factor=4.0, original_length=2048).frequencies() / plain
    between = [1 - 0.75 * step / 13 for step in range(1, 13)]
    wanted = torch.tensor([1.0] * 9 + between + [0.25] * 11, dtype=torch.float64)
    torch.testing.assert_close(ratio, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("head_dim", "base", "original_length", "wanted"),
    [
        (6, 10000.0, 10**12, [1.0, 1.0, 1.0]),  # every pair makes more than 32 turns
        (6, 2.0, 10**9, [1.0, 1.0, 1.0]),  # the same, past the last pair
        (6, 2.0, 100, [1.0, 0.9, 0.8]),  # one turn is made past the last pair: the passage ends at index 5
        (6, 10000.0, 7, [1.0, 0.5, 0.5]),  # one turn of the first pair, less of the others
        (6, 10000.0, 1, [1.0, 0.5, 0.5]),  # no turn at all
        (2, 10000.0, 2048, [1.0]),
    ],
)
def test_yarn_decides_at_its_ends(head_dim: int, base: float, original_length: int, wanted: list[float]) -> None:
    plain = Rotary(head_dim, base=base).frequencies()
    stretched = Rotary(head_dim, "halves", base, "yarn", 2.0, original_length).frequencies()
    torch.testing.assert_close(stretched / plain, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_a_factor_of_one_changes_nothing(scaling: Literal["linear", "ntk", "yarn"]) -> None:
    positions = Rotary(HEAD_DIM, scaling=scaling, original_length=61)
    torch.testing.assert_close(positions.frequencies(), Rotary(HEAD_DIM).frequencies(), rtol=0, atol=1e-15)
    assert positions.magnitude == 1


# --- against Hugging Face's transformers ---------------------------------------------------------------------


def theirs(kind: str, head_dim: int, base: float, factor: float, length: int) -> tuple[Tensor, float]:
    """Hugging Face's frequencies and the number that it multiplies cosines and sines by."""
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers").LlamaConfig
    parameters = {"rope_type": kind, "rope_theta": base, "factor": factor, "original_max_position_embeddings": length}
    sizes: dict[str, Any] = {"head_dim": head_dim, "hidden_size": 3 * head_dim, "num_attention_heads": 3}
    config = llama(max_position_embeddings=length, rope_parameters=parameters, **sizes)
    # Its dynamic form with a factor of 1 stretches by the length read over the length trained on.
    return rope.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=5 * length)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("head_dim", "base", "length"), [(64, 10000.0, 2048), (26, 500.0, 61), (128, 1e6, 4096)])
@pytest.mark.parametrize(
    ("scaling", "kind", "factor"), [("linear", "linear", 5.0), ("ntk", "dynamic", 1.0), ("yarn", "yarn", 5.0)]
)
def test_frequencies_are_those_of_hugging_face(
    scaling: Literal["linear", "ntk", "yarn"], kind: str, factor: float, head_dim: int, base: float, length: int
) -> None:
    positions = Rotary(head_dim, "halves", base, scaling, 5.0, length)
    frequencies, magnitude = theirs(kind, head_dim, base, factor, length)
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(positions.frequencies(), frequencies.double(), rtol=3e-6, atol=0)
    assert math.isclose(positions.magnitude, magnitude)


def test_pairs_are_those_of_llama_and_of_gpt_j() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gpt_j = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    heads = torch.randn(B, H, L, HEAD_DIM, dtype=torch.float64)
    angles = torch.arange(5, 5 + L, dtype=torch.float64)[:, None] * Rotary(HEAD_DIM).frequencies()
    cos, sin = (torch.cat([one, one], dim=-1)[None] for one in (angles.cos(), angles.sin()))
    halves, _ = llama.apply_rotary_pos_emb(heads, heads, cos, sin)
    torch.testing.assert_close(Rotary(HEAD_DIM).rotate(heads, first=5), halves, rtol=0, atol=1e-12)
    pairs = gpt_j.apply_rotary_pos_emb(heads.transpose(1, 2), angles.sin()[None], angles.cos()[None]).transpose(1, 2)
    torch.testing.assert_close(Rotary(HEAD_DIM, "interleaved").rotate(heads, first=5), pairs, rtol=0, atol=1e-12)


# --- projections for the other layout ------------------------------------------------------------------------


def scores(query: nn.Linear, key: nn.Linear, pairs: Pairs, states: Tensor) -> Tensor:
    """The scores of rotary self-attention whose keys have one head."""
    turn = Rotary(HEAD_DIM, pairs).rotate
    queries = turn(query(states).view(B, L, H, HEAD_DIM).transpose(1, 2))
    return queries @ turn(key(states).view(B, L, 1, HEAD_DIM).transpose(1, 2)).transpose(-2, -1)


@both_layouts
@torch.no_grad()
def test_converted_projections_give_the_same_scores(pairs: Pairs) -> None:
    query, key = nn.Linear(D, H * HEAD_DIM, dtype=torch.float64), nn.Linear(D, HEAD_DIM, dtype=torch.float64)
    states = torch.randn(B, L, D, dtype=torch.float64)
    before = scores(query, key, pairs, states)
    other: Pairs = "interleaved" if pairs == "halves" else "halves"
    assert (scores(query, key, other, states) - before).abs().max() > 1e-3
    for linear, heads in ((query, H), (key, 1)):
        for parameter in (linear.weight, linear.bias):
            parameter.copy_(rotary_weights(parameter, heads, to=other))
    torch.testing.assert_close(scores(query, key, other, states), before, rtol=0, atol=1e-12)


@both_layouts
def test_projections_converted_and_back_are_the_same(pairs: Pairs) -> None:
    weight = torch.randn(H * HEAD_DIM, D)
    other: Pairs = "interleaved" if pairs == "halves" else "halves"
    there = rotary_weights(weight, H, to=pairs)
    assert there.shape == weight.shape
    assert not torch.equal(there, weight)
    assert torch.equal(rotary_weights(there, H, to=other), weight)


def test_a_width_of_two_has_one_layout() -> None:
    weight = torch.randn(2 * H, D)
    made = rotary_weights(weight, H, to="halves")
    assert torch.equal(made, weight)
    made.zero_()
    assert weight.abs().min() > 0  # what is handed back is the caller's own


@pytest.mark.parametrize(
    ("shape", "num_heads"), [((30, D), 4), ((30, D), 0), ((15, D), 3), ((30, D), 6), ((31,), 1), ((), 1)]
)
@pytest.mark.usefixtures("unchecked")
def test_rows_that_are_no_heads_of_pairs_are_refused(shape: tuple[int, ...], num_heads: int) -> None:
    with pytest.raises(ShapeError, match="num_heads \\* head_dim rows with an even head_dim, so give one projection"):
        rotary_weights(torch.zeros(shape), num_heads, to="halves")


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_dim": 7}, "head_dim=7, but it turns dimensions in pairs; give an even number"),
        ({"head_dim": 0}, "head_dim=0, but it turns dimensions in pairs"),
        ({"head_dim": 4.0}, "head_dim=4.0, but it turns dimensions in pairs; give the width of a head, even, a whole"),
        ({"head_dim": "4"}, "head_dim='4', but it turns dimensions in pairs"),
        ({"head_dim": True}, "head_dim=True, but it turns dimensions in pairs"),
        ({"pairs": "split"}, "pairs='split', but it knows 'halves' and 'interleaved'; choose one"),
        ({"scaling": "log"}, "scaling='log', but it knows 'none', 'linear', 'ntk' and 'yarn'; choose one"),
        ({"base": 1.0}, "base=1.0, but slower pairs need a base above 1; give one"),
        ({"base": math.nan}, "base=nan, but slower pairs"),
        (
            {"scaling": "linear", "factor": 0.5},
            "factor=0.5, but it says how many times longer .*; give a number from 1",
        ),
        ({"scaling": "linear", "factor": math.inf}, "factor=inf, but it says how many times longer"),
        ({"factor": 2.0}, "factor=2.0 and scaling='none', which stretches nothing; choose 'linear'"),
        ({"scaling": "ntk", "head_dim": 2}, "scaling='ntk' and head_dim=2, .*; choose 'linear'"),
        ({"scaling": "yarn", "factor": 2.0}, "scaling='yarn' and original_length=None, .*; give original_length"),
        ({"scaling": "yarn", "original_length": 0}, "original_length=0, .*; give original_length, a whole number"),
        (
            {"scaling": "yarn", "original_length": 61.5},
            "original_length=61.5, .*; give original_length, a whole number",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_settings_that_turn_nothing_or_wrongly_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rotary(**{"head_dim": HEAD_DIM} | settings)


@pytest.mark.usefixtures("unchecked")
def test_heads_of_another_width_or_batch_are_refused() -> None:
    positions = Rotary(HEAD_DIM)
    with pytest.raises(ShapeError, match=r"Rotary\(head_dim=10\) was given heads of width 12; make it for the width"):
        positions.rotate(torch.zeros(B, H, L, 12))
    with pytest.raises(ShapeError, match=r"a tensor of shape \(3,\) and torch.int64 for 2 samples; give one number"):
        positions.rotate(torch.zeros(B, H, L, HEAD_DIM), first=torch.tensor([0, 1, 2]))


def test_a_scheme_says_what_it_is() -> None:
    assert repr(Rotary(HEAD_DIM)) == "Rotary(head_dim=10, pairs='halves', base=10000.0)"
    assert repr(scaled("ntk", "interleaved")) == (
        "Rotary(head_dim=10, pairs='interleaved', base=500.0, scaling='ntk', factor=3.0)"
    )
    assert repr(scaled("yarn")).endswith("scaling='yarn', factor=3.0, original_length=61)")
