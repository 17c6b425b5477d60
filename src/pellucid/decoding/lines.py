"""Lines as a caller gives them: each seen to be a string, and named where it is at fault."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pellucid.errors import DecodingError, PositionError
from pellucid.text.batch import Batch

__all__ = ["naming_the_line", "strings"]


def strings(lines: Iterable[object], job: str) -> Iterator[str]:
    """The lines one by one, each seen to be a string; one string is refused at once, for its letters are no lines."""
    if isinstance(lines, str):
        raise DecodingError(f"{job} was given the one string {lines[:40]!r}, but it takes lines; put it in a list")

    def checked() -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise DecodingError(
                    f"{job} was given {line!r} as line {number}, but a line is a string; give '' for a blank one"
                )
            yield line

    return checked()


@contextmanager
def naming_the_line(batch: Batch) -> Iterator[None]:
    """Name the line in an error about positions: the longest of a batch is one that has too many."""
    try:
        yield
    except PositionError as error:
        sizes = [max(pair) for pair in zip(batch.source_lengths, batch.target_lengths, strict=True)]
        raise PositionError(f"line {batch.lines[sizes.index(max(sizes))]}: {error}") from None
