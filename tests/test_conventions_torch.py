"""Torch's conventions, out and back: each export runs in the real library beside our formula, each import is held to it.

What torch does with a row that sees nothing is measured here too, since `to` warns of exactly that.
"""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from mask_expressions import BATCH, EXPRESSIONS, HEADS, SHAPES, Shape, built, cells, table
from pellucid import masks
from pellucid.errors import MaskError
from pellucid.interop import from_torch
from pellucid.masks import (
    BlindRows,
    Causal,
    Chunked,
    Dense,
    Dilated,
    Full,
    Global,
    Heads,
    Mask,
    Padding,
    Predicate,
    Prefix,
    Segments,
    Seq2SeqMasks,
    Window,
    seq2seq,
)
from pellucid.model import attend
from pellucid.model.attention import attention_weights

B, H, WIDTH = BATCH, HEADS, 11
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
WIDE, TALL, SQUARE, STEP, CACHED = (5, 7, 0), (7, 5, 0), (7, 7, 0), (1, 7, 6), (5, 7, 2)
SHAPES_RUN = {"wide": WIDE, "tall": TALL, "square": SQUARE, "step": STEP, "cached": CACHED}
DOCUMENTS = Segments(((0, 0, 0, 1, 1, 1, 1), (0, 1, 1, 1, 1, 2, 2)))
MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(before=2, after=1),
    "padding": Padding((7, 3)),
    "left padding": ~Padding((0, 2)),
    "causal and padding": Causal() & Padding((6, 3)),
    "causal and left padding": Causal() & ~Padding((0, 2)),
    "prefix": Causal() | Prefix((4, 1)),
    "prefix of all": Causal() & Prefix(3) & Padding((6, 3)),
    "documents": DOCUMENTS & Causal(),
    "chunks": Chunked(3),
    "dilated": Dilated(2) & Window(4, 4),
    "global": Global(0) | Window(1, 0),
    "heads": Heads((Causal(), Window(1, 1), Full())),
    "heads and padding": Heads((Causal(), Window(1, 1), Full())) & Padding((5, 4)),
    "dense": Dense(cells(3, B, H, 7, 7)),
    "dense of a sample": Dense(cells(4, B, 7, 7)),
    "dense of keys": Dense(cells(5, B, 1, 1, 7)) & Causal(),
    "predicate": Predicate(lambda b, h, q, k: (k <= q) & (k != b), batch=B),
}
over_masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
over_shapes = pytest.mark.parametrize("shape", SHAPES_RUN.values(), ids=SHAPES_RUN)
over_types = pytest.mark.parametrize("dtype", [None, torch.float64], ids=["bool", "additive"])


@pytest.fixture(autouse=True)
def without_torchs_news() -> Iterator[None]:
    """Torch tells of its plans for nested tensors and scripts, and that flex_attention would be faster compiled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors", category=UserWarning)
        warnings.filterwarnings(
            "ignore", message="`torch.jit.script_method` is deprecated", category=DeprecationWarning
        )
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile", category=UserWarning)
        yield


def exported(mask: Mask, convention: str, shape: Shape, **more: Any) -> dict[str, Any]:
    """The mask for that library, whether or not a row is blind."""
    queries, keys, first = shape
    return mask.to(convention, queries=queries, keys=keys, first_query=first, **{"blind": "ignore"} | more)


def states(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random states."""
    return torch.randn(*shape, dtype=dtype)


def heads_of(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, split into heads."""
    queries, keys, _ = shape
    return states(B, H, queries, WIDTH), states(B, H, keys, WIDTH), states(B, H, keys, WIDTH)


def seeing(mask: Mask, shape: Shape) -> Tensor:
    """Bool (B, H, Q): the rows that see something."""
    return ~mask.blind(*shape).expand(B, H, shape[0])


# --- SDPA -------------------------------------------------------------------------------------------------------


@over_types
@over_shapes
@over_masks
def test_sdpa_computes_our_formula(mask: Mask, shape: Shape, dtype: torch.dtype | None) -> None:
    query, key, value = heads_of(shape)
    theirs = F.scaled_dot_product_attention(query, key, value, **exported(mask, "sdpa", shape, dtype=dtype))
    ours = attend(query, key, value, mask, first_query=shape[2], backend="formula")
    rows = seeing(mask, shape)
    torch.testing.assert_close(theirs[rows], ours[rows], **EXACT)


@pytest.mark.parametrize(
    ("mask", "shape", "wanted"),
    [
        (Full(), WIDE, {}),
        (Causal(), STEP, {}),
        (Padding((7, 9)), WIDE, {}),
        (Causal(), WIDE, {"is_causal": True}),
        (Causal(), TALL, {"is_causal": True}),
        (Causal() & Window(6, 0), SQUARE, {"is_causal": True}),
        (Dense(torch.ones(7, 7, dtype=torch.bool).tril()), SQUARE, {"is_causal": True}),
        (Dense(torch.ones(B, H, 1, 1, dtype=torch.bool)), SQUARE, {}),
    ],
)
def test_sdpa_is_given_its_shortcut_where_it_is_equal(mask: Mask, shape: Shape, wanted: dict[str, Any]) -> None:
    assert exported(mask, "sdpa", shape) == wanted


def test_sdpa_is_given_no_flag_where_rows_do_not_begin_at_the_top() -> None:
    assert exported(Causal(), "sdpa", CACHED).keys() == {"attn_mask"}


def test_sdpa_is_given_no_axis_along_which_all_are_alike() -> None:
    assert exported(Padding((7, 3)), "sdpa", WIDE)["attn_mask"].shape == (B, 1, 1, 7)
    assert exported(Window(1, 1), "sdpa", WIDE)["attn_mask"].shape == (1, 1, 5, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "none"])
def test_sdpa_gives_a_blind_row_zeros_and_says_so(dtype: torch.dtype, grad: bool) -> None:
    mask, (queries, keys, _) = Causal() & Padding((7, 0)), SQUARE
    with pytest.warns(
        BlindRows, match=r"query 0 of sample 1, head 0 look at nothing \(7 such rows\); torch gives it zeros"
    ):
        arguments = mask.to("sdpa", queries=queries, keys=keys)
    query, key, value = (part.to(dtype).requires_grad_(grad) for part in heads_of(SQUARE))
    found = F.scaled_dot_product_attention(query, key, value, **arguments)
    assert (found[1] == 0).all()
    assert found[0].isfinite().all()
    if grad:
        assert all(part.isfinite().all() for part in torch.autograd.grad(found.sum(), (query, key, value)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sdpa_averages_over_hidden_keys_where_the_mask_is_added_and_says_so(dtype: torch.dtype) -> None:
    with pytest.warns(BlindRows, match="hides none, so torch averages over the hidden keys"):
        arguments = Padding((7, 0)).to("sdpa", queries=5, keys=7, dtype=dtype)
    query, key, value = (part.to(dtype) for part in heads_of(WIDE))
    found = F.scaled_dot_product_attention(query, key, value, **arguments)
    torch.testing.assert_close(found[1], value[1].mean(-2, keepdim=True).expand_as(found[1]))


@given(EXPRESSIONS, SHAPES, st.sampled_from([None, torch.float16, torch.float64]))
def test_sdpa_is_read_back(expression: str, shape: Shape, dtype: torch.dtype | None) -> None:
    mask, (queries, keys, first) = built(expression), shape
    arguments = exported(mask, "sdpa", shape, dtype=dtype)
    back = masks.read("sdpa", **arguments, queries=queries, keys=keys, batch=B, heads=H, first_query=first)
    assert torch.equal(table(back, shape), table(mask, shape))


def test_sdpa_is_read_as_what_it_plainly_is() -> None:
    assert masks.read("sdpa") == Full()
    assert masks.read("sdpa", is_causal=True) == Causal()
    assert masks.read("sdpa", attn_mask=torch.ones(5, 7, dtype=torch.bool)) == Full()
    one_sample = torch.tensor([[[True, False]]])  # (1, 1, 2)
    assert masks.read("sdpa", attn_mask=one_sample) == Dense(one_sample)
    late = masks.read("sdpa", is_causal=True, queries=2, keys=3, first_query=4)
    assert late.dense(2, 3, first_query=4).int().tolist() == [[[[1, 0, 0], [1, 1, 0]]]]


# --- nn.MultiheadAttention --------------------------------------------------------------------------------------


def multihead(heads: int = H, width: int = WIDTH, **more: Any) -> nn.MultiheadAttention:
    """A module with biases that are not zero."""
    module = nn.MultiheadAttention(heads * width, heads, batch_first=True, dtype=torch.float64, **more)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        nn.init.normal_(bias)
    return module


def projected(module: nn.MultiheadAttention, *given: Tensor) -> list[Tensor]:
    """Queries, keys and values as the module projects them, (batch, heads, length, width)."""
    parts = zip(given, module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True)
    return [F.linear(one, *part).view(*one.shape[:2], module.num_heads, -1).transpose(1, 2) for one, *part in parts]


def our_formula(
    module: nn.MultiheadAttention, given: tuple[Tensor, ...], mask: Mask, first: int
) -> tuple[Tensor, Tensor]:
    """What our formula makes of the module's own projections: states, and weights of each head."""
    query, key, value = projected(module, *given)
    attended = attend(query, key, value, mask, first_query=first, backend="formula")
    return module.out_proj(attended.transpose(1, 2).flatten(2)), attention_weights(query, key, mask, None, first)


@over_types
@over_shapes
@over_masks
def test_multihead_attention_computes_our_formula(mask: Mask, shape: Shape, dtype: torch.dtype | None) -> None:
    queries, keys, first = shape
    module, arguments = multihead(), exported(mask, "multihead_attention", shape, dtype=dtype, batch=B, heads=H)
    given = states(B, queries, H * WIDTH), *[states(B, keys, H * WIDTH)] * 2
    wanted, weights = our_formula(module, given, mask, first)
    rows = seeing(mask, shape)
    whole = rows.all(1)  # the output projection mixes the heads of a row
    for training in (True, False):
        module.train(training)
        found, shown = module(*given, **arguments, average_attn_weights=False)
        torch.testing.assert_close(found[whole], wanted[whole], **EXACT)
        torch.testing.assert_close(shown[rows], weights[rows], **EXACT)
        found, _ = module(*given, **arguments, need_weights=False)
        torch.testing.assert_close(found[whole], wanted[whole], **EXACT)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "mask",
    [
        Full(),
        Causal(),
        Window(2, 1),
        Padding((7, 3, 5)),
        ~Padding((0, 2, 1)),
        Causal() & Padding((7, 3, 5)),
        Heads((Causal(), Window(1, 1))),
        Causal() & Heads((Window(4, 0), Full())) & Padding((7, 3, 5)),
    ],
    ids=repr,
)
def test_the_fast_path_of_multihead_attention_computes_our_formula(
    mask: Mask, need_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, heads = 3, 2  # torch wants an even number of heads there
    module = multihead(heads).eval()
    taken, native = [], torch._native_multi_head_attention

    def counted(*given: Any) -> Any:
        taken.append(given)
        return native(*given)

    monkeypatch.setattr(torch, "_native_multi_head_attention", counted)
    x = states(batch, 7, heads * WIDTH)
    arguments = exported(mask, "multihead_attention", SQUARE, batch=batch, heads=heads)
    with torch.no_grad():
        wanted, weights = our_formula(module, (x, x, x), mask, 0)
        found, shown = module(x, x, x, **arguments, need_weights=need_weights, average_attn_weights=False)
    assert len(taken) == 1
    torch.testing.assert_close(found, wanted, **EXACT)
    if need_weights:
        torch.testing.assert_close(shown, weights, **EXACT)


PARTS: list[tuple[Mask, Shape, dict[str, Any]]] = [
    (Full(), WIDE, {}),
    (Causal(), STEP, {}),
    (Causal(), WIDE, {"attn_mask": (5, 7), "is_causal": True}),
    (Causal(), TALL, {"attn_mask": (7, 5), "is_causal": True}),
    (Causal(), CACHED, {"attn_mask": (5, 7)}),
    (Window(9, 0), SQUARE, {"attn_mask": (7, 7), "is_causal": True}),
    (Window(2, 0), SQUARE, {"attn_mask": (7, 7)}),
    (Padding((7, 3)), WIDE, {"key_padding_mask": (B, 7)}),
    (~Padding((0, 2)), WIDE, {"key_padding_mask": (B, 7)}),
    (Padding((7, 3)) & ~Padding((1, 0)), WIDE, {"key_padding_mask": (B, 7)}),
    (Padding((7, 3)) | Prefix(4), WIDE, {"key_padding_mask": (B, 7)}),
    (Dense(cells(5, B, 1, 1, 7)), WIDE, {"key_padding_mask": (B, 7)}),
    (Dense(cells(5, B, 1, 1, 7).expand(B, 3, 5, 7)), WIDE, {"key_padding_mask": (B, 7)}),
    (Predicate(lambda b, h, q, k: k < 2 + b, batch=B), WIDE, {"key_padding_mask": (B, 7)}),
    (Causal() & Padding((7, 3)), WIDE, {"attn_mask": (5, 7), "key_padding_mask": (B, 7), "is_causal": True}),
    (Causal() & Padding((7, 3)), STEP, {"key_padding_mask": (B, 7)}),
    (Causal() & Prefix(3), WIDE, {"attn_mask": (5, 7)}),
    (
        Causal() & Prefix(3) & Padding((7, 3)),
        SQUARE,
        {"attn_mask": (7, 7), "key_padding_mask": (B, 7), "is_causal": True},
    ),
    (Causal() | Padding((7, 3)), WIDE, {"attn_mask": (B * H, 5, 7)}),
    (Segments(((4,) * 7, (5,) * 7)) & Window(1, 0), WIDE, {"attn_mask": (5, 7)}),
    (Heads((Causal(), Full(), Full())), WIDE, {"attn_mask": (B * H, 5, 7)}),
    (Heads((Causal(), Causal(), Causal())), WIDE, {"attn_mask": (5, 7), "is_causal": True}),
    (
        Heads((Causal(), Full(), Full())) & Padding((7, 3)),
        WIDE,
        {"attn_mask": (B * H, 5, 7), "key_padding_mask": (B, 7)},
    ),
]


@over_types
@pytest.mark.parametrize(("mask", "shape", "wanted"), PARTS, ids=[f"{mask!r} {shape}" for mask, shape, _ in PARTS])
def test_multihead_attention_is_given_what_it_needs(
    mask: Mask, shape: Shape, wanted: dict[str, Any], dtype: torch.dtype | None
) -> None:
    batch = B if mask.heads else None
    found = exported(mask, "multihead_attention", shape, heads=H, batch=batch, dtype=dtype)
    sizes = {name: tuple(one.shape) if isinstance(one, Tensor) else one for name, one in found.items()}
    assert sizes == wanted
    assert {one.dtype for one in found.values() if isinstance(one, Tensor)} <= {dtype or torch.bool}


def test_the_mask_of_all_heads_is_batch_major_with_the_head_fastest() -> None:
    mask = Dense(cells(3, B, H, 5, 7))
    found = exported(mask, "multihead_attention", WIDE)["attn_mask"]
    for b in range(B):
        for h in range(H):
            assert torch.equal(~found[b * H + h], mask.dense(5, 7)[b, h])


def test_keys_that_all_samples_hide_are_padding_where_the_batch_is_known() -> None:
    assert exported(Prefix(3), "multihead_attention", WIDE)["attn_mask"].shape == (5, 7)
    found = exported(Prefix(3), "multihead_attention", WIDE, batch=B)
    assert found.keys() == {"key_padding_mask"}
    assert found["key_padding_mask"].int().tolist() == [[0, 0, 0, 1, 1, 1, 1]] * B


@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "none"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("mask", [Padding((7, 0)), ~Window(6, 6), Causal() - Window(0, 0)], ids=repr)
def test_what_multihead_attention_does_with_a_blind_row_is_what_is_warned_of(
    mask: Mask, need_weights: bool, training: bool, grad: bool
) -> None:
    with pytest.warns(
        BlindRows, match="NaN with need_weights=True; with need_weights=False zeros before the output pro"
    ):
        arguments = mask.to("multihead_attention", queries=7, keys=7, heads=2)
    module, x = multihead(heads=2).train(training), states(B, 7, 2 * WIDTH)
    blind = mask.blind(7, 7).expand(B, 1, 7)[:, 0]
    with torch.set_grad_enabled(grad):
        found, _ = module(x, x, x, **arguments, need_weights=need_weights)
    fast = not training and not grad
    if need_weights or fast:
        assert found[blind].isnan().all()
    else:
        torch.testing.assert_close(found[blind], module.out_proj.bias.expand_as(found[blind]), **EXACT)
    assert found[~blind].isfinite().all()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
def test_multihead_attention_averages_where_the_mask_is_added(need_weights: bool, training: bool) -> None:
    with pytest.warns(BlindRows, match="so nn.MultiheadAttention averages over keys that are hidden"):
        arguments = Padding((7, 0)).to("multihead_attention", queries=7, keys=7, dtype=torch.float64)
    module, x = multihead(heads=2).train(training), states(B, 7, 2 * WIDTH)
    with torch.no_grad():
        found, _ = module(x, x, x, **arguments, need_weights=need_weights)
        _, _, value = projected(module, x, x, x)
        mean = module.out_proj(value.mean(2).flatten(1))
    torch.testing.assert_close(found[1], mean[1].expand(7, -1), **EXACT)


@given(EXPRESSIONS, SHAPES, st.sampled_from([None, torch.float16, torch.float64]))
def test_multihead_attention_is_read_back(expression: str, shape: Shape, dtype: torch.dtype | None) -> None:
    mask, (queries, keys, first) = built(expression), shape
    arguments = exported(mask, "multihead_attention", shape, dtype=dtype, batch=B, heads=H)
    back = masks.read("multihead_attention", **arguments, queries=queries, keys=keys, heads=H, first_query=first)
    assert torch.equal(table(back, shape), table(mask, shape))


@pytest.mark.parametrize(
    "mask", [Full(), Causal(), Padding((7, 3)), ~Padding((0, 2)), Causal() & Padding((7, 3))], ids=repr
)
@over_types
def test_multihead_attention_is_read_as_the_expression_it_was(mask: Mask, dtype: torch.dtype | None) -> None:
    assert masks.read("multihead_attention", **exported(mask, "multihead_attention", SQUARE, dtype=dtype)) == mask


def test_a_mask_of_all_heads_is_read_for_its_samples_and_heads() -> None:
    look = cells(3, B, H, 5, 7)
    assert masks.read("multihead_attention", attn_mask=~look.flatten(0, 1), heads=H) == Dense(look)
    assert masks.read("multihead_attention", attn_mask=~cells(4, 5, 7)) == Dense(cells(4, 5, 7))
    causal = masks.read(
        "multihead_attention", attn_mask=~torch.ones(B * H, 5, 7).tril().bool(), heads=H, is_causal=True
    )
    assert causal == Causal()
    late = masks.read("multihead_attention", attn_mask=~torch.ones(5, 7).tril().bool(), is_causal=True, first_query=2)
    assert torch.equal(late.dense(5, 7, first_query=2), Causal().dense(5, 7))


# --- nn.Transformer ---------------------------------------------------------------------------------------------

SAMPLES, EVEN = 3, 2  # torch's fast path wants an even number of heads
SOURCE, TARGET = 5, 7
TRIPLES: dict[str, Seq2SeqMasks] = {
    "nothing padded": seq2seq(),
    "lengths": seq2seq((5, 3, 4), (7, 2, 5)),
    "source lengths": seq2seq((5, 3, 4)),
    "left": Seq2SeqMasks(~Padding((0, 2, 1)), Causal(), ~Padding((0, 2, 1))),
    "prefix": Seq2SeqMasks(Padding((5, 3, 4)), Causal() | Prefix((2, 0, 1)), Padding((5, 3, 4))),
    "heads": Seq2SeqMasks(Window(1, 1), Causal() & Heads((Window(2, 0), Full())), Heads((Full(), Chunked(4)))),
    "documents": Seq2SeqMasks(
        Segments(((0, 0, 1, 1, 1), (0, 1, 1, 2, 2), (3, 3, 3, 3, 3))),
        Causal() & Segments(((0, 0, 1, 1, 1, 1, 1), (0, 1, 1, 2, 2, 2, 2), (0, 0, 0, 0, 0, 0, 0))),
        Full(),
    ),
    "causal everywhere": Seq2SeqMasks(Causal(), Causal(), Causal()),
}


def transformer(norm_first: bool = False, heads: int = EVEN) -> nn.Transformer:
    """Torch's own, without dropout, in float64."""
    module = nn.Transformer(
        heads * WIDTH, heads, 2, 2, 13, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


@over_types
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("triple", TRIPLES.values(), ids=TRIPLES)
def test_transformer_computes_what_ours_does(triple: Seq2SeqMasks, norm_first: bool, dtype: torch.dtype | None) -> None:
    theirs = transformer(norm_first)
    ours = from_torch(theirs)
    source, target = states(SAMPLES, SOURCE, theirs.d_model), states(SAMPLES, TARGET, theirs.d_model)
    arguments = triple.to("transformer", source=SOURCE, target=TARGET, batch=SAMPLES, heads=EVEN, dtype=dtype)
    wanted = ours(source, target, triple)
    for training, grad in ((True, True), (False, True), (False, False)):  # the last is torch's fast path
        with torch.set_grad_enabled(grad):
            found = theirs.train(training)(source, target, **arguments)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


NINE = [f"{one}_{what}" for what in ("mask", "key_padding_mask", "is_causal") for one in ("src", "tgt", "memory")]


def test_transformer_is_given_all_nine_arguments() -> None:
    silent = {name: False if name.endswith("is_causal") else None for name in NINE}
    alone = seq2seq().to("transformer", source=5, target=7)
    assert torch.equal(alone.pop("tgt_mask"), ~Causal().dense(7, 7)[0, 0])
    assert {**alone, "tgt_mask": None} == {**silent, "tgt_is_causal": True}
    found = seq2seq((5, 3, 4), (7, 2, 5)).to("transformer", source=5, target=7, dtype=torch.float32)
    assert list(found) == NINE
    assert {name: tuple(one.shape) if isinstance(one, Tensor) else one for name, one in found.items()} == {
        **silent,
        "src_key_padding_mask": (3, 5),
        "tgt_mask": (7, 7),
        "tgt_is_causal": True,
        "tgt_key_padding_mask": (3, 7),
        "memory_key_padding_mask": (3, 5),
    }
    assert {one.dtype for one in found.values() if isinstance(one, Tensor)} == {torch.float32}
    everywhere = Causal() & Padding((4, 3, 2))
    every = Seq2SeqMasks(everywhere, everywhere, everywhere).to("transformer", source=5, target=7)
    assert not [name for name, value in every.items() if value is None or value is False]
    documents = Seq2SeqMasks(Full(), Heads((Full(), Causal())), Padding((5, 3, 4)))
    assert documents.to("transformer", source=5, target=7)["tgt_mask"].shape == (
        6,
        7,
        7,
    )  # the batch is the cross mask's


BLIND_TRIPLES: dict[str, tuple[Seq2SeqMasks, str]] = {
    # What its fast path gives: torch's encoder skips what stands to the right of the text, and fills it with zeros.
    "a source of no tokens": (seq2seq((5, 0)), "finite"),
    "the same, padded on the left": (Seq2SeqMasks(~Padding((2, 5)), Causal(), ~Padding((2, 5))), "NaN"),
    "a target of no tokens": (seq2seq(target_lengths=(7, 0)), "NaN"),
    "a window that misses": (Seq2SeqMasks(Padding((5, 0)) & Window(1, 1), Causal(), Padding((5, 0))), "NaN"),
}


@pytest.mark.parametrize(("triple", "fast"), BLIND_TRIPLES.values(), ids=BLIND_TRIPLES)
def test_what_transformer_does_with_a_blind_row_is_what_is_warned_of(triple: Seq2SeqMasks, fast: str) -> None:
    with pytest.warns(
        BlindRows, match="nn.Transformer gives it zeros before the output projection, or NaN on the fast"
    ):
        arguments = triple.to("transformer", source=SOURCE, target=TARGET)
    theirs = transformer()
    source, target = states(B, SOURCE, theirs.d_model), states(B, TARGET, theirs.d_model)
    wanted = from_torch(theirs)(source, target, triple)  # which gives zeros, before the output projection too
    for training in (True, False):
        torch.testing.assert_close(theirs.train(training)(source, target, **arguments), wanted, rtol=0, atol=1e-11)
    with torch.no_grad():
        found = theirs.eval()(source, target, **arguments)
    assert found[0].isfinite().all()
    assert bool(found[1].isnan().any()) == (fast == "NaN")


@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "none"])
def test_transformer_averages_or_not_where_the_mask_is_added(grad: bool) -> None:
    triple = Seq2SeqMasks(~Padding((2, 5)), Causal(), ~Padding((2, 5)))
    with pytest.warns(BlindRows, match="averages over keys that are hidden, or its encoder gives NaN on the fast path"):
        arguments = triple.to("transformer", source=SOURCE, target=TARGET, dtype=torch.float64)
    theirs = transformer().eval()
    source, target = states(B, SOURCE, theirs.d_model), states(B, TARGET, theirs.d_model)
    with torch.set_grad_enabled(grad):
        found = theirs(source, target, **arguments)
    assert found[0].isfinite().all()
    assert bool(found[1].isnan().any()) == (not grad)
    zeros = from_torch(theirs)(source, target, triple)
    torch.testing.assert_close(found[0], zeros[0], rtol=0, atol=1e-11)
    assert not torch.isclose(found[1], zeros[1]).any()


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, SHAPES, st.sampled_from([None, torch.float64]))
def test_transformer_is_read_back(
    encoder: str, decoder: str, cross: str, shape: Shape, dtype: torch.dtype | None
) -> None:
    triple, (target, source, _) = Seq2SeqMasks(built(encoder), built(decoder), built(cross)), shape
    arguments = triple.to("transformer", source=source, target=target, batch=B, heads=H, dtype=dtype, blind="ignore")
    back = masks.read("transformer", **arguments, queries=target, keys=source, batch=B, heads=H)
    for ours, theirs, size in (
        (triple.encoder, back.encoder, (source, source, 0)),
        (triple.decoder, back.decoder, (target, target, 0)),
        (triple.cross, back.cross, (target, source, 0)),
    ):
        assert torch.equal(table(theirs, size), table(ours, size))


def test_transformer_is_read_as_the_triple_it_was() -> None:
    triple = seq2seq((5, 3, 4), (7, 2, 5))
    assert masks.read("transformer", **triple.to("transformer", source=5, target=7)) == triple
    assert masks.read("transformer") == Seq2SeqMasks(Full(), Full(), Full())


# --- flex_attention ---------------------------------------------------------------------------------------------


@over_shapes
@over_masks
def test_flex_attention_computes_our_formula(mask: Mask, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query, key, value = heads_of(shape)
    theirs = flex_attention(query, key, value, **exported(mask, "flex", shape))
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(
        theirs, attend(query, key, value, mask, first_query=shape[2], backend="formula"), **EXACT
    )


@pytest.mark.usefixtures("traceable")
@over_masks
def test_flex_attention_as_it_is_called_computes_our_formula(mask: Mask) -> None:
    query, key, value = heads_of(CACHED)
    theirs = flex_attention(query, key, value, **exported(mask, "flex", CACHED))
    ours = attend(query, key, value, mask, first_query=CACHED[2], backend="formula")
    torch.testing.assert_close(theirs, ours, **EXACT)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")
@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize(
    "mask",
    [
        Heads((Causal(), Full(), Window(1, 1))) & Prefix((6, 7)) & ~Padding((0, 2)),
        (DOCUMENTS | Dense(cells(3, B, H, 7, 7))) & Dense(cells(5, B, 1, 1, 7)) & MASKS["predicate"],
    ],
    ids=repr,
)
def test_flex_attention_compiled_computes_our_formula(mask: Mask) -> None:
    query, key, value = (states(B, H, 7, 16, dtype=torch.float32) for _ in range(3))
    with torch.no_grad():
        theirs = torch.compile(flex_attention)(query, key, value, **exported(mask, "flex", SQUARE))
    torch.testing.assert_close(theirs, attend(query, key, value, mask, backend="formula"), rtol=0, atol=1e-6)


LENGTHS = torch.tensor([391, 131])
LARGE: dict[str, tuple[Mask, int, Callable[..., Tensor], int | None, int | None]] = {
    "causal": (Causal(), 0, lambda b, h, q, k: k <= q, None, None),
    "cached": (Causal(), 129, lambda b, h, q, k: k <= q + 129, None, None),
    "window": (Window(140, 3), 0, lambda b, h, q, k: (q - 140 <= k) & (k <= q + 3), None, None),
    "padding": (Padding(LENGTHS), 0, lambda b, h, q, k: k < LENGTHS[b], B, None),
    "decoder": (Causal() & Padding(LENGTHS), 0, lambda b, h, q, k: (k <= q) & (k < LENGTHS[b]), B, None),
    "chunks": (Chunked(128), 0, lambda b, h, q, k: q // 128 == k // 128, None, None),
    "heads": (
        Heads((Causal(), Full(), Chunked(256))) & Padding(LENGTHS),
        0,
        lambda b, h, q, k: (k < LENGTHS[b]) & ((h == 1) | ((h == 0) & (k <= q)) | ((h == 2) & (q // 256 == k // 256))),
        B,
        H,
    ),
    "nothing": (~Full(), 0, lambda b, h, q, k: k < 0, None, None),
}


@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_a_block_mask_is_torch_s_own(case: tuple[Mask, int, Callable[..., Tensor], int | None, int | None]) -> None:
    mask, first, mask_mod, batch, heads = case
    size = queries, keys = 263, 391
    ours = exported(mask, "flex", (queries, keys, first))["block_mask"]
    theirs = create_block_mask(mask_mod, batch, heads, queries, keys, device="cpu")
    assert ours.shape == theirs.shape
    assert ours.seq_lengths == size
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(theirs, f"{kind}_num_blocks")
        assert torch.equal(getattr(ours, f"{kind}_num_blocks"), counts)
        listed = torch.arange(getattr(theirs, f"{kind}_indices").shape[-1]) < counts[..., None]
        columns = [torch.where(listed, getattr(one, f"{kind}_indices"), -1).sort(-1).values for one in (ours, theirs)]
        assert torch.equal(*columns)
    assert any(getattr(theirs, f"{kind}_num_blocks").any() for kind in ("kv", "full_kv")) == (mask != ~Full())


def test_a_block_mask_is_made_without_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    most, see = 0, Causal.see

    def counted(self: Causal, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        nonlocal most
        look = see(self, b, h, q, k)
        most = max(most, look.numel())
        return look

    monkeypatch.setattr(Causal, "see", counted)
    exported(Causal() & Window(500, 0), "flex", (1009, 1013, 0))
    assert most == 0
    exported(Causal() & Dilated(3), "flex", (1009, 1013, 0))
    assert most == 8 * 128 * 128  # the blocks of the diagonal


def test_flex_attention_is_given_nothing_where_nothing_is_hidden() -> None:
    assert exported(Full(), "flex", WIDE) == {}
    assert exported(Causal(), "flex", STEP) == {}


@pytest.mark.usefixtures("traceable")
def test_flex_attention_gives_a_blind_row_zeros_and_says_so() -> None:
    with pytest.warns(BlindRows, match="flex_attention gives it zeros, as Pellucid does"):
        arguments = (Causal() & Padding((7, 0))).to("flex", queries=7, keys=7)
    found = flex_attention(*heads_of(SQUARE), **arguments)
    assert isinstance(found, Tensor)
    assert (found[1] == 0).all()
    assert found.isfinite().all()


@given(EXPRESSIONS, SHAPES)
def test_a_block_mask_is_read_back(expression: str, shape: Shape) -> None:
    mask, (queries, keys, first) = built(expression), shape
    arguments = exported(mask, "flex", shape)
    back = masks.read("flex", **arguments, queries=queries, keys=keys, batch=B, heads=H, first_query=first)
    assert torch.equal(table(back, shape), table(mask, shape))


def test_a_block_mask_of_torch_is_read() -> None:
    lengths = torch.tensor([263, 100])
    theirs = create_block_mask(lambda b, h, q, k: (k <= q) & (k < lengths[b]), B, None, 263, 391, device="cpu")
    back = masks.read("flex", block_mask=theirs, heads=H)
    assert (back.batch, back.heads) == (B, None)
    assert torch.equal(back.dense(263, 391), (Causal() & Padding(lengths)).dense(263, 391))
    assert masks.read("flex", block_mask=None) == Full()


# --- blind rows -------------------------------------------------------------------------------------------------

CONVENTIONS = ["sdpa", "multihead_attention", "flex"]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_blind_rows_can_be_refused(convention: str) -> None:
    mask = Causal() & Padding((7, 0))
    with pytest.raises(
        MaskError, match=r"query 0 of sample 1, head 0 look at nothing, and .*; let each query see a key"
    ):
        exported(mask, convention, SQUARE, blind="refuse")
    assert exported(Causal() & Padding((7, 1)), convention, SQUARE, blind="refuse")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_blind_rows_can_be_ignored(convention: str) -> None:
    assert exported(Causal() & Padding((7, 0)), convention, SQUARE, blind="ignore")  # any warning is an error here


def test_blind_rows_of_a_triple_can_be_refused_and_ignored() -> None:
    triple = seq2seq((5, 0))
    with pytest.raises(MaskError, match=r"query 0 of sample 1, head 0 look at nothing, and nn.Transformer gives"):
        triple.to("transformer", source=5, target=7, blind="refuse")
    assert triple.to("transformer", source=5, target=7, blind="ignore")


@pytest.mark.parametrize("blind", ["warn", "refuse"])
def test_nothing_is_said_where_every_row_sees_something(blind: str) -> None:
    for convention in CONVENTIONS:
        assert exported(Causal() & Padding((7, 3)), convention, SQUARE, blind=blind)
    assert seq2seq((5, 3), (7, 2)).to("transformer", source=5, target=7, blind=blind)


def test_all_blind_rows_are_told_of_in_one_warning() -> None:
    with pytest.warns(BlindRows) as caught:
        Padding((7, 0)).to("sdpa", queries=5, keys=7)
    assert len(caught) == 1


@pytest.mark.parametrize("backend", ["formula", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "mask",
    [
        Padding((7, 0)),
        Causal() & Padding((0, 3)),
        Heads((Causal(), ~Full(), Window(1, 1))),
        Padding((0, 0)),
        ~Full(),
        Causal() - Window(0, 0),
        Dense(torch.zeros(7, 7, dtype=torch.bool)),
    ],
    ids=repr,
)
def test_our_own_attention_gives_blind_rows_zeros_and_finite_gradients(
    mask: Mask, dtype: torch.dtype, backend: Any
) -> None:
    query, key, value = (part.to(dtype).requires_grad_() for part in heads_of(SQUARE))
    found = attend(query, key, value, mask, backend=backend)
    rows = seeing(mask, SQUARE)
    assert not rows.all()
    assert (found[~rows] == 0).all()
    assert found.isfinite().all()
    assert (found[rows] != 0).any(-1).all()
    gradients = torch.autograd.grad((found * states(*found.shape, dtype=dtype)).sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][~rows] == 0).all()


# --- what is refused --------------------------------------------------------------------------------------------


def hidden(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """A mask of that shape in which something is hidden."""
    blocked = torch.zeros(shape, dtype=torch.bool)
    blocked[..., -1] = True
    return blocked if dtype == torch.bool else torch.zeros(shape, dtype=dtype).masked_fill(blocked, float("-inf"))


TRIANGLE = ~torch.ones(5, 7).tril().bool()
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "sdpa",
        {"attn_mask": hidden(5, 7), "is_causal": True},
        "both attn_mask and is_causal, which torch refuses; give one",
    ),
    (
        "sdpa",
        {"attn_mask": hidden(7)},
        "shape (7,), but it is (queries, keys) or (batch, heads, queries, keys); give two",
    ),
    ("sdpa", {"attn_mask": hidden(1, B, H, 5, 7)}, "shape (1, 2, 3, 5, 7), but it is (queries, keys) or"),
    (
        "sdpa",
        {"attn_mask": hidden(B, 5, 7)},
        "as (heads, queries, keys) beside queries of four axes and as (batch, queries",
    ),
    ("sdpa", {"attn_mask": hidden(5, 7), "keys": 11}, "shape (5, 7), but it is (queries, keys), here (any, 11); give"),
    ("sdpa", {"attn_mask": hidden(B, H, 5, 7), "batch": 11}, "here (11, any, any, any); give a tensor that fits"),
    ("sdpa", {"attn_mask": torch.ones(5, 7).tril()}, "holds only 0 and 1, but a float mask is added"),
    ("sdpa", {"attn_mask": torch.ones(5, 7).int()}, "attn_mask of torch.int32, numbers, but it takes bool; compare"),
    (
        "sdpa",
        {"attn_mask": torch.full((5, 7), -0.5)},
        "adds -0.5 to a score, but a mask adds 0 or hides; give a bias apart",
    ),
    ("sdpa", {"attn_mask": torch.full((5, 7), torch.nan)}, "attn_mask that holds NaN; look where it comes from"),
    ("sdpa", {"attn_mask": "causal"}, "attn_mask of type str, but it is a tensor or an array; give the library's own"),
    ("sdpa", {"is_causal": True, "first_query": 2}, "rows from position 2, but torch counts from the first row"),
    ("sdpa", {"attn_masks": hidden(5, 7)}, "sdpa has no argument 'attn_masks'; did you mean 'attn_mask'?"),
    (
        "multihead_attention",
        {"attn_mask": hidden(5, 7), "key_padding_mask": hidden(B, 11)},
        "attn_mask of shape (5, 7) and key_padding_mask of shape (2, 11), which end in different numbers of keys; give",
    ),
    (
        "multihead_attention",
        {"attn_mask": hidden(6, 5, 7)},
        "(batch * heads, queries, keys) in torch and (batch, queries, k",
    ),
    (
        "multihead_attention",
        {"attn_mask": hidden(5, 5, 7), "heads": 3},
        "5 does not divide by 3; give the heads of the mod",
    ),
    (
        "multihead_attention",
        {"attn_mask": hidden(6, 5, 7), "key_padding_mask": hidden(5, 7), "heads": 3},
        "attn_mask of shape (6, 5, 7), but it is (batch * heads, queries, keys), here (15, any, any); give a tensor that",
    ),
    (
        "multihead_attention",
        {"attn_mask": hidden(6, 5, 7), "heads": 3, "batch": 5},
        "here (15, any, any); give a tensor",
    ),
    ("multihead_attention", {"attn_mask": hidden(5, 7), "queries": 11}, "shape (5, 7), but it is (queries, keys), or"),
    (
        "multihead_attention",
        {"attn_mask": hidden(B, H, 5, 7)},
        "of shape (2, 3, 5, 7), but it is (queries, keys), or (batch",
    ),
    (
        "multihead_attention",
        {"key_padding_mask": hidden(7)},
        "of shape (7,), but it is (batch, keys), here (any, any); give",
    ),
    (
        "multihead_attention",
        {"key_padding_mask": hidden(B, 7), "batch": 3},
        "shape (2, 7), but it is (batch, keys), here (3,",
    ),
    (
        "multihead_attention",
        {"key_padding_mask": hidden(B, 7), "keys": 5},
        "shape (2, 7), but it is (batch, keys), here (any",
    ),
    (
        "multihead_attention",
        {"attn_mask": torch.ones(5, 7).triu()},
        "attn_mask of torch.float32 that holds only 0 and 1, but",
    ),
    (
        "multihead_attention",
        {"key_padding_mask": torch.ones(B, 7)},
        "key_padding_mask of torch.float32 that holds only 0",
    ),
    (
        "multihead_attention",
        {"attn_mask": torch.ones(5, 7).long()},
        "attn_mask of torch.int64, numbers, but it takes bool;",
    ),
    (
        "multihead_attention",
        {"key_padding_mask": torch.ones(B, 7).byte()},
        "key_padding_mask of torch.uint8, numbers, but",
    ),
    (
        "multihead_attention",
        {"is_causal": True},
        "is_causal=True and no attn_mask, beside which alone torch takes it; give",
    ),
    (
        "multihead_attention",
        {"attn_mask": hidden(5, 7), "is_causal": True},
        "is_causal=True and attn_mask of shape (5, 7), which is not causal at row 0, key 1, and torch follows one or",
    ),
    (
        "transformer",
        {"src_mask": hidden(5, 5), "memory_key_padding_mask": hidden(B, 11)},
        "src_mask of shape (5, 5) and memory_key_padding_mask of shape (2, 11), which have 5 and 11 source positions; give",
    ),
    (
        "transformer",
        {"tgt_mask": hidden(7, 7), "memory_mask": hidden(11, 5)},
        "tgt_mask of shape (7, 7) and memory_mask of shape (11, 5), which have 7 and 11 target positions; give masks of",
    ),
    (
        "transformer",
        {"src_key_padding_mask": hidden(B, 5), "tgt_key_padding_mask": hidden(3, 7)},
        "src_key_padding_mask of shape (2, 5) and tgt_key_padding_mask of shape (3, 7), which have 2 and 3 samples; give",
    ),
    (
        "transformer",
        {"src_key_padding_mask": hidden(B, 5), "tgt_mask": hidden(9, 7, 7), "heads": 3},
        "tgt_mask of shape (9, 7, 7), but it is (batch * heads, queries, keys), here (6, 7, 7); give a tensor that fits",
    ),
    (
        "transformer",
        {"src_mask": hidden(6, 5, 5), "tgt_mask": hidden(9, 7, 7), "heads": 3},
        "masks of 2 and 3 samples were combined",
    ),
    ("transformer", {"src_mask": hidden(5, 5), "keys": 7}, "src_mask of shape (5, 5), but it is (queries, keys), or"),
    (
        "transformer",
        {"tgt_mask": hidden(6, 7, 7)},
        "tgt_mask of shape (6, 7, 7), which is (batch * heads, queries, keys) in",
    ),
    ("transformer", {"tgt_is_causal": True}, "transformer was read with tgt_is_causal=True and no tgt_mask"),
    ("transformer", {"tgt_mask": torch.ones(7, 7).triu(1)}, "tgt_mask of torch.float32 that holds only 0 and 1"),
    (
        "transformer",
        {"memory_mask": hidden(7, 5), "memory_is_causal": True},
        "memory_mask of shape (7, 5), which is not cau",
    ),
    ("transformer", {"first_query": 2}, "first_query=2, but nn.Transformer begins at 0; read the steps"),
    (
        "transformer",
        {"target_mask": hidden(7, 7)},
        "transformer has no argument 'target_mask'; did you mean 'tgt_mask'?",
    ),
    (
        "flex",
        {"block_mask": hidden(5, 7)},
        "block_mask of type Tensor, but it is a BlockMask of (batch, heads, queries, keys)",
    ),
]


@pytest.mark.parametrize(("convention", "arguments", "message"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_what_can_mean_two_things_or_does_not_fit_is_not_read(
    convention: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MaskError, match=re.escape(message)) as caught:
        masks.read(convention, **arguments)
    assert ";" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_triangle_that_is_causal_is_not_refused() -> None:
    assert masks.read("multihead_attention", attn_mask=TRIANGLE, is_causal=True) == Causal()
    added = hidden(B, 7, dtype=torch.float32)
    both = masks.read("multihead_attention", attn_mask=TRIANGLE, is_causal=True, key_padding_mask=added)
    assert both == Causal() & Padding((6, 6))


def block_mask() -> BlockMask:
    """Torch's own, of two samples, one head, 263 queries and 391 keys."""
    return create_block_mask(lambda b, h, q, k: k <= q + b, B, 1, 263, 391, device="cpu")


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"keys": 11},
            "shape (2, 1, 263, 391), but it is (batch, heads, queries, keys), here (any, any, any, 11); give",
        ),
        ({"queries": 11}, "here (any, any, 11, any); give a BlockMask that fits"),
        ({"batch": 3}, "here (3, any, any, any); give a BlockMask that fits"),
    ],
)
def test_a_block_mask_is_held_to_the_sizes_it_is_read_for(told: dict[str, Any], message: str) -> None:
    with pytest.raises(MaskError, match=re.escape(message)):
        masks.read("flex", block_mask=block_mask(), **told)


def test_a_slice_of_a_block_mask_is_not_read() -> None:
    with pytest.raises(MaskError, match="mask_mod answers 'Cannot use mask_mod from a sliced BlockMask'; give a whole"):
        masks.read("flex", block_mask=block_mask()[:1])


def test_a_block_mask_whose_blocks_and_function_differ_is_not_read() -> None:
    whole = block_mask()
    kept = (whole.kv_num_blocks, whole.kv_indices, whole.full_kv_num_blocks, whole.full_kv_indices)
    for mask_mod, message in (
        (lambda b, h, q, k: k >= 0, "shows key 128 to query 0 of sample 0, head 0, while its blocks say otherwise"),
        (
            lambda b, h, q, k: (k <= q + b) & (k > 0),
            "hides key 0 to query 128 of sample 0, head 0, while its blocks say otherwise",
        ),
    ):
        spoiled = BlockMask.from_kv_blocks(*kept, mask_mod=mask_mod, seq_lengths=(263, 391))
        with pytest.raises(MaskError, match=message):
            masks.read("flex", block_mask=spoiled)


def test_a_mask_for_each_head_needs_the_number_of_samples() -> None:
    with pytest.raises(
        MaskError, match=r"needs a mask of \(batch \* heads, 5, 7\) in torch, and nothing tells batch; give"
    ):
        exported(Heads((Causal(), Full(), Full())), "multihead_attention", WIDE)


def test_a_mask_for_each_sample_needs_the_number_of_heads() -> None:
    with pytest.raises(MaskError, match="nothing tells heads; give heads="):
        exported(Causal() | Padding((7, 3)), "multihead_attention", WIDE)
    with pytest.raises(MaskError, match="nothing tells heads; give heads="):
        Seq2SeqMasks(Full(), DOCUMENTS & Causal(), Full()).to("transformer", source=5, target=7)


def test_flex_attention_takes_no_additive_mask() -> None:
    with pytest.raises(MaskError, match=r"a mask of torch.float32, but it takes none; leave dtype out"):
        exported(Causal(), "flex", WIDE, dtype=torch.float32)


def test_nn_transformer_takes_three_masks() -> None:
    with pytest.raises(MaskError, match=r"nn.Transformer takes three masks; write masks.seq2seq\(...\).to"):
        exported(Causal(), "transformer", WIDE)
    with pytest.raises(
        MaskError, match="three masks were to be converted for 'sdpa', but only 'transformer' takes three;"
    ):
        seq2seq().to("sdpa", source=5, target=7)


def test_a_triple_speaks_of_one_batch_and_number_of_heads() -> None:
    with pytest.raises(MaskError, match="masks of 2 and 3 samples"):
        Seq2SeqMasks(Padding((5, 3)), Causal(), Padding((5, 3, 1))).to("transformer", source=5, target=7)
    triple = Seq2SeqMasks(Full(), Heads((Causal(), Full(), Full())), Full())
    with pytest.raises(MaskError, match="speaks of 3 heads and was asked for 2; ask for as many, or for none"):
        triple.to("transformer", source=5, target=7, heads=2, batch=B)


def test_a_slip_in_the_name_of_a_convention_is_answered() -> None:
    for name, meant in (("mha", "multihead_attention"), ("sdap", "sdpa"), ("HuggingFace", "transformers")):
        with pytest.raises(MaskError, match=rf"^unknown convention '{name}'; did you mean '{meant}'\?$"):
            Causal().to(name, queries=5, keys=5)


def test_rows_without_any_key_are_blind() -> None:
    with pytest.raises(MaskError, match=r"look at nothing, and what a library does with no keys at all is not known"):
        Causal().to("sdpa", queries=3, keys=0, blind="refuse")
    assert Causal().to("flex", queries=0, keys=5)["block_mask"].shape == (1, 1, 0, 5)


@pytest.mark.parametrize(("convention", "name"), [("keras", "query_mask"), ("jax", "query_seq_lengths")])
def test_what_hides_no_key_is_not_read(convention: str, name: str) -> None:
    with pytest.raises(MaskError, match=rf"^{convention} was read with {name}, which hides no key: .*; leave it out$"):
        masks.read(convention, **{name: torch.ones(2, 5)})  # type: ignore[call-overload]


def test_a_tensor_of_causal_and_padding_is_split_as_the_expression_is() -> None:
    mask = Causal() & Padding((5, 3))
    apart = Dense(mask.dense(5, 5)).to("multihead_attention", queries=5, keys=5)
    wanted = mask.to("multihead_attention", queries=5, keys=5)
    assert apart.keys() == wanted.keys() == {"attn_mask", "key_padding_mask", "is_causal"}
    assert torch.equal(apart["attn_mask"] | apart["key_padding_mask"][:, None], ~mask.dense(5, 5)[:, 0])


def test_the_advice_for_a_triangle_of_ones_knows_which_way_round_the_library_is() -> None:
    for convention, kept in (("multihead_attention", 0), ("sdpa", 1)):
        with pytest.raises(MaskError, match=f"where 1 means keep, give tensor == {kept} as bool"):
            masks.read(convention, attn_mask=torch.ones(4, 4).tril())
