"""Each check passes on a module that keeps its promise, finds the fault of one that does not, and touches neither."""

import copy
import functools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid import check
from pellucid.config import ModelConfig
from pellucid.errors import CheckError, CheckFailed
from pellucid.masks import Causal, Padding, Prefix, Window
from pellucid.model import MultiHeadAttention, Transformer
from pellucid.model.positions import First, Positions, Sinusoidal

B, S, T, D = 2, 5, 7, 6


def failed(report: check.Report) -> tuple[str, ...]:
    """The findings of a check that must have failed."""
    assert not report.passed
    return report.findings


class Shifted(nn.Module):
    """A running sum of what stands `ahead` positions in the future."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead = ahead
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.scale * x, (0, 0, 0, self.ahead))[:, self.ahead :].cumsum(dim=1)


# --- causality and influence ----------------------------------------------------------------------------------


def test_a_causal_module_passes() -> None:
    report = check.causality(Shifted(0), torch.randn(B, T, D))
    assert report.passed
    assert report
    report.raise_for_failure()
    assert str(report) == (
        "causality: passed: no output position may depend on a later input position\n  outputs = 7\n  leaking = 0"
    )


def test_a_look_ahead_by_one_is_found() -> None:
    report = check.causality(Shifted(1), torch.randn(B, T, D))
    assert [finding.partition(" (slope")[0] for finding in failed(report)] == [
        f"output {row} depends on input {row + 1}" for row in range(T - 1)
    ]
    assert report.figures == {"outputs": T, "leaking": T - 1}
    with pytest.raises(CheckFailed, match="output 0 depends on input 1"):
        report.raise_for_failure()


def test_the_picture_shows_where_it_leaks() -> None:
    assert check.causality(Shifted(1), torch.randn(B, 3, D)).picture.split("\n") == [
        "    meant   found",
        "    0 1 2   0 1 2",
        "  0 ■ · ·   · ! ·",
        "  1 ■ ■ ·   · ■ !",
        "  2 ■ ■ ■   · ■ ■",
        "    (■ sees, ! sees what it must not)",
    ]


def test_a_finding_names_some_of_many_inputs() -> None:
    found = failed(check.causality(lambda x: x.flip(1).cumsum(1).flip(1), torch.randn(B, 11, D)))
    assert found[0].startswith("output 0 depends on inputs 1, 2, 3, 4, 5 ... (slope ")
    assert found[7].startswith("output 7 depends on inputs 8, 9, 10 (slope ")
    assert found[8:] == ("and 2 more outputs",)


def test_attention_is_seen_through_whatever_its_mask(unchecked: None) -> None:
    attention, x = MultiHeadAttention(D, 2), torch.randn(B, T, D)

    def masked(module: MultiHeadAttention, x: Tensor) -> Tensor:
        return module(x, x, x, mask=Causal())  # type: ignore[no-any-return]

    assert check.causality(attention, x, call=masked)
    assert torch.equal(check.influence(attention, x, call=masked), Causal().dense(T, T)[0, 0])
    assert not check.causality(attention, x, call=lambda module, x: module(x, x, x))


def test_foreign_modules_are_checked_too() -> None:
    x = torch.randn(B, T, D)
    assert check.causality(nn.GRU(D, D, batch_first=True), x)  # of its two outputs, the first
    assert not check.causality(nn.GRU(D, D, batch_first=True, bidirectional=True), x)
    layer = nn.TransformerEncoderLayer(D, 2, 11, batch_first=True)
    assert not check.causality(layer, x)
    blocked = ~Causal().dense(T, T)[0, 0]
    assert check.causality(layer, x, call=lambda module, x: module(x, src_mask=blocked))


def test_influence_may_have_other_outputs_than_inputs() -> None:
    seen = check.influence(lambda x: x.unfold(1, 3, 2).mean(-1), torch.randn(B, T, D))
    assert seen.int().tolist() == [[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]]


REFUSED_MODULES: list[tuple[Callable[[Tensor], Any], str]] = [
    (
        lambda x: x.mean(1),
        r"gave \(2, 6\) for 7 positions of \(2, 7, 6\), but outputs were to stand at positions on axis 1",
    ),
    (lambda x: {"states": x}, "gave a dict, not a tensor; give call="),
    (lambda x: torch.ones_like(x, requires_grad=True) * 2, "does not depend on the input that is asked about at all"),
    (torch.ones_like, "does not depend on the input that is asked about at all; give call="),
]


@pytest.mark.parametrize(("module", "said"), REFUSED_MODULES, ids=["pooled", "dict", "constant", "without a gradient"])
def test_influence_needs_outputs_at_positions_that_depend_on_something(
    module: Callable[[Tensor], Any], said: str
) -> None:
    with pytest.raises(CheckError, match=said):
        check.influence(module, torch.randn(B, T, D))


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(D, D)
    vars(module)["kept"] = (weight for weight in module.weight)  # a generator
    with pytest.raises(CheckError, match=r"Linear cannot be copied .*; wrap it in a function to check it"):
        check.causality(module, torch.randn(B, T, D))


def test_the_first_submodule_that_breaks_the_promise_is_named() -> None:
    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.before, self.inner, self.after = nn.Linear(D, D), inner, nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            inner = self.inner(self.before(x))
            return self.after(inner.flip(1) if isinstance(self.inner, nn.Identity) else inner)  # type: ignore[no-any-return]

    x = torch.randn(B, T, D)
    assert check.causality(nn.Sequential(Around(Shifted(0)), Around(Shifted(1))), x).where == "1.inner (Shifted)"
    assert check.causality(nn.Sequential(Around(Shifted(0)), Around(nn.Identity())), x).where == "1 (Around)"
    assert check.causality(Shifted(1), x).where == "the module itself (Shifted)"
    assert check.causality(lambda x: x.flip(1), x).where == ""


def test_dropout_that_is_left_on_is_named() -> None:
    x = torch.randn(B, T, D)
    for report in (check.batching(F.dropout, x), check.independence(F.dropout, x)):
        assert failed(report)[0].startswith("two calls with the same input differ by ")
        assert report.advice.startswith("dropout left on: ")
    assert check.causality(F.dropout, x)  # which is no look ahead


# --- padding --------------------------------------------------------------------------------------------------


class Centred(nn.Module):
    """States less their mean, over the real positions or, `wrong`ly, in another way."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor, lengths: list[int] | Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < torch.as_tensor(lengths)[:, None]
        weight = real.to(x.dtype)[:, :, None]
        if self.wrong == "ignores lengths":
            weight = torch.ones_like(weight)
        mean = (x * weight).sum(1, keepdim=True) / (
            x.shape[1] if self.wrong == "counts padding" else weight.sum(1)[:, None]
        )
        if self.wrong == "not a number":
            mean = torch.where(x.abs().amax((1, 2), keepdim=True) > 5, float("nan"), mean)
        return self.scale * (x - mean)


LENGTHS = (T, 3)


@pytest.mark.parametrize("lengths", [LENGTHS, list(LENGTHS), torch.tensor(LENGTHS)], ids=["tuple", "list", "tensor"])
def test_a_module_that_ignores_padding_passes(lengths: tuple[int, ...]) -> None:
    report = check.padding(Centred(), torch.randn(B, T, D), lengths)
    report.raise_for_failure()
    assert float(report.figures["largest change"]) < 1e-12


def test_padding_that_is_seen_is_found() -> None:
    found = failed(check.padding(Centred("ignores lengths"), torch.randn(B, T, D), LENGTHS))
    assert [finding.partition(" at ")[0] for finding in found] == [
        "other content in the padding changes sample 1",
        "more padding changes sample 0",
        "more padding changes sample 1",
    ]


def test_padding_that_is_counted_is_found() -> None:
    found = failed(check.padding(Centred("counts padding"), torch.randn(B, T, D), LENGTHS))
    assert [finding.partition(" at ")[0] for finding in found] == [
        "more padding changes sample 0",
        "more padding changes sample 1",
    ]


def test_a_number_that_is_none_is_a_change() -> None:
    report = check.padding(Centred("not a number"), torch.randn(B, T, D).clamp(-2, 2), LENGTHS)
    assert failed(report) == ("other content in the padding changes sample 1 at position 0 by inf",)
    assert report.figures == {"largest change": float("inf")}


def test_ids_are_refilled_with_ids_that_exist(unchecked: None) -> None:
    model = Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13))
    x = torch.tensor([[7, 8, 9, 10, 3], [4, 5, 3, 0, 0], [0, 0, 0, 0, 0]])
    assert check.padding(model, x, (5, 3, 0), call=lambda module, x, lengths: module.encode(x, lengths))
    unheeded = check.padding(model, x, (5, 3, 0), call=lambda module, x, lengths: module.encode(x))
    assert "other content in the padding changes sample 1" in failed(unheeded)[0]


def test_a_function_over_a_module_is_called_in_the_precision_of_its_module() -> None:
    model = Transformer(ModelConfig.small(source_vocab_size=11, target_vocab_size=13)).eval()
    x = torch.randint(4, 11, (3, 97))  # long enough that more padding is summed in another order
    report = check.padding(model.encode, x, (97, 11, 5))
    assert report
    assert check.padding(lambda x, lengths: x, x, (97, 11, 5))  # whole numbers are not rounded
    linear = nn.Linear(D, D)
    assert check.causality(lambda x: linear(x) * 2, torch.randn(B, T, D))


@pytest.mark.parametrize("name", ["lengths", "source_lengths", "src_lengths", "input_lengths"])
def test_lengths_reach_a_module_by_a_known_name(name: str) -> None:
    names: dict[str, Any] = {"centred": Centred()}
    exec(f"def module(x, scale=1.0, {name}=None): return scale * centred(x.float(), {name})", names)
    assert check.padding(names["module"], torch.randn(B, T, D), LENGTHS)


@pytest.mark.parametrize(
    "module", [nn.Linear(D, D), torch.relu, lambda x, size: x], ids=["module", "builtin", "function"]
)
def test_a_module_that_is_told_no_lengths_is_refused(module: Any) -> None:
    with pytest.raises(
        CheckError, match=r"has no argument for the lengths of input 0, known as lengths, source_lengths.*give call="
    ):
        check.padding(module, torch.randn(B, T, D), LENGTHS)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((T, 3, 1), r"lengths \[7, 3, 1\] do not fit an input of shape \(2, 7, 6\); give one for each sample"),
        ((T, T + 1), "do not fit"),
        ((T, -1), "do not fit"),
        ((T, T), "no sample has any padding, so there is nothing to check; give a sample that is shorter"),
        ((0, 0), "all samples are padding, so there is nothing to check"),
    ],
)
def test_lengths_must_fit_and_leave_something_to_check(lengths: tuple[int, ...], said: str) -> None:
    with pytest.raises(CheckError, match=said):
        check.padding(Centred(), torch.randn(B, T, D), lengths)


def test_outputs_must_stand_at_the_inputs_positions() -> None:
    with pytest.raises(
        CheckError, match=r"gave \(2, 6\) for 7 positions of \(2, 7, 6\), but outputs were to stand at positions on"
    ):
        check.padding(lambda x, lengths: x.mean(1), torch.randn(B, T, D), LENGTHS)


# --- batching -------------------------------------------------------------------------------------------------


class Mixing(nn.Module):
    """States scaled; a `fault` says what they take from the rest of the batch."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.scale = nn.Parameter(torch.linspace(1, 2, D))

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        x = self.scale * x
        if self.fault == "mean":
            return x - x.mean(dim=0)
        if self.fault == "norm":
            return x / x.square().mean().sqrt()
        if self.fault == "place":
            return x * (1 + 0.25 * torch.arange(len(x))[:, None, None])
        if self.fault == "not a number":
            return x / (len(x) - 1)
        if lengths is None:
            return x
        real = torch.arange(x.shape[1]) < torch.as_tensor(lengths)[:, None]
        mean = (x * real[:, :, None]).sum(1) / torch.as_tensor(lengths)[:, None]
        return mean if self.fault == "pooled" else x - mean[:, None]


def test_a_module_that_keeps_samples_apart_passes() -> None:
    report = check.batching(Mixing(), torch.randn(3, T, D))
    report.raise_for_failure()
    assert str(report).startswith("batching: passed: a sample must not depend on the batch around it\n  samples = 3\n")


def test_a_mean_over_the_batch_is_found() -> None:
    x = torch.zeros(3, T, D, dtype=torch.float64)
    x[0, 4, 0], x[2, 1, 5] = 6.0, 2.25
    assert failed(check.batching(Mixing("mean"), x)) == (
        "alone, sample 0 changes at position 4 by 4",
        "alone, sample 1 changes at position 4 by 2",
        "alone, sample 2 changes at position 1 by 3",
    )  # in another order the mean is the same


def test_a_norm_across_samples_is_found() -> None:
    x = torch.ones(2, T, D)
    x[1] = 7.0
    report = check.batching(Mixing("norm"), x)
    assert [finding.partition(" changes")[0] for finding in failed(report)] == ["alone, sample 0", "alone, sample 1"]
    assert report.figures["samples"] == 2


def test_a_place_in_the_batch_that_is_seen_is_found() -> None:
    x = torch.zeros(3, T, D, dtype=torch.float64)
    x[:, 3, 0] = 4.0
    report = check.batching(Mixing("place"), x)
    assert failed(report) == (
        "alone, sample 1 changes at position 3 by 1",
        "alone, sample 2 changes at position 3 by 2",
        "in another order, sample 0 changes at position 3 by 2",
        "in another order, sample 1 changes at position 3 by 1",
        "in another order, sample 2 changes at position 3 by 1",
    )
    assert report.figures == {"samples": 3, "largest change": 2.0}


def test_a_number_that_is_none_alone_is_a_change() -> None:
    found = failed(check.batching(Mixing("not a number"), torch.zeros(2, T, D)))
    assert found == tuple(f"alone, sample {sample} changes at position 0 by inf" for sample in range(2))


@pytest.mark.parametrize("lengths", [LENGTHS, list(LENGTHS), torch.tensor(LENGTHS)], ids=["tuple", "list", "tensor"])
@pytest.mark.parametrize("fault", ["", "pooled"])
def test_a_padded_sample_is_compared_with_itself_alone_and_unpadded(fault: str, lengths: Any) -> None:
    x = torch.randn(B, T, D)
    check.batching(Mixing(fault), x, lengths=lengths).raise_for_failure()
    told: list[Any] = []

    def unheeding(module: Mixing, x: Tensor, lengths: Any) -> Tensor:
        told.append(lengths)
        return module(x, [T] * len(x))  # type: ignore[no-any-return]

    found = failed(check.batching(Mixing(fault), x, lengths=lengths, call=unheeding))
    assert found[0].startswith(f"alone, sample 1 changes {'at position' if not fault else 'in element'} ")
    assert {type(one) for one in told} == {type(lengths)}
    assert {tuple(int(length) for length in one) for one in told} == {(T, 3), (3, T), (T,), (3,)}


def test_a_model_of_sources_and_targets_is_told_the_lengths_of_both(unchecked: None) -> None:
    model, source, target = Transformer(CONFIG), torch.randint(4, 11, (3, S)), torch.randint(4, 13, (3, T))
    lengths = ((S, 3, 0), (4, T, 1))
    check.batching(model, source, target, lengths=lengths).raise_for_failure()
    check.batching(model, source, target).raise_for_failure()
    one_sided = check.batching(model, source, target, lengths=((S, 3, 2), None))
    one_sided.raise_for_failure()
    deaf = check.batching(model, source, target, lengths=lengths, call=lambda m, s, t, _, ts: m(s, t, None, ts))
    assert [finding.partition(" changes")[0] for finding in failed(deaf)] == ["alone, sample 1", "alone, sample 2"]


def test_only_real_positions_are_compared() -> None:
    def garbage(x: Tensor, lengths: Any) -> Tensor:
        real = torch.arange(x.shape[1]) < torch.as_tensor(lengths)[:, None]
        return torch.where(real[:, :, None], x, float(len(x)) * torch.arange(len(x))[:, None, None])

    assert check.batching(garbage, torch.randn(3, T, D), lengths=(T, 3, 0))


def test_outputs_may_be_a_number_for_each_sample() -> None:
    x = torch.zeros(2, T, D, dtype=torch.float64)
    x[0] = 1.0
    assert check.batching(lambda x: x.sum((1, 2)), x)
    assert failed(check.batching(lambda x: x.sum((1, 2)) - x.sum(), x)) == ("alone, sample 1 changes by 42",)


def test_batching_allows_the_rounding_of_the_precision_that_a_function_has() -> None:
    linear = nn.Linear(97, D)
    x = torch.randn(3, T, 97)
    assert check.batching(lambda x: linear(x) * 2, x)
    assert not check.batching(lambda x: linear(x) + 1e-3 * len(x), x)
    assert check.batching(lambda x: linear(x) + 1e-3 * len(x), x, tolerance=0.01)


def test_a_norm_over_the_batch_is_found_in_training_alone() -> None:
    norm = nn.BatchNorm1d(T).eval()
    norm(torch.randn(B, T, D))
    report = check.batching(norm, torch.randn(B, T, D))
    assert report.ways == {
        "evaluation, float64": True,
        "evaluation, float32": True,
        "training, float64": False,
        "training, float32": False,
    }
    assert "failed in training, float64; training, float32; passed in evaluation, float64" in str(report)


UNFIT: list[tuple[Callable[[], object], str]] = [
    (
        lambda: check.batching(Mixing()),
        "batching was given nothing; give tensors, batch first, with the same samples in",
    ),
    (lambda: check.batching(Mixing(), torch.zeros(1, T, D)), r"was given \(1, 7, 6\); give tensors, .* two at least"),
    (lambda: check.batching(Mixing(), torch.tensor(1.0)), r"was given \(\); give tensors"),
    (
        lambda: check.batching(Mixing(), torch.zeros(2, T, D), torch.zeros(3, T)),
        r"was given \(2, 7, 6\) and \(3, 7\); give tensors",
    ),
    (lambda: check.batching(Mixing(), torch.zeros(2, T, D), "x"), r"was given \(2, 7, 6\) and str; give tensors"),
    (
        lambda: check.batching(Mixing(), torch.zeros(2, T, D), torch.zeros(2, S), lengths=LENGTHS),
        "was given 2 inputs and the lengths of 1; give a sequence with the lengths of each, None where one has no padding",
    ),
    (
        lambda: check.batching(Mixing(), torch.zeros(2, T, D), lengths=(T, T + 1)),
        r"lengths \[7, 8\] do not fit an input of shape \(2, 7, 6\); give one for each sample",
    ),
    (lambda: check.batching(Mixing(), torch.zeros(2, T, D), lengths=(T,)), r"lengths \[7\] do not fit"),
    (lambda: check.batching(torch.sum, torch.zeros(2), lengths=(1, 1)), r"lengths \[1, 1\] do not fit an input of"),
    (
        lambda: check.batching(nn.Linear(D, D), torch.zeros(2, T, D), lengths=LENGTHS),
        "Linear has no argument for the lengths of input 0, known as lengths, source_lengths, src_lengths, input_lengths, "
        "attention_mask; give call=lambda module, ",
    ),
    (
        lambda: check.batching(Mixing(), torch.zeros(2, T, D), torch.zeros(2, S), lengths=(None, (S, 3))),
        "no argument for the lengths of input 1, known as target_lengths",
    ),
    (
        lambda: check.batching(lambda x: x.sum(), torch.zeros(2, T, D)),
        r"gave \(\) for 2 samples; give one, or call=, whose",
    ),
    (
        lambda: check.batching(lambda x: x.mT, torch.zeros(2, T, D), lengths=LENGTHS, call=lambda m, x, lengths: m(x)),
        r"gave \(6, 7\) for a sample in the batch and \(6, 3\) for the same alone; give lengths, or call=",
    ),
]


@pytest.mark.parametrize(("call", "said"), UNFIT)
def test_what_cannot_be_compared_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(CheckError, match=said):
        call()


# --- cache ----------------------------------------------------------------------------------------------------


class WithoutOffset(Positions):
    """Positions that begin at 0 at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Sinusoidal(64)

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        return self.inner(states)  # type: ignore[no-any-return]


class Forgetful(Transformer):
    """A model that does not read its cache."""

    def decode(self, target: Tensor, memory: Tensor, source_lengths: Any = None, cache: Any = None) -> Any:
        return super().decode(target, memory, source_lengths)


def translation() -> tuple[Tensor, Tensor]:
    """Ids of sources and targets."""
    return torch.randint(4, 11, (B, S)), torch.randint(4, 13, (B, T))


CONFIG = ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13)


def test_a_cache_that_serves_passes(unchecked: None) -> None:
    report = check.cache(Transformer(CONFIG), *translation())
    report.raise_for_failure()
    assert report.name == "cache"


def test_positions_without_offset_are_found(unchecked: None) -> None:
    model = Transformer(CONFIG)
    model.target_positions = WithoutOffset()
    found = failed(check.cache(model, *translation()))
    assert found[0].startswith("step by step, position 1 of sample 0 differs by ")  # all but the first step
    assert found[0].endswith(f"{T - 1} of {T} positions differ")


def test_a_cache_that_is_not_read_is_found(unchecked: None) -> None:
    report = check.cache(Forgetful(CONFIG), *translation())
    assert failed(report)[0].startswith("step by step, position 1 of sample 1 differs by ")
    assert "cache" in report.advice


def test_one_step_is_no_check_of_a_cache() -> None:
    source, target = translation()
    with pytest.raises(CheckError, match="targets of length 1; give two ids at least"):
        check.cache(Transformer(CONFIG), source, target[:, :1])


# --- parity ---------------------------------------------------------------------------------------------------


def test_a_module_equals_its_copy_even_with_dropout_on() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5)).train()
    x = torch.randn(B, D)
    assert check.parity(module, copy.deepcopy(module), [x])
    assert check.parity(module, copy.deepcopy(module), x)  # the only input may stand alone


def test_the_element_farthest_apart_is_named() -> None:
    ours = nn.Linear(D, D, bias=False)
    theirs = copy.deepcopy(ours)
    with torch.no_grad():
        theirs.weight[4, 2] += 1e-4
    x = torch.zeros(B, D)
    x[1, 2], x[0, 2] = 2.0, 1.0
    found = failed(check.parity(ours, theirs, [x]))
    wanted = (
        (x.double() @ ours.weight.detach().double().T)[1, 4],
        (x.double() @ theirs.weight.detach().double().T)[1, 4],
    )
    assert found == (
        f"element (1, 4) is {float(wanted[0]):.6g} in one and {float(wanted[1]):.6g} in the other",
        "2 of 12 elements lie more than 1e-10 apart",
    )
    assert check.parity(ours, theirs, [x], tolerance=1e-3)


def test_outputs_of_other_shapes_are_found() -> None:
    assert failed(check.parity(torch.clone, torch.Tensor.mT.__get__, torch.randn(B, T))) == (  # type: ignore[attr-defined]
        "the shapes differ: (2, 7) and (7, 2)",
    )


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number_on_both_sides_is_no_parity(odd: float) -> None:
    report = check.parity(lambda x: x * odd, lambda x: x * odd, torch.ones(B, T))
    assert f"element (0, 0) is {odd} in one and {odd} in the other" in failed(report)
    infinite = float("inf")
    assert report.figures == {
        "elements": B * T,
        "largest difference": infinite,
        "largest relative difference": infinite,
    }


def test_modules_may_be_called_in_their_own_ways() -> None:
    def ours(module: Any, x: Tensor, y: Tensor) -> Tensor:
        return module(x) - y  # type: ignore[no-any-return]

    module, inputs = nn.Linear(D, D), (torch.randn(B, D), torch.randn(B, D))
    assert check.parity(module, copy.deepcopy(module), inputs, call=ours)
    assert check.parity(module, copy.deepcopy(module), inputs, call=ours, their_call=ours)
    assert not check.parity(module, copy.deepcopy(module), inputs, call=ours, their_call=lambda m, x, y: ours(m, y, x))


def test_modules_are_compared_without_the_rounding_of_float32() -> None:
    module, x = nn.Linear(97, 3, bias=False), torch.randn(B, 97)

    def backwards(module: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x.flip(-1), module.weight.flip(-1))

    assert not torch.equal(module(x), backwards(module, x))
    assert check.parity(module, module, x, call=lambda module, x: module(x), their_call=backwards)


def test_functions_are_given_float64_too() -> None:
    x, y = torch.randn(13, 97), torch.randn(97, 11)
    assert not torch.equal(x @ y, x.flip(1) @ y.flip(0))
    assert check.parity(lambda x, y: x @ y, lambda x, y: x.flip(1) @ y.flip(0), (x, y))


def test_a_function_over_a_module_in_float64_is_compared() -> None:
    module = nn.Linear(D, D).double()
    assert not check.parity(lambda x: module(x) * 2, lambda x: module(x) + 1, torch.randn(B, D))


def test_a_function_over_a_module_in_float32_is_refused() -> None:
    module = nn.Linear(D, D)
    with pytest.raises(CheckError, match=r"forward does not take float64 .*; give the module itself"):
        check.parity(module.forward, module, torch.randn(B, D))


# --- nothing is touched ---------------------------------------------------------------------------------------


CHECKS: dict[str, Callable[[nn.Module], check.Report]] = {
    "causality": lambda module: check.causality(module, torch.randn(B, T, D)),
    "padding": lambda module: check.padding(module, torch.randn(B, T, D), LENGTHS, call=lambda m, x, lengths: m(x)),
    "parity": lambda module: check.parity(module, module, torch.randn(B, T, D)),
    "batching": lambda module: check.batching(module, torch.randn(B, T, D)),
    "independence": lambda module: check.independence(module, torch.randn(B, T, D)),
    "sees": lambda module: check.sees(module, torch.randn(B, T, D), Causal()),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_module_is_left_as_it_was(name: str) -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(T, track_running_stats=True), nn.Dropout(0.5))
    module[2].eval()
    module[0].bias.requires_grad_(False)
    module(torch.randn(B, T, D)).sum().backward()
    if name == "padding":
        module[1] = nn.LayerNorm(D)
    before = copy.deepcopy(module.state_dict())
    gradients = [None if one.grad is None else one.grad.clone() for one in module.parameters()]
    report = CHECKS[name](module)
    assert report.name == name
    assert [part.training for part in module.modules()] == [True, True, True, False]
    for key, value in module.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    for one, kept in zip(module.parameters(), gradients, strict=True):
        assert (one.grad is None) == (kept is None)
        assert one.grad is None or kept is None or torch.equal(one.grad, kept)
    assert [one.requires_grad for one in module.parameters()][:2] == [True, False]


def test_a_module_that_a_function_holds_is_left_as_it_was() -> None:
    norm = nn.BatchNorm1d(T).train()
    before = copy.deepcopy(norm.state_dict())

    def held(x: Tensor) -> Tensor:
        return norm(x) * 2  # type: ignore[no-any-return]

    assert not check.batching(held, torch.randn(B, T, D))
    assert norm.training
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


def test_dropout_is_off_in_training() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(D, 2, dropout=0.5, batch_first=True)
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            attended = self.attention(x, x, x, need_weights=False)[0]
            query, rate = attended[:, None], 0.5 if self.training else 0.0
            attended = F.scaled_dot_product_attention(query, query, query, dropout_p=rate)[:, 0]
            return F.dropout(self.dropout(attended), 0.5, training=self.training)

    report = check.batching(Dropping(), torch.randn(B, T, D))
    report.raise_for_failure()
    assert report.notes == ()  # in training, outputs were compared
    assert len(report.ways) == 4


def test_no_check_draws_from_the_common_random_numbers(unchecked: None) -> None:
    model, x, (source, target) = Transformer(CONFIG), torch.randn(B, T, D), translation()
    module = Shifted(0)
    state = torch.get_rng_state()
    reports = [
        check.causality(module, x),
        check.padding(module, x, LENGTHS, call=lambda module, x, lengths: module(x)),
        check.parity(module, module, x),
        check.cache(model, source, target),
        check.batching(model, source, target),
        check.independence(model, source, target),
        check.sees(module, x, Causal()),
    ]
    assert all(reports)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_inputs_are_left_as_they_were() -> None:
    x = torch.randn(B, T, D)
    kept = x.clone()
    reports = [
        check.causality(Shifted(0), x),
        check.padding(Centred(), x, LENGTHS),
        check.parity(Shifted(0), Shifted(0), x),
        check.batching(Centred(), x, lengths=LENGTHS),
    ]
    assert all(reports)
    assert torch.equal(x, kept)
    assert (x.requires_grad, x.grad) == (False, None)


def test_a_mask_inside_a_module_can_be_copied() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mask = MultiHeadAttention(D, 2), Causal() & Padding((T, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, self.mask)  # type: ignore[no-any-return]

    assert check.causality(Held(), torch.randn(B, T, D))


# --- influence, in its own right --------------------------------------------------------------------------------


class BestOfAll(nn.Module):
    """Keeps the positions whose first feature is largest, which no gradient shows."""

    def forward(self, x: Tensor) -> Tensor:
        best = x[..., 0].topk(3, dim=1).indices
        return x * torch.zeros(x.shape[:2], dtype=x.dtype).scatter(1, best, 1.0)[..., None] + 0.1 * x


def test_a_choice_without_a_gradient_is_seen() -> None:
    x = torch.randn(1, T, D)
    assert torch.equal(check.influence(BestOfAll(), x, method="gradient"), torch.eye(T).bool())
    found = check.influence(BestOfAll(), x)
    assert found.sum() > T + 3
    assert torch.equal(found, check.influence(BestOfAll(), x, method="perturbation"))


def test_a_chance_zero_hides_no_path() -> None:
    x = torch.zeros(1, T, D)  # where relu and its gradient are zero
    assert torch.equal(check.influence(lambda x: x.relu().cumsum(1), x), torch.ones(T, T).tril().bool())


def test_ids_are_followed_from_their_embedding() -> None:
    model = nn.Sequential(nn.Embedding(11, D), nn.GRU(D, D, batch_first=True))
    ids = torch.randint(0, 11, (B, T))
    for method in ("auto", "gradient", "perturbation"):
        seen = check.influence(model, ids, method=method, call=lambda m, x: m(x)[0])
        assert torch.equal(seen, torch.ones(T, T).tril().bool())
    table = torch.randn(11, D)
    assert torch.equal(check.influence(lambda x: table[x].cumsum(1), ids), torch.ones(T, T).tril().bool())
    with pytest.raises(CheckError, match="no gradient leads from the module's output to the input"):
        check.influence(lambda x: table[x].cumsum(1), ids, method="gradient")


def test_a_source_that_equals_the_target_is_told_from_it(unchecked: None) -> None:
    model = Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=11, tie_embeddings="all"))
    ids = torch.randint(4, 11, (B, T))
    assert torch.equal(check.influence(model, ids, ids.clone()), torch.ones(T, T).tril().bool())
    assert check.influence(model, ids, ids.clone(), of=0).all()


def test_many_outputs_are_sampled_and_it_is_said() -> None:
    x = torch.randn(1, 300, 3)
    with pytest.warns(
        check.SampledRows, match=r"32 of 300 output positions .* \(0, 10, 19 ... 299\); give rows=range\(300\)"
    ):
        found = check.influence(lambda x: x.cumsum(1), x)
    assert found.shape == (32, 300)
    assert found.sum(dim=1).tolist()[:3] == [1, 11, 20]
    assert check.influence(lambda x: x.cumsum(1), x, rows=range(300)).sum(dim=1).tolist() == list(range(1, 301))
    assert check.influence(lambda x: x.cumsum(1), x, rows=[7, 2]).sum(dim=1).tolist() == [8, 3]
    report = check.causality(lambda x: x.cumsum(1), x)
    assert report.figures["looked at"] == "32 of them, evenly spaced from 0 to 299"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda x: check.influence(nn.Identity(), x, method=cast("Any", "guess")),
            "known are auto, gradient, perturbation",
        ),
        (lambda x: check.influence(nn.Identity(), x, of=1), "a check of input 1 was given Tensor; give"),
        (lambda x: check.influence(nn.Identity()), "Identity cannot be called with nothing"),
        (lambda x: check.influence(nn.Identity(), x > 0), "the input that is asked about is torch.bool of shape"),
        (lambda x: check.influence(nn.Identity(), x, inputs_axis=3), r"an input of shape \(2, 7, 6\) has no axis 3"),
        (lambda x: check.influence(nn.Identity(), x, rows=[T]), r"rows \[7\] were given for 7 output positions"),
        (lambda x: check.influence(nn.Identity(), x, rows=0), "0 rows were asked for"),
        (
            lambda x: check.influence(nn.Linear(3, 3), x),
            r"Linear cannot be called with torch.float32 \(2, 7, 6\) \(Runtime",
        ),
        (
            lambda x: check.influence(lambda x: x, torch.zeros(B, T).long()),
            "the ids are all 0, so there is none to change",
        ),
        (lambda x: check.sees(nn.Identity(), x), "sees was given no mask and 1 layers; give a mask of pellucid.masks"),
        (lambda x: check.sees(nn.Identity(), x, Causal(), layers=0), "was given Causal and 0 layers"),
        (lambda x: check.sees(nn.Identity(), x, Padding((1, 2, 3))), "speaks of 3 samples, and the input has 2"),
        (lambda x: check.causality(lambda x: x[:, :3], x), "gave 3 output positions for 7 input positions"),
        (
            lambda x: check.independence(nn.Identity(), x[:1]),
            r"independence was given \(1, 7, 6\); give tensors with the",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(call: Callable[[Tensor], object], said: str, unchecked: None) -> None:
    with pytest.raises(CheckError, match=said):
        call(torch.randn(B, T, D))


# --- modules as people have them --------------------------------------------------------------------------------


class Changed(nn.Module):
    """A linear map that does `what` to what it is given, or to what it keeps."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.calls, self.linear = what, 0, nn.Linear(D, D)

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        if self.what == "input in place":
            x += 1
        y: Tensor = self.linear(x).sigmoid()
        if self.what == "activation in place":
            y.mul_(2)
        if self.what == "counts":
            self.calls += 1
            y = y * self.calls
        if self.what == "keeps":
            vars(self)["last"] = y
        if self.what == "seven at most":
            assert x.shape[1] <= T
        if self.what == "NaN in the first row":
            y = y.masked_fill(torch.arange(x.shape[1])[:, None] == 0, float("nan"))
        return y


@pytest.mark.parametrize("what", ["input in place", "activation in place", "keeps", "seven at most"])
def test_a_habit_is_no_fault(what: str, unchecked: None) -> None:
    module, x = Changed(what), torch.randn(B, T, D)
    module(x.clone())
    kept = x.clone()
    assert check.causality(module, x)
    assert check.batching(module, x)
    assert check.independence(module, x)
    assert check.padding(module, x, LENGTHS)
    assert torch.equal(x, kept)


def test_a_length_that_a_module_refuses_is_a_note(unchecked: None) -> None:
    report = check.padding(Changed("seven at most"), torch.randn(B, T, D), LENGTHS)
    assert report.notes[0].startswith(
        "the module does not take more padding (Changed cannot be called with torch.float"
    )


def test_what_a_call_leaves_to_the_next_is_named(unchecked: None) -> None:
    module, x = Changed("counts"), torch.randn(B, T, D)
    for report in (check.causality(module, x), check.batching(module, x), check.padding(module, x, LENGTHS)):
        assert failed(report) == ("two calls with the same input and random numbers differ",)
        assert report.advice.startswith("state: a call leaves something to the next")


def test_rows_that_are_no_numbers_are_not_laid_on_other_samples(unchecked: None) -> None:
    module, x = Changed("NaN in the first row"), torch.randn(B, T, D)
    assert check.independence(module, x)
    assert check.batching(module, x)
    assert failed(check.causality(module, x)) == ("output 0 is not finite",)
    assert failed(check.sees(module, x, Window(0, 0))) == ("output 0 is not finite",)


def test_outputs_that_are_all_no_numbers_do_not_pass(unchecked: None) -> None:
    x = torch.randn(B, T, D)
    for report in (
        check.batching(lambda x: x / 0 * 0, x),
        check.independence(lambda x: x / 0 * 0, x),
        check.padding(lambda x, lengths: x / 0 * 0, x, LENGTHS),
    ):
        assert failed(report) == ("no output is finite, so there is nothing to compare",)
    found = failed(check.padding(Changed("NaN in the first row"), x, LENGTHS))
    assert found == tuple(f"sample {sample} is not finite at position 0, which is real" for sample in range(B))


def test_roundings_are_no_path(unchecked: None) -> None:
    class Fourier(nn.Module):
        def __init__(self, *, single: bool) -> None:
            super().__init__()
            self.single, self.kernel = single, nn.Parameter(torch.randn(T, D))

        def forward(self, x: Tensor) -> Tensor:
            given = x.float() if self.single else x
            spectra = torch.fft.rfft(given, 2 * T, dim=1) * torch.fft.rfft(self.kernel.to(given), 2 * T, dim=0)
            smoothed: Tensor = torch.fft.irfft(spectra, 2 * T, dim=1)
            return smoothed[:, :T].to(x)

    x, causal = torch.randn(B, T, D), torch.ones(T, T).tril().bool()
    assert torch.equal(check.influence(Fourier(single=False), x), causal)
    for single in (False, True):
        assert check.causality(Fourier(single=single), x)
        assert check.sees(Fourier(single=single), x, Causal())


def test_checks_may_be_called_without_gradients(unchecked: None) -> None:
    x = torch.randn(B, T, D)
    with torch.no_grad():
        assert not check.causality(Shifted(1), x)
        assert check.gradients(nn.Linear(D, D), x)
        assert check.overfit(nn.Linear(D, D), x)
    with torch.inference_mode():
        assert not check.causality(Shifted(1), x)
        assert check.influence(Shifted(0), x).sum() == T * (T + 1) // 2


def test_modules_that_a_function_finds_in_a_list_or_an_object_are_left_as_they_were() -> None:
    norm, x = nn.BatchNorm1d(T).train(), torch.randn(B, T, D)
    held, boxed = {"norm": [norm]}, functools.partial(lambda parts, x: parts[0](x), (norm,))
    assert not check.batching(lambda x: 2 * held["norm"][0](x), x)
    assert not check.batching(boxed, x)
    assert norm.num_batches_tracked == 0


def test_the_mask_of_another_sample_is_named(unchecked: None) -> None:
    def attended(x: Tensor, mask: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(~mask, -1e9).softmax(dim=-1) @ x

    x, meant = torch.randn(B, T, D) / 4, Causal() | Prefix((4, 1))
    seen = meant.dense(T, T)[:, 0]
    assert check.sees(lambda x: attended(x, seen), x, meant)
    report = check.sees(lambda x: attended(x, seen.flip(0)), x, meant)
    assert failed(report)
    assert report.advice.startswith("batch axis: a sample has the mask of another")
    window = (Causal() & Window(1, 0)).dense(T, T)[:, 0]
    report = check.sees(lambda x: attended(attended(x, window), window), x, Causal() & Window(1, 0))
    assert report.advice == "several layers see through each other; say how many: layers=2"
    report = check.sees(lambda x: attended(x, window.mT), x, Causal() & Window(1, 0))
    assert report.advice.startswith("queries and keys are exchanged in the mask of the module")


class Script(nn.Module):
    """Hands out parameters that cannot be frozen, as a script of torch.jit does."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([nn.Parameter(torch.ones(3)) * 2])

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda x: check.independence(nn.Identity(), x, tolerance=float("nan")),
            "a tolerance of nan was given, but it is a",
        ),
        (lambda x: check.parity(nn.Identity(), nn.Identity(), x, tolerance=-1), "a tolerance of -1 was given"),
        (
            lambda x: check.causality(nn.Identity(), x[:, :1]),
            "causality was given one position, which has no other to see",
        ),
        (lambda x: check.batching(nn.Identity(), x[:, :0]), r"input 0 of shape \(2, 0, 6\) is empty; give numbers"),
        (
            lambda x: check.causality(nn.Identity(), x * float("nan")),
            r"input 0 of shape \(2, 7, 6\) holds NaN or infinity",
        ),
        (lambda x: check.batching(Centred(), x, lengths=(0, 0)), "all samples of an input are padding"),
        (
            lambda x: check.batching(Centred(), x, lengths=cast("Any", 7)),
            "lengths were given as int; give those of each",
        ),
        (lambda x: check.padding(Centred(), x, (5.5, 3)), r"lengths \(5.5, 3\) were given; give whole numbers"),
        (lambda x: check.sees(nn.Identity(), x, Causal(), layers=cast("Any", 2.5)), "was given Causal and 2.5 layers"),
        (
            lambda x: check.influence(nn.Identity(), x, rows=cast("Any", 2.5)),
            "rows were given as float; give positions in",
        ),
        (lambda x: check.causality(Script(), x), "cannot be frozen .*; give the module that it was made of"),
    ],
)
def test_what_could_not_fail_is_refused(call: Callable[[Tensor], object], said: str, unchecked: None) -> None:
    with pytest.raises(CheckError, match=said):
        call(torch.randn(B, T, D))
