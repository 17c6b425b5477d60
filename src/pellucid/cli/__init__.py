"""The command line: parse, call one job, print."""

from pellucid.cli.program import app, main

__all__ = ["app", "main"]
