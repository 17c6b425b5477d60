"""Positions: the paper's formula written again with `math`, row by row, and the end of a learned table."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pellucid.config import ModelConfig
from pellucid.errors import PositionError
from pellucid.model import Transformer
from pellucid.model.positions import Learned, NoPositions, Sinusoidal

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


def test_no_positions_leaves_states_alone() -> None:
    states = torch.randn(B, T, D)
    assert NoPositions()(states, first=3) is states


def test_a_scheme_says_what_it_is() -> None:
    assert repr(Sinusoidal(D, "halves")) == "Sinusoidal(d_model=11, layout='halves')"
    assert repr(Learned(D, T)) == "Learned(max_positions=7, d_model=11)"
