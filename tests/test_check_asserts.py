"""Each assertion takes what its check takes, and raises the whole report at the line of the test that called it."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid.check import asserts
from pellucid.check.causal import causality
from pellucid.errors import CheckError, CheckFailed
from pellucid.masks import Causal, Window

B, T, D = 2, 5, 3

IDS = torch.tensor([[2, 7, 9, 8, 3], [2, 6, 4, 5, 1]])


class Idle(nn.Module):
    """A module with a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def total(ids: Tensor) -> Tensor:
    """How often each id was met so far."""
    return nn.functional.one_hot(ids, 11).double().cumsum(dim=1)


def centred_logits(ids: Tensor) -> Tensor:
    """Logits less their mean over time, which is another while generating."""
    logits = nn.functional.one_hot(ids, 11).double() * (ids[..., None] + 1)
    return logits - logits.mean(dim=1, keepdim=True)


FAILING: dict[str, Callable[[], None]] = {
    "assert_causal": lambda: asserts.assert_causal(lambda x: x.flip(1), torch.randn(B, T, D)),
    "assert_sees": lambda: asserts.assert_sees(nn.Identity(), torch.randn(B, T, D), Window(before=1, after=0)),
    "assert_padding_ignored": lambda: asserts.assert_padding_ignored(centred, torch.randn(B, T, D), (T, 3)),
    "assert_independent": lambda: asserts.assert_independent(lambda x: x - x.mean(dim=0), torch.randn(B, T, D)),
    "assert_batching": lambda: asserts.assert_batching(lambda x: x - x.mean(dim=0), torch.randn(B, T, D)),
    "assert_parity": lambda: asserts.assert_parity(torch.sin, torch.cos, torch.randn(B, T)),
    "assert_cache": lambda: asserts.assert_cache(total, IDS, step=lambda model, ids, state: (model(ids), None)),
    "assert_training_matches_generation": lambda: asserts.assert_training_matches_generation(centred_logits, IDS),
    "assert_shifted": lambda: asserts.assert_shifted(IDS, IDS),
    "assert_gradients": lambda: asserts.assert_gradients(Idle(), torch.randn(B, D)),
    "assert_learns": lambda: asserts.assert_learns(
        nn.Linear(D, 1).requires_grad_(requires_grad=False), torch.ones(B, D)
    ),
    "assert_shapes": lambda: asserts.assert_shapes(nn.Linear(D, 7), torch.randn(B, T, D), expect="B T D"),
    "assert_repeatable": lambda: asserts.assert_repeatable(lambda x: x + torch.rand(()), torch.randn(B, T)),
}


def centred(x: Tensor, lengths: Any) -> Tensor:
    """A function that takes lengths, and no notice of them."""
    return x - x.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("name", asserts.__all__)
def test_what_is_found_is_raised_with_the_whole_report(name: str) -> None:
    with pytest.raises(AssertionError, match=r"^\w+: FAILED: .*\n  ") as caught:
        FAILING[name]()
    assert type(caught.value) is CheckFailed


def test_the_picture_is_in_the_message() -> None:
    report = causality(lambda x: x.flip(1), torch.ones(B, T, D))
    with pytest.raises(CheckFailed) as caught:
        asserts.assert_causal(lambda x: x.flip(1), torch.ones(B, T, D))
    assert str(caught.value) == str(report)
    assert report.picture in str(caught.value)
    assert "!" in report.picture


def test_what_keeps_its_promise_passes() -> None:
    x = torch.randn(B, T, D)
    asserts.assert_causal(lambda x: x.cumsum(dim=1), x)
    asserts.assert_sees(lambda x: x.cumsum(dim=1), x, mask=Causal())
    asserts.assert_parity(nn.Identity(), nn.Identity(), [x])
    with pytest.raises(CheckFailed):
        asserts.assert_sees(lambda x: x.cumsum(dim=1), x, mask=Window(before=1, after=0))


def test_a_check_that_cannot_be_made_says_so() -> None:
    with pytest.raises(CheckError, match="sees was given no mask") as caught:
        asserts.assert_sees(nn.Identity(), torch.randn(B, T, D))
    assert not isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("name", asserts.__all__)
def test_each_takes_what_its_check_takes_and_says_what_it_does(name: str) -> None:
    asserting = getattr(asserts, name)
    assert (asserting.__name__, asserting.__module__) == (name, "pellucid.check.asserts")
    first, _, check_s_own = (inspect.getdoc(asserting) or "").partition("\n\n")
    [check] = re.findall(r"where `(\w+)` finds", first)
    room = inspect.getmodule(asserting)
    original = getattr(room, check)
    assert list(inspect.signature(asserting).parameters.values()) == list(
        inspect.signature(original).parameters.values()
    )
    assert inspect.signature(asserting).return_annotation is None
    assert check_s_own == inspect.getdoc(original)


def test_a_slip_in_an_argument_is_refused(unchecked: None) -> None:
    with pytest.raises(TypeError, match="inptus_axis"):
        asserts.assert_causal(nn.Identity(), torch.randn(B, T, D), inptus_axis=1)  # type: ignore[call-arg]


def test_a_failure_is_shown_at_the_line_of_the_test() -> None:
    with pytest.raises(CheckFailed) as caught:
        asserts.assert_causal(lambda x: x.flip(1), torch.ones(1, 3, 1))
    shown = str(caught.getrepr())  # as pytest prints it
    assert ">           asserts.assert_causal(lambda x: x.flip(1), torch.ones(1, 3, 1))\n" in shown
    assert re.search(r"^E +0 ■ · ·   · · !$", shown, re.MULTILINE)
    assert "check/asserts.py" not in shown


@pytest.mark.slow
def test_pytest_shows_the_picture_at_the_line_of_the_test(tmp_path: Path) -> None:
    test = tmp_path / "test_theirs.py"
    test.write_text(
        "import torch\n"
        "from pellucid.check.asserts import assert_causal\n\n\n"
        "def test_it():\n"
        "    assert_causal(lambda x: x.flip(1), torch.ones(2, 3, 1))\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    ended = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert ended.returncode == 1
    shown = ended.stdout
    assert ">       assert_causal(lambda x: x.flip(1), torch.ones(2, 3, 1))\n" in shown
    assert "E       pellucid.errors.CheckFailed: causality: FAILED: no output position may depend" in shown
    assert re.search(r"^E +0 ■ · ·   · · !$", shown, re.MULTILINE)
    assert "test_theirs.py:6: CheckFailed" in shown
    assert "asserts.py" not in shown
