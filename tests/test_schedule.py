"""The learning rate's shape, step by step, and an optimiser that decays matrices only."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pellucid.config import TrainingConfig
from pellucid.training import learning_rate, optimizer


@given(st.integers(1, 500), st.floats(1e-6, 10), st.integers(0, 500))
def test_the_peak_is_exactly_at_warmup(warmup: int, peak: float, more: int) -> None:
    settings = TrainingConfig(learning_rate=peak, warmup=warmup, steps=warmup + more)
    rates = [learning_rate(step, settings) for step in range(1, settings.steps + 1)]
    assert rates[warmup - 1] == peak
    assert all(rate < peak for place, rate in enumerate(rates) if place != warmup - 1)


@given(st.integers(1, 300), st.integers(1, 600))
def test_the_rate_is_the_papers(warmup: int, step: int) -> None:
    d_model = 512
    settings = TrainingConfig(learning_rate=(d_model * warmup) ** -0.5, warmup=warmup, steps=600)
    paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert learning_rate(step, settings) == pytest.approx(paper, rel=1e-12)


def test_steps_count_from_one() -> None:
    settings = TrainingConfig(learning_rate=0.7, warmup=7, steps=100)
    assert learning_rate(1, settings) == pytest.approx(0.1)
    assert learning_rate(28, settings) == pytest.approx(0.35)


def test_cooling_down_is_a_straight_line_to_one_step_past_the_end() -> None:
    plain = TrainingConfig(learning_rate=1.0, warmup=2, steps=50)
    cooled = plain.replace(cooldown=0.2)
    shares = [learning_rate(step, cooled) / learning_rate(step, plain) for step in range(1, 51)]
    assert shares[:40] == [1.0] * 40
    assert shares[40:] == pytest.approx([(10 - step) / 11 for step in range(10)])
    assert learning_rate(51, cooled) == 0.0


def test_decay_pulls_at_matrices_only() -> None:
    settings = TrainingConfig(learning_rate=0.1, weight_decay=0.5, betas=(0.7, 0.9), epsilon=1e-7)
    layer = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Embedding(7, 3))
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    update = optimizer(layer.parameters(), settings)
    assert update.defaults["betas"] == (0.7, 0.9)
    assert update.defaults["eps"] == 1e-7
    update.step()
    after = {name: sorted(set(parameter.flatten().tolist())) for name, parameter in layer.named_parameters()}
    assert after == {
        "0.weight": pytest.approx([0.95]),
        "0.bias": [1.0],
        "1.weight": [1.0],
        "1.bias": [1.0],
        "2.weight": pytest.approx([0.95]),
    }
