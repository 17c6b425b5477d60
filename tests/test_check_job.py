"""The job behind `pellucid check`: modules are found, built and forgotten, and each check made that can be."""

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pellucid.check.report import Report
from pellucid.errors import CheckError, ConfigError, MaskError
from pellucid.jobs import check as room
from pellucid.jobs.check import CHECKS, Inputs, Outcome, Wanted, check
from pellucid.jobs.subject import with_lengths
from pellucid.jobs.target import required, target

B, T, D = 2, 5, 3
FLOATS = Inputs((f"{B},{T},{D}",))

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of a user's, and says where it is."""

    def written(text: str, name: str = "theirs.py") -> str:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return str(place)

    return written


FILE = """\
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
from beside import WIDTH

@dataclass
class Sizes:
    width: int = WIDTH

class Leaky(nn.Module):
    def __init__(self, width=Sizes().width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return self.linear(x) + x.roll(-1, dims=1)

class Holder:
    class inner(nn.Identity):
        pass
    held = nn.Linear(WIDTH, WIDTH)

def plain():
    return nn.Linear(WIDTH, WIDTH)

def sized(width, depth):
    return nn.Linear(width, width)

ready = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

if __name__ == "__main__":
    raise SystemExit("this was not to be run")
"""


@pytest.fixture
def theirs(write: Callable[..., str]) -> str:
    """A file with modules in all the ways they are written down, and a file beside it."""
    write(f"WIDTH = {D}\n", "beside.py")
    return write(FILE)


# --- finding and building -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Leaky", "Leaky"),
        ("plain", "Linear"),
        ("ready", "Sequential"),
        ("ready.0", "Linear"),
        ("Leaky.linear", "Linear"),
        ("Holder.inner", "inner"),
        ("Holder.held", "Linear"),
    ],
)
def test_a_name_in_a_file_is_a_module_or_makes_one(theirs: str, name: str, kind: str) -> None:
    with target(f"{theirs}:{name}") as module:
        assert type(module).__name__ == kind


@pytest.mark.parametrize(("name", "kind"), [("torch.nn:Identity", nn.Identity), ("torch:nn.ReLU", nn.ReLU)])
def test_a_name_in_a_package_is_one_too(name: str, kind: type) -> None:
    with target(name) as module:
        assert type(module) is kind


def test_a_package_may_lie_in_the_current_folder(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("", "own/__init__.py")
    write("from torch import nn\nclass Own(nn.Identity): ...\n", "own/deep.py")
    monkeypatch.chdir(tmp_path)
    with target("own.deep:Own") as module:
        assert type(module).__name__ == "Own"
    assert not {"own", "own.deep"} & set(sys.modules)


def test_a_file_inside_a_package_may_import_its_neighbours(write: Callable[..., str]) -> None:
    write("", "own/__init__.py")
    write(f"WIDTH = {D}\n", "own/sizes.py")
    place = write("from torch import nn\nfrom .sizes import WIDTH\nunit = nn.Linear(WIDTH, 1)\n", "own/units.py")
    with target(f"{place}:unit") as module:
        assert module.in_features == D
        assert "own.units" in sys.modules
    assert not {"own", "own.units", "own.sizes"} & set(sys.modules)


def test_python_forgets_the_file_and_its_neighbours(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    modules, path, state = dict(sys.modules), list(sys.path), torch.get_rng_state()
    with target(f"{theirs}:Leaky"):
        assert {"theirs", "beside"} <= set(sys.modules)
    assert {"theirs", "beside"}.isdisjoint(sys.modules)
    assert sys.modules.keys() >= modules.keys()
    assert sys.path == path
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(one.name for one in Path(theirs).parent.iterdir()) == ["beside.py", "theirs.py"]  # no __pycache__


def test_a_file_is_read_anew_each_time(write: Write) -> None:
    for width in (2, 3):
        with target(f"{write(f'from torch import nn{chr(10)}one = nn.Linear({width}, 1)')}:one") as module:
            assert module.in_features == width


def test_a_file_may_be_called_as_a_package_is(write: Callable[..., str]) -> None:
    for name in ("torch.py", "random.py"):
        with target(f"{write('from torch import nn' + chr(10) + 'one = nn.Identity()', name)}:one") as module:
            assert type(module) is nn.Identity
    assert sys.modules["torch"] is torch


def test_weights_come_from_the_seed(theirs: str) -> None:
    weights = []
    for seed in (0, 0, 1):
        with target(f"{theirs}:plain", seed) as module:
            weights.append(module.get_parameter("weight"))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


NOWHERE: dict[str, str] = {
    "theirs.py": r"'theirs.py' was given, but a check needs a place and a name in it; write FILE.py:NAME or",
    "theirs.py:": "'theirs.py:' was given, but",
    "thiers.py:Leaky": "thiers.py is not there; did you mean 'theirs.py'?",
    "nowhere/at_all.py:Leaky": "nowhere/at_all.py is not there; give FILE.py:NAME",
    "text.txt:Leaky": "text.txt is no file of Python; give",
    "./:Leaky": r"\./ is no file of Python; give",
    "no_such_package:Leaky": "there is no package 'no_such_package' in this folder or among those installed; give FILE",
    "torch.no_such:Leaky": "there is no package 'torch.no_such' in this folder",
    "theirs.py:Leeky": "'Leeky' of theirs.py:Leeky is not there; did you mean 'Leaky'?",
    "theirs.py:Leaky.liner": "'liner' of theirs.py:Leaky.liner is not there; did you mean 'linear'?",
    "theirs.py:Qqqq": "'Qqqq' of theirs.py:Qqqq is not there; it has Leaky, plain, ready, sized",
    "theirs.py:ready.7": "'7' of theirs.py:ready.7 is not there; it has 0, 1",
    "torch.nn:Qqqqqqqq": r"'Qqqqqqqq' of torch.nn:Qqqqqqqq is not there; it has AdaptiveAvgPool1d, .* \.\.\.$",
    "beside.py:Qqqq": "'Qqqq' of beside.py:Qqqq is not there; it has no module, and nothing that makes one; write one",
    "beside.py:WIDTH": "beside.py:WIDTH is a int; name a module, its class, or a function that makes one",
    "theirs.py:Holder": "theirs.py:Holder is a class that is no nn.Module; name",
    "theirs.py:sized": "theirs.py:sized wants width, depth; write a function without arguments that makes the module",
    "torch.nn:Linear": "torch.nn:Linear wants in_features, out_features; write",
    "makes.py:number": "makes.py:number makes a int; name a function that makes an nn.Module",
    "makes.py:broken": r"makes.py:broken cannot be built \(line 4 of makes.py: ZeroDivisionError: division by zero\); mend",
    "makes.py:quits": r"makes.py:quits cannot be built \(line 6 of makes.py: SystemExit: enough\); mend it there",
    "torn.py:Leaky": r"torn.py cannot be loaded \(line 2 of torn.py: SyntaxError: .*\); mend it there",
    "odd.py:Leaky": r"odd.py cannot be loaded \(line 3 of odd.py: NameError: name 'undefined' is not defined\); mend",
    "lost.py:Leaky": r"lost.py cannot be loaded \(line 1 of lost.py: ModuleNotFoundError: No module named 'lost_too'\)",
    "beyond.py:Leaky": r"beyond.py cannot be loaded \(line 3 of odd.py: NameError: .*\); mend it there",
    "long.py:Leaky": r"long.py cannot be loaded \(line 1 of long.py: ValueError: x{200} \.\.\.\); mend it there",
}


@pytest.mark.parametrize("written", NOWHERE)
def test_what_cannot_be_found_or_built_costs_one_sentence(
    theirs: str, write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    write("nothing", "text.txt")
    write(
        "def number():\n    return 1\ndef broken():\n    1 / 0\ndef quits():\n    raise SystemExit('enough')\n",
        "makes.py",
    )
    write("x = 1\nclass (:\n", "torn.py")
    write("import torch\nx = 1\nundefined\n", "odd.py")
    write("import lost_too\n", "lost.py")
    write("import odd\n", "beyond.py")
    write("raise ValueError('x' * 1000)\n", "long.py")
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    with pytest.raises(CheckError, match=f"^{NOWHERE[written]}"), target(written):
        pass
    assert set(sys.modules) == modules
    assert sys.path == path


def test_required_arguments_are_those_without_a_value() -> None:
    assert required(lambda a, b=1, *c, d, **e: None) == ["a", "d"]
    assert required(torch.sin) == []  # written in C, and says nothing


# --- inputs ---------------------------------------------------------------------------------------------------


def test_inputs_are_as_they_are_described() -> None:
    first, second = Inputs((f"{B},{T},{D}", "7,11"), seed=3).tensors()
    assert (first.shape, second.shape) == ((B, T, D), (7, 11))
    assert first.dtype == second.dtype == torch.float32
    assert torch.equal(first, Inputs((f"{B},{T},{D}",), seed=3).tensors()[0])
    assert not torch.equal(first, Inputs((f"{B},{T},{D}",), seed=4).tensors()[0])


def test_ids_are_all_but_the_first_of_a_vocabulary() -> None:
    [usual] = Inputs(vocabulary=3).tensors()
    assert usual.shape == (2, 12)
    [ids] = Inputs(("7,97",), vocabulary=5).tensors()
    assert ids.dtype == torch.int64
    assert set(ids.flatten().tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (Inputs(), "no inputs were described; give --shape 2,12,64"),
        (Inputs(("2,x",)), "--shape was given '2,x'; write samples, positions and what else there is"),
        (Inputs(("5",)), "--shape was given '5'; write"),
        (Inputs(("",)), "--shape was given ''; write"),
        (Inputs(("2,0,3",)), "--shape was given '2,0,3'; write"),
        (Inputs(("2,12,64", "2 12")), "--shape was given '2 12'; write"),
        (Inputs(("2,5,3",), vocabulary=7), "--shape was given '2,5,3' with --ids; give samples and positions"),
        (Inputs(("99999,99999",)), "--shape was given '99999,99999', which is 9,999,800,001 numbers; give"),
        (Inputs(vocabulary=1), "--ids was given 1, but ids are drawn from 1 to one less; give the size"),
    ],
)
def test_what_cannot_be_drawn_is_refused(inputs: Inputs, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        inputs.tensors()


@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        (Wanted(layers=2), ConfigError, "--layers was given 2 without --mask; it says"),
        (Wanted(mask="causal", layers=0), ConfigError, "--layers was given 0; it says"),
        (Wanted(mask="caussal"), MaskError, "unknown mask 'caussal'; did you mean 'causal'?"),
    ],
)
def test_what_was_meant_must_be_said_right(wanted: Wanted, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{said}"):
        check(["torch.nn:Identity"], FLOATS, wanted)


# --- checking -------------------------------------------------------------------------------------------------


def named(outcomes: list[Outcome]) -> dict[str, Outcome]:
    """Outcomes by the name of the check."""
    return {outcome.name: outcome for outcome in outcomes}


def reports(outcomes: list[Outcome]) -> list[Report]:
    """The reports, all of which must be there."""
    found = [outcome.report for outcome in outcomes if outcome.report is not None]
    assert len(found) == len(outcomes)
    return found


def test_only_the_checks_that_are_named_are_made(theirs: str) -> None:
    outcomes = check([f"{theirs}:Leaky", f"{theirs}:plain"], FLOATS, Wanted(frozenset({"causality", "repeatable"})))
    assert [(one.module.rpartition(":")[2], one.name, bool(one.report)) for one in outcomes] == [
        ("Leaky", "causality", False),
        ("Leaky", "repeatable", True),
        ("plain", "causality", True),
        ("plain", "repeatable", True),
    ]
    [leaks] = [one.report for one in outcomes if not one.report]
    assert leaks is not None
    assert leaks.findings[0].startswith("output 0 depends on input 1 ")


def test_a_mask_asks_what_is_seen(theirs: str) -> None:
    window = "window(0, 1)"
    assert reports(check([f"{theirs}:Leaky"], FLOATS, Wanted(mask=window)))[0].findings[0].startswith("output 4 ")
    [narrow] = reports(check([f"{theirs}:Leaky"], FLOATS, Wanted(mask="causal")))
    assert not narrow.passed
    [deep] = reports(check(["torch.nn:Identity"], FLOATS, Wanted(mask="window(0, 0)", layers=2)))
    assert deep.passed
    assert deep.asked.startswith("each output position sees what 2 layers of ")


def test_all_that_can_be_asked_is_asked_and_what_cannot_says_why(theirs: str) -> None:
    outcomes = named(check([f"{theirs}:plain"], FLOATS))
    assert list(outcomes) == list(CHECKS)
    assert {name for name, one in outcomes.items() if one.report is None} >= {"sees", "padding"}
    assert outcomes["padding"].skipped.startswith("Linear has no argument for the lengths of input 0")
    assert "call=" not in outcomes["padding"].skipped  # which is no advice for a shell
    assert outcomes["sees"].skipped == "what it is meant to see is not known; give --mask 'window(4, 0)'"
    assert all(one.report.passed for one in outcomes.values() if one.report is not None)
    more = named(check([f"{theirs}:plain"], FLOATS, Wanted(frozenset({"causality"}), everything=True)))
    assert list(more) == list(CHECKS)
    assert [one.name for one in more.values() if one.named] == ["causality"]


def test_a_module_that_looks_ahead_is_blamed_only_where_it_must_not(theirs: str) -> None:
    free = named(check([f"{theirs}:Leaky"], FLOATS))["causality"]
    assert free.report is None
    assert free.skipped.startswith("it looks ahead (output 0 depends on input 1 (slope ")
    assert free.skipped.endswith("); give --causal where it must not")
    bound = named(check([f"{theirs}:Leaky"], FLOATS, Wanted(frozenset({"causality"}), everything=True)))["causality"]
    assert bound.report is not None
    assert not bound.report.passed


def test_whether_a_module_generates_is_for_its_user_to_say(write: Write) -> None:
    place = write(
        "import torch\nfrom torch import nn\n"
        "class Mean(nn.Module):\n"
        "    def forward(self, ids):\n"
        "        logits = nn.functional.one_hot(ids, 11).double() * ids[..., None]\n"
        "        return logits - logits.mean(dim=1, keepdim=True)\n"
    )
    ids, name = Inputs(("3,5",), vocabulary=11), "training_matches_generation"
    free = named(check([f"{place}:Mean"], ids))[name]
    assert free.report is None
    assert free.skipped.startswith("it would not generate as it was trained (")
    assert not reports(check([f"{place}:Mean"], ids, Wanted(frozenset({name}))))[0].passed


LENGTHS = """
import torch
from torch import nn

class Deaf(nn.Module):
    def forward(self, x, lengths):
        return x - x.mean(dim=1, keepdim=True)

class Hearing(nn.Module):
    def forward(self, x, lengths):
        real = torch.arange(x.shape[1])[None] < torch.as_tensor(lengths)[:, None]
        kept = x * real[..., None]
        return x - kept.sum(dim=1, keepdim=True) / real.sum(dim=1)[:, None, None]

class Both(nn.Module):
    def forward(self, x, y, lengths, target_lengths):
        assert list(target_lengths) == [y.shape[1]] * len(y)
        real = torch.arange(x.shape[1])[None] < torch.as_tensor(lengths)[:, None]
        return y + (x * real[..., None]).sum(dim=1, keepdim=True)
"""


def test_a_module_that_wants_lengths_is_told_them(write: Write) -> None:
    place, padding = write(LENGTHS), Wanted(frozenset({"padding"}))
    assert not reports(check([f"{place}:Deaf"], FLOATS, padding))[0].passed
    assert reports(check([f"{place}:Hearing"], FLOATS, padding))[0].passed
    assert reports(check([f"{place}:Both"], Inputs(("2,5,3", "2,7,3")), padding))[0].passed
    everything = named(check([f"{place}:Hearing"], FLOATS))
    assert [name for name, one in everything.items() if one.report is not None and not one.report.passed] == []
    assert {"independence", "batching", "repeatable"} <= {name for name, one in everything.items() if one.report}


def test_padding_goes_from_none_to_nearly_all(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    told: list[Any] = []

    def padding(module: nn.Module, *inputs: Tensor, lengths: Any, call: Any) -> Report:
        told.append(lengths)
        return Report("padding", "")

    monkeypatch.setattr(room, "padding", padding)
    place = write(LENGTHS)
    for shape in ("1,7,3", "2,12,3", "5,7,3", "3,1,3"):
        assert check([f"{place}:Deaf"], Inputs((shape,)), Wanted(frozenset({"padding"})))
    assert told == [(3,), (12, 6), (7, 6, 5, 3, 2), (1, 1, 1)]


def test_lengths_are_told_only_to_modules_that_cannot_do_without() -> None:
    class Optional(nn.Module):
        def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
            return x

    class Other(nn.Module):
        def forward(self, x: Tensor, lengths: Any, width: int) -> Tensor:
            return x

    class Wanting(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return lengths

    assert with_lengths(Optional(), 1, 1) is with_lengths(Other(), 1, 1) is with_lengths(nn.Linear(1, 1), 1, 1) is None
    for axis, lengths in ((1, [T] * B), (0, [B] * T)):
        call = with_lengths(Wanting(), 1, axis)
        assert call is not None
        assert call(Wanting(), torch.ones(B, T, D)).tolist() == lengths


RECURRENT = "from torch import nn\nclass Run(nn.GRU):\n    def __init__(self):\n        super().__init__(3, 3)\n"


def test_positions_may_come_first(write: Write) -> None:
    place, first = f"{write(RECURRENT)}:Run", Inputs((f"{T},{B},{D}",), length_first=True)
    outcomes = named(check([place], first))
    made = {name for name, one in outcomes.items() if one.report is not None}
    assert made >= {"causality", "independence", "batching", "repeatable"}
    assert [name for name in made if not outcomes[name].report] == []
    assert outcomes["padding"].skipped.endswith("known only where samples come first; leave --length-first out")
    assert outcomes["cache"].skipped.startswith("how it takes a step is known only where samples come first; leave")
    assert reports(check([place], first, Wanted(mask="causal")))[0].passed
    second = Inputs((f"{B},{T},{D}",))  # the module takes samples for positions
    [touching] = reports(check([place], second, Wanted(frozenset({"independence"}))))
    assert not touching.passed


UNFIT = """
from torch import nn

class Picky(nn.Module):
    def forward(self, x):
        assert x.shape[-1] == 7, "wants a width of 7"
        return x

class Alone(nn.Module):
    def forward(self, x):
        if len(x) == 1:
            raise KeyError("nobody else")
        return x
"""


def test_what_a_module_raises_is_told(write: Write) -> None:
    place = write(UNFIT)
    with pytest.raises(CheckError, match=r"theirs.py:Picky: .*AssertionError: wants a width of 7\); "):
        check([f"{place}:Picky"], FLOATS)
    with pytest.raises(CheckError, match=r"^torch.nn:Embedding wants"):
        check(["torch.nn:Embedding"], FLOATS)
    with pytest.raises(CheckError, match=r"^torch.nn:Module: Module cannot be called with torch.float32 \(2, 5, 3\)"):
        check(["torch.nn:Module"], FLOATS)
    outcomes = named(check([f"{place}:Alone"], FLOATS))
    for outcome in (
        outcomes["batching"],
        named(check([f"{place}:Alone"], FLOATS, Wanted(frozenset({"batching"}))))["batching"],
    ):
        assert outcome.report is not None
        assert outcome.report.asked == "the module must not raise"
        assert "KeyError: 'nobody else'" in outcome.report.findings[0]


def test_a_fault_of_ours_is_not_laid_on_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "causality", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check(["torch.nn:Identity"], FLOATS)


def test_a_named_check_that_cannot_be_made_is_an_error(theirs: str) -> None:
    with pytest.raises(CheckError, match=r"theirs.py:plain: Linear has no argument for the lengths of input 0"):
        check([f"{theirs}:plain"], FLOATS, Wanted(frozenset({"padding"})))


def test_a_record_holds_all_of_the_report_and_no_infinity() -> None:
    report = Report("causality", "a promise", ("broken",), {"size": float("inf"), "count": 3, "what": "x"})
    record = Outcome("m", "causality", report).record()
    fields = set(inspect.signature(Report).parameters)
    assert record.keys() == fields | {"module", "passed", "skipped"}
    assert record["figures"] == {"size": "inf", "count": 3, "what": "x"}
    assert (record["passed"], record["findings"], record["skipped"]) == (False, ["broken"], "")
    assert Outcome("m", "sees", None, "why").record() == {
        **dict.fromkeys(("asked", "where", "advice", "picture"), ""),
        **{key: [] for key in ("findings", "notes")},
        **{key: {} for key in ("figures", "ways")},
        "name": "sees",
        "module": "m",
        "passed": None,
        "skipped": "why",
    }


def test_every_check_that_pellucid_makes_of_one_module_is_in_the_table() -> None:
    """A check is left out only where it needs more than a module and its inputs."""
    package = Path(room.__file__).parent.parent / "check" / "__init__.py"
    names = {
        alias.name
        for node in ast.parse(package.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.islower() and not alias.name.startswith("assert_")
    }
    assert names - {"influence", "overfit", "parity", "shift"} <= set(CHECKS)
