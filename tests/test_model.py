"""The Transformer: cached steps, padding, the future, tying, counts, weights, and what it refuses."""

import copy
import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid import check
from pellucid.config import ModelConfig
from pellucid.errors import ConfigError, ShapeError
from pellucid.masks import Causal, seq2seq
from pellucid.model import Cache, Dropout, EncoderDecoder, FeedForward, Residual, Transformer

B, S, T, H, DH, FF = 2, 5, 7, 3, 11, 29
VS, VT = 19, 23
D = H * DH
SOURCE_LENGTHS, TARGET_LENGTHS = (S, 3), (4, T)

Norm = Literal["pre", "post"]
Scheme = Literal["sinusoidal", "learned", "none"]
NORMS: tuple[Norm, ...] = ("pre", "post")
SCHEMES: tuple[Scheme, ...] = ("sinusoidal", "learned", "none")


def settings(norm: Norm = "post", positions: Scheme = "sinusoidal", **sizes: int) -> ModelConfig:
    """A model small enough for loops, with a depth, a width and a vocabulary of its own on each side."""
    return ModelConfig(
        source_vocab_size=VS,
        target_vocab_size=VT,
        d_model=D,
        num_heads=H,
        d_ff=FF,
        num_encoder_layers=2,
        num_decoder_layers=3,
        norm=norm,
        positions=positions,
    ).replace(**sizes)


def network(norm: Norm = "post", positions: Scheme = "sinusoidal", **sizes: int) -> Transformer:
    """The model in float64 and evaluation mode."""
    return Transformer(settings(norm, positions, **sizes)).double().eval()


def ids(batch: int, length: int, vocabulary: int) -> Tensor:
    """Ids of words, no marks among them."""
    return torch.randint(4, vocabulary, (batch, length))


# --- step by step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("norm", NORMS)
def test_a_cached_step_is_a_row_of_training(norm: Norm, positions: Scheme) -> None:
    check.cache(network(norm, positions), ids(B, S, VS), ids(B, T, VT)).raise_for_failure()


@pytest.mark.parametrize("sizes", [(1,) * T, (2, 3, 2), (1, 6), (T,)])
@pytest.mark.parametrize("norm", NORMS)
def test_steps_may_be_of_any_size_and_sources_of_any_length(norm: Norm, sizes: tuple[int, ...]) -> None:
    model, source, target = network(norm), ids(B, S, VS), ids(B, T, VT)
    whole = model(source, target, SOURCE_LENGTHS)
    memory, cache, rows = model.encode(source, SOURCE_LENGTHS), None, []
    for part in torch.split(target, list(sizes), dim=1):
        logits, cache = model.decode(part, memory, SOURCE_LENGTHS, cache=cache)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows, dim=1), whole, rtol=0, atol=1e-12)


def prefix(model: Transformer, source: Tensor, target: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Cache]:
    """The memory and the cache after a target prefix."""
    memory = model.encode(source, lengths)
    _, cache = model.decode(target, memory, lengths)
    return memory, cache


def test_a_selected_cache_is_the_cache_of_the_selected_samples() -> None:
    model, source, target, rows = network(), ids(B, S, VS), ids(B, T, VT), torch.tensor([1, 0, 1])
    lengths = tuple(SOURCE_LENGTHS[row] for row in rows)
    memory, cache = prefix(model, source, target[:, :4], SOURCE_LENGTHS)
    chosen, _ = model.decode(target[rows, 4:], memory[rows], lengths, cache=cache.select(rows))
    other_memory, other_cache = prefix(model, source[rows], target[rows, :4], lengths)
    wanted, _ = model.decode(target[rows, 4:], other_memory, lengths, cache=other_cache)
    torch.testing.assert_close(chosen, wanted, rtol=0, atol=1e-12)
    assert (cache.length, cache.batch, cache.select(rows).batch) == (4, B, 3)


def test_decoding_leaves_the_cache_it_was_given_alone() -> None:
    model, source, target = network(), ids(B, S, VS), ids(B, T, VT)
    with torch.no_grad():
        memory, cache = prefix(model, source, target[:, :3], SOURCE_LENGTHS)
    kept = copy.deepcopy(cache)
    _, longer = model.decode(target[:, 3:], memory, SOURCE_LENGTHS, cache=cache)
    assert (cache.length, longer.length) == (3, T)
    for layer, other in zip(cache.layers, kept.layers, strict=True):
        assert torch.equal(layer.own.key, other.own.key)
        assert torch.equal(layer.own.value, other.own.value)
        assert torch.equal(layer.cross.key, other.cross.key)


def test_the_source_s_keys_are_computed_once() -> None:
    model, source, target = network(), ids(B, S, VS), ids(B, T, VT)
    memory, cache = prefix(model, source, target[:, :3], SOURCE_LENGTHS)
    _, longer = model.decode(target[:, 3:4], memory, SOURCE_LENGTHS, cache=cache)
    for before, after in zip(cache.layers, longer.layers, strict=True):
        assert after.cross.key is before.cross.key


# --- what is seen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
def test_padding_changes_nothing_in_the_encoder(norm: Norm) -> None:
    report = check.padding(
        network(norm), ids(B, S, VS), SOURCE_LENGTHS, call=lambda model, x, lengths: model.encode(x, lengths)
    )
    report.raise_for_failure()


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_padding_changes_nothing_in_the_decoder(norm: Norm) -> None:
    source = ids(B, S, VS)
    report = check.padding(
        network(norm),
        ids(B, T, VT),
        TARGET_LENGTHS,
        call=lambda model, x, lengths: model(source, x, SOURCE_LENGTHS, lengths),
    )
    report.raise_for_failure()


@pytest.mark.parametrize("norm", NORMS)
def test_the_decoder_never_sees_the_source_s_padding(norm: Norm) -> None:
    model, source, target = network(norm), ids(B, S, VS), ids(B, T, VT)
    wanted = model(source, target, SOURCE_LENGTHS)
    longer = F.pad(source, (0, 3), value=9)
    longer[1, 3:] = 7
    torch.testing.assert_close(model(longer, target, SOURCE_LENGTHS), wanted, rtol=0, atol=1e-12)
    alone = model(source[1:, :3], target[1:])
    torch.testing.assert_close(wanted[1:], alone, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_the_decoder_sees_all_of_the_past_and_none_of_the_future(norm: Norm) -> None:
    stacks, memory, states = network(norm).stacks, torch.randn(B, S, D).double(), torch.randn(B, T, D)
    masks = seq2seq(SOURCE_LENGTHS)

    def decoder(module: EncoderDecoder, x: Tensor) -> Tensor:
        return module(memory, x, masks)  # type: ignore[no-any-return]

    check.causality(stacks, states, call=decoder).raise_for_failure()
    assert torch.equal(check.influence(stacks, states, call=decoder), Causal().dense(T, T)[0, 0])


def test_every_target_position_sees_every_real_source_position() -> None:
    stacks, target = network().stacks, torch.randn(B, T, D).double()
    seen = check.influence(stacks, torch.randn(B, S, D), call=lambda module, x: module(x, target, seq2seq((3, 3))))
    assert torch.equal(seen, (torch.arange(S) < 3).expand(T, S))
    encoder = check.influence(stacks.encoder, torch.randn(B, S, D))
    assert bool(encoder.all())


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_an_empty_source_gives_finite_outputs_and_gradients(norm: Norm, need_weights: bool) -> None:
    model, source, target = network(norm), ids(B, S, VS), ids(B, T, VT)
    if need_weights:
        logits, weights = model(source, target, (0, S), need_weights=True)
        assert all(torch.count_nonzero(layer[0]) == 0 for layer in (*weights.encoder, *weights.cross))
    else:
        logits = model(source, target, (0, S))
    assert bool(logits.isfinite().all())
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


# --- how it is built ------------------------------------------------------------------------------------------


def counted(module: nn.Module) -> int:
    """Numbers that a module learns, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def by_hand(config: ModelConfig, matrices: int) -> int:
    """The same count from the paper's formulas, with so many embedding matrices that are not shared."""
    d, f = config.d_model, config.d_ff
    attention, norm = 4 * (d * d + d), 2 * d
    feed_forward = (d * f + f) + (f * d + d)
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    return encoder + decoder + matrices * config.target_vocab_size * d


@pytest.mark.parametrize(
    ("config", "millions"), [(ModelConfig.base(), 65), (ModelConfig.big(), 213)], ids=["base", "big"]
)
def test_the_paper_s_models_have_the_paper_s_sizes(config: ModelConfig, millions: int) -> None:
    with torch.device("meta"):
        count = counted(Transformer(config))
    assert count == by_hand(config, matrices=1)
    assert abs(count / (millions * 10**6) - 1) < 0.03


def test_pre_norm_and_learned_positions_add_what_they_add() -> None:
    config = settings().replace(source_vocab_size=VT)
    post, pre = counted(Transformer(config)), counted(Transformer(config.replace(norm="pre")))
    learned = counted(Transformer(config.replace(positions="learned", max_positions=17)))
    assert post == by_hand(config, matrices=3)
    assert pre - post == 2 * 2 * D  # a norm after each stack
    assert learned - post == 2 * 17 * D


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tying_shares_one_parameter(tie: str, matrices: int) -> None:
    config = settings().replace(source_vocab_size=VT, tie_embeddings=tie)
    model = copy.deepcopy(Transformer(config))
    source, target, head = model.source_embedding.weight, model.target_embedding.weight, model.head.weight
    assert (head is target, source is target) == (tie != "none", tie == "all")
    assert counted(model) == by_hand(config, matrices)
    model(ids(B, S, VT), ids(B, T, VT)).logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(head, target) is (tie != "none")
    assert torch.equal(source, target) is (tie == "all")


def test_stacks_have_depths_and_vocabularies_of_their_own() -> None:
    model = network()
    assert (len(model.stacks.encoder.layers), len(model.stacks.decoder.layers)) == (2, 3)
    assert (model.source_embedding.num_embeddings, model.target_embedding.num_embeddings) == (VS, VT)
    assert model(torch.full((B, S), VS - 1), torch.full((B, T), VT - 1)).shape == (B, T, VT)


@pytest.mark.parametrize("norm", NORMS)
def test_only_pre_norm_stacks_end_with_a_norm(norm: Norm) -> None:
    stacks = network(norm).stacks
    assert (stacks.encoder.final_norm is not None) == (stacks.decoder.final_norm is not None) == (norm == "pre")
    told = EncoderDecoder(d_model=D, num_heads=H, norm=norm, final_norm=norm == "post")
    assert (told.encoder.final_norm is None) == (told.decoder.final_norm is None) == (norm == "pre")


@pytest.mark.parametrize("tie", ["none", "decoder"])
@pytest.mark.parametrize("norm", NORMS)
def test_at_first_the_model_knows_nothing(norm: Norm, tie: str) -> None:
    config = settings(norm).replace(target_vocab_size=997, d_model=96, tie_embeddings=tie)
    logits = Transformer(config).eval()(ids(13, S, VS), ids(13, T, 997)).detach()
    assert 0.7 < float(logits.std()) < 1.4
    assert abs(float(logits.mean())) < 0.1
    loss = F.cross_entropy(logits.flatten(0, 1), ids(13, T, 997).flatten())
    assert 0.0 < float(loss) - math.log(997) < 1.0


def entering(model: Transformer, source: Tensor) -> Tensor:
    """What the encoder is given for these ids."""
    kept: list[Tensor] = []
    handle = model.stacks.encoder.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    model.encode(source)
    handle.remove()
    return kept[0]


def test_embeddings_are_scaled_and_told_their_positions() -> None:
    model, source = network(), ids(B, S, VS)
    wanted = model.source_embedding.weight[source] * math.sqrt(D) + model.source_positions(torch.zeros(B, S, D))
    torch.testing.assert_close(entering(model, source), wanted, rtol=0, atol=1e-6)
    assert 0.8 < float(model.source_embedding.weight.detach().mul(math.sqrt(D)).std()) < 1.2


def test_dropout_acts_on_the_sum_of_embeddings_and_positions() -> None:
    model, source = Transformer(settings().replace(dropout=0.5)).double(), ids(B, S, VS)
    whole = entering(model.eval(), source)
    dropped = entering(model.train(), source)
    kept = dropped != 0
    assert 0.3 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


def test_dropout_stands_where_the_settings_say() -> None:
    model = Transformer(settings().replace(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3))
    rates = {name: part.rate for name, part in model.named_modules() if isinstance(part, Dropout)}
    wanted = {"dropout": 0.1}
    for stack, depth, residuals in (("encoder", 2, ("self", "feed_forward")),
                                    ("decoder", 3, ("self", "cross", "feed_forward"))):  # fmt: skip
        for place in (f"stacks.{stack}.layers.{layer}" for layer in range(depth)):
            wanted |= {f"{place}.{name}_residual.dropout": 0.1 for name in residuals}
            wanted[f"{place}.feed_forward.dropout"] = 0.3
    assert rates == wanted
    attentions = [part.dropout for name, part in model.named_modules() if name.endswith("attention")]
    assert attentions == [0.2] * (2 + 2 * 3)


def test_training_is_random_and_evaluation_is_not() -> None:
    model, source, target = Transformer(settings()), ids(B, S, VS), ids(B, T, VT)
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


# --- attention weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
def test_weights_of_every_layer_and_head_are_handed_back(norm: Norm) -> None:
    model, source, target = network(norm), ids(B, S, VS), ids(B, T, VT)
    logits, weights = model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS, need_weights=True)
    torch.testing.assert_close(logits, model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS), rtol=0, atol=1e-12)
    masks = seq2seq(SOURCE_LENGTHS, TARGET_LENGTHS)
    kinds = [(weights.encoder, masks.encoder, (S, S), 2), (weights.decoder, masks.decoder, (T, T), 3)]
    for layers, mask, (queries, keys), depth in [*kinds, (weights.cross, masks.cross, (T, S), 3)]:
        assert [layer.shape for layer in layers] == [(B, H, queries, keys)] * depth
        for layer in layers:
            torch.testing.assert_close(layer.sum(dim=-1), torch.ones(B, H, queries).double())
            assert torch.equal(layer != 0, mask.dense(queries, keys).expand_as(layer))
    assert len({layer[0, 0, 3, 1].item() for layer in (*weights.encoder, *weights.decoder, *weights.cross)}) == 8


def test_states_are_what_the_head_is_given() -> None:
    model, source, target = network(), ids(B, S, VS), ids(B, T, VT)
    states = model.states(source, target, SOURCE_LENGTHS, TARGET_LENGTHS)
    assert states.shape == (B, T, D)
    assert torch.equal(model.head(states), model(source, target, SOURCE_LENGTHS, TARGET_LENGTHS))


# --- the parts ------------------------------------------------------------------------------------------------


def test_norms_stand_before_or_after() -> None:
    states, update = torch.randn(2, B, S, D)
    pre, post = Residual(D, norm="pre").eval(), Residual(D, norm="post").eval()
    nn.init.normal_(pre.norm.weight)
    nn.init.normal_(post.norm.weight)
    assert torch.equal(pre.enter(states), pre.norm(states))
    assert torch.equal(pre.leave(states, update), states + update)
    assert torch.equal(post.enter(states), states)
    assert torch.equal(post.leave(states, update), post.norm(states + update))


@pytest.mark.parametrize(("activation", "function"), [("relu", F.relu), ("gelu", F.gelu)])
def test_the_feed_forward_block_is_two_maps_and_an_activation(activation: str, function: type) -> None:
    block = FeedForward(D, FF, activation="gelu" if activation == "gelu" else "relu")
    states = torch.randn(B, S, D)
    assert torch.equal(block(states), block.outer(function(block.inner(states))))
    assert block.inner.weight.shape == (FF, D)


def test_dropout_keeps_its_rate_and_scales_exactly() -> None:
    ones = torch.ones(200_003)  # no multiple of four: a draw decides four elements
    dropped = Dropout(0.3)(ones)
    assert set(dropped.tolist()) == {0.0, float(torch.tensor(65536 / (65536 - round(0.3 * 65536))))}
    share = float((dropped == 0).double().mean())
    assert abs(share - 0.3) < 0.005  # five standard deviations
    for step in (1, 2, 3, 4):
        both = float(((dropped[step:] == 0) & (dropped[:-step] == 0)).double().mean())
        assert abs(both - 0.09) < 0.005  # neighbours are dropped independently


def test_dropout_is_off_in_evaluation_and_at_rate_zero() -> None:
    states = torch.randn(B, S, D)
    assert Dropout(0.3).eval()(states) is states
    assert Dropout(0.0)(states) is states
    assert str(Dropout(0.25)) == "Dropout(rate=0.25)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_dropout_is_reproduced_by_its_seed(dtype: torch.dtype) -> None:
    states, dropout = torch.randn(B, S, D, dtype=dtype), Dropout(0.5)
    torch.manual_seed(7)
    first = dropout(states)
    assert not torch.equal(dropout(states), first)
    torch.manual_seed(7)
    again = dropout(states)
    assert torch.equal(again, first)
    assert again.dtype == dtype


def test_dropped_numbers_pass_no_gradient() -> None:
    states = torch.randn(B, S, D, requires_grad=True)
    dropped = Dropout(0.5)(states)
    (slope,) = torch.autograd.grad(dropped.sum(), states)
    assert torch.equal(slope, torch.where(dropped == 0, 0.0, 2.0))
    assert 0.3 < float((slope == 0).double().mean()) < 0.7


def test_the_highest_rate_leaves_finite_numbers() -> None:
    dropped = Dropout(1 - 1e-9)(torch.ones(1000))
    assert bool(dropped.isfinite().all())
    assert float((dropped == 0).double().mean()) > 0.99


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(S + 1, 3), (S, 3, 1), (S,)])
def test_source_lengths_must_fit(lengths: tuple[int, ...]) -> None:
    model, source, target = network(), ids(B, S, VS), ids(B, T, VT)
    said = (
        rf"source_lengths \[{', '.join(map(str, lengths))}\] do not fit a source of shape \(2, 5.*give one length for"
    )
    with pytest.raises(ShapeError, match=said):
        model(source, target, lengths)
    with pytest.raises(ShapeError, match=said):
        model.decode(target, model.encode(source), lengths)


@pytest.mark.parametrize("lengths", [(T + 1, 3), (T, 3, 1), torch.tensor([T, T + 1])], ids=str)
def test_target_lengths_must_fit(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"target_lengths \[.*\] do not fit a target of shape \(2, 7\)"):
        network()(ids(B, S, VS), ids(B, T, VT), None, lengths)


def test_a_cache_of_another_batch_or_depth_is_refused() -> None:
    model, source, target = network(), ids(3, S, VS), ids(3, T, VT)
    memory, cache = prefix(model, source, target[:, :4], (S, S, S))
    with pytest.raises(ShapeError, match="was given 2 samples, but a cache of 3 layers and 3 samples; give what"):
        model.decode(target[:2, 4:], memory[:2], cache=cache)
    with pytest.raises(ShapeError, match=r"has 3 layers .* a cache of 2 layers"):
        model.decode(target[:, 4:], memory, cache=Cache(cache.layers[:2]))


@pytest.mark.parametrize("wrong", [VS, -1])
def test_ids_past_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(ShapeError, match="were given, but the vocabulary has 19, from 0; use the tokenizer"):
        network().encode(torch.tensor([[5, wrong]]))


def test_states_of_another_width_are_refused() -> None:
    stacks = network().stacks
    with pytest.raises(ShapeError, match=r"sources \(2, 5, 34\) and targets \(2, 7, 34\); give \(batch, length, 33\)"):
        stacks(torch.randn(B, S, D + 1), torch.randn(B, T, D + 1), seq2seq())


def test_dropout_must_be_a_share() -> None:
    for rate in (-0.1, 1.0, math.inf):
        with pytest.raises(ConfigError, match="give a number from 0 to below 1"):
            EncoderDecoder(d_model=D, num_heads=H, dropout=rate)
