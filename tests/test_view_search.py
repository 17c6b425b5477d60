"""The picture of a search: each candidate once, tied to what it goes on with, in the colour of its fate."""

from pathlib import Path

import pytest

from pellucid import view
from pellucid.decoding import Trace
from pellucid.decoding.trace import FINISHED, LIVED, OUTSIDE, STUCK, Tried
from pellucid.view.figure import BLUE, SOFT, VERMILLION

TRACE = Trace(
    [
        (Tried(0, 5, -0.5, LIVED), Tried(0, 6, -0.9, OUTSIDE), Tried(0, 7, -1.5, LIVED)),
        (Tried(1, 8, -1.75, LIVED), Tried(0, 3, -2.0, FINISHED), Tried(0, None, -0.5, STUCK)),
    ],
    ending="over: for the test",
)


def test_each_candidate_is_written_and_tied_to_its_parent() -> None:
    figure = view.search(TRACE, lambda token: f"w{token}", "a title")
    [axes] = figure.axes
    said = [text.get_text() for text in axes.texts]
    assert said[::2] == ["w5", "w6", "w7", "w8", "w3", "∅"]
    assert said[1::2] == ["-0.50", "-0.90", "-1.50", "-1.75", "-2.00", "-0.50"]
    assert [text.get_color() for text in axes.texts[1::2]] == [BLUE, SOFT, BLUE, BLUE, VERMILLION, SOFT]
    # of the second step: from the place of the parent among all candidates to the own place
    assert [(line.get_ydata()[0], line.get_ydata()[-1]) for line in axes.lines] == [(2, 0), (0, 1), (0, 2)]  # type: ignore[index]
    assert [line.get_color() for line in axes.lines] == [BLUE, VERMILLION, SOFT]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2"]
    assert "over: for the test" in axes.get_xlabel()
    assert figure.get_suptitle() == "a title"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_any_number_of_steps_can_be_saved(steps: int, tmp_path: Path) -> None:
    place = view.save(view.search(Trace(TRACE.steps[:steps])), tmp_path / "search.png")
    assert place.stat().st_size > 1000
