"""The command that checks modules: whether each sees what it should, and keeps the other promises of its kind."""

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pellucid.jobs.check import Outcome

__all__ = ["check"]

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE.py:NAME", help="Modules, classes or functions that make one; package.module:NAME, too."
    ),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="Of an input: 2,12,64 for samples, positions, width. Once for each.")
]
Ids = Annotated[
    int | None,
    typer.Option("--ids", metavar="VOCABULARY", help="The inputs are token ids; shapes are samples, positions."),
]
Mask = Annotated[
    str | None, typer.Option("--mask", help="It sees what a mask lets it see, no more and no less: 'window(4, 0)'.")
]
Layers = Annotated[int | None, typer.Option("--layers", help="For --mask: attentions that follow each other.")]
LengthFirst = Annotated[bool, typer.Option("--length-first", help="Positions before samples, in inputs and outputs.")]
All = Annotated[bool, typer.Option("--all", help="Every check that can be made, as where none is named.")]


def check(
    targets: Targets,
    *,
    shape: Shapes = None,
    ids: Ids = None,
    length_first: LengthFirst = False,
    causal: Annotated[bool, typer.Option("--causal", help="No output sees a later input.")] = False,
    mask: Mask = None,
    layers: Layers = None,
    padding: Annotated[bool, typer.Option("--padding", help="Padding changes nothing.")] = False,
    independence: Annotated[bool, typer.Option("--independence", help="No sample moves another.")] = False,
    batching: Annotated[bool, typer.Option("--batching", help="Alone or in a batch, all is the same.")] = False,
    repeatable: Annotated[bool, typer.Option("--repeatable", help="Called again, all is the same.")] = False,
    gradients: Annotated[bool, typer.Option("--gradients", help="Each parameter has a right one.")] = False,
    shapes: Annotated[bool, typer.Option("--shapes", help="Draw each submodule's output shape.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="Step by step with a cache, all is the same.")] = False,
    generation: Annotated[bool, typer.Option("--generation", help="It generates as it was trained.")] = False,
    all_: All = False,
    seed: Annotated[int, typer.Option(min=0, help="Of inputs, and of weights that are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each check.")] = False,
) -> None:
    """Check modules: does each see what it should? Status 1 where something is found."""
    from pellucid.jobs import check as job

    asked = {
        "causality": causal, "padding": padding, "independence": independence, "batching": batching, "cache": cache,
        "repeatable": repeatable, "gradients": gradients, "shapes": shapes, "training_matches_generation": generation,
    }  # fmt: skip
    named = frozenset(name for name, yes in asked.items() if yes)
    with redirect_stdout(sys.stderr):  # what modules print while they are loaded and called is no result
        inputs, wanted = job.Inputs(tuple(shape or ()), ids, length_first, seed), job.Wanted(named, all_, mask, layers)
        found = job.check(targets, inputs, wanted)
    _show(found, as_json)
    if any(outcome.report is not None and not outcome.report.passed for outcome in found):
        raise typer.Exit(1)


def _show(found: "list[Outcome]", as_json: bool) -> None:
    """Print records, or else what failed or was asked for by name as it stands, and a table of all for each module."""
    if as_json:
        for outcome in found:
            typer.echo(json.dumps(outcome.record(), ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    for module in dict.fromkeys(outcome.module for outcome in found):
        own = [outcome for outcome in found if outcome.module == module]
        for outcome in own:
            if outcome.report is not None and (outcome.named or not outcome.report.passed):
                typer.echo(f"{outcome.report}\n")
        table = Table("check", "outcome", "what was found", title=Text(module), title_justify="left", box=None)
        for outcome in own:
            table.add_row(outcome.name, *map(_cell, _said(outcome)))
        console.print(table)


def _cell(text: str) -> Any:
    from rich.text import Text

    return Text(text, style={"passed": "green", "FAILED": "bold red", "skipped": "dim"}.get(text, ""))


def _said(outcome: "Outcome") -> tuple[str, str]:
    """How a check ended in a word, and what it found in a line."""
    report = outcome.report
    if report is None:
        return "skipped", outcome.skipped
    if report.findings:
        more = f" (and {len(report.findings) - 1} more)" * (len(report.findings) > 1)
        return "FAILED", f"{report.findings[0]}{more}"
    figures = (
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in report.figures.items()
    )
    return "passed", ", ".join(figures) or "nothing"
