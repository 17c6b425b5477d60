"""Every scheme of positions in the whole model: cached steps, padding on either side, batches, weights, and learning."""

import copy
import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import tiny
from pellucid import check, positions
from pellucid.config import BEGIN_ID, END_ID, ModelConfig
from pellucid.decoding import greedy_search
from pellucid.decoding.engines import ModelEngine
from pellucid.masks import Causal, Padding, Seq2SeqMasks, seq2seq
from pellucid.model import EncoderDecoder, MultiHeadAttention, Transformer
from pellucid.run import load_weights
from pellucid.text.batch import collate

B, S, T, H, DH, FF = 2, 5, 7, 3, 22, 29  # a head's width is even: rotary turns pairs
VS, VT = 19, 23
D = H * DH
SOURCE_LENGTHS, TARGET_LENGTHS = (S, 3), (4, T)

Norm = Literal["pre", "post"]
Scheme = Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]
NORMS: tuple[Norm, ...] = ("pre", "post")
SCHEMES: tuple[Scheme, ...] = ("sinusoidal", "learned", "rotary", "alibi", "t5", "none")
TOLD = SCHEMES[:-1]
RELATIVE: tuple[Scheme, ...] = ("rotary", "alibi", "t5")


def settings(norm: Norm = "pre", scheme: Scheme = "sinusoidal") -> ModelConfig:
    """A small model, each side with a depth and a vocabulary of its own."""
    return ModelConfig(
        source_vocab_size=VS,
        target_vocab_size=VT,
        d_model=D,
        num_heads=H,
        d_ff=FF,
        num_encoder_layers=2,
        num_decoder_layers=3,
        norm=norm,
        positions=scheme,
        max_positions=31,
    )


def network(norm: Norm = "pre", scheme: Scheme = "sinusoidal") -> Transformer:
    """The model in float64 and evaluation mode; what a scheme learns is drawn large enough to be seen."""
    return loud(Transformer(settings(norm, scheme)).double().eval())


def loud(model: Transformer) -> Transformer:
    """The same model, with numbers of size 1 in its positions."""
    for scheme in (model.source_positions, model.target_positions):
        for parameter in scheme.parameters():
            nn.init.normal_(parameter)
    return model


def ids(batch: int, length: int, vocabulary: int) -> Tensor:
    """Ids of words, no marks among them."""
    return torch.randint(4, vocabulary, (batch, length))


every = pytest.mark.parametrize("scheme", SCHEMES)
both = pytest.mark.parametrize("norm", NORMS)


# --- what is told ---------------------------------------------------------------------------------------------


KINDS = {
    "sinusoidal": positions.Sinusoidal,
    "learned": positions.Learned,
    "rotary": positions.Rotary,
    "alibi": positions.ALiBi,
    "t5": positions.T5Relative,
    "none": positions.NoPositions,
}


@every
def test_a_setting_names_a_scheme_for_each_side(scheme: Scheme) -> None:
    model = network(scheme=scheme)
    assert type(model.source_positions) is type(model.target_positions) is KINDS[scheme]
    assert model.source_positions is not model.target_positions


def test_the_settings_reach_the_schemes() -> None:
    rotary = settings(scheme="rotary").replace(
        position_layout="halves", rotary_base=500.0, rotary_scaling="yarn", rotary_factor=4.0
    )
    assert repr(Transformer(rotary).source_positions) == (
        f"Rotary(head_dim={DH}, pairs='halves', base=500.0, scaling='yarn', factor=4.0, original_length=31)"
    )
    assert repr(Transformer(settings(scheme="rotary")).target_positions).startswith("Rotary(head_dim=22, pairs='inter")
    assert repr(network(scheme="alibi").source_positions) == "ALiBi(num_heads=3)"
    t5 = network(scheme="t5")
    for side, bidirectional in ((t5.source_positions, True), (t5.target_positions, False)):
        assert isinstance(side, positions.T5Relative)
        assert side.bidirectional is bidirectional


@both
@every
def test_the_source_s_order_is_told_by_every_scheme_but_none(scheme: Scheme, norm: Norm) -> None:
    model, source, order = network(norm, scheme), ids(B, S, VS), torch.tensor([3, 0, 4, 2, 1])
    apart = (model.encode(source[:, order]) - model.encode(source)[:, order]).detach().abs().amax(dim=-1)
    if scheme == "none":
        assert float(apart.max()) < 1e-12
    else:
        assert float(apart.min()) > 1e-3


@pytest.mark.parametrize("side", ["source_positions", "target_positions"])
@pytest.mark.parametrize("scheme", TOLD)
def test_each_side_is_told_by_its_own_scheme(scheme: Scheme, side: str) -> None:
    model, source, target = network(scheme=scheme), ids(B, S, VS), ids(B, T, VT)
    told = model(source, target)
    setattr(model, side, positions.NoPositions())
    assert float((model(source, target) - told).detach().abs().amax(dim=-1)[:, 1:].min()) > 1e-3


@pytest.mark.parametrize("scheme", RELATIVE)
def test_cross_attention_is_told_nothing(scheme: Scheme) -> None:
    model, target = network(scheme=scheme), ids(B, T, VT)
    memory, order = torch.randn(B, S, D).double(), torch.tensor([3, 0, 4, 2, 1])
    logits, _ = model.decode(target, memory)
    other, _ = model.decode(target, memory[:, order])
    torch.testing.assert_close(other, logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", RELATIVE)
def test_distance_alone_is_told(scheme: Scheme) -> None:
    told = network(scheme=scheme).source_positions
    attention, states = MultiHeadAttention(D, H).double(), torch.randn(B, S, D).double()
    whole = attention(states, states, states, positions=told)
    keys = torch.cat([torch.randn(B, 3, D).double(), states], dim=1)
    later = attention(states, keys, keys, ~Padding((3, 3)), first_query=3, positions=told)
    torch.testing.assert_close(later, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_weights_are_the_formula_with_the_scheme_s_doors(scheme: Scheme) -> None:
    told, first = network(scheme=scheme).source_positions, 2
    attention = MultiHeadAttention(D, H).double()
    query, seen = torch.randn(B, S, D).double(), torch.randn(B, T, D).double()
    bias = told.bias(S, T, first)
    _, weights = attention.look(
        query, attention.keys_values(seen, seen, told), None, first, positions=told, bias=bias, need_weights=True
    )
    assert weights is not None
    q = told.rotate(attention.query(query).view(B, S, H, DH).transpose(1, 2), first)
    k = told.rotate(attention.key(seen).view(B, T, H, DH).transpose(1, 2))
    added = torch.zeros(1, H, S, T) if bias is None else bias.scores(S, T, first)
    for b, h, row in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(S)).tolist():
        scores = [float(q[b, h, row] @ k[b, h, key]) / math.sqrt(DH) + float(added[0, h, row, key]) for key in range(T)]
        total = sum(math.exp(score) for score in scores)
        for key, score in enumerate(scores):
            assert math.isclose(float(weights[b, h, row, key]), math.exp(score) / total, abs_tol=1e-12)


# --- step by step ---------------------------------------------------------------------------------------------


@both
@every
def test_a_cached_step_is_a_row_of_training(scheme: Scheme, norm: Norm) -> None:
    check.cache(network(norm, scheme), ids(B, S, VS), ids(B, T, VT)).raise_for_failure()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_a_cached_step_is_a_row_of_training_where_rotary_is_stretched(scaling: str, layout: str) -> None:
    config = settings(scheme="rotary").model_dump() | {
        "position_layout": layout,
        "rotary_scaling": scaling,
        "rotary_factor": 3.0,
    }
    model = Transformer(ModelConfig(**config)).double()
    check.cache(model, ids(B, S, VS), ids(B, T, VT)).raise_for_failure()


@both
@every
def test_a_reordered_cache_goes_on_as_its_rows_would(scheme: Scheme, norm: Norm) -> None:
    """As a beam does: rows change places and are doubled between steps, of one position and of several."""
    model, source, target = network(norm, scheme), ids(B, S, VS), ids(B, T, VT)
    rows = torch.arange(B)
    memory, cache, past = model.encode(source, SOURCE_LENGTHS), None, target[:, :0]
    for begin, end, order in ((0, 1, [1, 0]), (1, 2, [1, 1, 0]), (2, 5, [2, 0]), (5, 6, [1, 0]), (6, T, [0, 1])):
        chosen = ids(len(rows), end - begin, VT)
        lengths = tuple(SOURCE_LENGTHS[row] for row in rows.tolist())
        logits, cache = model.decode(chosen, memory[rows], lengths, cache=cache)
        past = torch.cat([past, chosen], dim=1)
        whole = model(source[rows], past, lengths)
        torch.testing.assert_close(logits, whole[:, begin:], rtol=0, atol=1e-11)
        chosen_rows = torch.tensor(order)
        rows, past, cache = rows[chosen_rows], past[chosen_rows], cache.select(chosen_rows)


# --- padding and batches --------------------------------------------------------------------------------------


@pytest.mark.slow
@both
@every
def test_padding_changes_nothing_on_either_side(scheme: Scheme, norm: Norm) -> None:
    model, source = network(norm, scheme), ids(B, S, VS)
    check.padding(model, source, SOURCE_LENGTHS, call=lambda m, x, lengths: m.encode(x, lengths)).raise_for_failure()
    check.padding(
        model,
        ids(B, T, VT),
        TARGET_LENGTHS,
        call=lambda m, x, lengths: m(source, x, SOURCE_LENGTHS, lengths),
    ).raise_for_failure()


@pytest.mark.slow
@both
@every
def test_a_sample_is_in_a_batch_what_it_is_alone(scheme: Scheme, norm: Norm) -> None:
    model, source, target = network(norm, scheme), ids(3, S, VS), ids(3, T, VT)
    check.batching(model, source, target, lengths=((S, 3, 1), (4, T, 2))).raise_for_failure()


def padded_left(states: Tensor, pads: tuple[int, ...]) -> Tensor:
    """The first length - pad states of each sample, moved to the end, with other numbers before them."""
    padded = torch.randn_like(states)
    for sample, pad in enumerate(pads):
        padded[sample, pad:] = states[sample, : states.shape[1] - pad]
    return padded


@both
@every
def test_padding_on_the_left_changes_nothing(scheme: Scheme, norm: Norm) -> None:
    model = network(norm, scheme)
    stacks, told = model.stacks, (model.source_positions, model.target_positions)
    source, target = torch.randn(B, S, D).double(), torch.randn(B, T, D).double()
    source_pads, target_pads = (0, 2), (3, 0)
    masks = Seq2SeqMasks(~Padding(source_pads), Causal() & ~Padding(target_pads), ~Padding(source_pads))
    together = stacks(
        told[0](padded_left(source, source_pads), -torch.tensor(source_pads)),
        told[1](padded_left(target, target_pads), -torch.tensor(target_pads)),
        masks,
        *told,
    )
    for sample, (source_pad, target_pad) in enumerate(zip(source_pads, target_pads, strict=True)):
        alone = stacks(
            told[0](source[sample : sample + 1, : S - source_pad]),
            told[1](target[sample : sample + 1, : T - target_pad]),
            seq2seq(),
            *told,
        )
        torch.testing.assert_close(together[sample, target_pad:], alone[0], rtol=0, atol=1e-10)


@every
def test_lengths_may_come_in_any_order(scheme: Scheme) -> None:
    """A table made for one batch is not used for a longer one, nor a long one's for a short."""
    used, fresh = network(scheme=scheme), network(scheme=scheme)
    fresh.load_state_dict(used.state_dict())
    for source_length, target_length in ((17, 13), (3, 2), (17, 13), (29, 31), (1, 1)):
        source, target = ids(B, source_length, VS), ids(B, target_length, VT)
        assert torch.equal(used(source, target), copy.deepcopy(fresh)(source, target))


# --- the rest of the model ------------------------------------------------------------------------------------


@both
@every
def test_asking_for_weights_changes_nothing(scheme: Scheme, norm: Norm) -> None:
    model, source, target = network(norm, scheme), ids(B, S, VS), ids(B, T, VT)
    logits, weights = model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS, need_weights=True)
    torch.testing.assert_close(logits, model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS), rtol=0, atol=1e-12)
    masks = seq2seq(SOURCE_LENGTHS, TARGET_LENGTHS)
    for layers, mask, queries, keys in ((weights.encoder, masks.encoder, S, S), (weights.decoder, masks.decoder, T, T)):
        for layer in layers:
            assert torch.equal(layer != 0, mask.dense(queries, keys).expand_as(layer))


@every
def test_gradients_are_finite_and_reach_all_that_is_learned(scheme: Scheme) -> None:
    model, source, target = network(scheme=scheme), ids(B, S, VS), ids(B, T, VT)
    model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
    for told, reached in ((model.source_positions, S), (model.target_positions, T)):
        for parameter in told.parameters():
            assert parameter.grad is not None
            rows = parameter.grad.abs().amax(dim=-1).nonzero().flatten().tolist()
            if scheme == "learned":
                assert rows == list(range(reached))
            elif told is model.source_positions:  # 16 buckets back from distance 0, and 16 ahead, from distance 1
                assert rows == [*range(S), *range(17, 16 + S)]
            else:
                assert rows == list(range(T))


def test_only_learned_and_t5_learn_and_a_stack_s_layers_share_it() -> None:
    def counted(scheme: Scheme) -> int:
        return sum(parameter.numel() for parameter in Transformer(settings(scheme=scheme)).parameters())

    plain = counted("none")
    more = {scheme: counted(scheme) - plain for scheme in TOLD}
    assert more == {"sinusoidal": 0, "learned": 2 * 31 * D, "rotary": 0, "alibi": 0, "t5": 2 * 32 * H}


@every
def test_weights_survive_a_journey_through_a_file(scheme: Scheme, tmp_path: Path) -> None:
    model, source, target = network(scheme=scheme), ids(B, S, VS), ids(B, T, VT)
    save_file(dict(model.state_dict()), tmp_path / "weights.safetensors")
    other = network(scheme=scheme)
    assert not torch.equal(other(source, target), model(source, target))
    load_weights(other, tmp_path / "weights.safetensors")
    assert torch.equal(other(source, target), model(source, target))
    assert {*model.state_dict()} == {name for name, _ in model.named_parameters()}


@every
def test_half_precision_is_near(scheme: Scheme) -> None:
    model, source, target = loud(Transformer(settings(scheme=scheme)).eval()), ids(B, S, VS), ids(B, T, VT)
    exact = model(source, target, SOURCE_LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(source, target, SOURCE_LENGTHS)
        weighed, _ = model(source, target, SOURCE_LENGTHS, need_weights=True)
    half = copy.deepcopy(model).bfloat16()(source, target, SOURCE_LENGTHS)
    assert mixed.dtype == half.dtype == torch.bfloat16
    for found in (mixed, weighed, half):
        torch.testing.assert_close(found.float(), exact, rtol=0, atol=0.15)


@pytest.mark.slow
@every
def test_a_handful_of_pairs_is_learned_by_heart(scheme: Scheme) -> None:
    pairs = tiny.examples(5, seed=3)
    training = {"steps": 30, "warmup": 5, "learning_rate": 0.02, "label_smoothing": 0.0, "validate_every": 99}
    sizes = {"d_model": 24, "d_ff": 48, "dropout": 0.0, "norm": "pre"}
    config = tiny.config(training, {"batch_tokens": 200}, positions=scheme, **sizes)
    keeper = tiny.Memory()
    tiny.trainer(config, pairs, keeper).run()
    model = Transformer(config.model).double()
    load_weights(model, {name.removeprefix("model."): value for name, value in keeper.best[-1][0].items()})
    batch, engine = collate(pairs), ModelEngine(model)
    found = greedy_search(
        engine.step,
        engine.begin(batch.source, batch.source_lengths),
        batch=len(pairs),
        start_id=BEGIN_ID,
        end_id=END_ID,
        max_length=9,
    )
    assert [list(one.ids) for one in found] == [list(pair.target) for pair in pairs]
    assert all(one.finished for one in found)


# --- the stacks by themselves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", RELATIVE)
def test_the_stacks_take_schemes_of_their_own(scheme: Scheme) -> None:
    stacks = EncoderDecoder(
        d_model=D, num_heads=H, num_encoder_layers=2, num_decoder_layers=1, d_ff=FF, dropout=0.0
    ).double()
    model, source, target = network(scheme=scheme), torch.randn(B, S, D).double(), torch.randn(B, T, D).double()
    plain = stacks(source, target, seq2seq())
    told = stacks(source, target, seq2seq(), model.source_positions)
    assert float((told - plain).detach().abs().max()) > 1e-3
    memory, _ = stacks.encoder(source, positions=model.source_positions)
    wanted = stacks.decoder(target, memory, Causal(), positions=model.target_positions)
    both = stacks(
        source, target, seq2seq(), target_positions=model.target_positions, source_positions=model.source_positions
    )
    torch.testing.assert_close(both, wanted.states, rtol=0, atol=1e-12)
    assert float((both - told).detach().abs().max()) > 1e-3


def test_the_cache_keeps_keys_as_they_were_turned() -> None:
    model = network(scheme="rotary")
    memory, target = model.encode(ids(B, S, VS)), ids(B, T, VT)
    _, whole = model.decode(target, memory)
    _, past = model.decode(target[:, :4], memory)
    _, longer = model.decode(target[:, 4:], memory, cache=past)
    for layer, before, after in zip(whole.layers, past.layers, longer.layers, strict=True):
        torch.testing.assert_close(after.own.key, layer.own.key, rtol=0, atol=1e-12)
        assert torch.equal(after.own.key[:, :, :4], before.own.key)


def test_a_bias_is_computed_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = network(scheme="t5"), list[tuple[int, ...]]()
    kept = positions.T5Relative.bias

    def watched(self: positions.T5Relative, queries: int, keys: int, first_query: int = 0) -> object:
        asked.append((queries, keys, first_query))
        return kept(self, queries, keys, first_query)

    monkeypatch.setattr(positions.T5Relative, "bias", watched)
    memory = model.encode(ids(B, S, VS))
    _, cache = model.decode(ids(B, 4, VT), memory)
    model.decode(ids(B, 1, VT), memory, cache=cache)
    assert asked == [(S, S, 0), (4, 4, 0), (1, 5, 4)]
