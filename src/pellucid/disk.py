"""Files and folders, written so that a reader or a kill sees the old or the new, never a part.

Each is written under a draft's name, which ends in .tmp, flushed to the disk, and renamed to its true name.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pellucid.errors import RunError

__all__ = ["flush", "new_draft", "remove", "settle", "write_atomically", "writing"]


def _draft_of(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def flush(place: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle(draft: Path, path: Path) -> None:
    """Flush a draft and rename it to its true name; then flush the folder, so that the rename lasts too."""
    flush(draft)
    draft.replace(path)
    flush(path.parent)


def new_draft(path: Path) -> Path:
    """An empty folder beside a path, to write in."""
    draft = _draft_of(path)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def remove(folder: Path) -> None:
    """Remove a folder, renamed first, so that a kill in the middle leaves no half of it under its true name."""
    doomed = folder.with_name(folder.name + ".old.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    shutil.rmtree(folder.rename(doomed))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """While it lasts, say in one sentence that a place cannot be written, and why.

    Raises:
        RunError: the disk is full, the folder may not be written, or the like.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{place} cannot be written ({error.strerror or error}); see to the disk, its room and its permissions"
        ) from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole.

    Raises:
        RunError: it cannot be written.
    """
    draft = _draft_of(path)
    with writing(path):
        draft.write_bytes(content)
        settle(draft, path)
