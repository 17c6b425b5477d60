"""Where a command's lines go: to standard output, or to a file that appears whole."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pellucid.disk import settle, writing

__all__ = ["lines_to", "warnings_told"]


def _write_line(stream: Any, line: str) -> None:
    r"""Write a line with \n and in UTF-8, whatever the machine's habits; whoever reads along has it at once."""
    stream.write(line.encode() + b"\n")
    stream.flush()


@contextmanager
def lines_to(output: Path | None) -> Iterator[Callable[[str], None]]:
    """Hand out what writes a line to a file, or to standard output; a file appears whole, or stays as it was."""
    if output is None:
        yield partial(_write_line, sys.stdout.buffer)
        return
    with writing(output):
        if output.exists() and not output.is_file():  # a pipe or a device takes lines as they come
            with output.open("wb") as stream:
                yield partial(_write_line, stream)
            return
        place = output.resolve()  # a link stays a link
        draft = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            with draft.open("wb") as stream:
                yield partial(_write_line, stream)
            settle(draft, place)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def warnings_told() -> Iterator[None]:
    """Say our own warnings as one sentence each on standard error, every time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", module=r"pellucid\.")
        warnings.showwarning = _say  # type: ignore[assignment] # Python gives all of it by place
        yield


def _say(message: Warning | str, *_: object) -> None:
    print(f"pellucid: {message}", file=sys.stderr)  # noqa: T201 - this is where a command speaks
