"""The program: its commands together, and how each of them ends."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from pellucid.cli.checks import check
from pellucid.cli.exports import export
from pellucid.cli.masks import mask
from pellucid.cli.runs import demo, evaluate, info, score, train, translate
from pellucid.errors import PellucidError
from pellucid.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="pellucid",
    help="The Transformer you can see through: train a translator, use it, measure it, look inside.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"pellucid {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def pellucid(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """The Transformer you can see through: train a translator, use it, measure it, look inside."""


for one in (demo, train, translate, evaluate, score, mask, check, export, info):
    app.command()(one)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"pellucid: {' '.join(message.split())}\n")
    sys.exit(2)


def main() -> None:
    """Run the command line; a user's slip ends with one sentence and status 2, never with a traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    command = typer.main.get_command(app)
    try:
        with command.make_context("pellucid", sys.argv[1:] or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except typer.TyperException as error:
        place = getattr(error, "ctx", None)  # only an error about a command's own words has one
        said = error.format_message().rstrip(".")
        _fail(f"{said[:1].lower()}{said[1:]}; see `{place.command_path if place else 'pellucid'} --help`")
    except PellucidError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader, `head` say, has seen enough; nothing more may be written, not even on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(
            f"{error.filename or 'a file'} cannot be used ({error.strerror or error}); see to the disk, its room and its "
            "permissions"
        )
    except KeyboardInterrupt:
        sys.exit(130)  # what shells expect of a program that Ctrl-C ended
