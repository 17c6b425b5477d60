"""Absolute positions: the paper's formula written again with `math`, layouts, and the end of a learned table."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.config import ModelConfig
from pellucid.errors import ConfigError, PositionError, ShapeError
from pellucid.model import Transformer
from pellucid.model.positions import (
    Learned,
    NoPositions,
    Positions,
    Rotary,
    Sinusoidal,
    halves_to_interleaved,
    interleaved_to_halves,
)

B, S, T, D = 2, 5, 7, 11


def paper(pos: int, column: int, d_model: int) -> float:
    """PE(pos, column) of section 3.5: sines in the even columns, cosines in the odd ones."""
    i, odd = divmod(column, 2)
    angle = pos / 10000 ** (2 * i / d_model)
    return math.cos(angle) if odd else math.sin(angle)


@given(st.integers(1, 67), st.integers(0, 5000))
def test_sinusoidal_is_the_paper_s_formula(d_model: int, first: int) -> None:
    table = Sinusoidal(d_model).table(length=3, first=first, dtype=torch.float64)
    wanted = [[paper(first + row, column, d_model) for column in range(d_model)] for row in range(3)]
    torch.testing.assert_close(table, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-11)


@pytest.mark.parametrize("d_model", [D, 12, 1, 2])
def test_halves_are_the_same_columns_in_another_order(d_model: int) -> None:
    interleaved = Sinusoidal(d_model).table(length=T)
    halves = Sinusoidal(d_model, layout="halves").table(length=T)
    order = [*range(0, d_model, 2), *range(1, d_model, 2)]
    assert torch.equal(halves, interleaved[:, order])


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_a_row_is_the_same_wherever_the_states_begin(layout: str) -> None:
    positions = Sinusoidal(D, "halves" if layout == "halves" else "interleaved")
    states = torch.randn(B, T, D)
    whole = positions(states)
    for row in range(T):
        assert torch.equal(positions(states[:, row : row + 1], first=row), whole[:, row : row + 1])


def test_sinusoidal_adds_its_table_to_each_sample() -> None:
    states = torch.randn(B, T, D, dtype=torch.float64)
    positions = Sinusoidal(D)
    added = positions(states) - states
    for sample in added:
        torch.testing.assert_close(sample, positions.table(T, dtype=torch.float64), rtol=0, atol=1e-12)


def test_there_is_no_longest_position() -> None:
    far = 10**6
    row = Sinusoidal(D).table(length=1, first=far, dtype=torch.float64)[0]
    for column in range(D):
        assert math.isclose(float(row[column]), paper(far, column, D), abs_tol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_positions_keep_the_dtype_of_the_states(dtype: torch.dtype) -> None:
    states = torch.zeros(B, T, D, dtype=dtype)
    assert Sinusoidal(D)(states).dtype == dtype
    assert Learned(D, max_positions=T)(states).dtype == dtype
    # Rounded once, from float64: a table made in low precision would drift at long lengths.
    far = Sinusoidal(D).table(length=3, first=4999, dtype=torch.float64)
    assert torch.equal(Sinusoidal(D).table(length=3, first=4999, dtype=dtype), far.to(dtype))


def test_learned_adds_a_vector_of_its_own_to_each_position() -> None:
    positions = Learned(D, max_positions=T)
    states = torch.randn(B, S, D)
    assert torch.equal(positions(states, first=2), states + positions.weight[2 : 2 + S])
    (slope,) = torch.autograd.grad(positions(states, first=2).sum(), positions.weight)
    assert slope[:, 0].tolist() == [0, 0, B, B, B, B, B]


@pytest.mark.parametrize(("length", "first"), [(T + 1, 0), (1, T), (3, 5)])
def test_learned_names_its_limit(length: int, first: int) -> None:
    positions = Learned(D, max_positions=T)
    assert positions(torch.zeros(B, T, D)).shape == (B, T, D)
    with pytest.raises(PositionError, match=f"position {first + length - 1}, but max_positions=7 .*; shorten the text"):
        positions(torch.zeros(B, length, D), first=first)


def test_generation_stops_at_the_limit_of_learned_positions() -> None:
    config = ModelConfig.tiny(source_vocab_size=13, target_vocab_size=17, positions="learned", max_positions=S)
    model = Transformer(config).eval()
    memory, cache = model.encode(torch.tensor([[5, 6, 3]])), None
    for step in range(S):
        logits, cache = model.decode(torch.tensor([[4 + step]]), memory, cache=cache)
        assert logits.shape == (1, 1, 17)
    with pytest.raises(PositionError, match="position 5, but max_positions=5 were learned, 0 to 4"):
        model.decode(torch.tensor([[4]]), memory, cache=cache)
    with pytest.raises(PositionError, match="max_positions=5"):
        model.encode(torch.full((1, S + 1), 4))


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Sinusoidal(D, "halves"), Learned(D, max_positions=13)], ids=repr)
def test_each_sample_may_begin_at_a_position_of_its_own(scheme: Positions) -> None:
    states = torch.randn(3, T, D)
    told = scheme(states, first=torch.tensor([0, 6, 2], dtype=torch.int32))
    for sample, first in enumerate((0, 6, 2)):
        assert torch.equal(told[sample], scheme(states[sample : sample + 1], first=first)[0])


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Learned(D, max_positions=T)], ids=repr)
def test_padding_in_front_is_told_position_0(scheme: Positions) -> None:
    states = torch.randn(B, T, D)
    zero = scheme(torch.zeros(1, 1, D))[0, 0]
    told = scheme(states, first=torch.tensor([-2, 0]))
    assert torch.equal(told[0, 2:], scheme(states[:1, 2:])[0])
    assert torch.equal(told[1], scheme(states[1:])[0])
    assert torch.equal(told[0, :2], states[0, :2] + zero)
    assert torch.equal(scheme(states[:1], first=-2), told[:1])
    assert torch.equal(scheme(states, first=-T), states + zero)


def test_learned_looks_for_its_limit_in_every_sample() -> None:
    positions = Learned(D, max_positions=T)
    assert positions(torch.zeros(B, S, D), first=torch.tensor([-5, 2])).shape == (B, S, D)
    with pytest.raises(PositionError, match="a token stands at position 7, but max_positions=7 were learned"):
        positions(torch.zeros(B, S, D), first=torch.tensor([-5, 3]))
    assert positions(torch.zeros(0, S, D), first=torch.zeros(0, dtype=torch.int64)).shape == (0, S, D)


def test_learned_gathers_gradients_where_each_sample_stands() -> None:
    positions = Learned(D, max_positions=T)
    told = positions(torch.zeros(B, S, D), first=torch.tensor([-1, 2]))
    (slope,) = torch.autograd.grad(told.sum(), positions.weight)
    assert slope[:, 0].tolist() == [2, 1, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Learned(D, max_positions=T)], ids=repr)
@pytest.mark.parametrize("first", [torch.tensor([0, 1, 2]), torch.tensor([0.0, 1.0]), torch.tensor(1)], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_a_first_position_is_one_whole_number_for_each_sample(scheme: Positions, first: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match=r"`first` was given as a tensor of shape .* for 2 samples; give one number"):
        scheme(torch.zeros(B, S, D), first)


@given(st.integers(0, 13), st.lists(st.sampled_from([1, 2, 3]), max_size=2))
def test_layouts_turn_into_each_other_and_back(width: int, axes: list[int]) -> None:
    table = torch.randn(*axes, width)
    halves = interleaved_to_halves(table)
    evens_first = sorted(range(width), key=lambda column: column % 2)
    assert torch.equal(halves, table[..., evens_first])
    assert torch.equal(halves_to_interleaved(halves), table)
    assert torch.equal(interleaved_to_halves(halves_to_interleaved(table)), table)


@pytest.mark.parametrize("d_model", [D, 12, 1])
def test_tables_of_both_layouts_turn_into_each_other(d_model: int) -> None:
    interleaved = Sinusoidal(d_model).table(length=T)
    halves = Sinusoidal(d_model, layout="halves").table(length=T)
    assert torch.equal(interleaved_to_halves(interleaved), halves)
    assert torch.equal(halves_to_interleaved(halves), interleaved)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="layout='split', but it knows 'interleaved' and 'halves'; choose one"):
        Sinusoidal(D, "split")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scheme", "given", "message"),
    [
        (Sinusoidal, (0,), "Sinusoidal was given d_model=0, but it is added to states of that width; give the width"),
        (Sinusoidal, (-4,), "Sinusoidal was given d_model=-4, "),
        (Sinusoidal, ("4",), "Sinusoidal was given d_model='4', "),
        (Sinusoidal, (True,), "Sinusoidal was given d_model=True, "),
        (Learned, (0, 4), "Learned was given d_model=0, but it is added to states of that width; give the width"),
        (Learned, (4, -1), "Learned was given max_positions=-1, but each position has its vector; give the length"),
        (Learned, (4, 0), "Learned was given max_positions=0, "),
        (Learned, (4, 2.5), "Learned was given max_positions=2.5, "),
        (Learned, (4, None), "Learned was given max_positions=None, "),
        (Learned, (4, 2**62), "Learned was given max_positions=4611686018427387904, "),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_sizes_are_whole_numbers_from_1_up(scheme: type[Positions], given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}.*, a whole number from 1 up and below 2\\*\\*62$"):
        scheme(*given)


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_of_any_library_are_sizes() -> None:
    positions = Learned(np.int64(D), np.int32(T))  # type: ignore[arg-type]
    assert type(positions.max_positions) is int
    assert repr(positions) == repr(Learned(D, T))
    assert repr(Sinusoidal(np.int64(D))) == repr(Sinusoidal(D))  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Sinusoidal(D, "halves"), Learned(D, max_positions=T)], ids=repr)
@pytest.mark.parametrize("width", [1, D - 1, D + 1])
def test_states_of_another_width_are_refused(scheme: Positions, width: int) -> None:
    name = type(scheme).__name__
    message = rf"^{name}\(d_model=11\) was given states of width {width}; make it for the width of the states$"
    with pytest.raises(ShapeError, match=message):
        scheme(torch.zeros(B, S, width))


@pytest.mark.parametrize("first", [1.5, 1.0, "1", None, True], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_a_token_stands_at_a_whole_number(first: Any) -> None:
    message = rf"^`first` was given as {first!r}, but a token stands at a whole number; give one number for all"
    for scheme in (Sinusoidal(D), Learned(D, max_positions=T)):
        with pytest.raises(ShapeError, match=message):
            scheme(torch.zeros(B, S, D), first)
    with pytest.raises(ShapeError, match=message):
        Sinusoidal(D).table(S, first)
    with pytest.raises(ShapeError, match=message):
        Rotary(12).rotate(torch.zeros(B, 3, S, 12), first)


@pytest.mark.usefixtures("unchecked")
def test_a_whole_number_of_any_library_is_a_place() -> None:
    states = torch.randn(B, S, D)
    two: Any = np.int64(2)
    for scheme in (Sinusoidal(D), Learned(D, max_positions=T)):
        assert torch.equal(scheme(states, two), scheme(states, 2))


@pytest.mark.usefixtures("traceable")
def test_where_a_step_stands_is_compiled_once_for_all() -> None:
    states = torch.randn(B, 1, D)
    for scheme in (Sinusoidal(D), Learned(D, max_positions=T)):
        compiled = torch.compile(scheme, dynamic=True, fullgraph=True, backend="eager")
        for first in (2, 3, 5):
            assert torch.equal(compiled(states, first), scheme(states, first))


def test_no_positions_leaves_all_three_doors_closed() -> None:
    states, heads = torch.randn(B, T, D), torch.randn(B, 3, T, D)
    assert NoPositions()(states, first=3) is states
    assert NoPositions().rotate(heads, first=torch.tensor([3, 0])) is heads
    assert NoPositions().bias(queries=T, keys=S) is None


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Learned(D, max_positions=T)], ids=repr)
def test_absolute_schemes_open_the_first_door_alone(scheme: Positions) -> None:
    heads = torch.randn(B, 3, T, D)
    assert scheme.rotate(heads, first=3) is heads
    assert scheme.bias(queries=T, keys=S) is None


def test_a_scheme_says_what_it_is() -> None:
    assert repr(Sinusoidal(D, "halves")) == "Sinusoidal(d_model=11, layout='halves')"
    assert repr(Learned(D, T)) == "Learned(max_positions=7, d_model=11)"
