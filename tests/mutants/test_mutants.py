"""Each fault turns its test red: the package is copied, one line is written wrongly, and the test runs on the copy."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from faults import FAULTS, Fault

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
PACKAGE = ROOT / "src" / "pellucid"

PASSED, FAILED = 0, 1  # pytest's exit statuses; any other means that a test could not be run


def named(fault: Fault) -> str:
    """A fault's name in the list of tests."""
    return fault.name


def copied(folder: Path) -> Path:
    """A copy of the package in a folder, without its corpus."""
    target = folder / "pellucid"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "data"))
    return target


def on_copy(folder: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run tests on the copy in a folder, in a process of their own, the same examples each time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    path = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    environment |= {"PYTHONPATH": path, "CI": "1", "OMP_NUM_THREADS": "1"}
    options = ["-x", "-p", "no:cacheprovider", "-p", "first_failure", "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(ROOT), *(str(TESTS / test) for test in tests)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_the_right_line_stands_in_the_source_once(fault: Fault) -> None:
    assert (PACKAGE / fault.file).read_text(encoding="utf-8").count(fault.right) == 1
    file, _, name = fault.test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")


def test_no_fault_is_written_twice() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.wrong, fault.right) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.slow
def test_the_tests_are_green_without_a_fault(tmp_path: Path) -> None:
    copied(tmp_path)
    ran = on_copy(tmp_path, sorted({fault.test for fault in FAULTS}))
    assert ran.returncode == PASSED, ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_the_fault_turns_its_test_red(fault: Fault, tmp_path: Path) -> None:
    file = copied(tmp_path) / fault.file
    file.write_text(file.read_text(encoding="utf-8").replace(fault.right, fault.wrong), encoding="utf-8")
    ran = on_copy(tmp_path, [fault.test])
    assert ran.returncode == FAILED, ran.stdout + ran.stderr
