"""The chunked loss equals torch's own, in values and gradients, and padding has no part in it."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

import tiny
from pellucid.config import PAD_ID
from pellucid.text.batch import Batch, collate
from pellucid.training import Objective, smoothed_cross_entropy, smoothing_floor

TOKENS, WIDTH, WORDS = 13, 5, 11


class Problem(NamedTuple):
    """What a loss is computed from."""

    states: Tensor
    weight: Tensor
    gold: Tensor


def problem(tokens: int = TOKENS, dtype: torch.dtype = torch.float64) -> Problem:
    states, weight = torch.randn(tokens, WIDTH, dtype=dtype), torch.randn(WORDS, WIDTH, dtype=dtype)
    return Problem(states.requires_grad_(), weight.requires_grad_(), torch.randint(WORDS, (tokens,)))


@given(st.integers(1, TOKENS), st.sampled_from([0.0, 0.1, 0.7]), st.integers(1, TOKENS + 3), st.integers(0, 99))
def test_values_and_gradients_are_torchs(tokens: int, smoothing: float, chunk: int, seed: int) -> None:
    torch.manual_seed(seed)
    states, weight, gold = problem(tokens)
    ours = smoothed_cross_entropy(states, weight, gold, smoothing, chunk)
    theirs = cross_entropy(states @ weight.T, gold, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    # Times a number, as the trainer does: a backward pass that ignores what comes from above would show.
    for one, other in zip(
        torch.autograd.grad(ours * 0.37, (states, weight)),
        torch.autograd.grad(theirs * 0.37, (states, weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_of_the_two_may_be_frozen(frozen: int) -> None:
    given_ = problem()
    given_[frozen].requires_grad_(False)
    free = given_[1 - frozen]
    ours = torch.autograd.grad(smoothed_cross_entropy(*given_, 0.1, 4), free)[0]
    theirs = torch.autograd.grad(
        cross_entropy(given_.states @ given_.weight.T, given_.gold, label_smoothing=0.1, reduction="sum"), free
    )[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    states, weight, gold = problem()
    share = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(share * smoothed_cross_entropy(states, weight, gold), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(slope.sum())


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    states, weight, gold = problem()
    wanted = smoothed_cross_entropy(states, weight, gold, 0.1, 4)

    def never(*_: object, **__: object) -> Tensor:
        raise AssertionError("a gradient was made room for")

    monkeypatch.setattr(torch, "zeros_like", never)
    monkeypatch.setattr(torch, "empty_like", never)
    with torch.no_grad():
        loss = smoothed_cross_entropy(states, weight, gold, 0.1, 4)
    assert loss.item() == wanted.item()
    assert not loss.requires_grad
    with pytest.raises(AssertionError, match="room for"):
        smoothed_cross_entropy(states, weight, gold, 0.1, 4)


def test_mixed_precision_is_close_and_sums_in_float32() -> None:
    states, weight, gold = problem(tokens=257, dtype=torch.float32)
    plain = smoothed_cross_entropy(states, weight, gold, 0.1, 31)
    wanted = torch.autograd.grad(plain, (states, weight))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = smoothed_cross_entropy(states, weight, gold, 0.1, 31)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, plain, rtol=5e-3, atol=0)
    assert mixed.item() != plain.item()
    for one, other in zip(torch.autograd.grad(mixed, (states, weight)), wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


@given(st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 99))
def test_the_floor_is_reached_by_the_ideal_and_by_nothing_else(smoothing: float, seed: int) -> None:
    torch.manual_seed(seed)
    gold = torch.randint(WORDS, (TOKENS,))
    wanted = torch.full((TOKENS, WORDS), smoothing / WORDS, dtype=torch.float64)
    wanted[torch.arange(TOKENS), gold] += 1 - smoothing
    floor, words = smoothing_floor(WORDS, smoothing), torch.eye(WORDS, dtype=torch.float64)
    ideal = smoothed_cross_entropy(wanted.clamp(min=1e-300).log(), words, gold, smoothing) / TOKENS
    assert ideal.item() == pytest.approx(floor, abs=1e-12)
    other = smoothed_cross_entropy(torch.randn(TOKENS, WORDS, dtype=torch.float64), words, gold, smoothing) / TOKENS
    assert other.item() > floor + 1e-3
    assert math.isclose(smoothing_floor(WORDS, 0.0), 0.0, abs_tol=1e-15)


# --- the loss of a batch ------------------------------------------------------------------------------------


def whole(smoothing: float = 0.1) -> Objective:
    torch.manual_seed(3)
    return Objective(tiny.objective(tiny.config(dropout=0.0)).model.double(), smoothing)


def loss_of(objective: Objective, batch: Batch) -> Tensor:
    loss: Tensor = objective(batch.source, batch.target, batch.labels, batch.source_lengths, batch.target_lengths)
    return loss


def padded(batch: Batch, source: int, target: int) -> Batch:
    """The same batch with more columns of padding."""
    return Batch(
        source=pad(batch.source, (0, source)),
        source_lengths=batch.source_lengths,
        target=pad(batch.target, (0, target)),
        labels=pad(batch.labels, (0, target)),
        target_lengths=batch.target_lengths,
        lines=batch.lines,
    )


def test_the_loss_of_a_batch_is_that_of_its_real_tokens() -> None:
    objective, batch = whole(), collate(tiny.examples(7))
    logits = objective.model(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
    wanted = cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss_of(objective, batch), wanted, rtol=1e-12, atol=0)
    alone = sum(loss_of(objective, collate([example])).item() for example in tiny.examples(7))
    assert loss_of(objective, batch).item() == pytest.approx(alone, rel=1e-12)


@pytest.mark.slow
@given(st.integers(0, 5), st.integers(0, 5))
def test_more_padding_changes_neither_loss_nor_gradients(source: int, target: int) -> None:
    objective, batch = whole(), collate(tiny.examples(7))
    parameters = list(objective.parameters())
    plain, wider = (loss_of(objective, one) for one in (batch, padded(batch, source, target)))
    torch.testing.assert_close(wider, plain, rtol=1e-13, atol=0)
    for one, other in zip(torch.autograd.grad(plain, parameters), torch.autograd.grad(wider, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_label_that_is_padding_has_no_part() -> None:
    objective, batch = whole(), collate(tiny.examples(7))
    states = objective.model.states(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
    one = smoothed_cross_entropy(states[2, :1], objective.model.head.weight, batch.labels[2, :1], 0.1)
    full = loss_of(objective, batch)
    batch.labels[2, 0] = PAD_ID
    torch.testing.assert_close(loss_of(objective, batch), full - one, rtol=1e-12, atol=0)
    batch.labels[:] = PAD_ID
    nothing = loss_of(objective, batch)
    assert nothing.item() == 0.0
    slopes = torch.autograd.grad(nothing, list(objective.parameters()), allow_unused=True)
    assert all(slope is None or not slope.any() for slope in slopes)
