"""What a check says: whether it passed, what it measured, and what it found, with a picture where one helps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pellucid.errors import CheckFailed

__all__ = ["Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one check; print it to read it. It is true where the check passed.

    Attributes:
        name: the check.
        asked: what was promised, in a sentence.
        findings: what broke the promise, with indices and sizes; empty where it was kept.
        figures: what was measured, by name.
        picture: rows and columns of text, or nothing.
        where: the first submodule whose output breaks the promise, where one could be named.
        advice: the likely slip and what to do about it, in a line.
        ways: the ways in which the module was run (mode and precision), and whether it passed in each.
        notes: what was not looked at, and why.
    """

    name: str
    asked: str
    findings: tuple[str, ...] = ()
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    picture: str = ""
    where: str = ""
    advice: str = ""
    ways: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.passed

    def raise_for_failure(self) -> None:
        """Raise the report as an error where something was found.

        Raises:
            CheckFailed: the check found something; the message is the whole report.
        """
        if self.findings:
            raise CheckFailed(str(self))

    def __str__(self) -> str:
        lines = [f"{self.name}: {'passed' if self.passed else 'FAILED'}: {self.asked}"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  {name} = {_figure(value)}" for name, value in self.figures.items()]
        passed = [way for way, kept in self.ways.items() if kept]
        if passed and self.findings:
            failed = [way for way, kept in self.ways.items() if not kept]
            lines.append(f"  failed in {'; '.join(failed)}; passed in {'; '.join(passed)}")
        elif len(self.ways) > 1 and self.findings:
            lines.append(f"  failed in every way: {'; '.join(self.ways)}")
        lines += [f"  first broken: {self.where}"] * bool(self.where)
        lines += [f"  advice: {self.advice}"] * bool(self.advice)
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines + ([self.picture] if self.picture else []))


def _figure(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
