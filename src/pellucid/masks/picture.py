"""Draws a mask for the terminal: cell by cell with labels on both axes, or by blocks where it is large."""

from collections.abc import Callable, Sequence

from jaxtyping import Shaped
from rich.cells import cell_len
from torch import Tensor

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.sizes import EMPTY, FULL, PARTIAL

__all__ = ["draw", "grid", "labels", "parts_named"]

MOST = 64  # rows or columns that are drawn one by one
Size = tuple[int, int, int]
"""Queries, keys, and the position of the first query."""


def draw(
    mask: Mask, size: Size, query_tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None
) -> str:
    """The picture that `Mask.draw` promises."""
    queries, keys, first = size
    rows, columns = labels("query_tokens", query_tokens, queries, first), labels("key_tokens", key_tokens, keys, 0)
    if max(queries, keys) > MOST and queries:
        return _by_blocks(mask, size, " (tokens are left out)" if query_tokens or key_tokens else "")
    looks = mask.dense(*size)
    lines = [f"{mask!r}   rows: queries, columns: keys, ■ may look, · may not"]
    for name, look in parts_named(looks):
        marks = [["■" if cell else "·" for cell in row] for row in look.tolist()]
        blind = (~look.any(-1)).tolist()
        lines += [name] * bool(name) + grid(rows, columns, marks, ["sees nothing" if alone else "" for alone in blind])
    return "\n".join(lines)


def labels(name: str, tokens: Sequence[str] | None, count: int, first: int) -> list[str]:
    """The tokens, or positions where there are none.

    Raises:
        MaskError: there are not as many tokens as positions.
    """
    if tokens is None:
        return [str(first + number) for number in range(count)]
    if isinstance(tokens, str) or len(tokens) != count:
        raise MaskError(f"{len(tokens)} {name} were given for {count} positions; give a list with one for each")
    # A character that moves the cursor would tear the picture apart.
    return ["".join(letter if letter.isprintable() else "�" for letter in str(token)) for token in tokens]


def parts_named(looks: Shaped[Tensor, "batch heads _query _key"]) -> list[tuple[str, Shaped[Tensor, "_query _key"]]]:
    """Each sample's and head's own cells, with a name where there are several."""
    batch, heads = looks.shape[:2]
    return [
        (", ".join([f"sample {b}"] * (batch > 1) + [f"head {h}"] * (heads > 1)), looks[b, h])
        for b in range(batch)
        for h in range(heads)
    ]


def grid(rows: Sequence[str], columns: Sequence[str], marks: Sequence[Sequence[str]], ends: Sequence[str]) -> list[str]:
    """Lines of marks below their columns' labels and beside their rows'; wide characters take two cells each."""
    numbers = all(label.isascii() and label.isdigit() for label in (*rows, *columns))
    put: Callable[[str, int], str] = _to_the_right if numbers else _to_the_left
    beside = max(map(cell_len, rows), default=0)
    widths = [max(1, cell_len(label)) for label in columns]
    if numbers:
        beside = max([beside, *widths])
        widths = [beside] * len(columns)
    lines = [" ".join([" " * beside, *map(put, columns, widths)]).rstrip()]
    for label, cells, end in zip(rows, marks, ends, strict=True):
        line = " ".join([put(label, beside), *map(put, cells, widths)])
        lines.append(f"{line}  {end}" if end else line.rstrip())
    return lines


def _to_the_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _to_the_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _by_blocks(mask: Mask, size: Size, end: str) -> str:
    """A large mask, each mark a block of cells: full, partial or empty."""
    queries, keys, first = size
    tall, wide = -(-queries // MOST) if queries > MOST else 1, -(-keys // MOST) if keys > MOST else 1
    lines = [
        f"{mask!r}   rows: {queries:,} queries, {tall:,} to a line, columns: {keys:,} keys, {wide:,} to a mark, "
        f"█ may look, ▒ may look at some, · may not{end}"
    ]
    marks = {EMPTY: "·", PARTIAL: "▒", FULL: "█"}
    for name, seen in parts_named(mask.blocks(*size, size=(tall, wide))):
        lines += [name] * bool(name)
        beside = len(str(first + queries - 1))
        for line, row in enumerate(seen.tolist()):
            end = "" if any(row) else "  sees nothing"
            lines.append(f"{first + line * tall:>{beside}} {''.join(marks[kind] for kind in row)}{end}")
    return "\n".join(lines)
