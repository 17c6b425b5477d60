"""The rules of the house hold in every file, each is seen to find its fault, and every example in the code runs."""

import ast
import doctest
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

import house_habits as habits
import house_plan as plan
import pellucid

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in ("src", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
SOURCES = {path: source for path, source in FILES.items() if path.startswith("src/")}
TESTS = {path: source for path, source in FILES.items() if path.startswith("tests/")}

# What the face promises, by module: `pellucid` says exactly this, the others at least this. A new name of the package
# is added here and to its `__all__`.
PROMISED = {
    "pellucid": (
        "DataConfig",
        "DecodingConfig",
        "EncoderDecoder",
        "ModelConfig",
        "PellucidError",
        "RunConfig",
        "TrainingConfig",
        "Transformer",
        "Translation",
        "Translator",
        "__version__",
        "check",
        "load",
        "masks",
        "positions",
        "view",
    ),
    "pellucid.masks": (
        *(
            "Causal",
            "Chunked",
            "Dense",
            "Dilated",
            "Full",
            "Global",
            "Heads",
            "Padding",
            "Predicate",
            "Prefix",
            "Segments",
        ),
        *("Window", "difference", "parse", "read", "recognise", "seq2seq"),
    ),
    "pellucid.model": ("EncoderDecoder", "MultiHeadAttention", "Transformer", "attend"),
    "pellucid.model.positions": ("Learned", "Sinusoidal"),
    "pellucid.decoding": ("beam_search", "greedy_search", "sample"),
    "pellucid.interop": ("from_torch", "to_torch"),
    "pellucid.check": ("cache", "causality", "padding", "parity"),
}

Rule = Callable[[str, str], list[str]]
RULES: list[tuple[Rule, dict[str, str]]] = [
    (plan.on_the_map, SOURCES),
    (plan.floors, SOURCES),
    (plan.strangers, SOURCES),
    (plan.only_hands_names_on, FILES),
    (habits.opening, FILES),
    (habits.sizes, SOURCES),
    (habits.finished, SOURCES),
    (habits.safe, SOURCES),
    (habits.open_keywords, SOURCES),
    (habits.errors, SOURCES),
    (habits.dropped_result, FILES),
    (habits.idle_test, TESTS),
]

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 40
NINE = ", ".join(f"p{number}" for number in range(9))
BAD: list[tuple[Rule, str, str]] = [
    (plan.on_the_map, "src/pellucid/utils.py", ""),
    (plan.on_the_map, "src/pellucid/masks/helpers/kinds.py", ""),
    (plan.on_the_map, "src/pellucid/attic.py", ""),
    (plan.floors, "src/pellucid/masks/kinds.py", "from pellucid.model import attend"),
    (plan.floors, "src/pellucid/masks/kinds.py", "from pellucid.text import batch"),
    (plan.floors, "src/pellucid/masks/kinds.py", "class Kind:\n    import pellucid.run"),
    (plan.floors, "src/pellucid/masks/kinds.py", "if True:\n    import pellucid.run"),
    (plan.floors, "src/pellucid/masks/kinds.py", "def draw():\n    import pellucid.errors"),
    (plan.floors, "src/pellucid/jobs/demo.py", "def demo():\n    import pellucid.cli"),
    (plan.floors, "src/pellucid/model/decoder.py", "from pellucid import Transformer"),
    (plan.floors, "src/pellucid/model/decoder.py", "import pellucid"),
    (plan.floors, "src/pellucid/model/decoder.py", "from .attention import attend"),
    (plan.floors, "src/pellucid/__init__.py", "from pellucid.cli import main"),
    (plan.strangers, "src/pellucid/text/batch.py", "from pellucid import masks"),
    (plan.strangers, "src/pellucid/masks/seq2seq.py", "def f():\n    from pellucid.text.batch import Batch"),
    (plan.strangers, "src/pellucid/masks/algebra.py", "from pellucid.model.kernels import fused"),
    (plan.strangers, "src/pellucid/training/trainer.py", "from pellucid.decoding import beam_search"),
    (plan.strangers, "src/pellucid/decoding/engines.py", "from pellucid.training.loss import cross_entropy"),
    (plan.strangers, "src/pellucid/decoding/search.py", "from pellucid.model.cache import Cache"),
    (plan.strangers, "src/pellucid/training/trainer.py", "from pellucid import check"),
    (plan.strangers, "src/pellucid/check/causality.py", "from pellucid.view import mask"),
    (plan.strangers, "src/pellucid/config.py", "def f():\n    from torch import nn"),
    (plan.only_hands_names_on, "src/pellucid/text/__init__.py", "def tokens():\n    pass"),
    (plan.only_hands_names_on, "src/pellucid/text/__init__.py", "LIMIT = 3"),
    (plan.only_hands_names_on, "src/pellucid/text/__init__.py", "ROOMS = {}"),
    (plan.only_hands_names_on, "src/pellucid/__init__.py", "def __getattr__(name):\n    pass"),
    (plan.only_hands_names_on, "src/pellucid/__init__.py", "if not TYPE_CHECKING:\n    LIMIT = 3"),
    (plan.only_hands_names_on, "src/pellucid/__init__.py", "if TYPE_CHECKING:\n    LIMIT = 3"),
    (plan.only_hands_names_on, "src/pellucid/__init__.py", "if DEBUG:\n    from pellucid import check"),
    (habits.opening, "src/pellucid/run.py", "import torch"),
    (habits.opening, "src/pellucid/run.py", '"""A run on disk"""'),
    (habits.opening, "src/pellucid/run.py", '"""A run on disk. It is atomic."""'),
    (habits.sizes, "src/pellucid/run.py", "x = 1\n" * 301),
    (habits.sizes, "src/pellucid/run.py", LONG_FUNCTION),
    (habits.sizes, "src/pellucid/run.py", f"def f({NINE}):\n    pass"),
    (habits.sizes, "src/pellucid/run.py", f"def f(*, {NINE}):\n    pass"),
    (habits.sizes, "src/pellucid/run.py", f"def __init__(self, {NINE}):\n    pass"),
    (habits.sizes, "src/pellucid/cli/runs.py", f"def train({NINE}):\n    pass"),
    (habits.finished, "src/pellucid/run.py", "# TODO write this"),
    (habits.finished, "src/pellucid/run.py", '"""A Placeholder."""'),
    (habits.safe, "src/pellucid/run.py", "import pickle"),
    (habits.safe, "src/pellucid/run.py", "weights = torch.load(path)"),
    (habits.safe, "src/pellucid/run.py", "eval('1')"),
    (habits.safe, "src/pellucid/run.py", "lines = text.splitlines()"),
    (habits.safe, "src/pellucid/run.py", "from __future__ import annotations"),
    (habits.open_keywords, "src/pellucid/run.py", "def save(path, **rest):\n    pass"),
    (habits.errors, "src/pellucid/run.py", "raise ValueError('the run is gone; look for it')"),
    (habits.errors, "src/pellucid/run.py", "raise NotImplementedError"),
    (habits.errors, "src/pellucid/run.py", "raise RunError('the run is gone.')"),
    (habits.errors, "src/pellucid/run.py", "raise RunError(f'the run {path} is gone. Look for it')"),
    (habits.errors, "src/pellucid/run.py", "raise RunError('the run is' + '\\ngone')"),
    (habits.dropped_result, "tests/test_run.py", "left == right"),
    (habits.dropped_result, "tests/test_run.py", "def test():\n    not left"),
    (habits.dropped_result, "tests/test_run.py", "torch.equal(left, right)"),
    (habits.dropped_result, "tests/test_run.py", "(left == right).all()"),
    (habits.dropped_result, "tests/test_run.py", "pellucid.check.causality(module, x)"),
    (habits.idle_test, "tests/test_run.py", "def test_nothing():\n    run()"),
    (habits.idle_test, "tests/test_run.py", "def run():\n    pass\ndef test_nothing():\n    run()"),
]
GOOD: list[tuple[Rule, str, str]] = [
    (plan.on_the_map, "src/pellucid/masks/__init__.py", ""),
    (plan.floors, "src/pellucid/model/decoder.py", "from pellucid import masks\nfrom pellucid.shapes import Ids"),
    (plan.floors, "src/pellucid/masks/algebra.py", "def to():\n    from pellucid.masks.conventions import TABLE"),
    (plan.floors, "src/pellucid/cli/runs.py", "def train():\n    from pellucid.jobs.train import train"),
    (plan.strangers, "src/pellucid/decoding/engines.py", "from pellucid.model import Transformer"),
    (plan.strangers, "src/pellucid/jobs/demo.py", "from pellucid import check, view"),
    (plan.strangers, "src/pellucid/view/look.py", "from pellucid.view.figure import save"),
    (plan.only_hands_names_on, "src/pellucid/text/__init__.py", '"""Text."""\nimport os\n__all__ = ["os"]'),
    (plan.only_hands_names_on, plan.FACE, "if not TYPE_CHECKING:\n    def __getattr__(name):\n        pass"),
    (plan.only_hands_names_on, plan.FACE, "ROOMS = {}\nif TYPE_CHECKING:\n    from pellucid import check"),
    (habits.opening, "src/pellucid/run.py", '"""A run on disk,\nread and written.\n\nIt is atomic. Truly."""'),
    (habits.sizes, "src/pellucid/run.py", LONG_FUNCTION.replace("():\n    x = 1", '():\n    """One.\n\n    Two."""')),
    (habits.sizes, "src/pellucid/run.py", f"def __init__(self, *, {NINE}):\n    pass"),
    (habits.sizes, "src/pellucid/cli/runs.py", f"def train(*, {NINE}):\n    pass"),
    (habits.safe, "src/pellucid/run.py", "model.eval()\nlines = text.split('\\n')"),
    (habits.open_keywords, "src/pellucid/config.py", "def replace(self, **changes):\n    pass"),
    (habits.errors, "src/pellucid/run.py", "raise RunError(f'step {1.5} of {path} is gone; did you mean 2?')"),
    (habits.errors, "src/pellucid/config.py", "raise ValueError('too long; cut it')"),
    (habits.dropped_result, "tests/test_run.py", "with pytest.raises(MaskError):\n    left <= right"),
    (habits.dropped_result, "tests/test_run.py", "check.causality(module, x).raise_for_failure()"),
    (habits.idle_test, "tests/test_run.py", "def same():\n    assert 1\ndef test_one():\n    same()"),
    (habits.idle_test, "tests/test_run.py", "def test_one():\n    torch.testing.assert_close(1, 2)"),
]


def named(case: tuple[Rule, object] | tuple[Rule, str, str]) -> str:
    """A case's name in the list of tests: the rule it is about."""
    return case[0].__name__


@pytest.mark.parametrize("case", RULES, ids=named)
def test_every_file_keeps_the_rule(case: tuple[Rule, dict[str, str]]) -> None:
    rule, files = case
    assert files
    found = [finding for path, source in files.items() for finding in rule(path, source)]
    assert not found, "\n".join([rule.__doc__ or "", *found])


@pytest.mark.parametrize("case", BAD, ids=named)
def test_the_rule_finds_its_fault(case: tuple[Rule, str, str]) -> None:
    rule, path, source = case
    assert len(rule(path, source)) == 1


@pytest.mark.parametrize("case", GOOD, ids=named)
def test_the_rule_lets_the_lawful_pass(case: tuple[Rule, str, str]) -> None:
    rule, path, source = case
    assert rule(path, source) == []


def test_every_rule_has_a_bad_example() -> None:
    assert {rule for rule, _ in RULES} == {rule for rule, _, _ in BAD}


def test_no_file_imports_itself_by_any_way() -> None:
    assert plan.circles(SOURCES) == []


def test_circles_are_found() -> None:
    files = {
        "src/pellucid/masks/__init__.py": "from pellucid.masks.kinds import Full",
        "src/pellucid/masks/kinds.py": "from pellucid.masks.algebra import Mask",
        "src/pellucid/masks/algebra.py": "def to():\n    from pellucid.masks.kinds import Full",
    }
    assert plan.circles(files) == []
    files["src/pellucid/masks/algebra.py"] = "from pellucid.masks.kinds import Full"
    assert plan.circles(files) == ["masks.kinds -> masks.algebra -> masks.kinds"]
    files["src/pellucid/masks/algebra.py"] = "from pellucid.masks import Full"
    assert plan.circles(files) == ["masks -> masks.kinds -> masks.algebra -> masks"]


def test_no_class_replaces_what_another_does() -> None:
    assert habits.overriding(SOURCES) == []


def test_overriding_is_found() -> None:
    abstract = "class Above(ABC):\n    @abstractmethod\n    def one(self): ...\n    def two(self): return 2\n"
    below = "class Below(Above):\n    def one(self): return 3\n    def two(self): return 3\n"
    lowest = "class Lowest(pellucid.run.Below[int]):\n    def two(self): return 4\n    def three(self): return 4\n"
    assert habits.overriding({"src/pellucid/run.py": abstract, "src/pellucid/cli/runs.py": below}) == []
    found = habits.overriding({"src/pellucid/run.py": abstract + below, "src/pellucid/cli/runs.py": lowest})
    assert found == ["Lowest.two replaces Below.two"]


@pytest.mark.parametrize("path", [path for path in SOURCES if "__all__" in SOURCES[path]])
def test_every_public_name_exists_once(path: str) -> None:
    module = importlib.import_module(f"pellucid.{plan.module_of(path)}".removesuffix(".__init__"))
    names = module.__all__  # their order is ruff's affair: RUF022
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("name", PROMISED)
def test_the_face_holds_what_it_promises(name: str) -> None:
    public = set(importlib.import_module(name).__all__)
    assert set(PROMISED[name]) - public == set()
    if name == "pellucid":
        assert public - set(PROMISED[name]) == set()


def test_the_face_finds_each_name_where_a_type_checker_does() -> None:
    read = {one.name for one in plan.own_imports(SOURCES[plan.FACE])} - {"version.__version__"}
    rooms: dict[str, tuple[str, ...]] = vars(pellucid)["ROOMS"]
    assert read == {f"{room}.{name}".rstrip(".") for room, names in rooms.items() for name in names or ("",)}


def test_the_face_is_asked_for_names_as_any_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pellucid.config.ModelConfig is pellucid.ModelConfig
    assert set(pellucid.__all__) < set(dir(pellucid))
    monkeypatch.delattr(pellucid, "masks")
    assert pellucid.masks.Causal is importlib.import_module("pellucid.masks.kinds").Causal
    with pytest.raises(ImportError, match="cannot import name 'Transfomer' from 'pellucid'"):
        exec("from pellucid import Transfomer", {})
    with pytest.raises(AttributeError, match="module 'pellucid' has no attribute 'Transfomer'"):
        pellucid.Transfomer  # type: ignore[attr-defined]  # noqa: B018


def examples(path: str, source: str) -> list[doctest.DocTest]:
    """The examples in a file's docstrings, also below assignments; read from the source, so that none is missed."""
    module = importlib.import_module(f"pellucid.{plan.module_of(path)}".removesuffix(".__init__"))
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    found = []
    for node in texts:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = dict(vars(module))
            parser, line = doctest.DocTestParser(), node.lineno - 1
            found.append(parser.get_doctest(node.value.value, names, f"{path}:{node.lineno}", str(ROOT / path), line))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("path", [path for path in SOURCES if ">>> " in SOURCES[path]])
def test_every_example_in_the_code_runs(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = examples(path, SOURCES[path])
    assert sum(len(test.examples) for test in tests) == SOURCES[path].count(">>> ")
    report: list[str] = []
    for test in tests:
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)
