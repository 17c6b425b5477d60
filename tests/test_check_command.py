"""`pellucid check` in a shell: what it prints, its exit status, and that a slip costs one sentence."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from pellucid import cli
from pellucid.check.report import Report
from pellucid.jobs.check import CHECKS, Outcome, Wanted
from shell import Shell, shell_in

FILE = """
import torch
from torch import nn

print("loading")

class Shifted(nn.Module):
    # A mask that lets each query see the next key, too.
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        blocked = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=2).bool()
        print("called")
        return x + self.attention(x, x, x, attn_mask=blocked, need_weights=False)[0]

class Causal(Shifted):
    def forward(self, x):
        blocked = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=1).bool()
        return x + self.attention(x, x, x, attn_mask=blocked, need_weights=False)[0]

class Tokens(nn.Module):
    def __init__(self, layer=Causal):
        super().__init__()
        self.embed, self.layer = nn.Embedding(11, 6), layer()

    def forward(self, ids):
        return self.layer(self.embed(ids))

def early():
    return Tokens(Shifted)

def wide(width):
    return nn.Linear(width, width)

def text():
    return "text"

if __name__ == "__main__":
    raise SystemExit("this was not to be run")
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """Runs `pellucid check` in this process, in a folder with some files of a user's."""
    (tmp_path / "model.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "torn.py").write_text("from torch import nn\n\nnn.Linaer(1, 1)\n", encoding="utf-8")
    return shell_in(tmp_path, monkeypatch, capsys, ("check",))


FLOATS = ("--shape", "2,5,6")


def test_what_is_found_costs_status_1_and_is_shown(shell: Shell) -> None:
    ended = shell("model.py:Shifted", *FLOATS, "--causal")
    assert ended.status == 1
    assert ended.out.startswith("causality: FAILED: no output position may depend on a later input position\n")
    assert "\n  0 ■ · · · ·   ■ ! · · ·\n" in ended.out
    assert "first broken: attention (MultiheadAttention)" in ended.out
    table = ended.out.partition("\n\n")[2].rstrip().split("\n")
    assert [line.split()[:2] for line in table] == [["model.py:Shifted"], ["check", "outcome"], ["causality", "FAILED"]]
    assert re.search(r"output 0 depends on input 1 \(slope .*\) \(and 3 more\)$", table[2].rstrip())
    assert set(ended.err.split("\n")) == {"loading", "called", ""}  # what they print is no result of ours


def test_what_passes_costs_status_0(shell: Shell) -> None:
    ended = shell("model.py:Causal", *FLOATS, "--causal")
    assert ended.status == 0
    assert ended.out.startswith("causality: passed: no output position may depend")
    assert re.search(r"^ *causality +passed +outputs 5, leaking 0 *$", ended.out, re.MULTILINE)


def test_several_modules_are_checked_each(shell: Shell) -> None:
    ended = shell("model.py:Causal", "model.py:Shifted", *FLOATS, "--causal")
    assert ended.status == 1
    rows = re.findall(r"^ *causality +(passed|FAILED) ", ended.out, re.MULTILINE)
    assert rows == ["passed", "FAILED"]
    assert ended.out.index("model.py:Causal") < ended.out.index("model.py:Shifted")


def test_a_model_of_tokens_is_given_ids(shell: Shell) -> None:
    assert shell("model.py:Tokens", "--ids", 11, "--causal").status == 0
    assert shell("model.py:early", "--ids", 11, "--shape", "3,7", "--causal").status == 1


def test_a_mask_says_what_is_meant(shell: Shell) -> None:
    meant = ("--mask", "causal")
    assert shell("model.py:Causal", *FLOATS, *meant).status == 0
    assert shell("model.py:Shifted", *FLOATS, *meant).status == 1
    assert shell("torch.nn:Identity", *FLOATS, *meant).status == 1
    assert shell("torch.nn:Identity", *FLOATS, "--mask", "window(0, 0)", "--layers", 2).status == 0


def test_json_is_one_object_for_each_check(shell: Shell) -> None:
    ended = shell("model.py:Shifted", "model.py:Causal", *FLOATS, "--causal", "--repeatable", "--json")
    assert ended.status == 1
    records = [json.loads(line) for line in ended.out.split("\n")[:-1]]
    assert [(one["module"], one["name"], one["passed"]) for one in records] == [
        ("model.py:Shifted", "causality", False),
        ("model.py:Shifted", "repeatable", True),
        ("model.py:Causal", "causality", True),
        ("model.py:Causal", "repeatable", True),
    ]
    first = records[0]
    assert first["figures"] == {"outputs": 5, "leaking": 4}
    assert first["where"] == "attention (MultiheadAttention)"
    assert first["advice"].startswith("off by one: ")
    assert first["ways"]["training, float64"] is False
    assert "■ !" in first["picture"]
    assert (first["notes"], first["skipped"]) == ([], "")


def test_json_has_no_infinities(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> Report:
        return Report("causality", "", ("ab\ncd",), {"size": math.inf, "none": math.nan})

    def refused(line: str) -> Any:
        raise AssertionError(line)

    monkeypatch.setitem(CHECKS, "causality", broken)
    ended = shell("model.py:Causal", *FLOATS, "--causal", "--json")
    [line] = ended.out.split("\n")[:-1]
    assert json.loads(line, parse_constant=refused)["figures"] == {"size": "inf", "none": "nan"}


def test_where_no_check_is_named_all_are_made(shell: Shell) -> None:
    ended = shell("model.py:Causal", *FLOATS)
    assert ended.status == 0
    rows = re.findall(r"^ *(\w+) +(passed|skipped) +(\S.*?) *$", ended.out, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(CHECKS)
    told = {name: (outcome, found) for name, outcome, found in rows}
    assert told["sees"] == ("skipped", "what it is meant to see is not known; give --mask 'window(4, 0)'")
    assert told["causality"][0] == told["repeatable"][0] == "passed"
    assert "passed: " not in ended.out  # only what fails is shown at length


def test_a_module_that_may_look_ahead_is_not_blamed(shell: Shell) -> None:
    ended = shell("model.py:Shifted", *FLOATS)
    assert ended.status == 0
    assert re.search(r"^ *causality +skipped +it looks ahead ", ended.out, re.MULTILINE)


def test_words_that_look_like_markup_stay_words(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "causality", lambda _: Report("causality", "", ("[bold]x[0][/bold] :smile:",)))
    assert "[bold]x[0][/bold] :smile:" in shell("model.py:Causal", *FLOATS, "--causal").out.partition("outcome")[2]


def test_there_is_an_option_for_every_check(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Wanted] = []

    def job(targets: object, inputs: object, wanted: Wanted) -> list[Outcome]:
        asked.append(wanted)
        return []

    monkeypatch.setattr("pellucid.jobs.check.check", job)
    for name in CHECKS:
        words = {
            "causality": ("--causal",),
            "sees": ("--mask", "causal"),
            "training_matches_generation": ("--generation",),
        }.get(name, (f"--{name}",))
        assert shell("model.py:Causal", *words).status == 0
        assert asked[-1].named == {name}
        assert not asked[-1].everything
    assert shell("model.py:Causal", "--all").status == 0
    assert asked[-1].everything


SLIPS = {
    "": "missing argument 'FILE.py:NAME'; see `pellucid check --help`",
    "model.py --causal --shape 2,5,6": "'model.py' was given, but a check needs a place and a name in it; write",
    "modle.py:Causal --causal --shape 2,5,6": "modle.py is not there; did you mean 'model.py'?",
    "model.py:Casual --causal --shape 2,5,6": "'Casual' of model.py:Casual is not there; did you mean 'Causal'?",
    "model.py:wide --causal --shape 2,5,6": "model.py:wide wants width; write a function without arguments",
    "model.py:text --causal --shape 2,5,6": "model.py:text makes a str; name a function that makes an nn.Module",
    "model.py:FILE --causal --shape 2,5,6": "'FILE' of model.py:FILE is not there; ",
    "torn.py:Net --causal --shape 2,5,6": "torn.py cannot be loaded (line 3 of torn.py: AttributeError: module 'torch.nn'",
    "no_such:Net --causal --shape 2,5,6": "there is no package 'no_such' in this folder or among those installed; give",
    "model.py:Causal --causal": "no inputs were described; give --shape 2,12,64 (samples, positions, width), or --ids",
    "model.py:Causal --causal --shape 2x5x6": "--shape was given '2x5x6'; write samples, positions and what else",
    "model.py:Causal --causal --shape 2,5,7": "model.py:Causal: Causal cannot be called with torch.float32 (2, 5, 7) (",
    "model.py:Tokens --causal --ids 1": "--ids was given 1, but ids are drawn from 1 to one less; give the size",
    "model.py:Tokens --causal --ids many": "invalid value for '--ids': ",
    "model.py:Tokens --causal --ids 12 --shape 7,97": "model.py:Tokens: Tokens cannot be called with torch.int64 (7, 97) (",
    "model.py:Causal --shape 2,5,6 --mask caussal": "unknown mask 'caussal'; did you mean 'causal'?",
    "model.py:Causal --shape 2,5,6 --mask padding(5,3,1)": "model.py:Causal: ",
    "model.py:Causal --shape 2,5,6 --layers 2": "--layers was given 2 without --mask; it says how many attentions",
    "model.py:Causal --shape 2,5,6 --padding": "model.py:Causal: Causal has no argument for the lengths of input 0",
    "model.py:Causal --shape 2,5,6 --casual": "no such option: --casual",
    "model.py:Causal nowhere.py:Net --causal --shape 2,5,6": "nowhere.py is not there; give FILE.py:NAME",
}


@pytest.mark.parametrize("call", SLIPS)
def test_a_slip_costs_one_sentence_and_status_2(shell: Shell, call: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    ended = shell(*call.split())
    assert (ended.status, ended.out) == (2, "")
    said = [line for line in ended.err.split("\n") if line not in ("", "loading", "called")]
    assert len(said) == 1
    assert said[0].startswith(f"pellucid: {SLIPS[call]}")
    assert len(said[0]) < 400
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


def test_the_help_says_what_each_option_does() -> None:
    command = typer.main.get_command(cli.app).commands["check"]  # type: ignore[attr-defined]
    assert [option.name for option in command.params if not option.help] == []
