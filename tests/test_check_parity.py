"""Two modules are compared element by element, and what lies behind a difference is named."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.check.equal import parity
from pellucid.check.report import Report
from pellucid.errors import CheckError

B, T, D = 2, 7, 6


def failed(report: Report) -> Report:
    """The report of a check that must have failed."""
    assert not report.passed
    return report


class Norm(nn.Module):
    """A norm that takes its statistics in float32, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.layer_norm(x.float(), (D,)).to(x)


class Dropping(nn.Module):
    def __init__(self, heeding: bool) -> None:
        super().__init__()
        self.heeding = heeding

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=self.training) if self.heeding else F.dropout(x, 0.5)


def scores(x: Tensor, scaled: bool = True) -> Tensor:
    """Scores of attention, with or without the root of their width."""
    return x @ x.mT / (D**0.5 if scaled else 1)


def test_figures_say_how_many_and_how_far() -> None:
    x = torch.full((B, T), 2.0)
    report = failed(parity(lambda x: x, lambda x: x + 0.5 * (x.cumsum(1) > 13), x))
    assert report.findings == (
        "element (0, 6) is 2 in one and 2.5 in the other",
        "2 of 14 elements lie more than 2.5e-10 apart",
    )
    assert report.figures == {"elements": B * T, "largest difference": 0.5, "largest relative difference": 0.2}


def test_of_large_numbers_a_part_may_differ() -> None:
    x = torch.full((B, T), 1e7)
    assert parity(lambda x: x, lambda x: x + 1e-4, x)
    assert not parity(lambda x: x, lambda x: x + 1e-4, x, tolerance=1e-10)  # a tolerance is meant as it is given
    assert not parity(lambda x: x, lambda x: x + 1e-2, x)


def test_empty_outputs_are_equal() -> None:
    report = parity(torch.relu, torch.relu, torch.zeros(0, D))
    assert report.figures == {"elements": 0, "largest difference": 0.0, "largest relative difference": 0.0}


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_no_number_on_either_side_is_a_failure(odd: float, side: int) -> None:
    modules: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: torch.where(x > 3, odd, x)]
    x = torch.zeros(B, T)
    x[1, 4] = 4
    report = failed(parity(modules[side], modules[1 - side], x))
    assert report.findings[0].startswith("element (1, 4) is ")
    assert report.advice.startswith(f"{('the second', 'the first')[side]} gave NaN or infinity")


@pytest.mark.parametrize("first", [True, False])
def test_dropout_as_a_function_is_refused(first: bool) -> None:
    pair = (Dropping(heeding=False), Dropping(heeding=True))
    with pytest.raises(
        CheckError, match=r"chance decides what Dropping gives.*F\.dropout\(x, training=self\.training\)"
    ):
        assert parity(*(pair if first else pair[::-1]), torch.ones(B, D))
    assert parity(Dropping(heeding=True), Dropping(heeding=True), torch.ones(B, D))


def test_a_function_over_a_module_in_training_is_refused_and_the_module_left() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5), nn.BatchNorm1d(D)).double().train()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    with pytest.raises(
        CheckError, match=r"chance decides what <lambda> gives.*\.eval\(\) for modules that a function holds"
    ):
        assert parity(lambda x: module(x) * 1, module, torch.randn(B, D, generator=torch.Generator().manual_seed(3)))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    assert module[1].training
    assert torch.equal(torch.get_rng_state(), state)
    assert parity(module.eval().forward, module, torch.randn(B, D))


def test_chance_that_no_seed_reaches_is_refused() -> None:
    generator = torch.Generator().manual_seed(1)
    with pytest.raises(CheckError, match="chance decides"):
        assert parity(lambda x: x + torch.rand(x.shape, generator=generator), torch.relu, torch.ones(B, D))


def test_inputs_that_are_changed_in_place_stay() -> None:
    x = torch.ones(B, D, dtype=torch.float64)
    assert parity(lambda x: x.add_(1), lambda x: x + 1, x)
    assert torch.equal(x, torch.ones(B, D, dtype=torch.float64))


def test_a_module_that_insists_on_float32_is_refused() -> None:
    class Insisting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.float())  # type: ignore[no-any-return]

    with pytest.raises(CheckError, match=r"Insisting does not take float64 \(it has numbers of another precision"):
        assert parity(Insisting(), nn.Linear(D, D), torch.randn(B, D))


ADVISED: list[tuple[str, Any, Any, str]] = [
    (
        "transposed",
        lambda x: x.transpose(0, 1),
        lambda x: x,
        "axes 0 and 1 are swapped: the numbers are equal once they are",
    ),
    (
        "square",
        lambda x: x[:, :D].mT,
        lambda x: x[:, :D],
        "axes 1 and 2 are swapped: the numbers are equal once they are",
    ),
    ("shape", lambda x: 2 * x.mT, lambda x: x, "axes 1 and 2 are swapped: the shapes are equal, if not the numbers,"),
    (
        "unscaled",
        lambda x: scores(x, scaled=False),
        scores,
        f"the first is 2.44949 times the second, sqrt({D}): one of them",
    ),
    ("scaled", scores, lambda x: scores(x, scaled=False), f"0.408248 times the second, 1 / sqrt({D}): one of them"),
    ("sign", lambda x: -x, lambda x: x, "the first is -1 times the second: one of them is without a scale"),
    ("float32", Norm(), nn.LayerNorm(D, elementwise_affine=False), "precision: both are equal once rounded to float32"),
    (
        "eps",
        nn.LayerNorm(D, eps=1e-6),
        nn.LayerNorm(D, eps=1e-5),
        "but for a little: the eps of a norm, an approximate gelu",
    ),
    ("other", torch.sin, torch.exp, ""),
]


@pytest.mark.parametrize(("ours", "theirs", "said"), [case[1:] for case in ADVISED], ids=[case[0] for case in ADVISED])
def test_the_likely_slip_is_named(ours: Any, theirs: Any, said: str) -> None:
    report = failed(parity(ours, theirs, torch.randn(B, T, D)))
    assert said in report.advice
    assert bool(said) == bool(report.advice)


def test_right_modules_are_equal_to_their_formula() -> None:
    attention, x = nn.MultiheadAttention(D, 2, dropout=0.3, batch_first=True).train(), torch.randn(B, T, D)

    def formula(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
        packed = F.linear(x, module.in_proj_weight, module.in_proj_bias)
        q, k, v = packed.view(B, T, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT / 3**0.5).softmax(-1) @ v
        return module.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    parity(attention, attention, x, call=lambda m, x: m(x, x, x), their_call=formula).raise_for_failure()
    assert attention.training
