"""Gradients that are missing, infinite or wrong are found, and so is a module that cannot learn a few examples."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid.check.backward import gradients
from pellucid.check.learning import overfit
from pellucid.check.quotients import wrong_slopes
from pellucid.check.report import Report
from pellucid.config import ModelConfig
from pellucid.errors import CheckError
from pellucid.model import Transformer

B, S, T, D = 2, 5, 7, 6
CONFIG = ModelConfig(
    source_vocab_size=11, target_vocab_size=13, d_model=14, num_heads=2, d_ff=11, num_encoder_layers=1,
    num_decoder_layers=1,
)  # fmt: skip


def failed(report: Report) -> Report:
    """The report of a check that must have failed."""
    assert not report.passed
    return report


def figure(report: Report, name: str) -> float:
    """A number that a report measured."""
    value = report.figures[name]
    assert not isinstance(value, str)
    return value


class Stretched(nn.Module):
    """A linear layer and a `fault` after it, as people write them."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.inner, self.outer = nn.Linear(D, D), nn.Linear(D, D)
        self.scale = nn.Parameter(torch.ones(D))
        if fault == "never called":
            self.spare = nn.Linear(D, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.odd(self.inner(x)) * self.scale)  # type: ignore[no-any-return]

    def odd(self, x: Tensor) -> Tensor:
        if self.fault == "detached":
            return x.detach()
        if self.fault == "one path":
            return x + x.tanh().detach()
        if self.fault == "backward":
            return WrongSigmoid.apply(x)  # type: ignore[no-any-return, no-untyped-call]
        if self.fault == "no key":
            hidden = torch.zeros(T, T).masked_fill(torch.arange(T)[:, None] == 3, -torch.inf)
            return (x @ x.mT + hidden).softmax(-1).nan_to_num() @ x
        if self.fault == "root":
            return (x - x).square().sum(-1, keepdim=True).sqrt() + x
        if self.fault == "division":
            return torch.where(x > 100, x / (x - x), x)
        return x


class WrongSigmoid(torch.autograd.Function):
    """A sigmoid whose backward() forgets the factor (1 - y)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.sigmoid())
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y  # type: ignore[no-any-return]


# --- gradients ------------------------------------------------------------------------------------------------


def test_a_right_module_has_all_its_gradients() -> None:
    report = gradients(Stretched(), torch.randn(B, T, D))
    report.raise_for_failure()
    assert report.figures == {"parameters": 5, "without gradient": 0, "gradients of zero": 0}
    assert len(report.ways) == 4


def test_a_module_that_is_never_called_is_named() -> None:
    report = failed(gradients(Stretched("never called"), torch.randn(B, T, D)))
    assert report.findings == (
        "parameter `spare.weight` (11, 6) gets no gradient",
        "parameter `spare.bias` (11,) gets no gradient",
    )
    assert report.advice == (
        "never called: `spare` is registered and not used in forward; call it there, or take it out of __init__"
    )
    assert report.figures["without gradient"] == 2


def test_a_cut_path_is_found() -> None:
    report = failed(gradients(Stretched("detached"), torch.randn(B, T, D)))
    assert report.findings == (
        "parameter `inner.weight` (6, 6) gets no gradient",
        "parameter `inner.bias` (6,) gets no gradient",
    )
    assert report.advice.startswith("the path to `inner.weight` is cut, or it is not used: look for detach()")


def test_an_output_without_gradients_is_found() -> None:
    report = failed(gradients(nn.Linear(D, D), torch.randn(B, D), call=lambda module, x: module(x).detach()))
    assert report.findings == ("no gradient leads from the output to any parameter or input",)
    assert report.advice.startswith("the path to the output is cut")


@pytest.mark.parametrize("fault", ["one path", "backward"])
def test_a_gradient_that_is_not_the_slope_is_found(fault: str) -> None:
    report = failed(gradients(Stretched(fault), torch.randn(B, T, D)))
    assert report.findings[0].startswith("the gradient of parameter `inner.weight` is wrong: ")
    assert all("outer" not in finding and "scale" not in finding for finding in report.findings)
    assert "a backward() written by hand that is wrong, or for detach()" in report.advice
    assert report.ways == {
        "evaluation, float64": False, "evaluation, float32": True, "training, float64": False, "training, float32": True,
    }  # fmt: skip


SLIPS = {
    "no key": "a softmax over nothing but -inf gives NaN: let each query see a key at least",
    "root": "the root of 0 has an infinite slope",
    "division": "a division by 0, a mean over no position say: clamp the divisor",
}


@pytest.mark.parametrize("fault", SLIPS)
def test_gradients_that_are_no_numbers_are_found_and_where(fault: str) -> None:
    module = nn.Sequential(nn.Linear(D, D), Stretched(fault))
    report = failed(gradients(module, torch.randn(B, T, D)))
    assert report.findings[0].startswith(
        "the gradient of parameter `0.weight` (6, 6) is not finite in 36 of 36 elements, "
    )
    assert report.where == "1 (Stretched)"
    assert report.advice.startswith(SLIPS[fault])
    assert report.ways == dict.fromkeys(report.ways, False)


def test_an_output_that_is_no_number_is_found() -> None:
    found = failed(gradients(lambda x: (x - torch.inf).softmax(-1), torch.randn(B, D)))
    assert found.findings[0] == "the output is NaN in 12 of 12 elements"
    assert found.advice.startswith("a softmax over nothing but -inf")


def test_frozen_parameters_are_left_out() -> None:
    module = Stretched("never called")
    module.spare.requires_grad_(False)
    report = gradients(module, torch.randn(B, T, D))
    report.raise_for_failure()
    assert report.figures["parameters"] == 5


def test_a_gradient_of_zero_is_only_a_note() -> None:
    first = nn.Linear(D, 11)
    nn.init.zeros_(first.weight)
    nn.init.zeros_(first.bias)  # the kink of each relu lies just here
    module = nn.Sequential(first, nn.ReLU(), nn.Linear(11, D))
    report = gradients(module, torch.randn(B, T, D))
    report.raise_for_failure()
    assert report.figures["gradients of zero"] == 3
    assert report.notes == ("with these inputs the gradient is zero everywhere for `0.weight`, `0.bias`, `2.weight`",)


def test_a_call_of_ones_own_may_leave_parts_out() -> None:
    model = Transformer(CONFIG)
    report = gradients(model, torch.randint(4, 11, (B, S)), call=lambda model, ids: model.encode(ids))
    report.raise_for_failure()
    assert report.notes[0].startswith("call= leaves out `")


def test_a_layer_that_chance_leaves_out_is_not_accused() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if not self.training or torch.rand(()) > 0.3:
                    x = layer(x)
            return x

    gradients(Skipping(), torch.randn(B, T, D)).raise_for_failure()


def test_functions_are_asked_by_their_inputs_and_modules() -> None:
    module = Stretched("never called")
    report = failed(gradients(lambda x: module(x) * 2, torch.randn(B, T, D)))
    assert report.findings[0] == "parameter `spare.weight` (11, 6) gets no gradient"
    assert all(one.grad is None for one in module.parameters())
    wrong = failed(gradients(WrongSigmoid.apply, torch.randn(B, D)))
    assert wrong.findings[0].startswith("the gradient of input 0 is wrong: ")
    gradients(torch.sigmoid, torch.randn(B, D)).raise_for_failure()


def test_slopes_are_told_for_each_of_many() -> None:
    tensors = {str(place): torch.randn(3, dtype=torch.float64) for place in range(19)}
    kept = {name: one.clone() for name, one in tensors.items()}
    slopes = {name: 2 * one for name, one in tensors.items()}
    assert wrong_slopes(lambda: float(sum(one.square().sum() for one in tensors.values())), tensors, slopes) == []
    slopes["11"] = 3 * tensors["11"]
    found = wrong_slopes(lambda: float(sum(one.square().sum() for one in tensors.values())), tensors, slopes)
    assert [one.name for one in found] == ["11"]
    assert found[0].gradient == pytest.approx(1.5 * found[0].slope, rel=1e-4)
    assert all(torch.equal(one, kept[name]) for name, one in tensors.items())


@pytest.mark.parametrize("rounded", [torch.round, lambda x: x.bfloat16().double(), torch.sign])
def test_of_steps_nothing_is_said(rounded: Callable[[Tensor], Tensor]) -> None:
    x = {"x": torch.randn(11, dtype=torch.float64)}
    assert wrong_slopes(lambda: float(rounded(x["x"]).sum()), x, {"x": torch.ones(11, dtype=torch.float64)}) == []


def test_nothing_to_take_gradients_by_is_refused() -> None:
    module = nn.Embedding(11, D).requires_grad_(requires_grad=False)
    with pytest.raises(
        CheckError, match="Embedding has no parameter that wants a gradient, and no float input was given"
    ):
        assert gradients(module, torch.tensor([[1, 2]]))


MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(D, 2, 11, batch_first=True), lambda: (torch.randn(B, T, D),)),
    "attention": (lambda: nn.MultiheadAttention(D, 2, batch_first=True), lambda: (torch.randn(B, T, D),)),
    "gru": (lambda: nn.GRU(D, D, batch_first=True), lambda: (torch.randn(B, T, D),)),
    "ours": (
        lambda: Transformer(CONFIG),
        lambda: (torch.randint(4, 11, (B, S)), torch.randint(4, 13, (B, T))),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", [gradients, overfit])
@pytest.mark.parametrize("name", MADE)
def test_right_modules_are_not_accused(check: Callable[..., Report], name: str) -> None:
    module, inputs = MADE[name][0](), MADE[name][1]()
    check(module, *inputs).raise_for_failure()


def test_a_model_of_hugging_face_is_not_accused() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 23,
        "hidden_size": 8,
        "intermediate_size": 11,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    ids = torch.randint(4, 23, (B, T))
    for model in (
        transformers.BertModel(transformers.BertConfig(**sizes)),  # whose pooler serves another output than the first
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),  # whose norms are in float32
    ):
        gradients(model, ids).raise_for_failure()
        overfit(model, ids).raise_for_failure()


# --- overfit --------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Classes of ids; a `fault` keeps it from telling them apart."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embedding, self.mix, self.head = nn.Embedding(23, D), nn.GRU(D, 11, batch_first=True), nn.Linear(11, 23)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.fault == "hidden":
            x = x * torch.zeros_like(x)
        x = self.mix(x)[0]
        if self.fault == "mean":
            x = x.mean((0, 1), keepdim=True).expand_as(x)
        if self.fault == "detached":
            return self.head(x).detach() + 0 * self.head.bias  # type: ignore[no-any-return]
        if self.fault == "no gradient":
            return self.head(x).detach()  # type: ignore[no-any-return]
        return self.head(x)  # type: ignore[no-any-return]


def ids(samples: int = 10) -> Tensor:
    return torch.randint(4, 23, (samples, T))


def test_a_module_that_learns_passes_and_stops_as_soon() -> None:
    x = ids()
    labels = x.roll(1, dims=1)
    labels[:, 0] = -100
    report = overfit(Tagger(), x, labels=labels)
    report.raise_for_failure()
    assert 0 < figure(report, "steps") < 200
    assert figure(report, "last loss") < 0.1 * figure(report, "loss of the best constant guess")
    assert figure(report, "share right") > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hidden", "mean"])
def test_a_module_that_does_not_heed_its_input_is_found(fault: str) -> None:
    report = failed(overfit(Tagger(fault), ids(), learning_rate=0.01))
    assert report.findings[0].startswith("the loss has only fallen from 3.")
    assert report.figures["steps"] == 200
    assert report.advice.startswith("the output does not say which input it is for")


def test_detached_parameters_are_found() -> None:
    report = failed(overfit(Tagger("detached"), ids(), steps=7))
    assert report.advice.startswith("detached: no gradient reaches `embedding.weight`, `mix.weight_ih_l0`")
    none = failed(overfit(Tagger("no gradient"), ids()))
    assert none.findings == ("no gradient leads from the loss to any parameter",)
    assert none.advice.startswith("detached: ")


def test_a_rate_that_is_too_high_is_found() -> None:
    report = failed(overfit(Tagger(), ids(), learning_rate=1000.0, steps=7))
    assert report.advice == "the learning rate 1000 is too high, as the loss grew: give a smaller one"
    assert report.figures["learning rate"] == 1000


def test_labels_that_contradict_each_other_are_found() -> None:
    x = ids()
    x[:] = x[0]
    labels = torch.randint(0, 23, x.shape)
    report = failed(overfit(Tagger("mean"), x, labels=labels, learning_rate=0.01, steps=11))
    assert report.findings[1] == "samples 0 and 1 have equal inputs and other labels"
    assert report.advice.startswith("labels contradict each other")


def test_what_contradictions_leave_to_nobody_is_not_asked() -> None:
    x = ids()
    x[:, 0] = 2  # all sentences begin alike, and go on in other ways
    labels = torch.cat([x[:, 1:], torch.full((10, 1), 3)], dim=1)
    report = overfit(Tagger(), x, labels=labels)
    report.raise_for_failure()
    assert figure(report, "least loss that labels leave") > 0.2


def test_labels_of_padding_are_told() -> None:
    x = ids()
    labels = x.clone()
    labels[:, 3:] = 0
    report = overfit(Tagger(), x, labels=labels)
    assert report.notes == ("40 of 70 labels are 0, as padding often is; -100 leaves labels out of the loss",)
    assert failed(overfit(Tagger("mean"), x, labels=labels, learning_rate=1e-4, steps=7)).advice == report.notes[0]


def test_floats_are_learned_by_squared_error() -> None:
    x = torch.randn(10, D)
    module = nn.Sequential(nn.Linear(D, 23), nn.Tanh(), nn.Linear(23, 3))
    report = overfit(module, x, labels=x[:, :3].double().sin())
    report.raise_for_failure()
    assert "share right" not in report.figures
    constant = failed(overfit(nn.Linear(D, 3), torch.ones(10, D), labels=x[:, :3]))
    assert constant.findings == (
        "labels that contradict each other leave little to learn", "samples 0 and 1 have equal inputs and other labels",
    )  # fmt: skip
    assert figure(constant, "least loss that labels leave") == pytest.approx(
        float(x[:, :3].var(0, correction=0).mean())
    )


def test_a_loss_may_be_ones_own() -> None:
    x, told = torch.randn(10, D), []

    def loss(output: Tensor, labels: Any) -> Tensor:
        told.append(labels)
        return (output - x).abs().mean()

    overfit(nn.Linear(D, D), x, loss=loss).raise_for_failure()
    assert set(told) == {None}
    report = failed(overfit(nn.Linear(D, D), x, loss=lambda output, _: (output - 5 * x).abs().mean(), steps=1))
    assert report.findings[0].startswith("the loss has only fallen from")


def test_pooled_outputs_tell_samples_apart() -> None:
    model = Tagger()
    overfit(model, ids(), call=lambda model, x: model(x).mean(1)).raise_for_failure()
    assert not overfit(model, ids(), call=lambda model, x: model(0 * x).mean(1), learning_rate=0.01, steps=40)


def test_frozen_parameters_are_not_trained() -> None:
    model = Tagger()
    model.requires_grad_(False)
    report = failed(overfit(model, ids()))
    assert report.findings == ("no parameter wants a gradient",)
    assert report.advice.startswith("frozen: ")
    model.head.bias.requires_grad_(True)
    partly = failed(overfit(model, ids(), learning_rate=0.01, steps=50))
    assert partly.advice == "6 parameters are frozen, `embedding.weight` the first, and do not learn"
    assert failed(overfit(nn.ReLU(), torch.randn(B, D))).findings == ("it has no parameters",)


REFUSED: list[tuple[Tensor, str]] = [
    (
        torch.zeros(10, T - 1, dtype=torch.long),
        r"labels \(10, 6\) do not fit an output of \(10, 7, 23\); give whole numbers",
    ),
    (torch.full((10, T), 23), "labels are 23 to 23, but the output has 23 classes; give 0 to 22, and -100 for none"),
    (torch.full((10, T), -1), "labels are -1 to -1, but"),
    (torch.full((10, T), -100), "labels are all -100, but"),
    (torch.zeros(10, T), r"labels \(10, 7\) do not fit an output of \(10, 7, 23\); give floats of that shape"),
]


@pytest.mark.parametrize(("labels", "said"), REFUSED)
def test_labels_must_fit(labels: Tensor, said: str) -> None:
    with pytest.raises(CheckError, match=said):
        assert overfit(Tagger(), ids(), labels=labels)


def test_what_cannot_learn_is_refused(unchecked: None) -> None:
    with pytest.raises(CheckError, match="overfit was given a builtin_function_or_method and 200 steps"):
        assert overfit(torch.relu, torch.randn(B, D))  # type: ignore[arg-type]
    with pytest.raises(CheckError, match=r"Linear cannot be called with torch\.float32"):
        assert overfit(nn.Linear(D, D), torch.randn(B, D + 1))


@pytest.mark.parametrize("check", [gradients, overfit])
def test_nothing_is_touched(check: Callable[..., Report]) -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(T), nn.Dropout(0.5), nn.Linear(D, D)).train()
    module[0].bias.requires_grad_(False)
    module[2].eval()
    x = torch.randn(B, T, D)
    kept, state = x.clone(), torch.get_rng_state()
    before = copy.deepcopy(module.state_dict())
    check(module, x).raise_for_failure()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert [part.training for part in module] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(one.grad is None for one in module.parameters())
    assert [one.requires_grad for one in module[0].parameters()] == [True, False]
