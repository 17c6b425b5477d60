"""A module that keeps something from call to call, or that chance decides, is found out, and others are not accused."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.check.report import Report
from pellucid.check.steady import repeatable
from pellucid.config import ModelConfig
from pellucid.errors import CheckError
from pellucid.model import Transformer

B, S, T, D = 2, 5, 7, 6


def failed(report: Report) -> tuple[str, ...]:
    """The findings of a check that must have failed."""
    assert not report.passed
    return report.findings


class Dropping(nn.Module):
    """Dropout as a function, which knows nothing of the module's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(F.dropout(x, 0.3))  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), Dropping()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """Sums what a mask lets through; `how` says what becomes of the mask that the module holds."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.scale = nn.Parameter(torch.ones(D))
        mask = torch.ones(B, T, dtype=torch.bool)
        if how == "buffer":
            self.register_buffer("mask", mask)
        else:
            self.mask: Tensor | None = None if how == "lazy" else mask

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        if self.how in ("buffer", "attribute"):
            assert self.mask is not None
            self.mask &= pad
            mask = self.mask
        elif self.how == "lazy":
            if self.mask is None:
                self.mask = pad
            mask = self.mask
        else:
            mask = pad & torch.ones_like(pad)
        return self.scale * x * mask[:, :, None]


class Cached(nn.Module):
    """Positions seen so far, kept on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(x)
        return torch.cat(self.past, dim=1).cumsum(dim=1)[:, -x.shape[1] :]


class Sized(nn.Module):
    """A causal mean whose mask is made once, for the first length that comes."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(x.shape[1], x.shape[1]).tril().to(x)
        return self.mask @ x


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x * 2


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        x += self.bias
        return x


class Table(nn.Module):
    """A table of positions that grows where it must; no answer depends on how long it is."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0)[:, None].repeat(1, D))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.table):
            self.table = torch.arange(float(x.shape[1]))[:, None].repeat(1, D).to(self.table)
        return x + self.table[: x.shape[1]]


def test_dropout_as_a_function_is_found_and_where() -> None:
    report = repeatable(Stack(), torch.randn(B, T, D))
    (found,) = failed(report)
    assert found.startswith("two calls with the same inputs differ by ")
    assert report.advice == (
        "dropout left on: chance decides the output in evaluation; pass training=self.training to F.dropout in second "
        "(Dropping)"
    )
    assert report.where == "second (Dropping)"
    assert report.ways == {"evaluation, float64": False, "evaluation, float32": False}


def test_dropout_that_heeds_the_mode_is_not_accused() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5)).train()
    repeatable(module, torch.randn(B, T, D)).raise_for_failure()
    repeatable(module.forward, torch.randn(B, T, D)).raise_for_failure()
    assert module[1].training


def padded() -> Tensor:
    """Which positions are real: all but two."""
    real = torch.ones(B, T, dtype=torch.bool)
    real[1, 5:] = False
    return real


def test_a_buffer_that_is_masked_in_place_is_named() -> None:
    report = repeatable(Masked("buffer"), torch.randn(B, T, D), padded())
    assert failed(report) == ("buffer `mask` is changed by a call by 1 at element (1, 5)",)
    assert report.advice == (
        "in-place: buffer `mask` is changed by a call; write mask = self.mask & pad, say, with a new tensor, not "
        "self.mask &= pad"
    )


@pytest.mark.parametrize("pad", [padded(), torch.ones(B, T, dtype=torch.bool)], ids=["padded", "full"])
@pytest.mark.parametrize("how", ["attribute", "lazy"])
def test_a_mask_that_is_kept_is_found_by_the_next_answer(how: str, pad: Tensor) -> None:
    report = repeatable(Masked(how), torch.randn(B, T, D), pad)
    assert "the answer to the next" in failed(report)[0]
    assert report.advice.startswith("a state is kept on the module from call to call")
    repeatable(Masked("anew"), torch.randn(B, T, D), pad).raise_for_failure()


def test_a_cache_on_the_module_is_found() -> None:
    report = repeatable(Cached(), torch.randn(B, T, D))
    assert failed(report)[0].startswith("the second call with the same inputs differs from the first by ")
    assert "kept on the module" in report.advice


def test_a_mask_of_the_first_length_is_found() -> None:
    (found,) = failed(repeatable(Sized(), torch.randn(B, T, D)))
    assert found.startswith("a call after one with one position less fails (RuntimeError: ")


def test_a_buffer_that_counts_calls_is_found() -> None:
    assert failed(repeatable(Counting(), torch.randn(B, T, D))) == (
        "buffer `calls` is changed by a call by 1 at element ()",
    )


def test_an_input_that_is_changed_in_place_is_found() -> None:
    x = torch.randn(B, T, D)
    kept = x.clone()
    report = repeatable(Adding(), x)
    assert failed(report) == ("input 0 is changed in place by a call, at element (0, 0, 0) by 1",)
    assert report.advice == "in-place: an input is changed in place; write x = x + y, not x += y, of input 0"
    assert failed(repeatable(lambda x: x.mul_(2), x))[0].startswith("input 0 is changed in place")
    assert torch.equal(x, kept)


def test_a_function_over_a_module_is_found_and_the_module_left() -> None:
    module, pad = Masked("buffer"), padded()
    report = repeatable(lambda x: module(x, pad), torch.randn(B, T, D))
    assert failed(report) == ("buffer `mask` is changed by a call by 1 at element (1, 5)",)
    assert bool(module.get_buffer("mask").all())
    assert module.training


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(T), Counting()).train()
    module(torch.randn(B, T, D)).sum().backward()
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    assert not repeatable(module, torch.randn(B, T, D, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    assert all(one.requires_grad and one.grad is not None for one in module[0].parameters())


RIGHT: dict[str, Any] = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(D, 2, 11, batch_first=True), (torch.ones(B, T, D).cumsum(1),)),
    "attention": (lambda: nn.MultiheadAttention(D, 2, dropout=0.5, batch_first=True), (torch.ones(B, T, D).cumsum(1),)),
    "gru": (lambda: nn.GRU(D, D, batch_first=True), (torch.ones(B, T, D),)),
    "batch norm": (lambda: nn.BatchNorm1d(T), (torch.ones(B, T, D).cumsum(0),)),
    "table": (Table, (torch.ones(B, T, D),)),
    "nan": (nn.Hardtanh, (torch.full((B, T, D), float("nan")),)),
    "ours": (
        lambda: Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13)),
        (torch.arange(4, 4 + S).repeat(B, 1), torch.arange(4, 4 + T).repeat(B, 1)),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_modules_are_not_accused(name: str) -> None:
    made, inputs = RIGHT[name]
    repeatable(made(), *inputs).raise_for_failure()


def test_a_model_of_hugging_face_is_not_accused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=8, intermediate_size=11, num_hidden_layers=1, num_attention_heads=2
    )
    repeatable(transformers.LlamaForCausalLM(config), torch.arange(4, 4 + T).repeat(B, 1)).raise_for_failure()


def test_a_module_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(CheckError, match="Linear cannot be called with"):
        repeatable(nn.Linear(D, D), torch.randn(B, T, D + 1))
