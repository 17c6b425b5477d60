"""Attention: every case through every backend, against loops that follow the paper's sentence word by word."""

import math
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from large_masks import said
from pellucid import check
from pellucid.errors import ConfigError, ShapeError
from pellucid.masks import Causal, Full, Heads, Mask, Padding, Window
from pellucid.model import KeysValues, MultiHeadAttention, attend, attention_weights
from pellucid.model.attention import Backend
from pellucid.model.bias import Relative

B, H, Q, K, D = 2, 3, 5, 7, 11
DV = 13

Exact = Literal["formula", "fused", "blocks"]
BACKENDS: tuple[Exact, ...] = ("formula", "fused", "blocks")


class Case:
    """One way to call attention: a mask, a bias, where the queries stand, and how many heads there are.

    A bias is given as the shape of a tensor, or as the heads of one by offset alone. Values as wide as keys are what
    torch's kernel for tiles takes; others are computed as they are written.
    """

    def __init__(
        self,
        mask: Mask | None = None,
        bias: tuple[int, ...] = (),
        first: int = 0,
        queries: int = Q,
        *,
        offsets: int = 0,
        heads: tuple[int, int] = (H, H),
        value_width: int = DV,
    ) -> None:
        self.mask, self.first, self.queries = mask, first, queries
        self.bias_shape = (offsets, queries + K - 1) if offsets else bias
        self.offsets, self.value_width = bool(offsets), value_width
        self.heads, self.key_heads = heads

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor | None]:
        """Query, key and value, and the bias where there is one, all of which want gradients."""
        sizes = ((self.heads, self.queries, D), (self.key_heads, K, D), (self.key_heads, K, self.value_width))
        leaves = [torch.randn(B, *size, dtype=dtype, requires_grad=True) for size in sizes]
        bias = torch.randn(self.bias_shape, dtype=dtype, requires_grad=True) if self.bias_shape else None
        return leaves, bias

    def added(self, bias: Tensor | None) -> Tensor | Relative | None:
        """The bias as attention takes it."""
        return Relative(bias, least=1 - self.first - self.queries) if bias is not None and self.offsets else bias

    def look(self) -> Tensor:
        """Bool (B, heads, queries, K)."""
        mask = self.mask if self.mask is not None else Full()
        return mask.dense(self.queries, K, self.first).expand(B, self.heads, self.queries, K)

    def biases(self, bias: Tensor | None) -> Tensor:
        """What is added to each score, cell by cell: (B, heads, queries, K)."""
        full = (B, self.heads, self.queries, K)
        if bias is None:
            return torch.zeros(full)
        if not self.offsets:
            return bias.expand(full)
        back = range(self.queries - 1, -1, -1)  # row q stands first + q, so its first key is that far back in the table
        return torch.stack([bias[:, row : row + K] for row in back], dim=1).expand(full)


CASES = {
    "no mask": Case(),
    "full": Case(Full()),
    "causal": Case(Causal()),
    "causal square": Case(Causal(), queries=K),
    "causal later": Case(Causal(), first=2),
    "causal last row": Case(Causal(), first=K - 1, queries=1),
    "padding": Case(Padding((K, 3))),
    "padding of nothing": Case(Padding((K, K))),
    "an empty sample": Case(Padding((0, 3))),
    "causal and an empty sample": Case(Causal() & Padding((0, 4)), queries=K),
    "window": Case(Window(before=2, after=1)),
    "window past the keys": Case(Window(before=1, after=0), first=5),
    "nothing at all": Case(~Full()),
    "the future only": Case(~Causal(), queries=K),
    "bias": Case(bias=(B, H, Q, K)),
    "bias by head": Case(bias=(1, H, Q, K)),
    "bias by key": Case(bias=(B, 1, 1, K)),
    "causal and bias": Case(Causal(), bias=(1, H, Q, K), first=1),
    "an empty sample and bias": Case(Causal() & Padding((0, 4)), bias=(1, H, 1, K)),
    "padding and bias by head": Case(Padding((K, 3)), bias=(1, H, Q, K)),
    "bias by offset": Case(offsets=1),
    "causal and bias by offset and head": Case(Causal(), offsets=H, first=2),
    "an empty sample and bias by offset": Case(Causal() & Padding((0, 4)), offsets=H, queries=K),
    "a last row and bias by offset": Case(Causal(), offsets=H, first=K - 1, queries=1),
    "as wide values": Case(value_width=D),
    "causal square and as wide values": Case(Causal(), queries=K, value_width=D),
    "an empty sample and as wide values": Case(Causal() & Padding((0, 4)), queries=K, value_width=D),
    "window, bias and as wide values": Case(Window(2, 0), bias=(1, H, Q, K), first=1, value_width=D),
    "window, bias by offset and as wide values": Case(Window(2, 1), offsets=1, value_width=D),
    "heads": Case(Heads((Causal(), ~Causal(), Window(1, 0)))),
    "heads, an empty sample and as wide values": Case(
        Heads((Causal(), Full(), ~Full())) & Padding((0, 5)), value_width=D
    ),
    "three heads share keys": Case(Causal() & Padding((K, 0)), heads=(6, 2)),
    "all heads share keys": Case(Window(2, 1), heads=(6, 1), value_width=D),
    "shared keys and bias by head": Case(Causal(), bias=(1, 6, 1, K), heads=(6, 2), value_width=D),
    "shared keys and bias by offset and head": Case(Causal(), offsets=6, first=1, heads=(6, 2), value_width=D),
    "heads apart where keys are shared": Case(
        Heads((Causal(), Causal(), ~Causal(), ~Causal(), Window(1, 0), Full())) & Padding((K, 4)), heads=(6, 2)
    ),
    "heads apart where keys are shared and as wide values": Case(
        Heads((Causal(), Causal(), Causal(), Causal(), Window(1, 0), Full())), heads=(6, 2), value_width=D
    ),
}


def by_loops(query: Tensor, key: Tensor, value: Tensor, look: Tensor, biases: Tensor) -> Tensor:
    """Equation 1 by plain loops, one query at a time, over the keys it may look at; neighbouring heads share keys."""
    result = torch.zeros(*query.shape[:3], value.shape[3], dtype=torch.float64)
    group = query.shape[1] // key.shape[1]
    for b, h, q in torch.cartesian_prod(*(torch.arange(size) for size in query.shape[:3])).tolist():
        seen = [k for k in range(look.shape[3]) if look[b, h, q, k]]
        scores = [
            sum(x * y for x, y in zip(query[b, h, q].tolist(), key[b, h // group, k].tolist(), strict=True))
            / math.sqrt(query.shape[3])
            + float(biases[b, h, q, k])
            for k in seen
        ]
        total = sum(math.exp(score) for score in scores)
        for k, score in zip(seen, scores, strict=True):
            result[b, h, q] += value[b, h // group, k] * (math.exp(score) / total)
    return result


@pytest.mark.parametrize("name", CASES)
def test_every_backend_is_the_paper_s_equation(name: str) -> None:
    case = CASES[name]
    (query, key, value), bias = case.tensors()
    with torch.no_grad():
        wanted = by_loops(query, key, value, case.look(), case.biases(bias))
        backends: tuple[Backend, ...] = (*BACKENDS, "auto")
        for backend in backends:
            result = attend(query, key, value, case.mask, case.added(bias), case.first, backend)
            torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12, msg=backend)


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention one operation at a time: a trace takes seconds, and cannot be made of the tests' checks of types."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("name", CASES)
def test_flex_is_the_formula(name: str) -> None:
    case = CASES[name]
    leaves, bias = case.tensors()
    query, key, value = (leaf.detach() for leaf in leaves)
    with torch.no_grad():
        result, explanation = attend(query, key, value, case.mask, case.added(bias), case.first, "flex", explain=True)
        wanted = attend(query, key, value, case.mask, case.added(bias), case.first, "formula")
    assert explanation.backend == "flex"
    torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_backends_have_equal_values_and_gradients(name: str, dtype: torch.dtype, tolerance: float) -> None:
    case = CASES[name]
    leaves, bias = case.tensors(dtype)
    wanting = leaves if bias is None else [*leaves, bias]
    slope = torch.randn(B, case.heads, case.queries, case.value_width, dtype=dtype)
    blind = ~case.look().any(dim=-1)
    found = []
    for backend in BACKENDS:
        result = attend(leaves[0], leaves[1], leaves[2], case.mask, case.added(bias), case.first, backend)
        assert result.dtype == dtype
        assert torch.count_nonzero(result[blind]) == 0
        gradients = torch.autograd.grad(result, wanting, slope)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert torch.count_nonzero(gradients[0][blind]) == 0
        found.append([result, *gradients])
    for backend, ours in zip(BACKENDS[1:], found[1:], strict=True):
        for formula, kernel in zip(found[0], ours, strict=True):
            torch.testing.assert_close(kernel, formula, rtol=0, atol=tolerance, msg=said(backend))


def test_gradients_are_those_of_small_differences() -> None:
    leaves = [torch.randn(B, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = Causal() & Padding((3, 0))
    for backend in BACKENDS:
        assert torch.autograd.gradcheck(lambda q, k, v, b=backend: attend(q, k, v, mask, backend=b), leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_runs_and_is_near(backend: Exact) -> None:
    (query, key, value), _ = CASES["padding"].tensors(torch.bfloat16)
    mask = Causal() & Padding((0, 4))
    result = attend(query, key, value, mask, backend=backend)
    exact = attend(query.double(), key.double(), value.double(), mask, backend="formula")
    assert result.dtype == torch.bfloat16
    assert torch.count_nonzero(result[0]) == 0
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=0.05)
    (slope,) = torch.autograd.grad(result.sum(), query)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_over_no_keys_is_zero(backend: Exact) -> None:
    query, nothing = torch.randn(B, H, Q, D), torch.zeros(B, H, 0, D)
    for mask in (None, Causal(), Padding((0, 0))):
        assert torch.equal(attend(query, nothing, nothing, mask, backend=backend), torch.zeros(B, H, Q, D))


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_dropped_and_the_others_scaled(backend: Exact) -> None:
    query, key = torch.randn(2, B, H, K, D)
    every_weight = torch.eye(K).expand(B, H, K, K)
    dropped = attend(query, key, every_weight, mask=Causal(), backend=backend, dropout=0.25)
    weights = attention_weights(query, key, Causal())
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, weights / 0.75, 0.0))
    share = float(kept.sum() / (weights != 0).sum())
    assert 0.6 < share < 0.9


@pytest.mark.parametrize("name", CASES)
def test_weights_sum_to_one_or_to_zero_where_blind(name: str) -> None:
    case = CASES[name]
    (query, key, _), bias = case.tensors()
    weights = attention_weights(query, key, case.mask, case.added(bias), case.first)
    sees = case.look().any(dim=-1)
    torch.testing.assert_close(weights.sum(dim=-1), sees.double())
    assert torch.count_nonzero(weights[~case.look()]) == 0
    assert bool((weights[case.look()] > 0).all())


# --- what the fused kernel is given ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "queries", "first", "shape", "flag"),
    [
        (None, Q, 0, None, False),
        (Causal(), K, 0, None, True),
        (Causal(), 1, K - 1, None, False),
        (Causal(), Q, 0, None, True),
        (Causal(), Q, 2, (1, 1, Q, K), False),
        (Padding((K, K)), Q, 0, None, False),
        (Padding((K, 3)), Q, 0, (B, 1, 1, K), False),
        (Causal() & Padding((K, K)), K, 0, None, True),
        (Causal() & Padding((K, 3)), 1, K - 1, (B, 1, 1, K), False),
    ],
)
def test_the_kernel_is_given_as_little_as_will_do(
    mask: Mask | None,
    queries: int,
    first: int,
    shape: tuple[int, ...] | None,
    flag: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    kernel = F.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        given.update(options)
        return kernel(query, key, value, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    key, value = torch.randn(2, B, H, K, D)
    attend(torch.randn(B, H, queries, D), key, value, mask, None, first, "fused")
    look = given.get("attn_mask")
    assert (None if look is None else tuple(look.shape)) == shape
    assert given.get("is_causal", False) is flag


# --- many heads -----------------------------------------------------------------------------------------------


def copied(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    """Ours with the weights of torch's."""
    ours = MultiHeadAttention(theirs.embed_dim, theirs.num_heads, bias=theirs.in_proj_bias is not None).double()
    state = {"output." + name: value for name, value in theirs.out_proj.state_dict().items()}
    for kind in ("weight", "bias"):
        packed = getattr(theirs, f"in_proj_{kind}")
        if packed is not None:
            state |= {f"{name}.{kind}": part for name, part in zip(("query", "key", "value"), packed.chunk(3))}  # noqa: B905 - chunk gives three
    ours.load_state_dict(state)
    return ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["no mask", "causal", "causal later", "padding", "window"])
def test_many_heads_are_those_of_torch(name: str, bias: bool) -> None:
    case = CASES[name]
    theirs = nn.MultiheadAttention(H * D, H, bias=bias, batch_first=True, dtype=torch.float64)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    blocked = ~case.look().flatten(0, 1)  # torch's True means the opposite of ours
    states = torch.randn(B, case.queries, H * D), torch.randn(B, K, H * D), torch.randn(B, K, H * D)
    check.parity(
        copied(theirs),
        theirs,
        states,
        call=lambda module, q, k, v: module(q, k, v, case.mask, case.first),
        their_call=lambda module, q, k, v: module(q, k, v, attn_mask=blocked, need_weights=False),
    ).raise_for_failure()


@pytest.mark.parametrize("name", ["no mask", "causal later", "an empty sample", "window past the keys"])
def test_asking_for_weights_changes_nothing(name: str) -> None:
    case = CASES[name]
    attention = MultiHeadAttention(H * D, H).double()
    query, seen = torch.randn(B, case.queries, H * D).double(), torch.randn(B, K, H * D).double()
    keys_values = attention.keys_values(seen, seen)
    plain, nothing = attention.look(query, keys_values, case.mask, case.first)
    states, weights = attention.look(query, keys_values, case.mask, case.first, need_weights=True)
    assert nothing is None
    assert weights is not None
    assert weights.shape == (B, H, case.queries, K)
    torch.testing.assert_close(states, plain, rtol=0, atol=1e-12)
    by_hand = attention.output((weights @ keys_values.value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(states, by_hand, rtol=0, atol=1e-12)
    assert torch.equal(weights != 0, case.look())


def test_weights_are_those_of_torch() -> None:
    theirs = nn.MultiheadAttention(H * D, H, batch_first=True, dtype=torch.float64)
    ours = copied(theirs)
    query, seen = torch.randn(B, Q, H * D).double(), torch.randn(B, K, H * D).double()
    _, wanted = theirs(
        query, seen, seen, key_padding_mask=~Padding((K, 3)).dense(1, K)[:, 0, 0], average_attn_weights=False
    )
    _, weights = ours.look(query, ours.keys_values(seen, seen), Padding((K, 3)), need_weights=True)
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-12)


def test_attention_weights_are_dropped_while_training_only() -> None:
    attention = MultiHeadAttention(H * D, H, dropout=0.5)
    states = torch.randn(B, Q, H * D)
    assert not torch.equal(attention(states, states, states), attention(states, states, states))
    seen = attention.keys_values(states, states)
    asked = [attention.look(states, seen, need_weights=True) for _ in range(2)]
    assert not torch.equal(asked[0][0], asked[1][0])
    assert asked[0][1] is not None
    assert asked[1][1] is not None
    assert torch.equal(asked[0][1], asked[1][1])  # handed back as they were before dropout
    attention.eval()
    assert torch.equal(attention(states, states, states), attention(states, states, states))


def test_every_head_sees_its_own_part() -> None:
    attention = MultiHeadAttention(H * D, H).double().eval()
    states = torch.randn(B, Q, H * D).double()
    whole = attention.keys_values(states, states)
    assert whole.key.shape == (B, H, Q, D)
    assert torch.equal(whole.key[:, 1], attention.key(states)[:, :, D : 2 * D])
    other = KeysValues(whole.key, torch.cat([whole.value[:, :2], torch.zeros(B, 1, Q, D).double()], dim=1))
    attention.output = nn.Identity()  # type: ignore[assignment]
    one, two = attention.look(states, whole)[0], attention.look(states, other)[0]
    assert torch.equal(one[:, :, : 2 * D], two[:, :, : 2 * D])
    assert torch.count_nonzero(two[:, :, 2 * D :]) == 0
    assert torch.count_nonzero(one[:, :, 2 * D :]) == B * Q * D


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_mask_of_another_batch_is_refused(need_weights: bool) -> None:
    states = torch.randn(B, Q, H * D)
    attention = MultiHeadAttention(H * D, H)
    with pytest.raises(ShapeError, match=r"Padding\(\(5, 3, 1\)\) speaks of 3 samples, but attention was given 2"):
        attention.look(states, attention.keys_values(states, states), Padding((Q, 3, 1)), need_weights=need_weights)


@pytest.mark.parametrize("heads", [0, 2, 4])
def test_heads_must_divide_the_width(heads: int) -> None:
    with pytest.raises(ConfigError, match=f"d_model 33 does not divide into {heads} heads; choose num_heads"):
        MultiHeadAttention(H * D, heads)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan])
def test_dropout_must_be_a_share(dropout: float) -> None:
    with pytest.raises(ConfigError, match=f"a dropout of {dropout} was given.*give a number from 0 to below 1"):
        MultiHeadAttention(H * D, H, dropout=dropout)
