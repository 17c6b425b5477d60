"""The table of shapes names axes by what they really follow, and tells an output that is not as meant."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid.check.report import Report
from pellucid.check.sizes import shapes
from pellucid.config import ModelConfig
from pellucid.errors import CheckError
from pellucid.model import Transformer

B, S, T, D = 2, 5, 7, 6
HEADS = 3


def rows(report: Report) -> dict[str, str]:
    """The shapes in the table, by submodule."""
    lines = [line.split(maxsplit=2) for line in report.picture.replace("the module itself", "itself").split("\n")[1:]]
    return {name: shape for name, _, shape in lines}


def whole(module: Any, *inputs: Tensor, **options: Any) -> str:
    """The shape of the module's own output."""
    return rows(shapes(module, *inputs, **options))["itself"]


class Attention(nn.Module):
    """Heads within samples, as many write them; `wrong` forgets to put the batch first again."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.num_heads, self.wrong = HEADS, wrong
        self.split, self.scores, self.out = nn.Identity(), nn.Identity(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = x.view(batch, length, self.num_heads, -1).transpose(1, 2).reshape(batch * self.num_heads, length, -1)
        heads = self.split(heads)
        mixed = self.scores(heads @ heads.mT).softmax(-1) @ heads
        mixed = mixed.view(batch, self.num_heads, length, -1).transpose(1, 2).reshape(batch, length, width)
        output: Tensor = self.out(mixed)
        return output.transpose(0, 1) if self.wrong else output


def test_the_table_names_heads_within_samples() -> None:
    report = shapes(Attention(), torch.randn(B, T, D))
    assert report.picture.split("\n") == [
        "  submodule          class      output",
        "  split              Identity   (B*H, T, 2)",
        "  scores             Identity   (B*H, T, T)",
        "  out                Linear     (B, T, D)",
        "  the module itself  Attention  (B, T, D)",
    ]
    assert report.figures == {"B": B, "T": T, "D": D}
    assert report.passed
    assert report.notes == ()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_equal_numbers_do_not_mislead(size: int) -> None:
    x = torch.randn(size, size, size)
    assert whole(lambda x: x.transpose(0, 1), x) == "(T, B, D)"
    assert whole(lambda x: x.permute(2, 0, 1), x) == "(D, B, T)"
    assert whole(lambda x: x.flatten(0, 1), x) == "(B*T, D)"
    assert whole(nn.Linear(size, size), x) == "(B, T, D)"


FORMS: list[tuple[str, Any, str]] = [
    ("products", lambda x: x.flatten(), f"(B*T*{D})"),
    ("one less", lambda x: x[:, 1:], "(B, T-1, D)"),
    ("one more", lambda x: torch.cat([x[:1], x]), "(B+1, T, D)"),
    ("half", lambda x: x[:, ::2], "(B, 4 (follows T), D)"),
    ("pooled", lambda x: x.mean(1), "(B, D)"),
    ("scalar", lambda x: x.sum(), "()"),
    ("constant", lambda x: torch.ones(T, 11), "(7, 11)"),
]


@pytest.mark.parametrize(("module", "shape"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_axes_are_named_by_what_they_follow(module: Any, shape: str) -> None:
    assert whole(module, torch.randn(B, T, D)) == shape


def test_sources_and_targets_are_told_apart_even_where_they_are_as_long() -> None:
    model = Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13))
    found = rows(shapes(model, torch.randint(4, 11, (B, T)), torch.randint(4, 13, (B, T))))
    assert found["itself"] == "(B, T, 13)"
    assert found["stacks.encoder"] == "(B, S, D)"
    assert found["stacks.decoder"] == "(B, T, D)"
    assert found["stacks.decoder.layers.0.cross_attention.key"] == "(B, S, D)"


def test_inputs_that_must_be_as_long_are_both_positions() -> None:
    assert whole(nn.Bilinear(D, D, 11), torch.randn(B, T, D), torch.randn(B, T, D)) == "(B, T, 11)"


def test_masks_and_lengths_go_along() -> None:
    def masked(x: Tensor, mask: Tensor, pad: Tensor, lengths: Tensor) -> Tensor:
        scores = (x @ x.mT).masked_fill(~mask | ~pad[:, None], -torch.inf)
        return scores.softmax(-1) @ x / lengths[:, None, None]

    given = (torch.ones(T, T).tril().bool(), torch.ones(B, T, dtype=torch.bool), torch.full((B,), T))
    report = shapes(masked, torch.randn(B, T, D), *given)
    assert (rows(report)["itself"], report.notes) == ("(B, T, D)", ())


def test_a_length_that_is_fixed_is_named_by_its_size_and_said() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(T, D))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.table

    report = shapes(Fixed(), torch.randn(B, T, D))
    assert rows(report)["itself"] == "(B, T, D)"
    assert report.notes == ("T is named by its size alone, as the module takes no other numbers of positions",)


def test_positions_may_stand_first() -> None:
    x = torch.randn(T, B, D)
    assert whole(nn.GRU(D, 11), x, inputs_axis=0) == "(T, B, 11)"
    assert whole(nn.Linear(D, 11), torch.randn(B, D)) == "(B, 11)"


EXPECTED: list[tuple[str, Any, str, str]] = [
    ("swapped", Attention(wrong=True), "B T D", "B and T are swapped: set batch_first=True, or turn the output back"),
    ("order", lambda x: x.mT, "B T D", "the axes stand in another order: permute(0, 2, 1) puts them right"),
    ("flat", lambda x: x.flatten(0, 1), "B T D", "axes were put into one, with a reshape or flatten"),
    ("pooled", lambda x: x.mean(1), "B T D", "nothing follows T: look for a mean, a choice or a sum over that axis"),
    ("width", nn.Linear(D, 11), "B T D", "look in the table for the first submodule"),
    ("number", nn.Linear(D, 11), "B T 13", "look in the table for the first submodule"),
]


@pytest.mark.parametrize(
    ("module", "expect", "said"), [case[1:] for case in EXPECTED], ids=[case[0] for case in EXPECTED]
)
def test_an_output_that_is_not_as_meant_is_found(module: Any, expect: str, said: str) -> None:
    report = shapes(module, torch.randn(B, T, D), expect=expect)
    assert not report.passed
    assert report.findings[0].startswith("the output is (")
    assert report.findings[0].endswith(f"where ({', '.join(expect.split())}) was expected")
    assert report.advice.startswith(said)


@pytest.mark.parametrize("expect", ["B T 11", "B T V"])
def test_numbers_and_other_letters_may_be_expected(expect: str) -> None:
    shapes(nn.Linear(D, 11), torch.randn(B, T, D), expect=expect).raise_for_failure()


RIGHT: list[tuple[str, Any]] = [
    ("encoder layer", lambda: nn.TransformerEncoderLayer(D, 2, 11, batch_first=True)),
    ("attention", lambda: nn.MultiheadAttention(D, 2, batch_first=True)),
    ("gru", lambda: nn.GRU(D, D, batch_first=True)),
    ("heads", Attention),
]


@pytest.mark.parametrize("made", [case[1] for case in RIGHT], ids=[case[0] for case in RIGHT])
def test_right_modules_are_not_accused(made: Any) -> None:
    shapes(made(), torch.randn(B, T, D), expect="B T D").raise_for_failure()


def test_a_model_of_hugging_face_is_named() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=8, intermediate_size=11, num_hidden_layers=1, num_attention_heads=2
    )
    found = rows(shapes(transformers.LlamaForCausalLM(config), torch.randint(4, 23, (B, T)), expect="B T V"))
    assert found["itself"] == "(B, T, 23)"
    assert found["model.layers.0.mlp.gate_proj"] == "(B, T, 11)"
    assert found["model.norm"] == "(B, T, D)"


def test_long_tables_are_cut() -> None:
    report = shapes(nn.Sequential(*(nn.Linear(D, D) for _ in range(130))), torch.randn(B, T, D))
    assert len(report.picture.split("\n")) == 101
    assert report.picture.split("\n")[-1].split()[-4:] == ["Sequential", "(B,", "T,", "D)"]
    assert report.notes == ("31 rows before the last are left out",)


def test_nothing_is_touched() -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(T), nn.Dropout(0.5)).train()
    before, x, state = copy.deepcopy(module.state_dict()), torch.randn(B, T, D), torch.get_rng_state()
    kept = x.clone()
    assert shapes(module, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        ((torch.ones(3),), {}, r"shapes was given \(3,\); give a tensor with samples and positions"),
        (
            (torch.ones(B, T, D),),
            {"inputs_axis": 2},
            "inputs_axis 2 was given, but positions stand on one of the two front",
        ),
        ((torch.ones(B, T, D + 1),), {}, "Linear cannot be called with"),
    ],
)
def test_what_cannot_be_named_is_refused(inputs: tuple[Tensor, ...], options: dict[str, Any], said: str) -> None:
    module = nn.Identity() if inputs[0].dim() == 1 else nn.Linear(D, D)
    with pytest.raises(CheckError, match=said):
        assert shapes(module, *inputs, **options)
