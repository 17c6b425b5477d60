"""docs/masks.md is what its writer writes, and shows every kind and every convention."""

from types import ModuleType

import numpy as np
import pytest

from pages import DOCS, writer_of
from pellucid import masks
from pellucid.masks.conventions import CONVENTIONS


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """docs/write_masks.py, which is no part of the package."""
    return writer_of("masks")


def test_the_page_is_up_to_date(writer: ModuleType) -> None:
    written = (DOCS / "masks.md").read_text(encoding="utf-8")
    assert written == writer.written(), "the code says otherwise: python docs/write_masks.py"


def test_the_page_shows_every_kind_and_every_convention(writer: ModuleType) -> None:
    page = writer.written()
    kinds = [name for name, one in vars(masks).items() if isinstance(one, type) and issubclass(one, masks.Mask)]
    assert len(kinds) == 13
    assert [kind for kind in kinds if kind != "Mask" and f"### {kind}\n" not in page] == []
    assert [name for name in CONVENTIONS if page.count(f"| `{name}` |") < (1 if name == "transformer" else 2)] == []


def test_each_formula_is_what_its_picture_shows(writer: ModuleType) -> None:
    for kind, mask, formula, _ in writer.KINDS:
        cells = mask.dense(writer.QUERIES, writer.KEYS)
        code = compile(formula, kind, "eval")
        for place in np.ndindex(*cells.shape):
            names = dict(zip("bhqk", place, strict=True))
            assert bool(cells[place]) is eval(code, {"__builtins__": {}}, names), (kind, place)  # noqa: S307
