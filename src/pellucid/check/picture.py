"""What was meant beside what was found, as a picture for the terminal."""

from jaxtyping import Bool
from torch import Tensor

__all__ = ["meant_and_found"]

MOST = 40
"""Rows and columns that are drawn; of more, a part around the first finding."""


def meant_and_found(
    allowed: Bool[Tensor, "rows inputs"],
    found: Bool[Tensor, "rows inputs"],
    missing: Bool[Tensor, "rows inputs"],
    rows: list[int],
    ahead: str = "sees what it must not",
) -> str:
    """Rows are outputs and columns inputs; what was meant stands on the left, what was found on the right."""
    wrong = (found & ~allowed) | missing
    top, left = _corner(wrong)
    shown, columns = rows[top : top + MOST], range(left, min(left + MOST, found.shape[1]))
    wide = max(len(str(columns[-1])), 1)
    margin = len(str(shown[-1]))
    head = " ".join(f"{column:>{wide}}" for column in columns)
    titles = f"{' ' * margin} {'meant':<{len(head)}}   found"
    lines = [titles.rstrip(), f"{' ' * margin} {head}   {head}"]
    for at, row in enumerate(shown, top):
        meant = ("■" if may else "·" for may in allowed[at, columns.start : columns.stop].tolist())
        cells = zip(*(one[at, columns.start : columns.stop].tolist() for one in (found, allowed, missing)), strict=True)
        real = ("!" if sees and not may else "■" if sees else "o" if lacks else "·" for sees, may, lacks in cells)
        drawn = "   ".join(" ".join(f"{mark:>{wide}}" for mark in marks) for marks in (meant, real))
        lines.append(f"{row:>{margin}} {drawn}")
    marks = [f"! {ahead}"] * bool((found & ~allowed).any()) + ["o should see it, and does not"] * bool(missing.any())
    lines.append(f"{' ' * margin} ({', '.join(['■ sees', *marks])})")
    if len(shown) < len(rows) or len(columns) < found.shape[1]:
        lines.append(
            f"{' ' * margin} (outputs {shown[0]} to {shown[-1]} and inputs {columns[0]} to {columns[-1]} of "
            f"{len(rows)} and {found.shape[1]})"
        )
    return "\n".join(f"  {line}" for line in lines)


def _corner(wrong: Bool[Tensor, "rows inputs"]) -> tuple[int, int]:
    """Where the part to draw begins: at the beginning, or just before the first finding where that lies beyond it."""
    if not wrong.any():
        return 0, 0
    row = int(wrong.any(dim=1).nonzero()[0])
    column = int(wrong[row].nonzero()[0])
    top = 0 if row < MOST - 1 else row - 2
    left = 0 if column < MOST - 1 else column - MOST // 2
    return top, left
