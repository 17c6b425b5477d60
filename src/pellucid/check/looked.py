"""What outputs of one sample were found to see beside what was meant: in numbers, in sentences and as a picture."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["Looked", "lacking", "leaking", "positions"]

SHOWN = 8  # findings that are spelt out
NAMED = 5  # positions that are named in one of them
MOST = 40  # rows and columns that are drawn; of more, a part around the first finding


@dataclass(frozen=True, slots=True)
class Looked:
    """What some outputs see.

    Attributes:
        found: what each row sees.
        allowed: what it may see.
        missing: what it should see, and does not.
        rows: the positions of the rows.
    """

    found: Bool[Tensor, "rows inputs"]
    allowed: Bool[Tensor, "rows inputs"]
    missing: Bool[Tensor, "rows inputs"]
    rows: list[int]

    @property
    def leaks(self) -> Bool[Tensor, "rows inputs"]:
        """What each row sees though it must not."""
        return self.found & ~self.allowed

    def picture(self, wrong: str = "sees what it must not") -> str:
        """Outputs are rows and inputs columns; what was meant stands on the left, what was found on the right."""
        top, left = self._corner()
        shown, columns = self.rows[top : top + MOST], range(left, min(left + MOST, self.found.shape[1]))
        wide, margin = len(str(columns[-1])), len(str(shown[-1]))
        head = " ".join(f"{column:>{wide}}" for column in columns)
        lines = [f"{' ' * margin} {'meant':<{len(head)}}   found", f"{' ' * margin} {head}   {head}"]
        for at, row in enumerate(shown, top):
            cells = [one[at, columns.start : columns.stop].tolist() for one in (self.found, self.allowed, self.missing)]
            meant = ("■" if may else "·" for may in cells[1])
            real = (_mark(*cell) for cell in zip(*cells, strict=True))
            drawn = "   ".join(" ".join(f"{mark:>{wide}}" for mark in marks) for marks in (meant, real))
            lines.append(f"{row:>{margin}} {drawn}")
        marks = ["■ sees"] + [f"! {wrong}"] * bool(self.leaks.any())
        marks += ["o should see it, and does not"] * bool(self.missing.any())
        lines.append(f"{' ' * margin} ({', '.join(marks)})")
        if len(shown) < len(self.rows) or len(columns) < self.found.shape[1]:
            lines.append(
                f"{' ' * margin} (outputs {shown[0]} to {shown[-1]} of {len(self.rows)} that were looked at, inputs "
                f"{columns[0]} to {columns[-1]} of {self.found.shape[1]})"
            )
        return "\n".join(f"  {line}" for line in lines)

    def _corner(self) -> tuple[int, int]:
        """Where the part to draw begins: at the beginning, or just before the first finding that lies beyond it."""
        wrong = self.leaks | self.missing
        if not wrong.any():
            return 0, 0
        row = int(wrong.any(dim=1).nonzero()[0])
        column = int(wrong[row].nonzero()[0])
        return (0 if row < MOST - 1 else row - 2), (0 if column < MOST - 1 else column - MOST // 2)


def _mark(sees: bool, may: bool, lacks: bool) -> str:
    if sees:
        return "■" if may else "!"
    return "o" if lacks else "·"


def leaking(
    leaks: Bool[Tensor, "samples rows inputs"], strength: Float[Tensor, "samples rows inputs"], rows: list[int]
) -> list[str]:
    """A sentence for each row of each sample that sees what it must not."""
    found = []
    for sample, at in leaks.any(dim=-1).nonzero().tolist():
        inputs = leaks[sample, at].nonzero().flatten().tolist()
        size = float(strength[sample, at, inputs].max())
        whose = f"sample {sample}: " if len(leaks) > 1 else ""
        found.append(f"{whose}output {rows[at]} depends on {positions('input', inputs)} (slope {size:.3g})")
    return _shortened(found)


def lacking(missing: Bool[Tensor, "samples rows inputs"], rows: list[int]) -> list[str]:
    """A sentence for each row of each sample that does not see what it should."""
    found = []
    for sample, at in missing.any(dim=-1).nonzero().tolist():
        inputs = missing[sample, at].nonzero().flatten().tolist()
        whose = f"sample {sample}: " if len(missing) > 1 else ""
        found.append(f"{whose}output {rows[at]} does not depend on {positions('input', inputs)}")
    return _shortened(found)


def positions(what: str, places: list[int]) -> str:
    """Some positions by name: `inputs 2, 3, 4`."""
    return f"{what}{'s' * (len(places) > 1)} {', '.join(map(str, places[:NAMED]))}{' ...' * (len(places) > NAMED)}"


def _shortened(found: list[str]) -> list[str]:
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more outputs"]
