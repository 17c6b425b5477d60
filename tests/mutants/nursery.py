"""A process that imports once what is slow to import, and runs each lot of tests that it is told of in a child of its own.

It reads one JSON object a line, a `folder` to run in and the `arguments` of pytest, and answers with pytest's exit
status; what pytest prints is left in `log.txt` in the folder.
"""

import json
import os
import sys
from collections.abc import Sequence

import beartype  # noqa: F401 - imported here so that no child has to
import hypothesis  # noqa: F401
import jaxtyping  # noqa: F401
import pydantic  # noqa: F401
import pytest
import torch  # noqa: F401


def run(folder: str, arguments: Sequence[str]) -> int:
    """Pytest's exit status in a folder, whose modules come before all others."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.chdir(folder)
        sys.path.insert(0, folder)
        status = int(pytest.main(list(arguments)))
        sys.stdout.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{run(**json.loads(line))}\n")
        sys.stdout.flush()
