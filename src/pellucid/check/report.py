"""What a check says: whether it passed, what it measured, and what it found, with a picture where one helps."""

from dataclasses import dataclass, field

from pellucid.errors import CheckFailed

__all__ = ["Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one check; print it to read it. It is true where the check passed.

    Attributes:
        name: the check.
        asked: what was promised, in a sentence.
        findings: what broke the promise; empty where it was kept.
        figures: what was measured, by name.
        picture: rows and columns of text, or nothing.
    """

    name: str
    asked: str
    findings: tuple[str, ...] = ()
    figures: dict[str, float | int] = field(default_factory=dict)
    picture: str = ""

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
        lines += [f"  {name} = {value:.3g}" for name, value in self.figures.items()]
        return "\n".join(lines + ([self.picture] if self.picture else []))
