"""The zoo: every broken module is caught, with the place and the right advice; and no right one is accused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pellucid import check
from pellucid.config import ModelConfig
from pellucid.masks import Causal, Padding, Window
from pellucid.model import MultiHeadAttention, Transformer
from pellucid.model.kernels import Backend
from zoo import (
    AlwaysDropping,
    Attention,
    B,
    BatchNormOverTime,
    Convolution,
    D,
    ExpertChoice,
    GlobalMaxPool,
    H,
    MaskedLayers,
    MaskedOnce,
    MaskInPlace,
    MeanOverPadding,
    Padded,
    Recurrent,
    S,
    SamplesForPositions,
    StandardisedByTheBatch,
    T,
    Translator,
    V,
    stack,
)

LENGTHS = (T, 4, 2)

pytestmark = pytest.mark.usefixtures("unchecked")  # hundreds of passes through models, whose types other tests check


def states() -> torch.Tensor:
    """Random states (B, T, D)."""
    return torch.randn(B, T, D)


def ids(length: int) -> torch.Tensor:
    """Random ids (B, length), none of which is padding."""
    return torch.randint(4, V, (B, length))


class Broken(NamedTuple):
    """A broken module as it is checked: what is said of it, and of where."""

    run: Callable[[], check.Report]
    advice: str
    where: str
    found: str


def causal(module: Callable[[], nn.Module], advice: str, where: str, found: str) -> Broken:
    """A module that ought to be causal."""
    return Broken(lambda: check.causality(module(), states()), advice, where, found)


def padded(fault: str, advice: str, where: str = "attention (MultiheadAttention)") -> Broken:
    """An attention with a fault in its padding."""
    return Broken(
        lambda: check.padding(Padded(fault), states(), LENGTHS), advice, where, "other content in the padding changes"
    )


BROKEN = {
    "mask inverted": causal(
        lambda: stack("inverted"),
        "polarity: the mask is the wrong way round in 1.attention",
        "1.attention (Attention)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "tril shifted ahead": causal(
        lambda: stack("tril shifted ahead"),
        "off by one: the mask of 1.attention is shifted, so that each query sees the next key",
        "1.attention (Attention)",
        "output 0 depends on input 1 (",
    ),
    "tril shifted behind": causal(
        lambda: stack("tril shifted behind"),
        "off by one: some row of 1.attention has all its keys hidden",
        "1.attention (Attention)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "float mask of 0 and 1": causal(
        lambda: stack("float mask of 0 and 1"),
        "a float mask of 0 and 1 is added to the scores in 1.attention, which hides nothing",
        "1.attention (Attention)",
        "output 5 depends on input 6 (",
    ),
    "float mask of 0 and 1, torch's layers": Broken(
        lambda: check.causality(
            nn.TransformerEncoderLayer(D, H, 17, batch_first=True),
            states(),
            call=lambda module, x: module(x, src_mask=torch.ones(T, T, dtype=x.dtype).tril()),
        ),
        "a float mask of 0 and 1 is added to the scores in self_attn",
        "self_attn (MultiheadAttention)",
        "output 5 depends on input 6 (",
    ),
    "torch's mask, True taken for may look": Broken(
        lambda: check.causality(
            nn.TransformerEncoderLayer(D, H, 17, batch_first=True),
            states(),
            call=lambda module, x: module(x, src_mask=torch.ones(T, T).tril(-1).bool()),
        ),
        "polarity: the mask is the wrong way round in self_attn",
        "self_attn (MultiheadAttention)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "no mask at all": causal(
        lambda: stack("no mask"),
        "mask not applied in layer 1",
        "1.attention (Attention)",
        "output 5 depends on input 6 (",
    ),
    "mask in the first layer alone": causal(
        MaskedOnce,
        "mask not applied in layer 1: the layers before it keep the promise, and layers.1.self_attn looks at every",
        "layers.1.self_attn (MultiheadAttention)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "softmax over queries": causal(
        lambda: stack("softmax over queries"),
        "the softmax of 1.attention goes over queries; it must go over keys",
        "1.attention (Attention)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "a row of minus infinity": causal(
        lambda: Attention("minus infinity where all is hidden"),
        "a row that sees nothing gives no number",
        "",
        "output 0 is not finite",
    ),
    "batch norm over time": causal(
        lambda: stack(between=BatchNormOverTime()),
        "normalisation over time: 1.between.norm takes its statistics over all positions and samples",
        "1.between.norm (BatchNorm1d)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "layer norm over time": causal(
        lambda: stack(between=nn.LayerNorm([T, D])),
        "normalisation over time: 1.between takes its statistics over positions",
        "1.between (LayerNorm)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "convolution to both sides": causal(
        lambda: stack(between=Convolution()),
        "the convolution 1.between.conv looks ahead; pad (kernel_size - 1) * dilation on the left only",
        "1.between.conv (Conv1d)",
        "output 0 depends on input 1 (",
    ),
    "largest over all positions": causal(
        lambda: stack(between=GlobalMaxPool()),
        "1.between takes a mean, a largest or a sum over all positions",
        "1.between (GlobalMaxPool)",
        "output 0 depends on input",
    ),
    "the best tokens of the whole sentence": causal(
        lambda: stack(between=ExpertChoice()),
        "1.between mixes positions",
        "1.between (ExpertChoice)",
        "output ",
    ),
    "recurrent from both ends": causal(
        lambda: Recurrent(bidirectional=True),
        "layers also runs from the end to the beginning; make it bidirectional=False",
        "layers (GRU)",
        "output 0 depends on inputs 1, 2, 3, 4, 5 ...",
    ),
    "padding ignored": padded("ignored", "padding ignored: attention takes no notice of the lengths"),
    "padding inverted": padded("inverted", "polarity: the mask is the wrong way round in attention"),
    "padding hidden by queries": padded(
        "by queries", "padding is hidden in the wrong place: attention uses the lengths"
    ),
    "padding tiled over heads": padded("tiled over heads", "heads repeated the wrong way: attention masks a sample by"),
    "padding counted by a mean": Broken(
        lambda: check.padding(MeanOverPadding(), states(), LENGTHS),
        "the amount of padding counts: look for a mean",
        "",
        "more padding changes sample 0 at position",
    ),
    "padding ignored in cross-attention": Broken(
        lambda: check.padding(Translator(heeds=False), ids(S), ids(T), (S, 4, 2)),
        "padding ignored: decoder.layers.0.multihead_attn takes no notice of the lengths",
        "decoder.layers.0.multihead_attn (MultiheadAttention)",
        "other content in the padding changes sample 1",
    ),
    "padding carried back by a recurrent layer": Broken(
        lambda: check.padding(Recurrent(bidirectional=True), states(), LENGTHS, call=lambda module, x, _: module(x)),
        "layers carries padding to real positions; set it to zero before layers, or pack sequences by their lengths",
        "layers (GRU)",
        "other content in the padding changes sample 1",
    ),
    "mask in place": Broken(
        lambda: check.repeatable(MaskInPlace(), torch.linspace(-3, 3, B * T * D).reshape(B, T, D)),
        "in-place: ",
        "",
        "buffer `seen` is changed by a call",
    ),
    "samples taken for positions": Broken(
        lambda: check.independence(SamplesForPositions(), states()),
        "batch axis: attention takes samples for positions; make it batch_first=True",
        "attention (MultiheadAttention)",
        "sample 1 moves when sample 0 is changed, at position",
    ),
    "statistics of the batch in training": Broken(
        lambda: check.independence(StandardisedByTheBatch(), states()),
        "mixes samples: look there for a statistic",
        "the module itself (StandardisedByTheBatch)",
        "sample 1 moves when sample 0 is changed, at position",
    ),
    "batch norm in training": Broken(
        lambda: check.independence(stack(between=BatchNormOverTime()), states()),
        "1.between.norm takes its statistics over the batch while it trains",
        "1.between.norm (BatchNorm1d)",
        "sample 1 moves when sample 0 is changed, at position",
    ),
    "dropout left on": Broken(
        lambda: check.batching(AlwaysDropping(), states()),
        "dropout left on: the same call gives another output",
        "",
        "two calls with the same input differ by",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_module_is_caught_with_the_right_advice(name: str) -> None:
    broken = BROKEN[name]
    report = broken.run()
    assert not report.passed
    assert any(finding.startswith(broken.found) for finding in report.findings)
    assert broken.advice in report.advice
    assert report.where == broken.where


def right_states() -> dict[str, nn.Module]:
    """Right modules of states: what is causal, and keeps samples apart."""
    return {
        "by hand": stack(),
        "torch's encoder, post-norm": MaskedLayers(),
        "torch's encoder, pre-norm": MaskedLayers(norm_first=True),
        "recurrent": Recurrent(bidirectional=False),
        "convolution to the left": stack(between=Convolution(causal=True)),
        "position by position": nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Dropout(0.5), nn.LayerNorm(D)),
    }


@pytest.mark.parametrize("name", right_states())
def test_a_right_module_is_not_accused(name: str) -> None:
    module = right_states()[name]
    check.causality(module, states()).raise_for_failure()
    check.independence(module, states()).raise_for_failure()
    check.batching(module, states()).raise_for_failure()
    if name in ("by hand", "torch's encoder, post-norm", "torch's encoder, pre-norm"):
        check.sees(module, states(), Causal()).raise_for_failure()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")  # torch's fast path
def test_right_padding_is_not_accused() -> None:
    check.padding(Padded(), states(), LENGTHS).raise_for_failure()
    check.padding(Padded("interleaved over heads"), states(), LENGTHS).raise_for_failure()
    check.padding(Translator(heeds=True), ids(S), ids(T), (S, 4, 2)).raise_for_failure()
    check.padding(nn.MultiheadAttention(D, H, batch_first=True), states(), LENGTHS).raise_for_failure()
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 17, batch_first=True), 2)
    check.padding(layers, states(), LENGTHS).raise_for_failure()
    check.batching(layers, states(), lengths=LENGTHS).raise_for_failure()
    whole = nn.Transformer(D, H, 1, 1, 17, batch_first=True)
    check.padding(whole, torch.randn(B, S, D), states(), (S, 4, 2)).raise_for_failure()


def test_a_decoder_of_torch_is_asked_about_its_own_input() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, 17, batch_first=True), 2)
    blocked = torch.ones(T, T, dtype=torch.bool).triu(1)
    memory = torch.randn(B, S, D)
    assert not check.causality(decoder, states(), memory)
    check.causality(decoder, states(), memory, call=lambda m, x, y: m(x, y, tgt_mask=blocked)).raise_for_failure()
    seen = check.influence(decoder, states(), memory, of=1, call=lambda m, x, y: m(x, y, tgt_mask=blocked))
    assert seen.shape == (T, S)
    assert seen.all()


def test_positions_may_come_first() -> None:
    layer = nn.TransformerEncoderLayer(D, H, 17)
    blocked = torch.ones(T, T, dtype=torch.bool).triu(1)
    x = torch.randn(T, B, D)
    masked = lambda module, x: module(x, src_mask=blocked)  # noqa: E731
    check.causality(layer, x, inputs_axis=0, call=masked).raise_for_failure()
    check.independence(layer, x, inputs_axis=0, call=masked).raise_for_failure()
    assert not check.causality(layer, x, inputs_axis=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "positions",
    [
        "sinusoidal",
        "rotary",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("learned", "alibi", "t5", "none")),
    ],
)
def test_our_model_is_not_accused(norm: str, positions: str) -> None:
    config = ModelConfig.tiny(source_vocab_size=V, target_vocab_size=V, norm=norm, positions=positions)
    model = Transformer(config)
    check.causality(model, ids(S), ids(T)).raise_for_failure()
    check.padding(model, ids(S), ids(T), (S, 4, 2)).raise_for_failure()
    check.independence(model, ids(S), ids(T)).raise_for_failure()
    check.batching(model, ids(S), ids(T), lengths=((S, 4, 2), LENGTHS)).raise_for_failure()
    assert check.influence(model, ids(S), ids(T), of=0).all()


@pytest.mark.parametrize("backend", ["formula", "fused", "blocks"])
def test_our_attention_sees_what_its_mask_says(backend: Backend) -> None:
    attention, x = MultiHeadAttention(D, H, backend=backend), states()
    for mask in (Causal(), Causal() & Window(2, 0), Causal() & Padding(LENGTHS)):
        check.sees(attention, x, mask, call=lambda m, x, mask=mask: m(x, x, x, mask=mask)).raise_for_failure()
    wrong = check.sees(attention, x, Causal(), call=lambda m, x: m(x, x, x, mask=Causal() & Window(2, 0)))
    assert "output 3 does not depend on input 0" in wrong.findings


def test_several_layers_see_through_each_other() -> None:
    window = Causal() & Window(before=2, after=0)
    layers = [MultiHeadAttention(D, H) for _ in range(3)]

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x, x, x, mask=window)
            return x

    x = torch.randn(2, 11, D)
    check.sees(Stack(), x, window, layers=3).raise_for_failure()
    assert check.sees(Stack(), x, window, layers=2).findings[0].startswith("output 5 depends on input 0 (")
    assert "output 7 does not depend on input 0" in check.sees(Stack(), x, window, layers=4).findings


def models_of_hugging_face(transformers: object) -> dict[str, nn.Module]:
    """Small ones, made on the spot."""
    t: object = transformers
    small = {"vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return {
        "gpt2": t.GPT2LMHeadModel(t.GPT2Config(n_positions=23, n_embd=D, n_layer=2, n_head=H, **small)),  # type: ignore[attr-defined]
        "llama": t.LlamaForCausalLM(  # type: ignore[attr-defined]
            t.LlamaConfig(  # type: ignore[attr-defined]
                hidden_size=D, intermediate_size=17, num_hidden_layers=2, num_attention_heads=H, **small
            )
        ),
    }


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_of_hugging_face_is_not_accused(name: str) -> None:
    model = models_of_hugging_face(pytest.importorskip("transformers"))[name]
    check.causality(model, ids(T)).raise_for_failure()
    check.independence(model, ids(T)).raise_for_failure()
    assert torch.equal(check.influence(model, ids(T)), torch.ones(T, T).tril().bool())


def test_encoders_and_translators_of_hugging_face_are_not_accused() -> None:
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=V, hidden_size=D, num_hidden_layers=2, num_attention_heads=H, intermediate_size=17
        )
    )
    check.padding(bert, ids(T), LENGTHS).raise_for_failure()
    assert check.influence(bert, ids(T)).all()
    assert check.causality(bert, ids(T)).advice.startswith("mask not applied: ")
    marian = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=V, d_model=D, encoder_layers=1, decoder_layers=1, encoder_attention_heads=H,
            decoder_attention_heads=H, encoder_ffn_dim=17, decoder_ffn_dim=17, pad_token_id=0, eos_token_id=2,
            decoder_start_token_id=0, max_position_embeddings=29,
        )
    )  # fmt: skip
    check.causality(marian, ids(S), ids(T)).raise_for_failure()
    check.padding(marian, ids(S), ids(T), (S, 4, 2)).raise_for_failure()
    bart = transformers.BartModel(
        transformers.BartConfig(
            vocab_size=V, d_model=D, encoder_layers=1, decoder_layers=1, encoder_attention_heads=H,
            decoder_attention_heads=H, encoder_ffn_dim=17, decoder_ffn_dim=17, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=2, max_position_embeddings=29,
        )
    )  # fmt: skip
    check.causality(bart, ids(S), ids(T)).raise_for_failure()


def test_a_softmax_in_float32_is_no_fault() -> None:
    transformers = pytest.importorskip("transformers")
    llama: Any = models_of_hugging_face(transformers)["llama"]
    llama.set_attn_implementation("eager")
    check.batching(llama, ids(T), lengths=LENGTHS).raise_for_failure()
    check.padding(llama, ids(T), LENGTHS).raise_for_failure()
