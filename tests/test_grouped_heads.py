"""Fewer heads of keys and values than of queries: what their neighbours share, and that nothing else changes."""

import copy

import pytest
import torch
from torch import Tensor

from pellucid import positions
from pellucid.errors import ConfigError
from pellucid.masks import Causal, Padding
from pellucid.model import MultiHeadAttention

B, Q, K, H, DH = 2, 5, 7, 6, 22
D = H * DH
GROUPS = (1, 2, 3)


def repeated(grouped: MultiHeadAttention) -> MultiHeadAttention:
    """As many heads of keys and values as of queries: neighbours have the same weights, written out."""
    whole, shared = MultiHeadAttention(D, H).double(), H // grouped.num_key_value_heads
    state = copy.deepcopy(grouped.state_dict())
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        rows = state[name].unflatten(0, (grouped.num_key_value_heads, DH))
        state[name] = torch.cat([rows[head // shared] for head in range(H)])
    whole.load_state_dict(state)
    return whole


def states() -> tuple[Tensor, Tensor]:
    """What looks, and what is looked at."""
    return torch.randn(B, Q, D).double(), torch.randn(B, K, D).double()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("told", [positions.NoPositions(), positions.Rotary(DH), positions.ALiBi(H)], ids=str)
@pytest.mark.parametrize("groups", [*GROUPS, H])
def test_heads_that_share_are_heads_with_the_same_weights(
    groups: int, told: positions.Positions, need_weights: bool
) -> None:
    grouped = MultiHeadAttention(D, H, num_key_value_heads=groups).double()
    (query, seen), mask, first = states(), Causal() & Padding((K, 3)), 2
    bias, found = told.bias(Q, K, first), []
    for attention in (grouped, repeated(grouped)):
        keys_values = attention.keys_values(seen, seen, told)
        assert keys_values.key.shape == keys_values.value.shape == (B, attention.num_key_value_heads, K, DH)
        found.append(
            attention.look(query, keys_values, mask, first, positions=told, bias=bias, need_weights=need_weights)
        )
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-12)
    assert (found[0][1] is None) is (not need_weights)
    if found[0][1] is not None and found[1][1] is not None:
        assert found[0][1].shape == (B, H, Q, K)
        torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", GROUPS)
def test_a_cache_keeps_the_fewer_heads_only(groups: int) -> None:
    attention, told, (_, seen) = (
        MultiHeadAttention(D, H, num_key_value_heads=groups).double(),
        positions.Rotary(DH),
        states(),
    )
    whole = attention(seen, seen, seen, Causal(), positions=told)
    past = attention.keys_values(seen[:, :4], seen[:, :4], told)
    for step in range(4, K):
        new = seen[:, step : step + 1]
        past = past.append(attention.keys_values(new, new, told, step))
        row, _ = attention.look(new, past, Causal(), step, positions=told)
        torch.testing.assert_close(row, whole[:, step : step + 1], rtol=0, atol=1e-12)
    assert past.select(torch.tensor([1])).key.shape == (1, groups, K, DH)


def test_fewer_heads_have_fewer_weights() -> None:
    counted = [
        sum(parameter.numel() for parameter in MultiHeadAttention(D, H, num_key_value_heads=groups).parameters())
        for groups in (None, H, 2)
    ]
    assert counted[0] == counted[1] == 4 * (D * D + D)
    assert counted[2] == 2 * (D * D + D) + 2 * (D * 2 * DH + 2 * DH)


@pytest.mark.parametrize("groups", [0, -1, 4, 5, 12])
def test_the_number_must_divide_the_heads(groups: int) -> None:
    said = f"num_heads 6 do not divide into num_key_value_heads {groups}; choose num_key_value_heads that divides num_heads"
    with pytest.raises(ConfigError, match=said):
        MultiHeadAttention(D, H, num_key_value_heads=groups)
