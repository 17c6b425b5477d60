"""Masks as Hugging Face, Keras, flax, JAX and band_part want them: each library is run, and does as our formula says."""

import inspect
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mask_expressions import EXPRESSIONS, SHAPES, built, table
from pellucid import masks
from pellucid.errors import MaskError
from pellucid.masks import (
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
    Window,
)
from pellucid.masks.conventions.terms import BlindRows
from pellucid.model import attend

B, H, Q, K, D = 2, 3, 5, 7, 11

Shape = tuple[int, int, int]  # queries, keys, first_query
WIDE, TALL, SQUARE, STEP, STEPS = (Q, K, 0), (K, Q, 0), (Q, Q, 0), (1, K, K - 1), (3, K, K - 3)
ARRAYS = ["keras", "flax", "jax", "band_part"]

MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(1, 1),
    "padding": Padding((5, 3)),
    "left padding": ~Padding((1, 2)),
    "causal padding": Causal() & Padding((6, 2)),
    "causal left padding": Causal() & ~Padding((0, 2)),
    "scattered padding": Causal() & Dense(torch.tensor([[1, 0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 1, 1, 1]])[:, None] == 1),
    "prefix": Causal() | Prefix((2, 3)),
    "segments": Segments(((0, 0, 1, 1, 1, 2, 2), (0, 1, 1, 1, 1, 1, 1))) & Causal(),
    "chunked": Chunked(3),
    "dilated": Dilated(2),
    "global": Global(1) | Window(1, 0),
    "heads": Heads((Causal(), Window(0, 1), Padding((4, 2)))),
    "a blocked head": Heads((Causal(), ~Full(), Window(1, 0))),
    "dense": Dense(torch.rand((B, H, K, K), generator=torch.Generator().manual_seed(3)) < 0.5),
    "predicate": Predicate(lambda b, h, q, k: (q + 2 * k) % 3 != b, batch=B),
}


def projected(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each head."""
    queries, keys, _ = shape
    return tuple(torch.randn(B, H, length, D, dtype=dtype) for length in (queries, keys, keys))  # type: ignore[return-value]


def merged(heads: Tensor) -> Any:
    """(B, H, L, D) as layers of other libraries take it: a numpy array (B, L, H * D)."""
    return heads.transpose(1, 2).flatten(2).numpy()


def parted(states: Any) -> Tensor:
    """(B, L, H * D), or (B, L, H, D), as heads again."""
    return torch.tensor(np.asarray(states)).reshape(B, -1, H, D).transpose(1, 2)


# --- the libraries, with projections that are the identity ------------------------------------------------------


@cache
def keras_layer() -> Any:
    os.environ["KERAS_BACKEND"] = "torch"
    keras = pytest.importorskip("keras")
    assert keras.backend.backend() == "torch"
    layer = keras.layers.MultiHeadAttention(H, D, use_bias=False, dtype="float64")
    layer.build((B, Q, H * D), (B, K, H * D))
    one = np.eye(H * D)
    layer.set_weights([one.reshape(H * D, H, D)] * 3 + [one.reshape(H, D, H * D)])
    return layer


def keras_fused(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    states = keras_layer()(merged(query), merged(value), merged(key), **arguments)
    return parted(states.detach().cpu())


def keras_with_scores(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    layer = keras_layer()
    states, scores = layer(merged(query), merged(value), merged(key), return_attention_scores=True, **arguments)
    assert scores.shape == (B, H, query.shape[2], key.shape[2])
    return parted(states.detach().cpu())


@cache
def flax_linen_layer() -> Any:
    linen = pytest.importorskip("flax.linen")
    return linen.MultiHeadDotProductAttention(num_heads=H, use_bias=False, dtype="float64", param_dtype="float64")


def flax_linen(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    jax, one = pytest.importorskip("jax"), np.eye(H * D)
    kernels = {name: {"kernel": one.reshape(H * D, H, D)} for name in ("query", "key", "value")}
    kernels["out"] = {"kernel": one.reshape(H, D, H * D)}
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        given_ = merged(query), merged(key), merged(value)
        states = flax_linen_layer().apply({"params": kernels}, *given_, **arguments)
        assert states.dtype == "float64"
        return parted(states)
    finally:
        jax.config.update("jax_enable_x64", before)


@cache
def flax_nnx_layer() -> Any:
    nnx, jnp = pytest.importorskip("flax.nnx"), pytest.importorskip("jax.numpy")

    def straight(key: object, shape: tuple[int, ...], *rest: object, **more: object) -> Any:
        return jnp.eye(H * D).reshape(shape)

    sizes = {"num_heads": H, "in_features": H * D}
    return nnx.MultiHeadAttention(**sizes, use_bias=False, decode=False, kernel_init=straight, rngs=nnx.Rngs(0))


def flax_nnx(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    return parted(flax_nnx_layer()(*(merged(part.float()) for part in (query, key, value)), **arguments))


def jax_function(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    jax = pytest.importorskip("jax")
    given_ = (part.transpose(1, 2).float().numpy() for part in (query, key, value))
    return parted(jax.nn.dot_product_attention(*given_, **arguments))


def textbook(query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Attention as tutorials of TensorFlow write it, where 1 - mask is what a query may not see."""
    scores = query.numpy() @ key.numpy().swapaxes(-1, -2) / np.sqrt(D).astype(key.numpy().dtype)
    scores += (1 - arguments["mask"]) * -1e9
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return torch.tensor(weights / weights.sum(axis=-1, keepdims=True) @ value.numpy())


Run = Callable[[Tensor, Tensor, Tensor, dict[str, Any]], Tensor]
# The convention, the library, and how near it can come: jax takes the softmax in float32, whatever it is given, and
# so does flax.nnx, which calls it; the fused attention of a float64 layer of Keras is in float32 as a whole.
LIBRARIES: list[Any] = [
    pytest.param("keras", keras_fused, 1e-6, id="keras"),
    pytest.param("keras", keras_with_scores, 1e-12, id="keras with scores"),
    pytest.param("flax", flax_linen, 1e-12, id="flax.linen"),
    pytest.param("flax", flax_nnx, 1e-6, id="flax.nnx"),
    pytest.param("jax", jax_function, 1e-6, id="jax"),
    pytest.param("band_part", textbook, 1e-12, id="band_part"),
]


def compare(run: Run, arguments: dict[str, Any], mask: Mask, shape: Shape, near: float) -> None:
    """The library does as our formula says, in every row that sees something."""
    query, key, value = projected(shape)
    ours = attend(query, key, value, mask, first_query=shape[2], backend="formula")
    theirs = run(query, key, value, arguments).double()
    seen = ~mask.blind(*shape).expand(B, H, -1)
    assert seen.any()
    torch.testing.assert_close(theirs[seen], ours[seen], rtol=0, atol=near)


# --- arrays: what is exported ----------------------------------------------------------------------------------


ALL = {"wide": WIDE, "tall": TALL, "square": SQUARE, "step": STEP, "steps": STEPS}
# What jax runs is compiled anew for each shape, at half a second each.
SHAPES_OF = {"flax.linen": ("tall", "step"), "flax.nnx": ("wide", "steps"), "jax": ("wide", "steps")}


@pytest.mark.parametrize(
    ("convention", "run", "near", "shape"),
    [
        pytest.param(*case.values, ALL[shape], id=f"{case.id}-{shape}")
        for case in LIBRARIES
        for shape in SHAPES_OF.get(case.id, ALL)
    ],
)
def test_a_library_does_with_our_export_what_our_formula_does(
    convention: str, run: Run, near: float, shape: Shape
) -> None:
    for name, mask in MASKS.items():
        arguments = export(mask, convention, shape)
        try:
            compare(run, arguments, mask, shape, near)
        except AssertionError as error:
            raise AssertionError(f"{name}: {mask!r} as {describe(arguments)}") from error


@pytest.mark.parametrize("mask", [Causal(), Padding((3, 4)), Window(1, 0)], ids=repr)
def test_jax_counts_as_we_do_where_there_are_more_queries_than_keys(mask: Mask) -> None:
    compare(jax_function, export(mask, "jax", TALL), mask, TALL, 1e-6)


def export(mask: Mask, convention: str, shape: Shape, **more: Any) -> dict[str, Any]:
    """Keyword arguments, with nothing said of blind rows."""
    queries, keys, first = shape
    return mask.to(convention, queries=queries, keys=keys, first_query=first, **{"blind": "ignore", **more})


def describe(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by shape and type."""
    return {
        name: (value.shape, str(value.dtype)) if hasattr(value, "dtype") else value for name, value in arguments.items()
    }


@pytest.mark.parametrize(
    ("convention", "mask", "shape", "wanted"),
    [
        ("keras", Full(), WIDE, {}),
        ("keras", Causal(), WIDE, {"use_causal_mask": True}),
        ("keras", Causal(), TALL, {"use_causal_mask": True}),
        ("keras", Causal(), STEP, {}),
        ("keras", Causal(), STEPS, {"attention_mask": ((1, 3, K), "bool")}),
        ("keras", Padding((5, 3)), WIDE, {"value_mask": ((B, K), "bool")}),
        ("keras", ~Padding((1, 2)), WIDE, {"value_mask": ((B, K), "bool")}),
        ("keras", Window(6, 0), SQUARE, {"use_causal_mask": True}),
        ("keras", Dense(Causal().dense(Q, K)), WIDE, {"use_causal_mask": True}),
        ("keras", Causal() & Padding((5, 3)), SQUARE, {"attention_mask": ((B, Q, Q), "bool")}),
        ("keras", MASKS["heads"], WIDE, {"attention_mask": ((B, H, Q, K), "bool")}),
        ("keras", MASKS["a blocked head"], WIDE, {"attention_mask": ((1, H, Q, K), "bool")}),
        ("flax", Full(), WIDE, {}),
        ("flax", Causal(), WIDE, {"mask": ((1, 1, Q, K), "bool")}),
        ("flax", Causal() & Padding((5, 3)), SQUARE, {"mask": ((B, 1, Q, Q), "bool")}),
        ("flax", MASKS["heads"], WIDE, {"mask": ((B, H, Q, K), "bool")}),
        ("jax", Full(), WIDE, {}),
        ("jax", Causal(), WIDE, {"is_causal": True}),
        ("jax", Causal(), TALL, {"is_causal": True}),
        ("jax", Causal(), STEPS, {"mask": ((1, 1, 3, K), "bool")}),
        ("jax", Padding((5, 3)), WIDE, {"key_value_seq_lengths": ((B,), "int32")}),
        ("jax", Causal() & Padding((5, 3)), SQUARE, {"mask": ((B, 1, Q, Q), "bool")}),
        ("jax", ~Padding((1, 2)), WIDE, {"mask": ((B, 1, 1, K), "bool")}),
        ("jax", Window(6, 0), SQUARE, {"is_causal": True}),
        ("jax", Dense(Full().dense(Q, K)), WIDE, {}),
        ("flax", Dense(Full().dense(Q, K)), WIDE, {}),
        ("band_part", Full(), WIDE, {"mask": ((Q, K), "float32")}),
        ("band_part", Causal(), WIDE, {"mask": ((Q, K), "float32")}),
        ("band_part", Padding((5, 3)), WIDE, {"mask": ((B, 1, Q, K), "float32")}),
        ("band_part", MASKS["a blocked head"], WIDE, {"mask": ((1, H, Q, K), "float32")}),
    ],
)
def test_an_export_uses_the_library_s_own_short_form_only_where_it_is_equal(
    convention: str, mask: Mask, shape: Shape, wanted: dict[str, Any]
) -> None:
    assert describe(export(mask, convention, shape)) == wanted


@pytest.mark.parametrize(
    ("convention", "wanted"),
    [
        ("keras", {"attention_mask": ((B, Q, K), "bool")}),
        ("flax", {"mask": ((B, H, Q, K), "bool")}),
        ("jax", {"mask": ((B, H, Q, K), "bool")}),
        ("band_part", {"mask": ((B, H, Q, K), "float32")}),
        ("transformers", {"attention_mask": ((B, H, Q, K), "torch.float32")}),
    ],
)
def test_samples_and_heads_that_are_asked_for_are_there(convention: str, wanted: dict[str, Any]) -> None:
    made = export(Window(1, 0), convention, WIDE, batch=B, heads=H)
    assert describe(made) == wanted
    assert torch.equal(masks.read(convention, **made).dense(Q, K).any(1), Window(1, 0).dense(Q, K)[0].expand(B, -1, -1))


def test_lengths_of_jax_stay_within_the_keys() -> None:
    (lengths,) = export(Padding((Q, K + 2)), "jax", WIDE).values()
    assert lengths.tolist() == [Q, K]


def test_band_part_is_the_triangle_that_its_name_says() -> None:
    (lower,) = export(Causal(), "band_part", WIDE).values()
    assert np.array_equal(lower, np.tril(np.ones((Q, K))))
    (band,) = export(Window(2, 1), "band_part", WIDE, dtype=torch.float64).values()
    assert band.dtype == np.float64
    assert np.array_equal(band, np.tril(np.triu(np.ones((Q, K)), -2), 1))  # tf.linalg.band_part(ones, 2, 1)


@pytest.mark.parametrize("convention", [*ARRAYS, "transformers"])
@pytest.mark.parametrize("mask", ["padding", "causal padding", "dense", "heads", "window"])
@pytest.mark.parametrize("batch", [None, B])
def test_an_exported_array_is_the_caller_s(convention: str, mask: str, batch: int | None) -> None:
    before = table(MASKS[mask], WIDE)
    for value in export(MASKS[mask], convention, WIDE, batch=batch).values():
        if convention != "transformers":
            assert isinstance(value, np.ndarray)
            assert value.flags.owndata
            assert value.flags.writeable
            assert value.flags.c_contiguous
        assert value.size if isinstance(value, np.ndarray) else value.is_contiguous()
        value[:] = 0
    assert torch.equal(table(MASKS[mask], WIDE), before)


# --- arrays: what is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", [*ARRAYS, "transformers"])
@given(expression=EXPRESSIONS, shape=SHAPES)
def test_what_is_exported_reads_as_the_same_cells(convention: str, expression: str, shape: Shape) -> None:
    mask = built(expression)
    arguments = export(mask, convention, shape)
    read = masks.read(convention, first_query=first_of(arguments, shape), **arguments)
    assert torch.equal(table(read, shape), table(mask, shape))


def first_of(arguments: dict[str, Any], shape: Shape) -> int:
    """Where the rows begin: flags count from the top left, and only stand where ours do."""
    return 0 if arguments.keys() & {"use_causal_mask", "is_causal"} else shape[2]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"value_mask": "padding"}, Padding((5, 3))),
        ({"key_mask": "padding"}, Padding((5, 3))),
        ({"value_mask": "padding", "use_causal_mask": True}, Causal() & Padding((5, 3))),
        ({"key_mask": "padding", "attention_mask": "window"}, Window(1, 1) & Padding((5, 3))),
        ({"use_causal_mask": True, "attention_mask": "window"}, Window(1, 1) & Causal()),
    ],
)
@pytest.mark.parametrize("run", [keras_fused, keras_with_scores])
def test_keras_joins_its_masks_as_they_are_read(run: Run, arguments: dict[str, Any], wanted: Mask) -> None:
    pieces = {"padding": Padding((5, 3)).dense(1, K)[:, 0, 0].numpy(), "window": Window(1, 1).dense(Q, K)[0].numpy()}
    given_: dict[str, Any] = {name: value if value is True else pieces[value] for name, value in arguments.items()}
    read = masks.read("keras", **given_)
    assert torch.equal(table(read, WIDE), table(wanted, WIDE))
    compare(run, given_, read, WIDE, 1e-6 if run is keras_fused else 1e-12)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"is_causal": True, "key_value_seq_lengths": np.array([5, 3], np.int32)}, Causal() & Padding((5, 3))),
        ({"local_window_size": (2, 1)}, Window(2, 1)),
        ({"local_window_size": 2, "key_value_seq_lengths": np.array([5, 3], np.int32)}, Window(2, 2) & Padding((5, 3))),
        ({"mask": Dilated(2).dense(Q, K).numpy(), "is_causal": True}, Causal() & Dilated(2)),
    ],
)
def test_jax_joins_its_masks_as_they_are_read(arguments: dict[str, Any], wanted: Mask) -> None:
    read = masks.read("jax", **arguments)
    assert torch.equal(table(read, WIDE), table(wanted, WIDE))
    compare(jax_function, arguments, read, WIDE, 1e-6)


def test_jax_s_own_arrays_are_read() -> None:
    jnp = pytest.importorskip("jax.numpy")
    assert torch.equal(masks.read("jax", mask=jnp.tril(jnp.ones((1, 1, Q, K), bool))).dense(Q, K), Causal().dense(Q, K))


@pytest.mark.parametrize("room", ["flax.linen", "flax.nnx"])
def test_the_floats_that_flax_itself_makes_are_read(room: str) -> None:
    flax = pytest.importorskip(room)
    tokens = np.array([[7, 8, 9, 4, 5], [7, 8, 9, 0, 0]])
    mask = flax.combine_masks(flax.make_causal_mask(tokens), flax.make_attention_mask(tokens > 0, tokens > 0))
    assert mask.dtype == "float32"
    wanted = (Causal() & Padding((5, 3))).dense(Q, Q)
    wanted[1, :, 3:] = False  # make_attention_mask hides everything from a query that is padding
    read = masks.read("flax", mask=mask)
    assert torch.equal(read.dense(Q, Q), wanted)
    compare(flax_linen, {"mask": np.asarray(mask)}, read, SQUARE, 1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.bool_])
def test_band_part_is_read_whatever_its_type(kind: type) -> None:
    assert torch.equal(masks.read("band_part", mask=np.tril(np.ones((Q, K), kind))).dense(Q, K), Causal().dense(Q, K))


@pytest.mark.parametrize("convention", [*ARRAYS, "transformers"])
def test_nothing_given_hides_nothing(convention: str) -> None:
    assert masks.read(convention) == Full()


def test_rows_may_begin_at_a_later_position() -> None:
    for convention in ARRAYS:
        arguments = export(Window(1, 0), convention, STEPS)
        read = masks.read(convention, first_query=K - 3, **arguments)
        assert torch.equal(read.dense(*STEPS), Window(1, 0).dense(*STEPS))


# --- Hugging Face ----------------------------------------------------------------------------------------------

WORDS = 13  # of the vocabulary


@cache
def model(name: str, attention: str) -> Any:
    """A random model of one layer, so that a row's output depends on no other row's; float64, no dropout."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    more = {"attn_implementation": attention, "vocab_size": WORDS}
    if name == "llama":
        sizes = {"hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": H}
        made = transformers.LlamaModel(transformers.LlamaConfig(num_key_value_heads=H, **sizes, **more))
    elif name == "gpt2":
        ends = {"bos_token_id": 1, "eos_token_id": 1}
        made = transformers.GPT2Model(transformers.GPT2Config(n_embd=12, n_layer=1, n_head=H, **ends, **more))
    elif name == "bert":
        sizes = {"hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": H}
        made = transformers.BertModel(transformers.BertConfig(**sizes, **more), add_pooling_layer=False)
    else:
        stack = {"layers": 1, "attention_heads": H, "ffn_dim": 8}
        more |= {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in stack.items()}
        more |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "max_position_embeddings": 32}
        made = transformers.MarianModel(transformers.MarianConfig(d_model=12, **more))
    return made.double().eval()


def tokens(length: int) -> Tensor:
    """Ids, none of which is padding."""
    return torch.randint(2, WORDS, (B, length), generator=torch.Generator().manual_seed(length))


def weights_of(attentions: tuple[Tensor, ...]) -> Tensor:
    """Of the one layer."""
    (weights,) = attentions
    return weights


def assert_pattern(weights: Tensor, mask: Mask, shape: Shape) -> None:
    """Where our mask hides, the weight is exactly 0, and nowhere else, in each row that sees something."""
    look = mask.dense(*shape).expand(B, H, *shape[:2])
    seen = look.any(-1)
    assert seen.any()
    assert torch.equal((weights != 0)[seen], look[seen])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)), rtol=0, atol=1e-6)


DECODERS = ["llama", "gpt2"]
SCATTERED = [[1, 0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 1, 1, 1]]
KEYS: dict[str, tuple[Mask, list[list[int]]]] = {  # what each sample may look at, and that as (batch, keys)
    "right": (Padding((K, 4)), [[1] * K, [1] * 4 + [0] * 3]),
    "left": (~Padding((0, 2)), [[1] * K, [0] * 2 + [1] * 5]),
    "scattered": (Padding.from_keep(torch.tensor(SCATTERED) == 1), SCATTERED),
}


@pytest.mark.parametrize("side", KEYS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_of_hugging_face_takes_the_keys_alone(name: str, attention: str, side: str) -> None:
    keys, wanted = KEYS[side]
    mask, shape = Causal() & keys, (K, K, 0)
    two = export(mask, "transformers", shape, causal_model=True)["attention_mask"]
    assert two.dtype == torch.int64
    assert two.tolist() == wanted
    four = export(mask, "transformers", shape, dtype=torch.float64)["attention_mask"]
    assert four.shape == (B, 1, K, K)
    look = {"output_attentions": True} if attention == "eager" else {}
    one, other = (model(name, attention)(tokens(K), attention_mask=given_, **look) for given_ in (two, four))
    seen = ~mask.blind(*shape)[:, 0].expand(B, -1)
    torch.testing.assert_close(one.last_hidden_state[seen], other.last_hidden_state[seen], rtol=0, atol=1e-12)
    if attention == "eager":
        for output in (one, other):
            assert_pattern(weights_of(output.attentions).nan_to_num(1 / K), mask, shape)


@pytest.mark.parametrize("shape", [STEP, STEPS], ids=["step", "steps"])
@pytest.mark.parametrize("side", ["none", *KEYS])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_cached_step_of_hugging_face_takes_all_keys(name: str, attention: str, side: str, shape: Shape) -> None:
    mask = Causal() & KEYS[side][0] if side != "none" else Causal()
    net, first, ids = model(name, attention), shape[2], tokens(K)
    whole = net(ids, **export(mask, "transformers", (K, K, 0), causal_model=True)).last_hidden_state
    before = export(mask, "transformers", (first, first, 0), causal_model=True)
    cached = net(ids[:, :first], use_cache=True, **before).past_key_values
    arguments = export(mask, "transformers", shape, causal_model=True)
    assert describe(arguments) == ({} if side == "none" else {"attention_mask": ((B, K), "torch.int64")})
    more = {"output_attentions": True} if attention == "eager" else {}
    name_of_cache = "cache" if "cache" in inspect.signature(net.forward).parameters else "past_key_values"
    step = net(ids[:, first:], use_cache=True, **{name_of_cache: cached}, **arguments, **more)
    # Llama takes the softmax in float32, whatever the weights are.
    torch.testing.assert_close(
        step.last_hidden_state, whole[:, first:], rtol=0, atol=1e-6 if name == "llama" else 1e-12
    )
    if attention == "eager":
        assert_pattern(weights_of(step.attentions), mask, shape)


@pytest.mark.parametrize("name", [*DECODERS, "bert"])
def test_models_of_hugging_face_look_where_four_axes_say(name: str) -> None:
    for mask in MASKS.values():
        shape = (K, K, 0)
        added = mask.additive(*shape, dtype=torch.float64)
        four = export(mask, "transformers", shape, dtype=torch.float64, causal_model=name != "bert")
        if "attention_mask" in four and four["attention_mask"].dim() == 4:
            assert torch.equal(four["attention_mask"], added)
        eager = model(name, "eager")(tokens(K), output_attentions=True, **four)
        assert_pattern(weights_of(eager.attentions).nan_to_num(1 / K), mask, shape)
        fused = model(name, "sdpa")(tokens(K), **four).last_hidden_state
        seen = ~mask.blind(*shape).expand(B, H, -1).any(1)
        near = 1e-6 if name == "llama" else 1e-12
        torch.testing.assert_close(fused[seen], eager.last_hidden_state[seen], rtol=0, atol=near)


@pytest.mark.parametrize("side", KEYS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_an_encoder_of_hugging_face_takes_the_keys_alone(attention: str, side: str) -> None:
    keys, wanted = KEYS[side]
    two = export(keys, "transformers", (K, K, 0))["attention_mask"]
    assert two.tolist() == wanted
    four = keys.additive(K, K, dtype=torch.float64)
    net = model("bert", attention)
    one, other = (net(tokens(K), attention_mask=given_).last_hidden_state for given_ in (two, four))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    if attention == "eager":
        assert_pattern(
            weights_of(net(tokens(K), attention_mask=two, output_attentions=True).attentions), keys, (K, K, 0)
        )


def test_an_encoder_and_decoder_of_hugging_face_take_the_keys_of_each_side() -> None:
    triple = masks.seq2seq(source_lengths=(Q, 3), target_lengths=(K, 4))
    source = export(triple.encoder, "transformers", SQUARE)["attention_mask"]
    target = export(triple.decoder, "transformers", (K, K, 0), causal_model=True)["attention_mask"]
    assert (source.shape, target.shape) == ((B, Q), (B, K))
    # The model has one argument for the encoder's own mask and that of the attention to it: they are the same keys.
    assert torch.equal(export(triple.cross, "transformers", (K, Q, 0))["attention_mask"], source)
    net = model("marian", "eager")
    output = net(
        tokens(Q),
        attention_mask=source,
        decoder_input_ids=tokens(K),
        decoder_attention_mask=target,
        output_attentions=True,
    )
    assert_pattern(weights_of(output.encoder_attentions), triple.encoder, SQUARE)
    assert_pattern(weights_of(output.decoder_attentions), triple.decoder, (K, K, 0))
    assert_pattern(weights_of(output.cross_attentions), triple.cross, (K, Q, 0))


@pytest.mark.parametrize(
    ("mask", "shape", "causal_model", "wanted"),
    [
        (Full(), WIDE, False, {}),
        (Causal(), SQUARE, True, {}),
        (Causal(), STEP, True, {}),
        (Full(), STEP, True, {}),
        (Causal(), STEPS, True, {}),
        (Full(), SQUARE, True, {"attention_mask": ((1, 1, Q, Q), "torch.float32")}),
        (Causal(), WIDE, True, {"attention_mask": ((1, 1, Q, K), "torch.float32")}),
        (Causal(), SQUARE, False, {"attention_mask": ((1, 1, Q, Q), "torch.float32")}),
        (Padding((5, 3)), STEP, True, {"attention_mask": ((B, K), "torch.int64")}),
        (Padding((5, 3)), WIDE, False, {"attention_mask": ((B, K), "torch.int64")}),
        (Padding((5, 3)), SQUARE, True, {"attention_mask": ((B, 1, Q, Q), "torch.float32")}),
        (Causal() & Padding((5, 3)), WIDE, True, {"attention_mask": ((B, 1, Q, K), "torch.float32")}),
        (Causal() & Window(1, 0), SQUARE, True, {"attention_mask": ((1, 1, Q, Q), "torch.float32")}),
        (Padding((5, 3)) & Window(1, 0), (1, K, K - 1), True, {"attention_mask": ((B, K), "torch.int64")}),
        (Prefix(3), WIDE, False, {"attention_mask": ((1, 1, Q, K), "torch.float32")}),
        (Dense(Causal().dense(Q, Q)), SQUARE, True, {"attention_mask": ((1, 1, Q, Q), "torch.float32")}),
        (MASKS["heads"], WIDE, False, {"attention_mask": ((B, H, Q, K), "torch.float32")}),
        (Heads((Padding((5, 3)),) * H), WIDE, False, {"attention_mask": ((B, K), "torch.int64")}),
    ],
)
def test_hugging_face_has_two_axes_only_where_they_say_it_all(
    mask: Mask, shape: Shape, causal_model: bool, wanted: dict[str, Any]
) -> None:
    assert describe(export(mask, "transformers", shape, causal_model=causal_model)) == wanted


def test_hugging_face_is_told_how_many_samples_share_their_keys() -> None:
    assert export(Prefix(3), "transformers", WIDE, batch=B)["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0]] * B
    (causal,) = export(Dense(Causal().dense(Q, Q)), "transformers", SQUARE, batch=B, causal_model=True).values()
    assert causal.tolist() == [[1] * Q] * B


@given(EXPRESSIONS, st.integers(1, 7), st.integers(0, 9))
def test_the_keys_that_a_causal_model_is_given_are_read_beside_causal(
    expression: str, queries: int, first: int
) -> None:
    mask, shape = built(expression) & Causal(), (queries, first + queries, first)
    if mask.known[1] is not None and mask.known[1] < shape[1]:
        return
    arguments = export(mask, "transformers", shape, batch=B, causal_model=True)
    read = masks.read("transformers", first_query=first, **arguments)
    four = bool(arguments) and arguments["attention_mask"].dim() == 4
    assert torch.equal(table(read if four else Causal() & read, shape), table(mask, shape))


def test_hugging_face_s_keys_are_read_as_padding() -> None:
    for tensor in (torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])):
        assert masks.read("transformers", attention_mask=tensor) == Padding((2, 1))
        assert masks.read("transformers", attention_mask=tensor.bool(), keys=3, batch=B) == Padding((2, 1))
    assert masks.read("transformers", attention_mask=np.array([[0, 1, 1], [1, 1, 1]])) == ~Padding((1, 0))
    bool_ = Causal().dense(Q, K)
    assert torch.equal(masks.read("transformers", attention_mask=bool_, queries=Q, keys=K, heads=H).dense(Q, K), bool_)


# --- rows that see nothing -------------------------------------------------------------------------------------

BLIND = Causal() & ~Padding((2, 0))  # queries 0 and 1 of sample 0


@pytest.mark.parametrize(
    ("convention", "run"), [case.values[:2] for case in LIBRARIES], ids=[case.id for case in LIBRARIES]
)
def test_what_a_library_does_with_a_blind_row_is_what_the_warning_says(convention: str, run: Run) -> None:
    query, key, value = projected(SQUARE)
    with pytest.warns(
        BlindRows, match=re.escape("query 0 of sample 0, head 0 look at nothing (2 such rows)")
    ) as caught:
        arguments = BLIND.to(convention, queries=Q, keys=Q)
    (warning,) = caught
    said = str(warning.message)
    assert "the mean of all values" in said
    assert ("in float32, and no mask at all in float64" in said) == (convention == "band_part")
    assert ("zeros where it hands back attention scores" in said) == (convention == "keras")
    zeros = run is keras_with_scores
    wanted = value[0].mean(1, keepdim=True) * (0 if zeros else 1)
    if convention == "band_part":
        torch.testing.assert_close(run(query, key, value, arguments)[0, :, :2], attend(query, key, value)[0, :, :2])
        query, key, value = query.float(), key.float(), value.float()
    theirs = run(query, key, value, arguments).double()
    torch.testing.assert_close(theirs[0, :, :2], wanted.expand(-1, 2, -1), rtol=0, atol=1e-6)


def test_the_lengths_of_jax_leave_the_mean_to_a_sample_of_length_0() -> None:
    query, key, value = projected(WIDE)
    with pytest.warns(BlindRows, match=r"jax gives such a row the mean of all values"):
        arguments = Padding((K - 1, 0)).to("jax", queries=Q, keys=K)
    theirs = jax_function(query, key, value, arguments).double()
    torch.testing.assert_close(theirs[1], value[1].mean(1, keepdim=True).expand(-1, Q, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("axes", [2, 4])
@pytest.mark.parametrize(
    ("name", "attention", "wanted"),
    [("gpt2", "eager", "mean"), ("gpt2", "sdpa", "mean"), ("llama", "eager", "NaN"), ("llama", "sdpa", "mean")],
)
def test_what_hugging_face_does_with_a_blind_row_is_what_the_warning_says(
    name: str, attention: str, wanted: str, axes: int
) -> None:
    with pytest.warns(BlindRows, match="look at nothing") as caught:
        arguments = BLIND.to("transformers", queries=Q, keys=Q, dtype=torch.float64, causal_model=axes == 2)
    assert arguments["attention_mask"].dim() == axes
    said = str(caught[0].message)
    eager = "eager attention gives" if axes == 2 else "eager and sdpa attention give"
    assert f"{eager} such a row the mean of all values (NaN where a float64 model takes its softmax in float32" in said
    assert ("sdpa attention zeros" in said) == (axes == 2)
    net, heard = model(name, attention), []
    layer = net.layers[0].self_attn if name == "llama" else net.h[0].attn
    projection = layer.o_proj if name == "llama" else layer.c_proj
    values = layer.v_proj if name == "llama" else layer.c_attn
    hooks = [
        values.register_forward_hook(lambda part, given_, output: heard.append(output[..., -12:])),
        projection.register_forward_pre_hook(lambda part, given_: heard.append(given_[0])),
    ]
    net(tokens(Q), **arguments)
    for hook in hooks:
        hook.remove()
    value, attended = heard
    if wanted == "NaN":
        assert attended[0, :2].isnan().all()
    else:
        mean = value[0].mean(0) * (0 if (attention, axes) == ("sdpa", 2) else 1)
        torch.testing.assert_close(attended[0, :2], mean.expand(2, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("convention", [*ARRAYS, "transformers"])
@pytest.mark.parametrize("causal_model", [False, True])
def test_blind_rows_are_refused_or_ignored_where_that_was_asked_for(convention: str, causal_model: bool) -> None:
    with pytest.raises(
        MaskError, match=r"query 0 of sample 0, head 0 look at nothing, and .*; let each query see a key"
    ):
        BLIND.to(convention, queries=Q, keys=Q, causal_model=causal_model, blind="refuse")
    assert BLIND.to(convention, queries=Q, keys=Q, causal_model=causal_model, blind="ignore")
    sees = Causal() & Padding((Q, 3))
    assert sees.to(convention, queries=Q, keys=Q, causal_model=causal_model, blind="refuse")


# --- what is refused -------------------------------------------------------------------------------------------

ADDITIVE = Causal().additive(Q, K).numpy()
NARROW = np.ones((1, 1, Q, K - 1), bool)


def read_one(convention: str, name: str, value: Any, **told: int) -> Mask:
    """One argument, and the sizes that are told."""
    arguments: dict[str, Any] = {name: value, **told}
    return masks.read(convention, **arguments)


@pytest.mark.parametrize(("convention", "name"), [("keras", "attention_mask"), ("flax", "mask"), ("jax", "mask")])
def test_an_additive_mask_is_not_taken_for_a_bool_one(convention: str, name: str) -> None:
    with pytest.raises(
        MaskError, match=rf"{convention} .*{name} of torch.float32, an additive mask.*takes bool; compare"
    ):
        read_one(convention, name, ADDITIVE)
    with pytest.raises(MaskError, match=rf"{convention} .*{name} of torch.int64, numbers, but it takes bool"):
        read_one(convention, name, np.tril(np.full((1, 1, Q, K), 2)))


@pytest.mark.parametrize("name", ["value_mask", "key_mask"])
def test_keras_is_read_with_bool_keys(name: str) -> None:
    with pytest.raises(MaskError, match=rf"keras was read with {name} of torch.int64, numbers, but it takes bool"):
        read_one("keras", name, np.ones((B, K), int))
    with pytest.raises(MaskError, match=rf"{name} of shape \(2, 7\), but it is \(batch, keys\), here \(any, 5\)"):
        read_one("keras", name, np.ones((B, K), bool), keys=Q)


def test_zeros_of_flax_could_mean_two_things() -> None:
    with pytest.raises(MaskError, match=r"flax was read with mask of torch.float32, an additive mask of floats"):
        masks.read("flax", mask=np.zeros((1, 1, Q, K), np.float32))


@pytest.mark.parametrize(
    ("convention", "name"),
    [
        ("keras", "attention_mask"),
        ("flax", "mask"),
        ("jax", "mask"),
        ("band_part", "mask"),
        ("transformers", "attention_mask"),
    ],
)
def test_arrays_of_other_sizes_are_refused_with_both_shapes(convention: str, name: str) -> None:
    def refused(value: Any, given_: str, wanted: str, **told: int) -> None:
        with pytest.raises(
            MaskError, match=rf"{name} of shape {re.escape(given_)}, but it is .*here {re.escape(wanted)}; give"
        ):
            read_one(convention, name, value, **told)

    refused(NARROW, "(1, 1, 5, 6)", "(any, any, 5, 7)", queries=Q, keys=K)
    refused(np.ones((B, H, Q, K), bool), "(2, 3, 5, 7)", "(3, 3, any, any)", batch=H, heads=H)
    refused(np.ones((B, H, Q, K), bool), "(2, 3, 5, 7)", "(2, 2, any, any)", batch=B, heads=B)
    if convention != "keras":
        refused(np.ones((B, Q, K), bool), "(2, 5, 7)", "(any, any, any, any)")
        refused(np.ones(K, bool), "(7,)", "(any, any, any, any)")


@pytest.mark.parametrize("shape", [(Q, K), (K,), (1, B, H, Q, K)])
def test_keras_s_attention_mask_has_three_or_four_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        MaskError, match=rf"of shape {re.escape(str(shape))}, but it is \(batch or 1, queries, keys\) or .*; give"
    ):
        masks.read("keras", attention_mask=np.ones(shape, bool))


def test_keras_s_three_axes_have_the_sizes_that_were_told() -> None:
    with pytest.raises(MaskError, match=r"shape \(2, 5, 7\), but it is .*, here \(3, 5, 7\); give a tensor that fits"):
        masks.read("keras", attention_mask=np.ones((B, Q, K), bool), batch=3, queries=Q, keys=K)
    assert masks.read("keras", attention_mask=np.ones((1, Q, K), bool), batch=3, queries=Q, keys=K) == Full()


def test_two_axes_of_band_part_are_queries_and_keys() -> None:
    with pytest.raises(MaskError, match=r"shape \(5, 7\), but it is \(queries, keys\), here \(7, 5\); give a tensor"):
        masks.read("band_part", mask=np.ones((Q, K)), queries=K, keys=Q)


@pytest.mark.parametrize(("value", "shown"), [(-1e9, "-1e\\+09"), (0.5, "0.5"), (2, "2"), (np.nan, "nan")])
def test_band_part_holds_1_and_0(value: float, shown: str) -> None:
    with pytest.raises(
        MaskError, match=rf"band_part was read with mask that holds {shown}, but it is of 1, may look, and 0"
    ):
        masks.read("band_part", mask=np.tril(np.full((Q, K), value)))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            torch.tensor([[0.0, -1e9]]),
            r"shape \(1, 2\) that holds -1e\+09, but of \(batch, keys\) 1 keeps and 0 hides; give",
        ),
        (torch.tensor([[1, 2]]), r"shape \(1, 2\) that holds 2, but of \(batch, keys\) 1 keeps"),
        (torch.tensor([[1.0, float("nan")]]), r"that holds nan, but of \(batch, keys\) 1 keeps"),
        (Causal().dense(Q, K).float(), "holds only 0 and 1, but a float mask is added to the scores"),
        (Causal().dense(Q, K).long(), "torch.int64, numbers, but it takes bool"),
        (torch.full((1, 1, Q, K), -3.0), "adds -3 to a score, but a mask adds 0 or hides; give a bias apart"),
    ],
)
def test_hugging_face_s_ambiguous_masks_are_refused(tensor: Tensor, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        masks.read("transformers", attention_mask=tensor)


def test_hugging_face_s_keys_have_the_sizes_that_were_told() -> None:
    with pytest.raises(
        MaskError, match=r"shape \(2, 7\), but it is \(batch, keys\), here \(3, 5\); give a tensor that fits"
    ):
        masks.read("transformers", attention_mask=torch.ones(B, K, dtype=torch.long), batch=3, keys=Q)


@pytest.mark.parametrize(("convention", "flag"), [("keras", "use_causal_mask"), ("jax", "is_causal")])
def test_a_flag_that_counts_from_the_top_left_says_nothing_of_later_rows(convention: str, flag: str) -> None:
    assert masks.read(convention, **{flag: True}) == Causal()
    assert masks.read(convention, first_query=3, **{flag: False}) == Full()
    with pytest.raises(
        MaskError, match=rf"{flag} and first_query=3, but it counts rows from the top left.*; read it with"
    ):
        masks.read(convention, first_query=3, **{flag: True})


@pytest.mark.parametrize("size", [(1,), (1, 2, 3), (-1, 2), -1, 0.5, "ab"])
def test_jax_s_window_is_two_numbers(size: Any) -> None:
    with pytest.raises(
        MaskError, match=r"local_window_size=.* and first_query=0, but it is \(before, after\).*; give whole"
    ):
        masks.read("jax", local_window_size=size)


def test_jax_s_window_counts_from_the_top_left() -> None:
    with pytest.raises(MaskError, match=r"local_window_size=2 and first_query=3, .*counted from the top left"):
        masks.read("jax", local_window_size=2, first_query=3)


def test_jax_s_lengths_are_one_for_each_sample() -> None:
    with pytest.raises(MaskError, match=r"key_value_seq_lengths of shape \(2, 1\), but it is \(batch,\), here \(any\)"):
        masks.read("jax", key_value_seq_lengths=np.ones((B, 1), np.int32))
    with pytest.raises(MaskError, match="whole number from 0 up for each sample"):
        masks.read("jax", key_value_seq_lengths=np.array([1, -1], np.int32))


@pytest.mark.parametrize("convention", ["keras", "flax", "jax"])
def test_libraries_of_bool_masks_are_not_given_floats(convention: str) -> None:
    with pytest.raises(
        MaskError, match=rf"{convention} was asked for a mask of torch.float32, but it takes bool.*; leave dtype"
    ):
        Window(1, 1).to(convention, queries=Q, keys=K, dtype=torch.float32)


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(
        MaskError, match=r"band_part was asked for a mask of torch.bfloat16, which numpy does not have; ask"
    ):
        Window(1, 1).to("band_part", queries=Q, keys=K, dtype=torch.bfloat16)
