"""Pictures show exactly what they were given, name it in any script, and never warn twice or break."""

import itertools
import math
import shutil
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from torch import Tensor

from pellucid import view
from pellucid.errors import ConfigError, MaskError, ShapeError
from pellucid.masks import Causal, Window
from pellucid.view import fonts
from pellucid.view.figure import BLUE, GREY
from pellucid.view.labels import Lettering, letter

SOURCE = ["▁The", "▁price", "▁is", "▁$", "5$"]
TARGET = ["▁Der", "▁Preis", "▁ist", "▁fünf", "▁$", ".", "</s>"]
BUNDLED = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
ONLY_IN_STIX = "\u1d8d"  # of the fonts that ship with matplotlib


def array(axes: Axes) -> Any:
    [image] = axes.images
    return image.get_array()


def names(axes: Axes) -> tuple[list[str], list[str]]:
    return [tick.get_text() for tick in axes.get_yticklabels()], [tick.get_text() for tick in axes.get_xticklabels()]


def colour_at(figure: Figure, axes: Axes, row: int, column: int) -> tuple[int, ...]:
    """The colour that stands a little beside the middle of a cell, in the picture itself."""
    assert isinstance(figure.canvas, FigureCanvasAgg)
    figure.canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    x, y = axes.transData.transform((column + 0.2, row + 0.1))
    return tuple(int(part) for part in pixels[len(pixels) - 1 - round(y), round(x), :3])


def as_bytes(colour: str) -> tuple[int, ...]:
    return tuple(round(255 * part) for part in to_rgb(colour))


def triple() -> dict[str, Tensor]:
    source = (torch.arange(7) < 5).expand(7, 7)
    return {
        "encoder": source,
        "decoder": torch.ones(3, 3, dtype=torch.bool).tril(),
        "cross": (torch.arange(7) < 5).expand(1, 1, 3, 7),
    }


@pytest.fixture
def only_latin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has DejaVu Sans, and a font that claims every character and draws a frame for each."""
    entries = [entry for entry in fontManager.ttflist if entry.name.startswith(("DejaVu Sans", "Last Resort"))]
    with monkeypatch.context() as patch:
        patch.setattr(fontManager, "ttflist", entries)
        patch.setattr(fonts, "findSystemFonts", list)
        yield
    fontManager.addfont(BUNDLED / "DejaVuSans.ttf")  # matplotlib forgets what it found while the list was short


class TestMasks:
    def test_rows_are_queries(self) -> None:
        figure = view.mask(torch.ones(3, 3, dtype=torch.bool).tril())
        axes = figure.axes[0]
        assert colour_at(figure, axes, 0, 1) == as_bytes(GREY)
        assert colour_at(figure, axes, 1, 0) == as_bytes(BLUE)
        assert axes.get_ylabel() == "query (looks)"
        assert axes.get_xlabel() == "key (is looked at)"

    def test_draws_the_tensor(self) -> None:
        look = torch.rand(5, 7) < 0.5
        assert array(view.mask(look[None, None]).axes[0]).tolist() == look.tolist()

    def test_three_beside_each_other(self) -> None:
        looks = triple()
        words = {"encoder": [*SOURCE, "<pad>", "<pad>"], "decoder": TARGET[:3], "cross": TARGET[:3]}
        columns = {"encoder": words["encoder"], "decoder": TARGET[:3], "cross": words["encoder"]}
        figure = view.masks(looks, rows=words, columns=columns, title="one pair")
        assert len(figure.axes) == 3
        assert figure.get_suptitle() == "one pair"
        for axes, name in zip(figure.axes, looks, strict=True):
            assert axes.get_title().startswith(name)
            assert array(axes).tolist() == looks[name].reshape(looks[name].shape[-2:]).tolist()
            assert names(axes) == (words[name], columns[name])

    def test_cells_have_one_size_in_all_panels(self) -> None:
        figure = view.masks(triple())
        figure.draw_without_rendering()
        sizes = [axes.get_window_extent().width / array(axes).shape[1] for axes in figure.axes]
        assert max(sizes) == pytest.approx(min(sizes), rel=0.02)

    def test_numbers_where_no_labels_are_given(self) -> None:
        assert names(view.mask(torch.ones(2, 3, dtype=torch.bool)).axes[0]) == (["0", "1"], ["0", "1", "2"])

    def test_blind_rows_are_marked_and_said(self) -> None:
        look = torch.ones(5, 7, dtype=torch.bool)
        look[[1, 3]] = False
        figure = view.mask(look)
        marks = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
        assert [round(patch.get_window_extent().height) > 0 for patch in marks] == [True, True]
        assert sorted(patch.get_y() for patch in marks) == [0.5, 2.5]  # type: ignore[attr-defined]
        assert "blind: may look at nothing" in legend(figure)

    def test_a_blind_row_of_one_panel_is_said_for_all(self) -> None:
        figure = view.masks({"first": torch.zeros(2, 3, dtype=torch.bool), "last": torch.ones(2, 3, dtype=torch.bool)})
        assert "blind: may look at nothing" in legend(figure)

    def test_nothing_is_said_of_blind_rows_where_there_are_none(self) -> None:
        figure = view.mask(torch.eye(5, dtype=torch.bool))
        assert legend(figure) == ["may look", "may not look"]
        assert not figure.axes[0].patches

    def test_a_long_mask_names_some_and_stays_small(self) -> None:
        figure = view.mask(torch.ones(211, 211, dtype=torch.bool))
        assert names(figure.axes[0])[0][:3] == ["0", "3", "6"]
        assert max(figure.get_size_inches()) < 13

    def test_a_float_mask_is_refused(self) -> None:
        with pytest.raises(MaskError, match=r"mask is a tensor of torch\.float32, but a mask is bool"):
            view.mask(torch.ones(2, 3))

    def test_several_masks_in_one_are_refused(self) -> None:
        with pytest.raises(ShapeError, match=r"cross has shape \(2, 1, 5, 7\), but one mask is \(Q, K\)"):
            view.masks({"cross": torch.ones(2, 1, 5, 7, dtype=torch.bool)})

    def test_an_empty_mask_is_refused(self) -> None:
        with pytest.raises(ShapeError, match=r"\(0, 5\)"):
            view.mask(torch.ones(0, 5, dtype=torch.bool))

    def test_labels_that_do_not_match_are_refused(self) -> None:
        with pytest.raises(ShapeError, match=r"2 labels were given for 7 keys of mask, whose shape is \(5, 7\)"):
            view.mask(torch.ones(5, 7, dtype=torch.bool), columns=["a", "b"])

    @pytest.mark.parametrize("slip", ["rows", "columns"])
    def test_a_slip_in_a_name_is_refused(self, slip: str) -> None:
        labels: Mapping[str, Any] = {slip: {"encodr": ["a"] * 7}}
        with pytest.raises(ConfigError, match="'encodr', but the masks are encoder, decoder, cross"):
            view.masks(triple(), **labels)

    def test_no_masks_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="no masks were given"):
            view.masks({})


class TestAttention:
    def test_one_head(self) -> None:
        weights = torch.rand(7, 5).softmax(-1)
        figure = view.attention(weights, SOURCE, TARGET)
        assert len(figure.axes) == 2  # the weights and their scale
        assert np.allclose(array(figure.axes[0]), weights, rtol=0, atol=0)
        assert names(figure.axes[0]) == (TARGET, SOURCE)

    def test_heads_stand_beside_their_mean(self) -> None:
        weights = torch.rand(3, 7, 5).softmax(-1)
        figure = view.attention(weights, SOURCE, TARGET, title="Der Preis ist fünf $.")
        mean, *heads, _ = figure.axes
        assert np.allclose(array(mean), weights.double().mean(0))
        assert [axes.get_title() for axes in heads] == ["head 0", "head 1", "head 2"]
        for axes, head in zip(heads, weights, strict=True):
            assert np.array_equal(array(axes), head.numpy())

    def test_scale_is_from_zero_to_one(self) -> None:
        figure = view.attention(torch.full((2, 7, 5), 0.2), SOURCE, TARGET)
        assert {axes.images[0].get_clim() for axes in figure.axes[:3]} == {(0.0, 1.0)}

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_any_precision_and_with_gradients(self, dtype: torch.dtype) -> None:
        weights = torch.rand(7, 5).to(dtype).requires_grad_()
        assert np.array_equal(array(view.attention(weights, SOURCE, TARGET).axes[0]), weights.detach().double())

    def test_tokens_of_a_long_sentence_do_not_overlap(self) -> None:
        figure = view.attention(torch.rand(41, 37), [f"▁quelle{i}" for i in range(37)], ["▁Ziel"] * 41)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        boxes = [tick.get_window_extent() for tick in axes.get_xticklabels()]
        assert len(boxes) == 37
        assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
        boxes = [tick.get_window_extent() for tick in axes.get_yticklabels()]
        assert len(boxes) == 41
        assert all(upper.y0 >= lower.y1 for upper, lower in itertools.pairwise(boxes))
        assert min(box.x0 for box in boxes) >= 0

    @pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 3, 7, 5), (0, 7, 5)])
    def test_other_shapes_are_refused_with_both(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError) as caught:
            view.attention(torch.zeros(shape), SOURCE, TARGET)
        assert str(shape) in str(caught.value)
        assert "7 target and 5 source tokens need (7, 5) or ('heads', 7, 5)" in str(caught.value)


class TestPositions:
    def test_draws_the_table_about_zero(self) -> None:
        table = torch.randn(11, 5)
        figure = view.position_table(table, title="positions")
        assert len(figure.axes) == 2
        assert np.array_equal(array(figure.axes[0]), table.double())
        low, high = figure.axes[0].images[0].get_clim()
        assert high == -low == pytest.approx(float(table.abs().max()))
        assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("dimension", "position")

    def test_draws_the_similarity(self) -> None:
        table = torch.randn(11, 5)
        figure = view.position_table(table, similarity=table @ table.T)
        assert len(figure.axes) == 4
        assert np.array_equal(array(figure.axes[1]), (table @ table.T).double())

    def test_a_table_of_zeros_is_drawn(self) -> None:
        figure = view.position_table(torch.zeros(3, 5))
        figure.draw_without_rendering()
        assert figure.axes[0].images[0].get_clim() == (-1.0, 1.0)

    def test_other_shapes_are_refused(self) -> None:
        with pytest.raises(ShapeError, match=r"\(1, 11, 5\), but it is \(length, d_model\)"):
            view.position_table(torch.zeros(1, 11, 5))
        with pytest.raises(ShapeError, match=r"\(5, 5\), but the table's shape \(11, 5\) needs \(11, 11\)"):
            view.position_table(torch.zeros(11, 5), similarity=torch.zeros(5, 5))


class TestCurves:
    RECORDS: tuple[dict[str, Any], ...] = (
        {"kind": "step", "step": 50, "loss": 6.0, "learning_rate": 1e-3, "tokens_per_second": 1e4},
        {"kind": "step", "step": 100, "loss": math.nan},
        {"kind": "step", "step": 150, "loss": 4.0},
        {"kind": "validation", "step": 100, "loss": 5.0, "chrf": 20.0, "bleu": None},
        {"kind": "validation", "step": 200, "loss": 4.5, "chrf": 30.0, "bleu": 10.0},
        {"kind": "start", "version": 1},
    )

    def points(self, axes: Axes) -> dict[str, Any]:
        return {str(line.get_label()).split(" ")[0]: np.asarray(line.get_xydata()).tolist() for line in axes.lines}

    def test_draws_what_was_recorded(self) -> None:
        loss, scores = view.curves(self.RECORDS, title="a run").axes
        assert self.points(loss) == {"training": [[50, 6], [150, 4]], "validation": [[100, 5], [200, 4.5]]}
        assert self.points(scores) == {"chrF": [[100, 20], [200, 30]], "BLEU": [[200, 10]]}
        assert scores.get_ylim()[0] == 0

    def test_the_later_of_two_records_counts_and_steps_are_in_order(self) -> None:
        again = [self.RECORDS[2], *self.RECORDS, {"kind": "step", "step": 50, "loss": 3.0}]
        assert self.points(view.curves(again).axes[0])["training"] == [[50, 3], [150, 4]]

    def test_an_empty_run_says_so(self) -> None:
        figure = view.curves([])
        figure.draw_without_rendering()
        assert [axes.texts[0].get_text() for axes in figure.axes] == ["nothing recorded"] * 2


class TestSave:
    def test_png(self, tmp_path: Path) -> None:
        first = view.save(view.mask(torch.eye(3, dtype=torch.bool)), tmp_path / "a.png").read_bytes()
        assert first.startswith(b"\x89PNG\r\n\x1a\n")
        assert first == view.save(view.mask(torch.eye(3, dtype=torch.bool)), str(tmp_path / "b.PNG")).read_bytes()

    def test_svg(self, tmp_path: Path) -> None:
        first = view.save(view.attention(torch.rand(7, 5), SOURCE, TARGET), tmp_path / "a.svg").read_bytes()
        torch.manual_seed(1)
        assert b"<svg" in first
        assert first == view.save(view.attention(torch.rand(7, 5), SOURCE, TARGET), tmp_path / "b.svg").read_bytes()

    def test_nothing_is_left_of_a_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.png").write_text("the old one")
        figure = view.curves([])

        def fail(path: Path, **_: object) -> None:
            path.write_text("half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(figure, "savefig", fail)
        with pytest.raises(ConfigError, match=r"a\.png cannot be written \(No space left on device\)"):
            view.save(figure, tmp_path / "a.png")
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
        assert (tmp_path / "a.png").read_text() == "the old one"

    def test_another_ending_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"a\.jpg, but it is PNG or SVG"):
            view.save(view.curves([]), tmp_path / "a.jpg")

    def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"cannot be written \(No such file or directory\); check the folder"):
            view.save(view.curves([]), tmp_path / "nowhere" / "a.png")


class TestScripts:
    def draw(self, token: str) -> tuple[Figure, list[warnings.WarningMessage]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            figure = view.mask(torch.ones(2, 1, dtype=torch.bool), rows=[token, "ß"], columns=[token], title=token)
            figure.draw_without_rendering()
        return figure, caught

    @pytest.mark.usefixtures("only_latin")
    def test_a_script_without_a_font_is_named_once_with_the_remedy(self) -> None:
        figure, [warning] = self.draw("▁中𒀀文")
        assert warning.category is view.MissingGlyphs
        assert str(warning.message) == (
            "no installed font can show CJK (U+4E2D), CUNEIFORM (U+12000), so these are drawn as code points or boxes; "
            "install a font that covers them, such as Noto (on Debian and Ubuntu: apt install fonts-noto-cjk "
            "fonts-noto-core)"
        )
        assert names(figure.axes[0]) == (["▁□□□", "ß"], ["▁□□□"])

    @pytest.mark.usefixtures("only_latin")
    @pytest.mark.parametrize(
        ("token", "shown"),
        [("中", "U+4E2D"), ("▁中a", "▁U+4E2D a"), ("中文", "U+4E2D U+6587"), ("a\u20dd", "aU+20DD"), ("हिन्दी", "□□□")],
    )
    def test_a_missing_character_is_spelled_out(self, token: str, shown: str) -> None:
        figure, [_] = self.draw(token)
        assert names(figure.axes[0])[1] == [shown]

    def test_a_private_character_has_no_font(self) -> None:
        figure, [warning] = self.draw("\uf6c5")  # DejaVu Sans has a private picture for it
        assert "private use (U+F6C5)" in str(warning.message)
        assert names(figure.axes[0])[1] == ["U+F6C5"]

    @pytest.mark.parametrize("token", ["▁Größe", "Ελλάδα", "Привет", "▁$x$ _2^3 \\alpha", "…«»„“"])
    def test_nothing_is_said_of_what_can_be_drawn(self, token: str) -> None:
        figure, caught = self.draw(token)
        assert not caught
        assert names(figure.axes[0])[1] == [token]

    def test_dollars_do_not_start_mathematics(self) -> None:
        figure = view.mask(torch.ones(1, 1, dtype=torch.bool), rows=["$\\frac$"], columns=["$x$"], title="$\\oops$")
        figure.draw_without_rendering()  # as mathematics, this fails to parse
        assert names(figure.axes[0]) == (["$\\frac$"], ["$x$"])

    def test_another_installed_font_is_found(self) -> None:
        figure, caught = self.draw(ONLY_IN_STIX)
        assert not caught
        family = figure.axes[0].get_xticklabels()[0].get_fontfamily()
        assert family[0] == "DejaVu Sans"
        assert len(family) == 2
        assert names(figure.axes[0])[1] == [ONLY_IN_STIX]

    @pytest.mark.usefixtures("only_latin")
    def test_a_font_installed_a_moment_ago_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert letter_quietly(ONLY_IN_STIX).missing == {ONLY_IN_STIX}
        (tmp_path / "broken.ttf").write_bytes(b"no font")
        shutil.copy(BUNDLED / "STIXGeneral.ttf", tmp_path / "new.ttf")
        monkeypatch.setattr(fonts, "findSystemFonts", lambda: [str(path) for path in tmp_path.iterdir()])
        assert letter_quietly(ONLY_IN_STIX) == Lettering(("DejaVu Sans", "STIXGeneral"), frozenset())

    @pytest.mark.parametrize(
        ("token", "shown"),
        [
            ("a\nb", "aU+000A b"),
            ("\x00", "U+0000"),
            ("x\u202ey", "xU+202E y"),
            ("\ud800", "U+D800"),
            ("\u0301", "◌\u0301"),
            (" \u0301", "␣◌\u0301"),
            ("e" + "\u0301" * 50, "e" + "\u0301" * 4),
            ("  x ", "␣␣x␣"),
            (" ", "␣"),
            ("a b", "a b"),
            ("", ""),
            ("\u200d", "U+200D"),
            ("ن\u200cو", "ن\u200cو"),
            ("W" * 21, "W" * 19 + "…"),
            ("W" * 20, "W" * 20),
        ],
    )
    def test_what_is_no_picture_is_spelled_out(self, token: str, shown: str) -> None:
        assert letter([token]).label(token) == shown

    @settings(max_examples=40)
    @given(st.text(st.characters(), max_size=30))
    def test_any_text_is_short_and_shows_only_pictures(self, text: str) -> None:
        shown = letter_quietly(text).label(text)
        assert "\n" not in shown
        assert len(shown) <= 20 * 9
        kinds = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
        assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def letter_quietly(text: str) -> Lettering:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", view.MissingGlyphs)
        return letter([text])


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_mask_is_drawn_with_its_size() -> None:
    figure = view.mask(Causal() & Window(1, 0), queries=5, keys=7)
    assert figure.get_suptitle() == "Causal() & Window(before=1, after=0)"
    image = figure.axes[0].get_images()[0].get_array()
    assert image is not None
    assert torch.equal(torch.as_tensor(image.data), (Causal() & Window(1, 0)).dense(5, 7)[0, 0])
    with pytest.raises(MaskError, match=r"^Causal\(\) was to be drawn without its size; give queries and keys$"):
        view.mask(Causal(), queries=5)
