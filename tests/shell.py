"""The command line as a test runs it: in its own process, and what came of it."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pellucid import cli

__all__ = ["Ended", "Shell", "shell_in"]


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


Shell = Callable[..., Ended]


def shell_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...] = ()
) -> Shell:
    """Runs `pellucid`, or one command of it, in a folder: shell(*words, stdin=b"")."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["pellucid", *command, *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = 0
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else -1
        return Ended(status, *capsys.readouterr())

    return run
