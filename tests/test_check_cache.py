"""Steps with a cache and what is generated equal one call: faults are found and named, right models are not accused."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.check.cached import cache
from pellucid.check.generated import training_matches_generation
from pellucid.check.report import Report
from pellucid.config import ModelConfig
from pellucid.errors import CheckError
from pellucid.model import Cache, Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import LayerCache

B, S, T, D, H, DH, V, VS = 3, 5, 7, 12, 2, 6, 23, 19
P = 2  # ids of a prefix


def failed(report: Report) -> Report:
    """The report of a check that must have failed."""
    assert not report.passed
    return report


def ids(samples: int = B, length: int = T, vocabulary: int = V) -> Tensor:
    """Ids of words, no marks among them."""
    return torch.randint(4, vocabulary, (samples, length))


# --- a decoder by hand ----------------------------------------------------------------------------------------


@dataclass
class Past:
    """Keys and values of all layers; a `fault` says what is forgotten when samples change places."""

    layers: list[tuple[Tensor, Tensor]]
    fault: str = ""

    def select(self, rows: Tensor) -> "Past":
        if self.fault == "not reordered":
            return self
        if self.fault == "values not reordered":
            return Past([(key[rows], value) for key, value in self.layers], self.fault)
        if self.fault == "first layer only":
            first, *rest = self.layers
            return Past([(first[0][rows], first[1][rows]), *rest], self.fault)
        return Past([(key[rows], value[rows]) for key, value in self.layers], self.fault)


class Attention(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = (one.unflatten(-1, (H, DH)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        new = (key, value)
        if past is not None and self.fault != "cache not read":
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        made = F.scaled_dot_product_attention(
            query, key, value, **self.mask(query.shape[2], key.shape[2], past is None)
        )
        kept = new if self.fault == "overwritten" else (key, value)
        if self.fault == "buffer of three":
            kept = (key[:, :, -3:], value[:, :, -3:])
        return self.out(made.transpose(1, 2).flatten(2)), kept

    def mask(self, queries: int, keys: int, begins: bool) -> dict[str, Any]:
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if self.fault == "is_causal at every step":
            return {"is_causal": True}
        if self.fault == "is_causal where there is no cache":
            return {"is_causal": begins}
        if self.fault == "is_causal of several":
            return {"is_causal": queries > 1}
        if self.fault == "third hidden" and not begins and keys > 3:
            return {"attn_mask": seen & (torch.arange(keys) != 2)}
        if self.fault == "window at once" and begins:
            return {"attn_mask": seen.triu(-1)}
        if self.fault == "no mask":
            return {}
        return {"attn_mask": seen}


class Block(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.attention = Attention(fault)
        self.norms = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)])
        self.feed_forward = nn.Sequential(nn.Linear(D, 17), nn.GELU(), nn.Dropout(0.3), nn.Linear(17, D))
        if fault == "batch norm":
            self.batch_norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        made, kept = self.attention(self.norms[0](x), past)
        x = x + made
        if self.fault == "norm over time":
            x = F.layer_norm(x, x.shape[1:])
        elif self.fault == "batch norm":
            x = self.batch_norm(x.mT).mT
        elif self.fault == "mean over time":
            x = x - x.mean(dim=1, keepdim=True)
        elif self.fault == "length":
            x = x / math.sqrt(x.shape[1])
        elif self.fault == "dropout left on":
            x = F.dropout(x, 0.3)
        return x + self.feed_forward(self.norms[1](x)), kept


class GPT(nn.Module):
    """A decoder by itself, as people write it: ids and a cache in, logits and the cache out."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(31, D)
        self.blocks = nn.ModuleList([Block(fault), Block(fault)])
        self.head = nn.Linear(D, V)

    def forward(self, ids: Tensor, cache: Past | None = None) -> tuple[Tensor, Past]:
        first = 0 if cache is None else cache.layers[0][0].shape[2]
        if self.fault == "positions begin anew":
            first = 0
        elif self.fault == "positions one too far" and cache is not None:
            first += 1
        places = torch.arange(first, first + ids.shape[1])
        if self.fault == "one position for a chunk" and cache is not None:
            places = torch.full_like(places, first)
        x, made = self.words(ids) + self.places(places), []
        for layer, block in enumerate(self.blocks):
            x, kept = block(x, None if cache is None else cache.layers[layer])
            made.append(kept)
        return self.head(x), Past(made, self.fault)


def steps_of(report: Report) -> str:
    """Which course the first finding speaks of."""
    return report.findings[0].partition(",")[0]


def test_a_decoder_by_hand_passes_as_it_is_made() -> None:
    report = cache(GPT(), ids())
    report.raise_for_failure()
    assert report.name == "cache"
    assert report.notes == ()
    assert report.ways == {"evaluation, float64": True, "evaluation, float32": True}
    assert (report.figures["positions"], report.figures["differing"]) == (T, 0)
    training_matches_generation(GPT(), ids(length=P)).raise_for_failure()


STEPS = [
    ("positions begin anew", "step by step", "positions begin anew"),
    ("positions one too far", "step by step", "positions begin anew at each step, or elsewhere"),
    ("cache not read", "step by step", "cache not read"),
    ("overwritten", "step by step", "cache overwritten"),
    ("is_causal at every step", "step by step", "causal mask aligned to the wrong corner"),
    ("third hidden", "step by step", "the mask of a step hides"),
    ("window at once", "step by step", "a step sees more of the past"),
    ("buffer of three", "step by step", "steps are right up to position 4"),
    ("norm over time", "step by step", "the first call, which has no cache yet"),
    ("no mask", "step by step", "the first call, which has no cache yet"),
    ("dropout left on", "two calls with the same input differ by", "dropout left on"),
    ("is_causal where there is no cache", "in chunks", "mask within a chunk"),
    ("is_causal of several", "in chunks", "causal mask aligned to the wrong corner"),
    ("one position for a chunk", "in chunks", "positions within a chunk"),
    ("not reordered", "samples reordered", "cache not reordered"),
    ("values not reordered", "samples reordered", "cache not reordered"),
    ("first layer only", "samples reordered", "cache not reordered"),
]


@pytest.mark.parametrize(("fault", "course", "slip"), STEPS, ids=[fault for fault, _, _ in STEPS])
def test_a_fault_of_the_cache_is_found_and_named(fault: str, course: str, slip: str) -> None:
    report = failed(cache(GPT(fault), ids()))
    assert report.findings[0].startswith(course)
    assert report.advice.startswith(slip)
    assert not any(report.ways.values())


def test_the_first_difference_is_named_with_its_size_and_drawn() -> None:
    model, target = GPT("not reordered").double(), ids()
    report = failed(cache(model, target))
    with torch.no_grad():
        wanted = model.eval()(target)[0].flip(0)  # of the samples in the opposite order
        found = model(torch.cat([target[:, :2], target.flip(0)[:, 2:]], dim=1))[0]  # new ids after another's past
    change = float((found - wanted)[:, 2].abs().max())
    assert report.findings[0].startswith("samples reordered, position 2 of sample ")
    assert f"differs by {change:.3g}: logit " in report.findings[0]
    assert report.findings[0].endswith("5 of 7 positions differ")
    assert report.figures["differing"] == 5
    assert report.picture.split("\n") == [
        "  position          0 1 2 3 4 5 6",
        "  step by step      ■ ■ ■ ■ ■ ■ ■",
        "  in chunks        |■ ■ ■|■ ■|■|■",
        "  samples reordered ■ ■↕! !↕! ! !",
        "  (■ equal, ! differs, | a step of several begins, ↕ samples change places)",
    ]


def test_steps_of_one_are_enough_where_a_model_takes_no_more() -> None:
    assert cache(GPT("is_causal where there is no cache"), ids(), chunks=False)
    assert not cache(GPT("not reordered"), ids(), chunks=False)


@pytest.mark.slow
def test_a_long_target_is_drawn_where_it_goes_wrong(unchecked: None) -> None:
    class Late(GPT):
        def forward(self, ids: Tensor, cache: Past | None = None) -> tuple[Tensor, Past]:
            logits, made = super().forward(ids % V, cache)
            return logits + (cache is not None and made.layers[0][0].shape[2] > 43), made

    model = Late()
    model.places = nn.Embedding(61, D)
    report = failed(cache(model, ids(length=53)))
    assert "position 43 of" in report.findings[0]
    assert report.advice.startswith("steps are right up to position 43")
    head, row = report.picture.split("\n")[:2]
    assert head.split() == ["position", *(str(place) for place in range(23, 53))]
    assert row.split()[3:] == ["■"] * 20 + ["!"] * 10


def test_one_sample_or_samples_alike_show_no_order() -> None:
    alone = cache(GPT("not reordered"), ids(1))
    assert alone.passed
    assert alone.notes == ("one sample cannot change places with another; give two at least",)
    alike = cache(GPT("not reordered"), ids(1).expand(B, -1))
    assert alike.passed
    assert alike.notes[0].startswith("all samples give the same")


# --- told by functions ----------------------------------------------------------------------------------------


def plain(model: GPT, target: Tensor) -> Tensor:
    return model(target)[0]  # type: ignore[no-any-return]


def by_hand(model: GPT, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    """A step whose state is a tuple, and of whose ids the last one's logits are (B, V)."""
    logits, made = model(new, None if state is None else Past(state))
    return logits[:, -1] if new.shape[1] == 1 else logits, made.layers


def rows_of(state: Any, rows: Tensor) -> Any:
    return [(key[rows], value[rows]) for key, value in state]


def test_any_model_is_told_by_functions() -> None:
    report = cache(GPT(), ids(), whole=plain, step=by_hand, select=rows_of)
    report.raise_for_failure()
    assert report.notes == ()
    wrong = failed(cache(GPT(), ids(), step=by_hand, select=lambda state, _: state))
    assert wrong.advice.startswith("cache not reordered")
    assert steps_of(wrong) == "samples reordered"


def test_where_no_order_is_known_a_note_says_so() -> None:
    report = cache(GPT(), ids(), step=by_hand)
    assert report.passed
    assert report.notes == (
        "no way is known to reorder this cache, so that was not looked at; give step=, begin= and select=",
    )


@pytest.mark.parametrize("forgets", [False, True])
def test_a_model_may_reorder_its_cache_itself(forgets: bool) -> None:
    class Keeping(GPT):
        def forward(self, ids: Tensor, cache: Any = None) -> Any:
            logits, made = super().forward(ids, None if cache is None else Past(cache))
            return logits, made.layers

        def _reorder_cache(self, past: Any, rows: Tensor) -> Any:
            return past if forgets else rows_of(past, rows)

    report = cache(Keeping(), ids())
    assert report.passed == (not forgets)
    assert report.notes == ()
    assert report.advice.startswith("cache not reordered" if forgets else "")


def test_a_function_over_a_model_is_stepped_as_it_is() -> None:
    model = GPT().eval()

    def function(target: Tensor) -> Tensor:
        return model(target)[0]  # type: ignore[no-any-return]

    def step(_: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, made = model(new, state)
        return logits, made

    report = cache(function, ids(), step=step)
    report.raise_for_failure()
    assert report.ways == {"as it is": True}
    model.fault = "positions begin anew"
    assert failed(cache(function, ids(), step=step)).advice.startswith("positions begin anew")
    model.train()
    assert failed(cache(function, ids(), step=step)).advice.startswith("dropout left on")


def test_a_decoder_of_states_is_checked_too() -> None:
    attention = nn.Module()
    attention.inner = Attention("")

    def step(module: Any, states: Tensor, state: Any) -> tuple[Tensor, Any]:
        return module.inner(states, state)  # type: ignore[no-any-return]

    def whole(module: Any, states: Tensor) -> Tensor:
        return module.inner(states, None)[0]  # type: ignore[no-any-return]

    states = torch.randn(B, T, D)
    assert cache(attention, states, whole=whole, step=step)
    attention.inner.fault = "is_causal at every step"
    assert failed(cache(attention, states, whole=whole, step=step)).advice.startswith("causal mask aligned")


def test_a_softmax_in_float32_is_no_fault() -> None:
    class Coarse(Attention):
        def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            query, key, value = (one.unflatten(-1, (H, DH)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
            if past is not None:
                key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
            scores = 9 * query @ key.mT
            seen = self.mask(query.shape[2], key.shape[2], past is None)["attn_mask"]
            weights = scores.masked_fill(~seen, -1e9).softmax(dim=-1, dtype=torch.float32).to(x)
            return self.out((weights @ value).transpose(1, 2).flatten(2)), (key, value)

    model = GPT()
    for block in model.blocks:
        block.attention = Coarse("")
    assert cache(model, ids(length=17))
    assert 1e-9 < float(cache(model, ids(length=17)).figures["largest difference"]) < 1e-5
    assert not cache(model, ids(length=17), tolerance=1e-11)
    assert training_matches_generation(model, ids(length=P), steps=11)


def test_an_impossible_word_on_both_sides_is_equal() -> None:
    model = GPT()
    with torch.no_grad():
        model.head.bias[3] = float("-inf")
    assert cache(model, ids())
    with torch.no_grad():
        model.head.bias[3] = float("nan")
    assert not cache(model, ids())


# --- refused ----------------------------------------------------------------------------------------------------


class Silent(GPT):
    """Takes a cache and hands none back."""

    def forward(self, ids: Tensor, cache: Any = None) -> Any:
        return super().forward(ids, cache)[0]


def short(model: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    """A step that gives the last id's logits, of however many."""
    logits, made = model(new, state)
    return logits[:, -1], made


def stumbling(model: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    raise RuntimeError("size of tensor a\nmust match")


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: cache(GPT()), r"given no target of \(batch, length\)"),
    (lambda: cache(GPT(), torch.arange(T)), r"given no target of \(batch, length\)"),
    (lambda: cache(GPT(), ids(length=1)), "targets of length 1; give two ids at least, to take a step"),
    (lambda: cache(nn.Linear(D, D), torch.randn(B, T, D)), "does not know how Linear takes a step.*give step=lambda"),
    (lambda: cache(GPT(), ids(), ids()), "does not know how GPT takes a step with these inputs.*begin="),
    (lambda: cache(GPT(), ids(), ids(), step=by_hand), r"for 2 inputs without begin="),
    (lambda: cache(GPT(), ids(), select=rows_of), "select= was given without step="),
    (lambda: cache(GPT(), ids(), begin=lambda _: None), "begin= was given without step="),
    (lambda: cache(Silent(), ids()), "Silent takes a cache and handed none back, but a Tensor; give step="),
    (lambda: cache(GPT(), ids(), step=short), r"gave \(3, 23\) for ids \(3, 3\); give a step .* or chunks=False"),
    (lambda: cache(GPT(), ids(), step=stumbling), r"step by step failed \(RuntimeError: size of tensor a must match\)"),
    (lambda: cache(lambda x: x.float(), ids(), step=by_hand), r"gave \(3, 7\) for targets \(3, 7\); give whole="),
    (
        lambda: cache(GPT(), ids(), step=lambda m, new, state: (m(new)[0][..., 1:], state)),
        r"steps gave logits \(3, 7, 22\), and all positions at once \(3, 7, 23\)",
    ),
    (lambda: training_matches_generation(GPT()), "no prefix of ids"),
    (lambda: training_matches_generation(GPT(), torch.randn(B, P)), "no prefix of ids"),
    (lambda: training_matches_generation(GPT(), ids(), steps=1), "given 1 steps; give 2 at least"),
    (lambda: training_matches_generation(GPT(), ids(), steps=31), "failed .IndexError.*; see that it takes such"),
    (lambda: training_matches_generation(lambda x: x.float(), ids()), r"gave \(3, 7\) for ids \(3, 7\); give whole="),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_cannot_be_stepped_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(CheckError, match=said):
        call()


# --- encoder and decoder ----------------------------------------------------------------------------------------

Norm = Literal["pre", "post"]
Scheme = Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]
SCHEMES: tuple[Scheme, ...] = ("sinusoidal", "learned", "rotary", "alibi", "t5", "none")


def network(norm: Norm = "pre", scheme: Scheme = "sinusoidal", layers: int = 2) -> Transformer:
    """A small model, whose positions are drawn large enough to be seen."""
    model = Transformer(
        ModelConfig(
            source_vocab_size=VS, target_vocab_size=V, d_model=D, num_heads=H, d_ff=17, num_encoder_layers=1,
            num_decoder_layers=layers, norm=norm, positions=scheme, max_positions=31,
        )
    )  # fmt: skip
    for side in (model.source_positions, model.target_positions):
        for parameter in side.parameters():
            nn.init.normal_(parameter)
    return model


def pair() -> tuple[Tensor, Tensor]:
    """Sources and targets."""
    return ids(length=S, vocabulary=VS), ids()


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "scheme", [one if one in ("sinusoidal", "rotary") else pytest.param(one, marks=pytest.mark.slow) for one in SCHEMES]
)
def test_our_model_generates_what_it_is_trained_on(scheme: Scheme, norm: Norm, unchecked: None) -> None:
    model, (source, target) = network(norm, scheme), pair()
    report = cache(model, source, target)
    report.raise_for_failure()
    assert report.notes == ()
    matched = training_matches_generation(model, source, target[:, :P])
    matched.raise_for_failure()
    assert len(matched.ways) == 4


@pytest.mark.parametrize("backend", ["formula", "fused", "blocks"])
def test_our_model_does_so_whatever_computes_its_attention(backend: Any, unchecked: None) -> None:
    model, (source, target) = network(), pair()
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.backend = backend
    cache(model, source, target).raise_for_failure()
    training_matches_generation(model, source, target[:, :1]).raise_for_failure()


def select_of(own: bool, cross: bool) -> Callable[[Any, Tensor], Any]:
    """How a beam reorders our cache, own keys and those of the source apart."""

    def select(state: tuple[Tensor, Cache], rows: Tensor) -> tuple[Tensor, Cache]:
        memory, past = state
        layers = tuple(
            LayerCache(layer.own.select(rows) if own else layer.own, layer.cross.select(rows) if cross else layer.cross)
            for layer in past.layers
        )
        return memory, Cache(layers)

    return select


def taken(model: Transformer, new: Tensor, state: tuple[Tensor, Cache | None]) -> tuple[Tensor, Any]:
    logits, past = model.decode(new, state[0], cache=state[1])
    return logits, (state[0], past)


@pytest.mark.parametrize(
    ("own", "cross", "slip"),
    [
        (True, False, "memory not reordered"),
        (False, True, "cache not reordered"),
        (False, False, "cache not reordered"),
    ],
)
def test_what_a_beam_forgets_to_reorder_is_told_apart(own: bool, cross: bool, slip: str, unchecked: None) -> None:
    def begin(model: Transformer, source: Tensor) -> Any:
        return model.encode(source), None

    report = failed(cache(network(), *pair(), begin=begin, step=taken, select=select_of(own, cross)))
    assert steps_of(report) == "samples reordered"
    assert report.advice.startswith(slip)
    assert cache(network(), *pair(), begin=begin, step=taken, select=select_of(own=True, cross=True))


def test_a_source_that_cached_steps_do_not_read_is_found() -> None:
    def step(model: Transformer, new: Tensor, state: tuple[Tensor, Cache | None]) -> tuple[Tensor, Any]:
        logits, past = model.decode(new, state[0], cache=state[1])
        blank = tuple(
            LayerCache(layer.own, type(layer.cross)(0 * layer.cross.key, 0 * layer.cross.value))
            for layer in past.layers
        )
        return logits, (state[0], Cache(blank))

    def begin(model: Transformer, source: Tensor) -> Any:
        return model.encode(source), None

    assert failed(cache(network(layers=1), *pair(), begin=begin, step=step)).advice.startswith("memory not read")


# --- what is generated -------------------------------------------------------------------------------------------


class Uncached(nn.Module):
    """The same decoder, which takes no cache."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.inner = GPT(fault)

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids)[0]  # type: ignore[no-any-return]


GENERATED = [
    ("norm over time", "growing a prefix", "normalisation over time: inner.blocks.0"),
    ("mean over time", "growing a prefix", "inner.blocks.0 takes a mean"),
    ("length", "growing a prefix", "length: at once, a position's logits depend on how many"),
    ("no mask", "growing a prefix", "look-ahead: in training inner.blocks.0.attention sees ids"),
    ("dropout left on", "two calls with the same input differ by", "dropout left on"),
]


@pytest.mark.parametrize(("fault", "how", "slip"), GENERATED, ids=[fault for fault, _, _ in GENERATED])
def test_a_model_that_generates_otherwise_is_found(fault: str, how: str, slip: str) -> None:
    report = failed(training_matches_generation(Uncached(fault), ids(length=P)))
    assert report.findings[0].startswith(how)
    assert report.advice.startswith(slip)
    assert training_matches_generation(Uncached(), ids(length=P))


def test_a_batch_norm_is_found_in_training() -> None:
    report = failed(training_matches_generation(Uncached("batch norm"), ids(length=P)))
    assert report.ways == {
        "evaluation, float64": True, "evaluation, float32": True, "training, float64": False, "training, float32": False,
    }  # fmt: skip
    assert report.advice.startswith("normalisation over time: inner.blocks.0.batch_norm takes its statistics over all")
    assert report.where == "inner.blocks.0.batch_norm"


def test_another_habit_of_training_is_found() -> None:
    class Doubled(Uncached):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * (2 if self.training else 1)

    assert failed(training_matches_generation(Doubled(), ids(length=P))).advice.startswith(
        "in training mode the module"
    )


def test_chance_in_training_is_no_fault() -> None:
    class Noisy(Uncached):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return logits + torch.rand_like(logits) if self.training else logits

    report = training_matches_generation(Noisy(), ids(length=P))
    assert report.passed
    assert report.notes == ("chance decides outputs in training, so none were compared there",)


def test_a_faulty_cache_is_told_from_a_faulty_model() -> None:
    report = failed(training_matches_generation(GPT("positions begin anew"), ids(length=P)))
    assert [finding.partition(",")[0] for finding in report.findings] == ["step by step"]
    assert report.advice.startswith("positions begin anew")
    assert report.picture.split("\n") == [
        "  position         1 2 3 4 5 6 7 8",
        "  step by step     ■ ! ! ! ! ! ! !",
        "  growing a prefix ■ ■ ■ ■ ■ ■ ■ ■",
        "  (■ as in training, ! differs)",
    ]


def test_the_choices_of_both_are_named() -> None:
    class Counting(nn.Module):
        """The next id is the one before plus one; but a step, which sees one id, takes two."""

        def forward(self, ids: Tensor) -> Tensor:
            return F.one_hot((ids + 1 + (ids.shape[1] == 2)) % V, V).double()

    report = failed(training_matches_generation(Counting(), torch.full((1, 1), 4), steps=3))
    assert report.findings == (
        "growing a prefix, position 1 of sample 0 differs by 1: it chooses 7, training 6; 1 of 3 positions "
        "and 1 choices differ",
    )
    assert report.figures == {"steps": 3, "differing": 1, "largest difference": 1.0}


# --- nothing is touched -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [cache, training_matches_generation])
def test_nothing_is_touched(check: Any) -> None:
    model, given = GPT("batch norm").train(), (ids(length=5),)
    model.head(torch.randn(B, D)).sum().backward()
    kept, before, state = given[0].clone(), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradient = model.head.weight.grad
    assert isinstance(check(model, *given), Report)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(given[0], kept)
    assert all(part.training for part in model.modules())
    assert model.head.weight.grad is gradient
    assert all(one.requires_grad for one in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype


# --- other people's models ----------------------------------------------------------------------------------------


def foreign(kind: str, attention: str) -> nn.Module:
    """A tiny model of Hugging Face, with numbers large enough to be seen."""
    hf: Any = pytest.importorskip("transformers")
    marks = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "attn_implementation": attention}
    sides = {
        "d_model": D, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": H, "decoder_attention_heads": H,
        "encoder_ffn_dim": 17, "decoder_ffn_dim": 17, "max_position_embeddings": 31, "decoder_start_token_id": 2,
        "init_std": 0.3, "forced_eos_token_id": None,
    }  # fmt: skip
    made: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=V, n_embd=D, n_layer=2, n_head=H, n_positions=31, initializer_range=0.3, **marks)
        ),
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(
                vocab_size=V, hidden_size=D, num_hidden_layers=2, num_attention_heads=H, num_key_value_heads=1,
                intermediate_size=17, max_position_embeddings=31, initializer_range=0.3, **marks,
            )
        ),
        "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=V, **sides, **marks)),
        "marian": lambda: hf.MarianMTModel(hf.MarianConfig(vocab_size=V, **sides, **marks)),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=V, d_model=D, num_layers=2, num_heads=H, d_kv=DH, d_ff=17, decoder_start_token_id=2,
                eos_token_id=3, pad_token_id=0, attn_implementation=attention,
            )
        ),
    }  # fmt: skip
    model: nn.Module = made[kind]()
    return model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bart", "marian", "t5"])
def test_models_of_hugging_face_are_not_accused(kind: str, attention: str, unchecked: None) -> None:
    model = foreign(kind, attention)
    source = (ids(length=S),) if kind in ("bart", "marian", "t5") else ()
    report = cache(model, *source, ids())
    report.raise_for_failure()
    assert report.notes == ()
    training_matches_generation(model, *source, ids(length=P)).raise_for_failure()


def test_a_model_of_hugging_face_whose_positions_begin_anew_is_found(unchecked: None) -> None:
    hf: Any = pytest.importorskip("transformers")

    class Restarting(hf.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, cache: Any = None, use_cache: bool = False) -> Any:
            places = torch.arange(input_ids.shape[1])[None]
            name = "cache" if "cache" in hf.GPT2LMHeadModel.forward.__annotations__ else "past_key_values"
            return super().forward(input_ids, position_ids=places, use_cache=use_cache, **{name: cache})

    config = foreign("gpt2", "sdpa").config
    report = failed(cache(Restarting(config), ids()))
    assert report.advice.startswith("positions begin anew")
