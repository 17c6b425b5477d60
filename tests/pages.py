"""The scripts in docs/ that write a page, no part of the package, for the tests that hold each page to its script."""

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["DOCS", "writer_of"]

DOCS = Path(__file__).resolve().parent.parent / "docs"


def writer_of(page: str) -> ModuleType:
    """The script that writes docs/{page}.md."""
    spec = importlib.util.spec_from_file_location(f"write_{page}", DOCS / f"write_{page}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
