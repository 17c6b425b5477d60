"""Runs the command line as `python -m pellucid`."""

from pellucid.cli import main

if __name__ == "__main__":
    main()
