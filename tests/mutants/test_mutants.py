"""Each fault turns its test red: the package is copied, one line is written wrongly, and the test runs on the copy."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from faults import FAULTS, Fault

HERE = Path(__file__).resolve().parent
TESTS, ROOT = HERE.parent, HERE.parent.parent
PACKAGE = ROOT / "src" / "pellucid"

PASSED, FAILED = 0, 1  # pytest's exit statuses; any other means that a test could not be run

Run = Callable[[Path, Iterable[str]], int]


def named(fault: Fault) -> str:
    """A fault's name in the list of tests."""
    return fault.name


def copied(folder: Path) -> Path:
    """A copy of the package in a folder, without its corpus."""
    target = folder / "pellucid"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "data"))
    return target


@pytest.fixture(scope="module")
def on_copy() -> Iterator[Run]:
    """Runs tests on the copy in a folder, in a process of their own, the same examples each time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    environment |= {"PYTHONPATH": str(HERE), "CI": "1", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PELLUCID_TESTS_UNCHECKED"] = "1"
    options = ["-x", "-p", "no:cacheprovider", "-p", "first_failure", "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, str(HERE / "nursery.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as nursery:
        asked, answered = nursery.stdin, nursery.stdout
        assert asked is not None
        assert answered is not None

        def run(folder: Path, tests: Iterable[str]) -> int:
            arguments = [*options, "--rootdir", str(ROOT), *(str(TESTS / test) for test in tests)]
            asked.write(json.dumps({"folder": str(folder), "arguments": arguments}) + "\n")
            asked.flush()
            return int(answered.readline())

        yield run


@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_the_right_line_stands_in_the_source_once(fault: Fault) -> None:
    assert (PACKAGE / fault.file).read_text(encoding="utf-8").count(fault.right) == 1
    file, _, name = fault.test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")


def test_no_fault_is_written_twice() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.wrong, fault.right) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.slow
def test_the_tests_are_green_without_a_fault(on_copy: Run, tmp_path: Path) -> None:
    copied(tmp_path)
    assert on_copy(tmp_path, sorted({fault.test for fault in FAULTS})) == PASSED, (tmp_path / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_the_fault_turns_its_test_red(fault: Fault, on_copy: Run, tmp_path: Path) -> None:
    file = copied(tmp_path) / fault.file
    file.write_text(file.read_text(encoding="utf-8").replace(fault.right, fault.wrong), encoding="utf-8")
    assert on_copy(tmp_path, [fault.test]) == FAILED, (tmp_path / "log.txt").read_text()
