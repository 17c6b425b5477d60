"""Weights to and from `nn.Transformer`: outputs equal element by element in float64, whatever its settings."""

import copy
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid import check
from pellucid.errors import InteropError
from pellucid.interop import from_torch, to_torch
from pellucid.masks import Causal, Full, Mask, Padding, Seq2SeqMasks, Window, seq2seq
from pellucid.model import EncoderDecoder

B, S, T, H, DH, FF = 2, 5, 7, 3, 11, 29
D = H * DH

Module = TypeVar("Module", bound=nn.Module)

PADDED = seq2seq(source_lengths=(S, 3), target_lengths=(4, T))


def transformer(**changes: Any) -> nn.Transformer:
    """Torch's module with random norms and biases too, so that none of them can be forgotten."""
    sizes = {"d_model": D, "nhead": H, "num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": FF}
    theirs = nn.Transformer(**{**sizes, "batch_first": True, "dtype": torch.float64, **changes})
    return randomised(theirs)


def stacks(**changes: Any) -> EncoderDecoder:
    """Ours, likewise."""
    sizes = {"d_model": D, "num_heads": H, "num_encoder_layers": 2, "num_decoder_layers": 3, "d_ff": FF}
    return randomised(EncoderDecoder(**{**sizes, **changes}).double())


def randomised(module: Module) -> Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module


def inputs() -> tuple[Tensor, Tensor]:
    """States of sources and targets, batch first."""
    return torch.randn(B, S, D), torch.randn(B, T, D)


def blocked(mask: Mask, queries: int, keys: int) -> Tensor | None:
    """A mask as torch wants it: (B * H, Q, K) for H = 3 heads, True = may not look; nothing where it hides nothing."""
    if mask == Full():
        return None
    return ~mask.dense(queries, keys).expand(B, H, queries, keys).flatten(0, 1)


def padded(lengths: tuple[int, ...], keys: int) -> Tensor:
    """Padding as torch wants it: (B, K), True = padding."""
    return ~Padding(lengths).dense(1, keys)[:, 0, 0]


def ours_called(masks: Seq2SeqMasks) -> Callable[..., Tensor]:
    return lambda module, source, target: module(source, target, masks)


def theirs_called(masks: Seq2SeqMasks) -> Callable[..., Tensor]:
    look = {
        "src_mask": blocked(masks.encoder, S, S),
        "tgt_mask": blocked(masks.decoder, T, T),
        "memory_mask": blocked(masks.cross, T, S),
    }
    return lambda module, source, target: module(source, target, **look)


def agree(ours: EncoderDecoder, theirs: nn.Transformer, masks: Seq2SeqMasks = PADDED) -> None:
    """Both give the same outputs under the same masks."""
    report = check.parity(ours, theirs, inputs(), call=ours_called(masks), their_call=theirs_called(masks))
    report.raise_for_failure()


SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without biases": {"bias": False},
    "gelu": {"activation": "gelu"},
    "a relu module": {"activation": nn.ReLU()},
    "torch.relu": {"activation": torch.relu},
    "another eps": {"layer_norm_eps": 0.1},
    "other depths": {"num_encoder_layers": 3, "num_decoder_layers": 1},
    "a rate of dropout": {"dropout": 0.3},
}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("name", SETTINGS)
def test_from_torch_computes_what_torch_does(name: str, norm_first: bool) -> None:
    theirs = transformer(norm_first=norm_first, **SETTINGS[name])
    agree(from_torch(theirs), theirs)


OURS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without biases": {"bias": False},
    "gelu": {"activation": "gelu"},
    "another eps": {"eps": 0.1},
    "with final norms": {"final_norm": True},
    "without final norms": {"final_norm": False},
    "by the formula": {"backend": "formula"},
}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("name", OURS)
def test_to_torch_computes_what_ours_does(name: str, norm: str) -> None:
    ours = stacks(norm=norm, **OURS[name])
    agree(ours, to_torch(ours))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_every_mask_argument_of_torch_has_its_equal(norm_first: bool) -> None:
    theirs = transformer(norm_first=norm_first)
    near = Window(before=1, after=2)
    masks = Seq2SeqMasks(
        near & Padding((S, 3)), Causal() & Padding((4, T)), Window(before=T, after=1) & Padding((S, 3))
    )

    def with_all_nine(module: nn.Transformer, source: Tensor, target: Tensor) -> Tensor:
        return module(  # type: ignore[no-any-return]
            source,
            target,
            src_mask=~near.dense(S, S)[0, 0],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64),
            memory_mask=~Window(before=T, after=1).dense(T, S)[0, 0],
            src_key_padding_mask=padded((S, 3), S),
            tgt_key_padding_mask=torch.zeros(B, T).masked_fill(padded((4, T), T), float("-inf")).double(),
            memory_key_padding_mask=padded((S, 3), S),
            src_is_causal=False,
            tgt_is_causal=True,
            memory_is_causal=False,
        )

    call = ours_called(masks)
    check.parity(from_torch(theirs), theirs, inputs(), call=call, their_call=with_all_nine).raise_for_failure()


def test_a_module_with_batch_second_is_read() -> None:
    theirs = transformer(batch_first=False)
    call = theirs_called(seq2seq())

    def batch_second(module: nn.Transformer, source: Tensor, target: Tensor) -> Tensor:
        return call(module, source.transpose(0, 1), target.transpose(0, 1)).transpose(0, 1)

    ours = from_torch(theirs)
    check.parity(ours, theirs, inputs(), call=ours_called(seq2seq()), their_call=batch_second).raise_for_failure()


def test_torch_s_fast_path_agrees_too() -> None:
    theirs = transformer(d_model=2 * DH, nhead=2)  # it is taken with an even number of heads
    states = torch.randn(B, S, 2 * DH), torch.randn(B, T, 2 * DH)
    no_masks = Seq2SeqMasks(Full(), Full(), Full())
    check.parity(
        from_torch(theirs), theirs, states, call=ours_called(no_masks), their_call=theirs_called(no_masks)
    ).raise_for_failure()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_round_trip_changes_no_number(norm: str, bias: bool) -> None:
    ours = stacks(norm=norm, bias=bias, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3).float().eval()
    again = from_torch(to_torch(ours))
    assert again.state_dict().keys() == ours.state_dict().keys()
    for name, value in again.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name
        assert value.dtype == torch.float32
    assert repr(again) == repr(ours)
    attention = again.get_submodule("encoder.layers.0.self_attention")
    assert attention.dropout == 0.2
    assert [part.training for part in again.modules()] == [False] * len(list(again.modules()))


def test_dropout_stands_at_the_same_places() -> None:
    theirs = to_torch(stacks(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3).train())
    assert all(part.training for part in theirs.modules())
    rates = {
        name.split(".")[-1]: part.p if isinstance(part, nn.Dropout) else part.dropout
        for name, part in theirs.named_modules()
        if isinstance(part, nn.Dropout | nn.MultiheadAttention)
    }
    assert rates == {
        "dropout": 0.3, "dropout1": 0.1, "dropout2": 0.1, "dropout3": 0.1, "self_attn": 0.2, "multihead_attn": 0.2
    }  # fmt: skip


def test_the_weights_are_copies() -> None:
    theirs = transformer()
    ours = from_torch(theirs)
    kept = copy.deepcopy(ours.state_dict())
    randomised(theirs)
    assert all(torch.equal(value, kept[name]) for name, value in ours.state_dict().items())
    again = to_torch(ours)
    randomised(again)
    assert all(torch.equal(value, kept[name]) for name, value in ours.state_dict().items())
    assert all(parameter.requires_grad for parameter in (*ours.parameters(), *again.parameters()))


def test_to_torch_does_not_warn() -> None:
    for norm in ("pre", "post"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            theirs = to_torch(stacks(norm=norm)).eval()
        assert theirs.batch_first
        assert (theirs.d_model, theirs.nhead) == (D, H)


# --- stacks that torch's constructor does not build -----------------------------------------------------------


def by_hand(
    *, encoder_norm: nn.Module | None, decoder_norm: nn.Module | None, decoder: dict[str, Any] | None = None
) -> nn.Transformer:
    """Torch's module from stacks of its own with these final norms."""
    one = {"d_model": D, "nhead": H, "dim_feedforward": FF, "batch_first": True, "dtype": torch.float64}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**one), 2, encoder_norm, enable_nested_tensor=False)  # type: ignore[arg-type]
    other = nn.TransformerDecoder(nn.TransformerDecoderLayer(**{**one, **(decoder or {})}), 3, decoder_norm)
    return randomised(nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=other, batch_first=True).double())


@pytest.mark.slow
@pytest.mark.parametrize("encoder_norm", [None, nn.LayerNorm(D, eps=0.1), nn.LayerNorm(D, bias=False)])
@pytest.mark.parametrize("decoder_norm", [None, nn.LayerNorm(D, elementwise_affine=False)])
def test_final_norms_may_be_others_than_the_layers(
    encoder_norm: nn.LayerNorm | None, decoder_norm: nn.LayerNorm | None
) -> None:
    theirs = by_hand(encoder_norm=copy.deepcopy(encoder_norm), decoder_norm=decoder_norm)
    ours = from_torch(theirs)
    agree(ours, theirs)
    agree(ours, to_torch(ours))


class Wrapped(nn.Transformer):
    """A module whose forward is its own."""

    def forward(self, src: Tensor, tgt: Tensor, *masks: Any, **named: Any) -> Tensor:
        return super().forward(2 * src, tgt, *masks, **named)


class Layer(nn.TransformerEncoderLayer):
    """A layer that may compute anything."""


class Stack(nn.TransformerDecoder):
    """A stack that may compute anything."""


def changed(change: Callable[[nn.Transformer], object]) -> nn.Transformer:
    """Torch's module with one part replaced."""
    theirs = transformer()
    change(theirs)
    return theirs


def replaced(path: str, value: object) -> Callable[[nn.Transformer], object]:
    """Set an attribute at a path."""
    place, _, name = path.rpartition(".")
    return lambda theirs: setattr(theirs.get_submodule(place), name, value)


ZERO_ATTENTION = nn.MultiheadAttention(D, H, add_zero_attn=True, batch_first=True, dtype=torch.float64)
WIDE_KEYS = nn.MultiheadAttention(D, H, kdim=DH, batch_first=True, dtype=torch.float64)
REFUSED: list[tuple[str, Callable[[], nn.Transformer]]] = [
    ("Wrapped may compute .* give torch's own Transformer", lambda: Wrapped(D, H, 1, 1, FF)),
    ("Layer may compute .* own TransformerEncoderLayer", lambda: changed(replaced("encoder.layers.1", Layer(D, H)))),
    (
        "Stack may compute .* own TransformerDecoder,",
        lambda: changed(replaced("decoder", Stack(nn.TransformerDecoderLayer(D, H), 1))),
    ),
    ("RMSNorm may compute .* own LayerNorm", lambda: changed(replaced("decoder.norm", nn.RMSNorm(D)))),
    ("RMSNorm may compute .* own LayerNorm", lambda: changed(replaced("decoder.layers.0.norm2", nn.RMSNorm(D)))),
    (
        "MultiheadAttention may compute",
        lambda: changed(replaced("decoder.layers.2.multihead_attn", ZERO_ATTENTION)),
    ),
    ("MultiheadAttention may compute", lambda: changed(replaced("encoder.layers.0.self_attn", WIDE_KEYS))),
    ("the activation .*tanh.* has no equal here; train with relu or gelu", lambda: transformer(activation=F.tanh)),
    # Torch's decoder forgets an activation given as a module and computes relu, so its stacks are not alike.
    ("differ in activation: gelu and relu", lambda: transformer(activation=nn.GELU())),
    ("GELU.* has no equal here", lambda: transformer(activation=nn.GELU(approximate="tanh"))),
    ("a stack without layers has no equal", lambda: transformer(num_encoder_layers=0)),
    ("a stack without layers has no equal", lambda: transformer(num_decoder_layers=0)),
    ("differ in dropout: 0.1 and 0.3", lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"dropout": 0.3})),
    ("differ in heads: 1 and 3", lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"nhead": 1})),
    (
        "differ in norm_first: False and True",
        lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"norm_first": True}),
    ),
    (
        "differ in activation: gelu and relu",
        lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"activation": "gelu"}),
    ),
    ("differ in bias", lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"bias": False})),
    ("differ in eps: 0.5 and 1e-05", lambda: changed(replaced("encoder.layers.0.norm2.eps", 0.5))),
    (
        "differ in dim_feedforward: 29 and 31",
        lambda: by_hand(encoder_norm=None, decoder_norm=None, decoder={"dim_feedforward": 31}),
    ),
]


@pytest.mark.parametrize(("said", "build"), REFUSED)
def test_what_has_no_equal_is_refused(said: str, build: Callable[[], nn.Transformer]) -> None:
    with pytest.raises(InteropError, match=said):
        from_torch(build())


@pytest.mark.parametrize("side", ["num_encoder_layers", "num_decoder_layers"])
def test_an_empty_stack_of_ours_is_refused(side: str) -> None:
    with pytest.raises(InteropError, match="give each stack one layer at least"):
        to_torch(stacks(**{side: 0}))
