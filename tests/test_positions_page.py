"""docs/positions.md is what its writer writes, its formulas are what the schemes compute, and its pictures are there."""

import cmath
import itertools
import math
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from pages import DOCS, writer_of
from pellucid import positions
from pellucid.config import ModelConfig

NAMES = typing.get_args(ModelConfig.model_fields["positions"].annotation)
FILES = ["positions", *(f"positions-{name}" for name in NAMES)]
LARGEST = 120_000  # bytes of a picture


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """docs/write_positions.py, which is no part of the package."""
    return writer_of("positions")


def test_the_page_is_up_to_date(writer: ModuleType) -> None:
    written = (DOCS / "positions.md").read_text(encoding="utf-8")
    assert written == writer.written(), "the code says otherwise: python docs/write_positions.py"


def test_the_page_shows_every_scheme_that_a_setting_names(writer: ModuleType) -> None:
    page = (DOCS / "positions.md").read_text(encoding="utf-8")
    assert tuple(one.setting for one in writer.schemes()) == NAMES
    classes = [
        one for one in vars(positions).values() if isinstance(one, type) and issubclass(one, positions.Positions)
    ]
    assert len(classes) == len(NAMES) + 1
    assert [one for one in classes if one is not positions.Positions and f"### {one.__name__}\n" not in page] == []
    for name in FILES:
        assert page.count(f"(pictures/{name}.png)") == 1


def test_each_formula_is_what_its_scheme_computes(writer: ModuleType) -> None:
    found: dict[str, Any] = {one.setting: one for one in writer.schemes()}
    told = {name: compile(one.formula, name, "eval") for name, one in found.items()}
    length, width = 5, 64
    x = torch.randn(length, width).double()

    def value(name: str, **names: Any) -> Any:
        functions = {"sin": math.sin, "cos": math.cos, "exp": cmath.exp, "abs": abs}
        return eval(told[name], {"__builtins__": functions}, {"x": x.tolist(), **names})  # noqa: S307

    for name in ("sinusoidal", "learned", "none"):
        scheme = found[name].drawn
        states = scheme(x[None])[0]
        weight = scheme.weight.tolist() if name == "learned" else None
        for p, c in itertools.product(range(length), range(width)):
            assert value(name, p=p, c=c, d_model=width, weight=weight) == pytest.approx(states[p, c].item(), abs=1e-12)

    turned = found["rotary"].drawn.rotate(x[None, None])[0, 0].tolist()
    for p, i in itertools.product(range(length), range(width // 2)):
        pair = {"x": x[p].tolist(), "p": p, "i": i, "a": i, "b": i + width // 2, "base": 10000.0, "head_dim": width}
        assert value("rotary", **pair) == pytest.approx(complex(turned[p][i], turned[p][i + width // 2]), abs=1e-12)

    alibi, t5 = found["alibi"].drawn, found["t5"].drawn
    slope, weight = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)], t5.weight.tolist()
    for name, scheme in (("alibi", alibi), ("t5", t5)):
        scores = scheme.bias(length, 150).scores(length, 150)[0].tolist()
        for h, q, k in np.ndindex(4, length, 150):
            names = {"h": h, "q": q, "k": k, "slope": slope, "weight": weight, "bucket": bucket, "score": 0.0}
            assert value(name, **names) == pytest.approx(scores[h][q][k], abs=1e-9)


def bucket(offset: int) -> int:
    """The published rule: 16 buckets a side, 8 of one distance each, 8 up to 128 by the logarithm."""
    side, distance = 16 * (offset > 0), abs(offset)
    if distance < 8:
        return side + distance
    return side + min(15, 8 + math.floor(round(math.log(distance / 8) / math.log(128 / 8) * 8, 9)))


def looked_at(path: Path) -> tuple[int, int]:
    """A picture's height and width in pixels, after it was seen that it is a small PNG with something on it."""
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size < LARGEST
    pixels = imread(path)
    assert len({tuple(pixel) for pixel in pixels[::9, ::9].reshape(-1, pixels.shape[-1]).tolist()}) > 20
    return pixels.shape[0], pixels.shape[1]


@pytest.mark.parametrize("name", FILES)
def test_every_picture_is_there(name: str) -> None:
    height, width = looked_at(DOCS / "pictures" / f"{name}.png")
    assert 600 < min(height, width) <= max(height, width) < 2000


def test_there_are_no_other_pictures_of_positions() -> None:
    assert sorted(path.stem for path in (DOCS / "pictures").glob("positions*.png")) == sorted(FILES)


@pytest.mark.slow
def test_every_picture_can_be_drawn_again(writer: ModuleType, tmp_path: Path) -> None:
    writer.draw(tmp_path / "pictures")
    assert sorted(path.stem for path in (tmp_path / "pictures").iterdir()) == sorted(FILES)
    for name in FILES:
        # Fonts may differ by machine, and margins with them.
        height, width = looked_at(tmp_path / "pictures" / f"{name}.png")
        assert (height, width) == pytest.approx(looked_at(DOCS / "pictures" / f"{name}.png"), rel=0.1)
