"""The command about masks: draw one, convert it, or tell how its attention would be computed."""

from pathlib import Path
from typing import Annotated

import typer

from pellucid.errors import ConfigError

__all__ = ["mask"]

Library = Annotated[
    str | None, typer.Option("--as", help="Print it as a library's arguments: sdpa, multihead_attention, keras ...")
]
CausalModel = Annotated[
    bool, typer.Option("--causal-model", help="For transformers: the model hides the future by itself.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Samples, for a library or a plan. A plan's default: 1.")]
Plan = Annotated[bool, typer.Option("--plan", help="Print how `attend` would compute it on a CPU, and why.")]


def mask(
    expression: Annotated[str, typer.Argument(metavar="MASK", help="As in 'causal & padding(5, 3)'.")],
    *,
    queries: Annotated[int | None, typer.Option(min=0, help="Rows. Default: what the mask speaks of, or 8.")] = None,
    keys: Annotated[int | None, typer.Option(min=0, help="Columns. Default: likewise.")] = None,
    first_query: Annotated[int, typer.Option(min=0, help="The position of row 0, as of a cached step.")] = 0,
    as_: Library = None,
    batch: Batch = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Heads, likewise. A plan's default: 8.")] = None,
    causal_model: CausalModel = False,
    plan: Plan = False,
    backend: Annotated[str, typer.Option(help="For a plan: auto, formula, fused, blocks or flex.")] = "auto",
    head_dim: Annotated[int, typer.Option(min=1, help="For a plan: the width of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="For a plan: float16, bfloat16, float32 or float64.")] = "float32",
    learns: Annotated[bool, typer.Option(help="For a plan: whether gradients are wanted.")] = False,
    dropout: Annotated[float, typer.Option(help="For a plan: the share of weights that is dropped.")] = 0.0,
    png: Annotated[Path | None, typer.Option(help="Draw it into a .png or .svg file, too.")] = None,
) -> None:
    """Draw a mask and count what it shows, print it in another library's convention, or plan its attention."""
    from pellucid.jobs.mask import Attention, Size, arguments, describe, picture, planned

    size = Size(queries, keys, first_query)
    attention = Attention(batch, heads, head_dim, dtype, learns, dropout)
    _check_purpose(
        plan,
        for_library=as_ is not None or causal_model,
        for_plan=backend != "auto" or attention != Attention(batch, heads),
    )
    if plan:
        said = planned(expression, size, attention, backend)
    elif as_:
        said = arguments(expression, size, as_, batch=batch, heads=heads, causal_model=causal_model)
    else:
        said = describe(expression, size)
    typer.echo(said)
    if png is not None:
        picture(expression, size, png)
        typer.echo(f"the picture is in {png}", err=True)


def _check_purpose(plan: bool, for_library: bool, for_plan: bool) -> None:
    """Say which options mean nothing for what is to be printed, rather than pass them over in silence."""
    if plan and for_library:
        raise ConfigError(
            "--plan was given with --as or --causal-model, which are about a library's arguments; leave either out"
        )
    if for_plan and not plan:
        raise ConfigError(
            "--backend, --head-dim, --dtype, --learns or --dropout was given without --plan, to which they belong; give "
            "--plan, too"
        )
