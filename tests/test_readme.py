"""Each Python block of the README and the documentation runs as it stands, offline, and prints what stands below it."""

import contextlib
import io
import itertools
import re
import socket
import sys
import types
from pathlib import Path
from typing import NamedTuple, Never

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<marks>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=marks)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:)(?P<target>[^)#\s]+)")
NEVER_RUN = {"py", "python3", "pycon", "ipython"}  # would look like Python, and not be run


class Block(NamedTuple):
    """One fenced block: its language, its text, and the line of the page where the text begins."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(found["language"].strip(), found["text"], page.count("\n", 0, found.start("text")) + 1)
        for found in FENCE.finditer(page)
    ]


def lines(text: str) -> list[str]:
    """The lines of a text, as a reader sees them: without spaces at their ends, or empty lines around them."""
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def run(page: str, name: str, names: dict[str, object]) -> list[str]:
    """Run a page's Python blocks in order, in one namespace; what differs from the text block below, in words."""
    wrong = []
    for block, after in itertools.pairwise([*blocks(page), Block("", "", 0)]):
        if block.language in NEVER_RUN:
            wrong.append(f"{name}:{block.line}: a block of '{block.language}' is not run; call it python")
        if block.language != "python":
            continue
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, name, "exec")  # a traceback names the page's own line
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if after.language == "text" and lines(printed.getvalue()) != lines(after.text):
            wrong.append(f"{name}:{after.line}: printed\n" + printed.getvalue())
    return wrong


@pytest.mark.parametrize("name", PAGES)
def test_the_page_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Never:
        raise ConnectionError(f"{name} reaches for the network")

    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # where a dataclass or a pickle looks for its own module
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    wrong = run((ROOT / name).read_text(encoding="utf-8"), name, vars(page))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_the_page_links_to_is_there(name: str) -> None:
    page = ROOT / name
    targets = [found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_a_block_that_prints_something_else_is_found() -> None:
    page = "# Page\n\n```python\nx = 3\n```\n\n```python\nprint(x)\n```\nprints\n```text\n{}\n```\n"
    assert run("No block.\n", "page.md", {}) == []
    assert run(page.format("3  "), "page.md", {}) == []
    assert run(page.format("4"), "page.md", {}) == ["page.md:12: printed\n3\n"]


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("One\n\n```python\n\n1 / 0\n```\n", "page.md", {})
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_block_that_would_not_run_is_found() -> None:
    assert run("```pycon\n>>> 1\n2\n```\n", "page.md", {}) == [
        "page.md:2: a block of 'pycon' is not run; call it python"
    ]
