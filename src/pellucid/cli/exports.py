"""The command that writes a run for another engine."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `pellucid train --out` wrote.")],
    to: Annotated[str, typer.Option(help="The engine: ctranslate2, or onnx for ONNX Runtime.")],
    out: Annotated[Path, typer.Option(help="A new folder; `pellucid translate` takes it as it takes a run.")],
    precision: Annotated[str, typer.Option(help="float32, or int8 for weights in 8 bits (ctranslate2).")] = "float32",
    lines: Annotated[
        Path | None, typer.Option(help="Lines to compare translations of, before anything is kept.")
    ] = None,
) -> None:
    """Write a run for another engine, and see on the spot that it says the same."""
    from pellucid.jobs.export import export as job
    from pellucid.text.corpus import read_lines

    verified = job(run, to, out, precision, list(read_lines(lines)) if lines else None)  # type: ignore[arg-type]
    typer.echo(f"{out}: {verified}")
