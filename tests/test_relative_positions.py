"""Relative positions: a bias by distance cell by cell, ALiBi's slopes and T5's buckets by their published numbers."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import ConfigError, ShapeError
from pellucid.model.bias import Relative
from pellucid.model.positions import ALiBi, Positions, T5Relative

B, H, Q, K, D = 2, 3, 5, 7, 11
SCHEMES: list[Positions] = [ALiBi(H), T5Relative(H), T5Relative(H, bidirectional=False, num_buckets=8, max_distance=5)]

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=repr)


def bias_of(scheme: Positions, queries: int, keys: int, first_query: int = 0) -> Relative:
    """The bias of a scheme that has one."""
    bias = scheme.bias(queries, keys, first_query)
    assert bias is not None
    return bias


# --- the bias by itself --------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 7), st.integers(0, 7), st.integers(0, 2), st.integers(0, 2))
def test_every_cell_is_the_number_of_its_offset(
    queries: int, keys: int, first_query: int, first_key: int, before: int, after: int
) -> None:
    least = first_key - (first_query + queries - 1) - before
    most = first_key + keys - 1 - first_query + after
    table = torch.randn(H, most - least + 1)
    scores = Relative(table, least).scores(queries, keys, first_query, first_key)
    assert scores.shape == (1, H, queries, keys)
    for h in range(H):
        for row in range(queries):
            for column in range(keys):
                offset = (first_key + column) - (first_query + row)
                assert scores[0, h, row, column] == table[h, offset - least]


def test_a_gradient_is_gathered_by_offset() -> None:
    table = torch.zeros(H, 13, requires_grad=True)
    scores = Relative(table, least=-6).scores(queries=3, keys=5, first_query=2)
    weight = torch.randn(H, 3, 5)
    (slope,) = torch.autograd.grad((scores[0] * weight).sum(), table)
    wanted = torch.zeros(H, 13)
    for row in range(3):
        for column in range(5):
            wanted[:, column - (2 + row) + 6] += weight[:, row, column]
    torch.testing.assert_close(slope, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "keys", "first_query", "first_key", "asked"),
    [(4, 2, 0, 0, "-3 to 1"), (2, 4, 0, 0, "-1 to 3"), (1, 1, 3, 0, "-3 to -3"), (1, 1, 0, 3, "3 to 3")],
)
def test_an_offset_that_is_not_known_is_refused(
    queries: int, keys: int, first_query: int, first_key: int, asked: str
) -> None:
    bias = Relative(torch.zeros(H, 5), least=-2)
    assert bias.scores(queries=3, keys=3).shape == (1, H, 3, 3)
    with pytest.raises(ShapeError, match=f"of the offsets -2 to 2 was asked for {asked}; make it for as many"):
        bias.scores(queries, keys, first_query, first_key)


def test_heads_may_be_alike_and_scores_may_be_none() -> None:
    assert Relative(torch.zeros(1, 5), least=-2).heads == 1
    assert Relative(torch.zeros(H, 5), least=-2).heads == H
    assert Relative(torch.zeros(H, 5), least=-2).scores(queries=0, keys=9).shape == (1, H, 0, 9)
    assert Relative(torch.zeros(H, 5), least=-2).scores(queries=9, keys=0).shape == (1, H, 9, 0)


# --- both schemes --------------------------------------------------------------------------------------------


@every_scheme
@given(queries=st.integers(1, 6), keys=st.integers(1, 9), first_query=st.integers(0, 8))
def test_a_bias_knows_every_offset_that_is_asked_for(
    scheme: Positions, queries: int, keys: int, first_query: int
) -> None:
    bias = bias_of(scheme, queries, keys, first_query)
    assert bias.least == -(first_query + queries - 1)
    assert bias.table.shape == (H, queries + keys - 1)
    assert bias.scores(queries, keys, first_query).shape == (1, H, queries, keys)


@every_scheme
def test_a_step_is_given_the_row_of_the_whole(scheme: Positions) -> None:
    whole = bias_of(scheme, K, K).scores(K, K)
    for row in range(K):
        step = bias_of(scheme, 1, row + 1, row).scores(1, row + 1, row)
        assert torch.equal(step, whole[:, :, row : row + 1, : row + 1])
    piece = bias_of(scheme, 3, K, 2).scores(3, K, 2)
    assert torch.equal(piece, whole[:, :, 2:5])


@every_scheme
@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 3), (3, 0), (1, 0)])
def test_nothing_is_added_to_nothing(scheme: Positions, queries: int, keys: int) -> None:
    assert bias_of(scheme, queries, keys).scores(queries, keys).shape == (1, H, queries, keys)


@every_scheme
def test_other_doors_stay_closed(scheme: Positions) -> None:
    states, heads = torch.randn(B, Q, D), torch.randn(B, H, Q, D)
    assert scheme(states, first=3) is states
    assert scheme.rotate(heads, first=torch.tensor([3, 0])) is heads


def test_a_scheme_says_what_it_is() -> None:
    assert repr(ALiBi(H)) == "ALiBi(num_heads=3)"
    assert repr(T5Relative(H, bidirectional=False)) == (
        "T5Relative(num_heads=3, bidirectional=False, num_buckets=32, max_distance=128)"
    )


# --- ALiBi ---------------------------------------------------------------------------------------------------

# Each slope is 2 to the power of minus this: derived by hand from the rule in the paper's code.
EXPONENTS: dict[int, list[float]] = {
    1: [8],
    2: [4, 8],
    3: [4, 8, 2],
    6: [2, 4, 6, 8, 1, 3],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
    40: [quarter / 4 for quarter in range(1, 33)] + [0.125, 0.375, 0.625, 0.875, 1.125, 1.375, 1.625, 1.875],
}


def published(num_heads: int) -> list[float]:
    """The same rule as a recursion: a power of two is a geometric row whose ratio is its first number."""
    power = 2 ** math.floor(math.log2(num_heads))
    ratio = 2 ** -(2 ** (3 - math.log2(power)))
    row = [ratio ** (head + 1) for head in range(power)]
    return row if power == num_heads else row + published(2 * power)[0::2][: num_heads - power]


@pytest.mark.parametrize("num_heads", EXPONENTS)
def test_slopes_are_the_published_ones(num_heads: int) -> None:
    slopes = ALiBi(num_heads).double().slopes
    wanted = torch.tensor([2.0**-exponent for exponent in EXPONENTS[num_heads]], dtype=torch.float64)
    torch.testing.assert_close(slopes, wanted, rtol=1e-15, atol=0)
    assert torch.equal(ALiBi(num_heads).slopes, wanted.float())


@given(st.integers(1, 150))
def test_slopes_follow_the_recursion_for_any_number_of_heads(num_heads: int) -> None:
    wanted = torch.tensor(published(num_heads), dtype=torch.float64)
    torch.testing.assert_close(ALiBi(num_heads).double().slopes, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("num_heads", [8, 12])
def test_slopes_are_those_of_bloom(num_heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, K), num_heads, torch.float32).view(num_heads, K)
    ours = bias_of(ALiBi(num_heads), 1, K, K - 1).scores(1, K, K - 1)[0, :, 0]
    # Bloom adds slope * k, ours -slope * (q - k): the same but for a number common to the row.
    torch.testing.assert_close(ours - ours[:, :1], theirs, rtol=0, atol=1e-5)


def test_alibi_falls_with_the_distance_both_ways() -> None:
    scheme = ALiBi(H).double()
    scores = bias_of(scheme, Q, K, first_query=2).scores(Q, K, first_query=2)
    for h, exponent in enumerate(EXPONENTS[H]):
        for q in range(2, 2 + Q):
            for k in range(K):
                assert scores[0, h, q - 2, k] == -(2.0**-exponent) * abs(k - q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_alibi_is_rounded_once_and_not_below_float32(dtype: torch.dtype) -> None:
    scheme = ALiBi(12).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    bias = bias_of(scheme, 1, 4099, 4098)
    assert scheme.slopes.dtype == bias.table.dtype == wide
    exact = -ALiBi(12).double().slopes[:, None] * torch.arange(4098, -1, -1)
    assert torch.equal(bias.table, exact.to(wide))


def test_alibi_learns_nothing_and_saves_nothing() -> None:
    scheme = ALiBi(H)
    assert list(scheme.parameters()) == []
    assert scheme.state_dict() == {}
    scheme.load_state_dict({})
    assert torch.equal(copy.deepcopy(scheme).slopes, scheme.slopes)


def test_alibi_goes_where_its_module_goes() -> None:
    scheme = ALiBi(H).to("meta")
    assert scheme.slopes.device.type == bias_of(scheme, Q, K).table.device.type == "meta"


@pytest.mark.parametrize("num_heads", [0, -3, 2.5, True, "8", None], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_alibi_needs_heads(num_heads: Any) -> None:
    message = f"^ALiBi was given num_heads={num_heads!r}, but each head has its slope; give the attention's own number"
    with pytest.raises(ConfigError, match=message):
        ALiBi(num_heads)


# --- T5 ------------------------------------------------------------------------------------------------------

# The first distance of each bucket with 32 buckets and max_distance 128: those of one direction where both are told
# apart are 16, of which 8 are single; where not, 32, of which 16 are single. Published numbers, by 8 * 16^(j / 8) and
# 16 * 8^(j / 16), rounded up.
BOTH_WAYS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
BACKWARDS = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def bucket(distance: int, firsts: list[int]) -> int:
    """The last bucket that begins no later."""
    return max(number for number, first in enumerate(firsts) if first <= distance)


def test_buckets_are_the_published_ones_both_ways() -> None:
    scheme = T5Relative(H)
    for offset in range(-300, 301):
        wanted = bucket(abs(offset), BOTH_WAYS) + (16 if offset > 0 else 0)
        assert scheme.buckets(torch.tensor(offset)) == wanted
    named = [0, -1, 1, -7, 7, -8, 8, -11, -12, -127, -128, -129, 128, 10**9]
    assert scheme.buckets(torch.tensor(named)).tolist() == [0, 1, 17, 7, 23, 8, 24, 8, 9, 15, 15, 15, 31, 31]


def test_buckets_are_the_published_ones_backwards() -> None:
    scheme = T5Relative(H, bidirectional=False)
    for offset in range(-300, 301):
        assert scheme.buckets(torch.tensor(offset)) == bucket(max(-offset, 0), BACKWARDS)
    assert scheme.buckets(torch.tensor([[0, 5], [-15, -16], [-18, -19]])).tolist() == [[0, 0], [15, 16], [16, 17]]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 256), (64, 128), (16, 128), (8, 20), (4, 3), (6, 13), (30, 77)]
)
def test_buckets_are_those_of_hugging_face(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    offsets = torch.arange(-700, 701)
    ours = T5Relative(H, bidirectional, num_buckets, max_distance).buckets(offsets)
    theirs = t5._relative_position_bucket(offsets, bidirectional, num_buckets, max_distance)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_bias_is_that_of_hugging_face(bidirectional: bool) -> None:
    transformers = pytest.importorskip("transformers")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    config = transformers.T5Config(
        d_model=12, d_kv=4, num_heads=H, relative_attention_num_buckets=8, relative_attention_max_distance=11
    )
    config.is_decoder = not bidirectional
    theirs = t5(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Relative(H, bidirectional, num_buckets=8, max_distance=11)
    ours.load_state_dict(theirs.relative_attention_bias.state_dict())
    assert torch.equal(bias_of(ours, 17, 17).scores(17, 17), theirs.compute_bias(17, 17))


@given(st.integers(1, 20), st.integers(1, 200), st.booleans())
def test_buckets_widen_with_the_distance(half: int, more: int, bidirectional: bool) -> None:
    num_buckets, distances = 2 * half * (2 if bidirectional else 1), torch.arange(half + more + 50)
    scheme = T5Relative(H, bidirectional, num_buckets, max_distance=half + more)
    rows = scheme.buckets(-distances)
    assert rows[: half + 1].tolist() == list(range(half + 1))  # one distance each
    assert (rows.diff() >= 0).all()
    assert set(rows[half + more :].tolist()) == {2 * half - 1}  # all that is farther
    ahead = scheme.buckets(distances[1:])
    assert torch.equal(ahead, rows[1:] + 2 * half) if bidirectional else not ahead.any()


def test_t5_adds_the_learned_number_of_each_bucket() -> None:
    scheme = T5Relative(H, num_buckets=8, max_distance=6)
    scores = bias_of(scheme, Q, K, first_query=4).scores(Q, K, first_query=4)
    for h in range(H):
        for q in range(4, 4 + Q):
            for k in range(K):
                row = int(scheme.buckets(torch.tensor(k - q)))
                assert scores[0, h, q - 4, k] == scheme.weight[row, h]


def test_a_gradient_reaches_the_numbers_of_the_buckets_that_were_met() -> None:
    scheme = T5Relative(H, num_buckets=8, max_distance=6)
    (slope,) = torch.autograd.grad(bias_of(scheme, 4, 4).scores(4, 4).sum(), scheme.weight)
    # Offsets 0 (4 cells), -1 (3), -2 and -3 (2 + 1) behind; 1 (3), 2 and 3 (2 + 1) ahead, in buckets from 4 on.
    assert slope[:, 1].tolist() == [4, 3, 3, 0, 0, 3, 3, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_t5_keeps_the_dtype_of_its_weight_and_buckets_are_never_rounded(dtype: torch.dtype) -> None:
    scheme = T5Relative(H, max_distance=5000).to(dtype)
    assert bias_of(scheme, Q, K).table.dtype == dtype
    offsets = torch.arange(-6000, 6001)
    assert torch.equal(scheme.buckets(offsets), T5Relative(H, max_distance=5000).buckets(offsets))


def test_t5_saves_its_weight_alone() -> None:
    assert {name: tuple(value.shape) for name, value in T5Relative(H).state_dict().items()} == {"weight": (32, H)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 0}, "num_heads=0, but each head learns its own numbers; give the attention's own number"),
        ({"num_heads": 3.0}, "num_heads=3.0, but each head learns its own numbers; give the attention's own number"),
        ({"num_buckets": 8.0}, "num_buckets=8.0, but it counts the rows of the table; give how many buckets there are"),
        ({"num_buckets": 0}, "num_buckets=0, but it counts the rows of the table"),
        ({"max_distance": math.inf}, "max_distance=inf, but it counts positions; give the distance from which on"),
        ({"max_distance": 10**30}, "max_distance=10{30}, but it counts positions; .* below 2\\*\\*62"),
        ({"max_distance": 100.5}, "max_distance=100.5, but it counts positions; .* a whole number from 1 up"),
        ({"num_buckets": 2}, "num_buckets=2 and bidirectional=True; give at least 2 buckets for each direction"),
        ({"num_buckets": 31}, "num_buckets=31 and bidirectional=True; give at least 2 buckets for each direction"),
        ({"num_buckets": 1, "bidirectional": False}, "num_buckets=1 and bidirectional=False; give at least 2"),
        ({"max_distance": 8}, "max_distance=8, but the distances below 8 have a bucket each; give a larger"),
        ({"max_distance": 16, "bidirectional": False}, "max_distance=16, but the distances below 16 have a bucket"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_t5_refuses_buckets_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        T5Relative(**{"num_heads": H} | settings)


def test_t5_takes_the_fewest_buckets_that_can_be() -> None:
    assert T5Relative(H, num_buckets=4, max_distance=2).buckets(torch.tensor([-2, -1, 0, 1, 2])).tolist() == [
        1,
        1,
        0,
        3,
        3,
    ]
    odd = T5Relative(H, bidirectional=False, num_buckets=3, max_distance=9)
    assert odd.buckets(torch.tensor([1, 0, -1, -2, -3, -9])).tolist() == [0, 0, 1, 1, 2, 2]
