r"""Parallel files become sentence pairs: read, checked, counted and split; strings only, no tensors.

Only \n ends a line, and one \r before it is dropped; other characters that Python's `splitlines` breaks on (U+2028,
U+0085, a vertical tab, a lone \r) are text. So line 17 here is line 17 in an editor, and two files stay aligned.
"""

import gzip
import lzma
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from pellucid.errors import TextError

__all__ = ["Corpus", "Pair", "hold_out", "name_lines", "read_lines", "read_parallel", "read_tsv", "split_lines"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINES_NAMED = 5  # a report stays one line long, however much is wrong
HELD_OUT_SHARE = 10  # at most one pair in ten is held out: a small corpus is for training first


def name_lines(lines: Sequence[int]) -> str:
    """Name line numbers for a reader: the first few, and how many more there are.

    >>> name_lines([4]), name_lines([4, 17, 90])
    ('line 4', 'lines 4, 17 and 90')
    >>> name_lines(range(1, 100))
    'lines 1, 2, 3, 4, 5 and 94 more'
    """
    if len(lines) == 1:
        return f"line {lines[0]}"
    shown = [str(line) for line in lines[:LINES_NAMED]]
    last = f"{len(lines) - LINES_NAMED} more" if len(lines) > LINES_NAMED else shown.pop()
    return f"lines {', '.join(shown)} and {last}"


def _open(path: Path) -> BufferedIOBase:
    """Open a file for its bytes, unpacked where its name ends in .gz or .xz."""
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case _:
            return path.open("rb")


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Lines as bytes with their ends, and every way of failing to read them as a TextError."""
    try:
        with _open(path) as file:
            yield from file
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        kind = path.suffix.lower()
        reason = f"{error}".rstrip(".")
        raise TextError(
            f"{path} ends in {kind}, but what it holds is not a whole {kind} file ({reason}); "
            "copy or pack it again, or drop the ending if it is plain text"
        ) from None
    except OSError as error:
        raise TextError(
            f"{path} cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from None


def read_lines(path: Path | str) -> Iterator[str]:
    r"""Read a UTF-8 file line by line: plain, or packed where its name ends in .gz or .xz.

    Lines come without their end: \n, or \r\n. A last line without an end counts. A byte-order mark at the start
    of the file is dropped. The file is opened when the first line is asked for.

    Args:
        path: The file.

    Yields:
        Each line in turn.

    Raises:
        TextError: the file is missing, unreadable or damaged, or a line is not UTF-8.
    """
    path = Path(path)
    return split_lines(_raw_lines(path), str(path))


def split_lines(rows: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Lines as text from lines as bytes, as a binary file gives them: \n or \r\n taken off, a byte-order mark dropped.

    Args:
        rows: each line with its end, standard input's buffer for one.
        name: what to call them in a message.

    Raises:
        TextError: a line is not UTF-8.
    """
    for number, raw in enumerate(rows, start=1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
            if not raw:
                return  # nothing but the mark: a file without lines
        raw = raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"line {number} of {name} is not UTF-8 (byte 0x{raw[error.start]:02X} after {error.start} bytes); "
                "save the file as UTF-8, or take the line out"
            ) from None


class Pair(NamedTuple):
    """One sentence and its translation, with the number of their line, counted from 1."""

    line: int
    source: str
    target: str


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs, and an account of the lines that gave none.

    Attributes:
        pairs: The pairs, in the order of their lines.
        lines: How many lines were read.
        empty: Lines left out as pairs because one side, or both, holds nothing but white space.
        repeated: Lines left out of a training set because a side of theirs is held out (see `hold_out`).
    """

    pairs: tuple[Pair, ...]
    lines: int
    empty: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.pairs)

    def report(self) -> str:
        """Say in one line what was left out, and where.

        >>> Corpus((Pair(1, "Yes", "Ja"), Pair(2, "No", "Nein")), lines=3, empty=(3,)).report()
        'dropped 1 of 3 pairs with an empty side: line 3'
        """
        parts = [f"none of {self.lines} pairs has an empty side"]
        if self.empty:
            parts = [f"dropped {len(self.empty)} of {self.lines} pairs with an empty side: {name_lines(self.empty)}"]
        if self.repeated:
            parts.append(
                f"left {len(self.repeated)} out of training because a side of theirs is held out: "
                f"{name_lines(self.repeated)}"
            )
        return "; ".join(parts)


def _collect(rows: Iterator[tuple[str, str]], name: str) -> Corpus:
    """Keep the pairs with something on both sides; a pair is kept or dropped whole, so nothing shifts."""
    pairs, empty, lines = [], [], 0
    for lines, (source, target) in enumerate(rows, start=1):
        if source.strip() and target.strip():
            pairs.append(Pair(lines, source, target))
        else:
            empty.append(lines)
    if not pairs:
        held = "no lines" if not lines else f"{lines} lines, each with an empty side"
        raise TextError(f"{name}: {held}, but at least one pair with text on both sides is needed; check the files")
    return Corpus(tuple(pairs), lines, tuple(empty))


def read_parallel(source: Path | str, target: Path | str) -> Corpus:
    """Read two files in which line n of one is the translation of line n of the other.

    Args:
        source: The file in the language to translate from; plain, .gz or .xz.
        target: The file in the language to translate into; plain, .gz or .xz.

    Returns:
        The pairs with text on both sides, with the numbers of the lines dropped.

    Raises:
        TextError: a file cannot be read as lines, the two have different numbers of lines, or no pair is left.
    """
    counts = [0, 0]

    def rows() -> Iterator[tuple[str, str]]:
        for first, second in zip_longest(read_lines(source), read_lines(target)):
            counts[0] += first is not None
            counts[1] += second is not None
            # Read to the end of both even where they differ, for the message gives both whole counts.
            if first is not None and second is not None:
                yield first, second

    # Unequal files are told apart from empty ones first: the message that explains more.
    pairs = list(rows())
    if counts[0] != counts[1]:
        raise TextError(
            f"{source} has {counts[0]} lines and {target} has {counts[1]}, but line n of one must translate line n "
            "of the other; align them again, nothing was used"
        )
    return _collect(iter(pairs), f"{source} and {target}")


def read_tsv(path: Path | str) -> Corpus:
    """Read a file with a pair on each line: source, one tab, target.

    A line that is wholly blank counts as a pair with empty sides.

    Args:
        path: The file; plain, .gz or .xz.

    Returns:
        The pairs with text on both sides, with the numbers of the lines dropped.

    Raises:
        TextError: the file cannot be read as lines, a line has no tab or several, or no pair is left.
    """

    def rows() -> Iterator[tuple[str, str]]:
        for number, line in enumerate(read_lines(path), start=1):
            cells = line.split("\t") if line.strip() else ["", ""]
            if len(cells) != 2:
                tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
                raise TextError(
                    f"line {number} of {path} has {tabs}, but exactly one must stand between source and target; "
                    "mend the line, or give two files"
                )
            yield cells[0], cells[1]

    return _collect(rows(), str(path))


def hold_out(corpus: Corpus, count: int, seed: int) -> tuple[Corpus, Corpus]:
    """Set pairs aside for validation, drawn at random from a seed.

    At most a tenth of the pairs is taken, so the second corpus may be smaller than `count`, and is empty below ten
    pairs. A pair whose source or target also stands in a held-out pair is left out of training and listed in
    `repeated`, for otherwise validation would ask for what was learned by heart.

    Args:
        corpus: The pairs to divide.
        count: How many pairs to hold out, if they are at most a tenth.
        seed: The same seed holds out the same pairs.

    Returns:
        The training set and the held-out set, each in line order with its line numbers as they were.

    Raises:
        TextError: every pair repeats a held-out side, so that nothing is left to train on.
    """
    taken = min(count, len(corpus.pairs) // HELD_OUT_SHARE)
    if taken <= 0:
        return corpus, replace(corpus, pairs=(), empty=(), repeated=())
    chosen = random.Random(f"hold out/{seed}").sample(range(len(corpus.pairs)), taken)
    held = tuple(corpus.pairs[index] for index in sorted(chosen))
    lines = {pair.line for pair in held}
    sources, targets = {pair.source for pair in held}, {pair.target for pair in held}
    rest = [pair for pair in corpus.pairs if pair.line not in lines]
    kept = tuple(pair for pair in rest if pair.source not in sources and pair.target not in targets)
    repeated = tuple(pair.line for pair in rest if pair.source in sources or pair.target in targets)
    if not kept:
        raise TextError(
            f"each of the {len(rest)} pairs left for training repeats a side of the {taken} held out for validation; "
            "give a validation set of your own, or more varied text"
        )
    train = replace(corpus, pairs=kept, repeated=(*corpus.repeated, *repeated))
    return train, replace(corpus, pairs=held, empty=(), repeated=())
