"""Pictures of position schemes show what the schemes' own doors tell, by position and by distance, to where they know."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from pellucid import view
from pellucid.errors import ConfigError, PositionError, ShapeError
from pellucid.model.bias import Relative
from pellucid.model.positions import (
    ALiBi,
    First,
    Learned,
    NoPositions,
    Positions,
    Rotary,
    Sinusoidal,
    T5Relative,
)

L, D, HEAD_DIM, H = 13, 11, 10, 3  # a head is turned in pairs: its width is even, twice a prime
KNOWN = 7


def panels(figure: Figure) -> list[tuple[Axes, Axes]]:
    """The table and the curves of each column, without the colour bars."""
    drawn = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    return list(zip(drawn[0::2], drawn[1::2], strict=True))


def shown(axes: Axes) -> Any:
    """The numbers of a table; NaN where nothing is drawn."""
    [image] = axes.images
    array = image.get_array()
    assert array is not None
    return np.ma.filled(np.ma.asarray(array), np.nan)


def lines(axes: Axes) -> list[Any]:
    """The points of each line that is no mark."""
    return [np.asarray(line.get_xydata()) for line in axes.lines if line.get_linestyle() == "-"]


def marks(axes: Axes) -> list[float]:
    """Where the dashed lines stand: across, or down where they lie."""
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    ends = [np.asarray(line.get_xydata()) for line in dashed]
    return [float(one[0, 0] if one[0, 0] == one[1, 0] else one[0, 1]) for one in ends]


def hatched(axes: Axes) -> list[tuple[float, float, float, float]]:
    """The edges of each hatched part: left, right, one end, the other."""
    parts = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    return [(p.get_x(), p.get_x() + p.get_width(), p.get_y(), p.get_y() + p.get_height()) for p in parts]


def words(axes: Axes) -> list[str]:
    """A panel's name, what stands below it, and its two axes."""
    return [axes.get_title(), *(text.get_text() for text in axes.texts), axes.get_xlabel(), axes.get_ylabel()]


def explained(figure: Figure) -> list[str]:
    """What the legend below the whole picture says."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def pair_by_pair(vectors: list[list[float]]) -> list[tuple[float, float, float]]:
    """The mean, the least and the most cosine of all pairs of vectors by their distance, in plain Python."""

    def cosine(one: list[float], other: list[float]) -> float:
        product = math.fsum(x * y for x, y in zip(one, other, strict=True))
        return product / math.hypot(*one) / math.hypot(*other)

    found = []
    for distance in range(len(vectors)):
        apart = [cosine(one, other) for one, other in zip(vectors, vectors[distance:], strict=False)]
        found.append((math.fsum(apart) / len(apart), min(apart), max(apart)))
    return found


# --- tables and curves ----------------------------------------------------------------------------------------


def test_the_sinusoid_s_table_is_drawn() -> None:
    scheme = Sinusoidal(D)
    [(table, curve)] = panels(view.positions(scheme, L))
    assert np.array_equal(shown(table), scheme.table(L, dtype=torch.float64))
    assert words(table) == ["Sinusoidal", "added to embeddings", "dimension", "position"]
    assert words(curve)[1:] == ["distance (positions)", "cosine of two positions"]
    expected = [mean for mean, _, _ in pair_by_pair(scheme.table(L, dtype=torch.float64).tolist())]
    [points] = lines(curve)
    assert points[:, 0].tolist() == list(range(L))
    assert np.allclose(points[:, 1], expected, rtol=0, atol=1e-12)


def test_a_learned_table_is_drawn_with_its_spread() -> None:
    scheme = Learned(D, max_positions=L)
    [(table, curve)] = panels(view.positions(scheme, L))
    assert np.array_equal(shown(table), scheme.weight.detach().double())
    [points] = lines(curve)
    [band] = curve.collections
    edges = {tuple(point) for point in np.asarray(band.get_paths()[0].vertices).round(9).tolist()}
    for distance, (mean, least, most) in enumerate(pair_by_pair(scheme.weight.double().tolist())):
        assert points[distance, 1] == pytest.approx(mean, abs=1e-12)
        assert {(distance, round(least, 9)), (distance, round(most, 9))} <= edges
    assert [text.get_text() for text in curve.get_legend().get_texts()] == ["mean", "least to most"]  # type: ignore[union-attr]


def test_the_cosine_of_a_sinusoid_has_no_spread() -> None:
    [(_, curve)] = panels(view.positions(Sinusoidal(HEAD_DIM), L))
    assert not curve.collections
    assert curve.get_legend() is None


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
def test_the_turn_of_each_dimension_is_drawn(pairs: Any) -> None:
    [(table, curve)] = panels(view.positions({"turns": Rotary(HEAD_DIM, pairs, base=500.0)}, L))
    assert words(table) == ["turns", "turns queries and keys", "dimension", "position"]
    assert words(curve)[1:] == ["distance (positions)", "share of the score at 0"]
    speeds = [500.0 ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2)]
    [points] = lines(curve)
    for place in range(L):
        cosines = [math.cos(place * speed) for speed in speeds]
        row = [cosine for cosine in cosines for _ in "ab"] if pairs == "interleaved" else 2 * cosines
        assert shown(table)[place] == pytest.approx(row, abs=1e-12)
        assert points[place, 1] == pytest.approx(sum(cosines) / len(cosines), abs=1e-12)


def test_a_rotation_that_lengthens_is_drawn_as_it_is() -> None:
    scheme = Rotary(HEAD_DIM, scaling="yarn", factor=3.0, original_length=5)
    [(table, curve)] = panels(view.positions(scheme, L))
    assert shown(table)[0] == pytest.approx([scheme.magnitude] * HEAD_DIM)
    assert lines(curve)[0][0].tolist() == pytest.approx([0, 1])


def test_alibi_s_lines_are_drawn_for_each_head() -> None:
    scheme = ALiBi(H)
    [(table, curve)] = panels(view.positions([scheme], L))
    assert words(table) == ["ALiBi", "added to scores", "key − query (positions)", "head"]
    assert words(curve)[1:] == ["key − query (positions)", "added to the score"]
    offsets = list(range(1 - L, L))
    expected = [[-slope * abs(offset) for offset in offsets] for slope in (0.0625, 0.00390625, 0.25)]
    assert shown(table).tolist() == expected
    assert [points.T.tolist() for points in lines(curve)] == [[offsets, row] for row in expected]
    assert tuple(table.images[0].get_extent()) == (0.5 - L, L - 0.5, H - 0.5, -0.5)
    assert [text.get_text() for text in curve.get_legend().get_texts()] == ["head 0", "head 1", "head 2"]  # type: ignore[union-attr]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_s_buckets_are_drawn_on_both_sides(bidirectional: bool) -> None:
    scheme = T5Relative(H, bidirectional, num_buckets=8, max_distance=11)
    [(table, curve)] = panels(view.positions(scheme, L))
    rows = scheme.buckets(torch.arange(1 - L, L))
    assert np.array_equal(shown(table), scheme.weight.detach().double()[rows].T)
    assert np.array_equal([points[:, 1] for points in lines(curve)], shown(table))


def test_a_legend_names_few_of_many_heads() -> None:
    [(_, curve)] = panels(view.positions(ALiBi(11), L))
    assert len(lines(curve)) == 11
    assert [text.get_text() for text in curve.get_legend().get_texts()] == [f"head {head}" for head in (0, 3, 6, 9)]  # type: ignore[union-attr]


def test_no_positions_are_flat() -> None:
    [(table, curve)] = panels(view.positions(NoPositions(), L, width=D))
    assert words(table)[:2] == ["NoPositions", "nothing is told"]
    assert np.array_equal(shown(table), np.zeros((L, D)))
    [points] = lines(curve)
    assert points[:, 0].tolist() == list(range(L))
    assert points[:, 1] == pytest.approx([1.0] * L)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(2, 17), st.sampled_from(["interleaved", "halves"]))
def test_a_sinusoid_fades_as_the_rotation_of_its_width_does(pairs: int, length: int, layout: Any) -> None:
    """Law: the cosine of two sinusoids is the share of its score that a rotation leaves to ones."""
    both = [Sinusoidal(2 * pairs, layout), Rotary(2 * pairs, layout)]
    vectors = [
        both[0](torch.zeros(1, length, 2 * pairs).double())[0],
        both[1].rotate(torch.ones(1, 1, length, 2 * pairs).double())[0, 0],
    ]
    told = [view.told.likeness(one) for one in vectors]
    torch.testing.assert_close(told[0], told[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(told[0][1], told[0][2], rtol=0, atol=1e-9)


# --- where the trained and the known positions end ------------------------------------------------------------


@pytest.mark.parametrize("scheme", [Sinusoidal(D), Rotary(HEAD_DIM), NoPositions()], ids=lambda one: type(one).__name__)
def test_a_line_marks_where_training_ended(scheme: Positions) -> None:
    figure = view.positions(scheme, L, trained=5)
    [(table, curve)] = panels(figure)
    assert marks(table) == marks(curve) == [4.5]
    assert explained(figure) == ["end of the 5 positions trained on"]


def test_two_lines_mark_the_offsets_that_were_trained() -> None:
    [(table, curve)] = panels(view.positions(T5Relative(H), L, trained=5))
    assert marks(table) == marks(curve) == [-4.5, 4.5]


@pytest.mark.parametrize(("trained", "drawn"), [(None, []), (L - 1, [L - 1.5]), (L, [L - 0.5]), (L + 1, [])])
def test_an_end_past_the_picture_is_not_drawn(trained: int | None, drawn: list[float]) -> None:
    figure = view.positions(Sinusoidal(D), L, trained)
    assert marks(panels(figure)[0][0]) == drawn
    assert bool(figure.legends) is bool(drawn)


def test_what_a_learned_table_does_not_know_is_hatched_and_said() -> None:
    scheme = Learned(D, max_positions=KNOWN)
    figure = view.positions(scheme, L, trained=KNOWN)
    [(table, curve)] = panels(figure)
    assert np.array_equal(shown(table)[:KNOWN], scheme.weight.detach().double())
    assert np.isnan(shown(table)[KNOWN:]).all()
    assert len(shown(table)) == L
    assert words(table)[1] == "added to embeddings, positions 0 to 6 only"
    assert hatched(table) == [(-0.5, D - 0.5, KNOWN - 0.5, L - 0.5)]
    assert [edges[:2] for edges in hatched(curve)] == [(KNOWN - 0.5, L - 0.5)]
    assert lines(curve)[0][:, 0].tolist() == list(range(KNOWN))
    assert curve.get_xlim() == (-0.5, L - 0.5)
    assert explained(figure) == ["end of the 7 positions trained on", "positions that the scheme does not know"]


def test_nothing_is_hatched_where_all_is_known() -> None:
    figure = view.positions({"a": Learned(D, max_positions=L), "b": ALiBi(H)}, L)
    assert [hatched(axes) for column in panels(figure) for axes in column] == [[]] * 4
    assert not figure.legends


# --- anybody's own schemes ------------------------------------------------------------------------------------


class Ramp(Positions):
    """Adds its position to every dimension, and drops some of it while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        return self.dropout(states + torch.arange(states.shape[1])[:, None] + 1 + first)  # type: ignore[no-any-return]


class Near(Positions):
    """Knows KNOWN positions, and tells them by two doors."""

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        return states

    def rotate(self, heads: Tensor, first: First = 0) -> Tensor:
        if heads.shape[2] > KNOWN:
            raise PositionError("too far")
        return torch.cat([-heads[..., :1], heads[..., 1:]], dim=-1)

    def bias(self, queries: int, keys: int, first_query: int = 0) -> Relative:
        if max(queries + first_query, keys) > KNOWN:
            raise PositionError("too far")
        offsets = torch.arange(1 - queries - first_query, keys - first_query)
        return Relative(-(offsets.double() ** 2)[None], least=1 - queries - first_query)


class Wrong(Positions):
    """Hands back one state less."""

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        return states[:, 1:]


class Narrow(Positions):
    """Takes states of one width, which it does not say."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.ones(D))

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        return states + self.direction


class Stubborn(Positions):
    """Knows no position at all."""

    def forward(self, states: Tensor, first: First = 0) -> Tensor:
        if states.shape[1]:
            raise PositionError("there is no position 0")
        return states


def test_a_scheme_of_one_s_own_is_drawn_and_left_as_it_was() -> None:
    scheme = Ramp()
    [(table, _)] = panels(view.positions(scheme, L, width=D))
    assert shown(table).tolist() == [[place + 1.0] * D for place in range(L)]  # without dropout
    assert scheme.training
    assert scheme.dropout.training


def test_each_door_has_a_column_and_is_hatched_where_it_ends() -> None:
    (turned, _), (added, curve) = panels(view.positions({"near": Near()}, L, width=D))
    assert [words(axes)[0] for axes in (turned, added)] == ["near", "near"]
    assert words(turned)[1] == "turns queries and keys, positions 0 to 6 only"
    assert words(added)[1] == "added to scores, positions 0 to 6 only"
    assert np.array_equal(shown(turned)[:KNOWN], np.where(np.arange(D) == 0, -1.0, 1.0)[None].repeat(KNOWN, axis=0))
    far = [math.nan] * (L - KNOWN)
    assert shown(added)[0] == pytest.approx(
        [*far, *(-offset * offset for offset in range(1 - KNOWN, KNOWN)), *far], nan_ok=True
    )
    sides = [(0.5 - L, 0.5 - KNOWN), (KNOWN - 0.5, L - 0.5)]
    assert [edges[:2] for edges in hatched(added)] == sides
    assert [edges[:2] for edges in hatched(curve)] == sides


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scheme", [Learned(D, L), T5Relative(H)], ids=lambda one: type(one).__name__)
def test_any_precision_is_drawn_and_nothing_is_changed(scheme: Positions, dtype: torch.dtype) -> None:
    scheme = copy.deepcopy(scheme).to(dtype)
    before = copy.deepcopy(scheme.state_dict())
    [(table, _)] = panels(view.positions(scheme, L))
    weight = scheme.get_parameter("weight").detach().double()
    rows = scheme.buckets(torch.arange(1 - L, L)) if isinstance(scheme, T5Relative) else torch.arange(L)
    assert np.array_equal(shown(table), weight[rows].T if isinstance(scheme, T5Relative) else weight[rows])
    assert all(torch.equal(before[name], now) for name, now in scheme.state_dict().items())
    assert all(one.grad is None and one.requires_grad for one in scheme.parameters())


# --- the sheet ------------------------------------------------------------------------------------------------


def places(figure: Figure) -> list[tuple[int, int]]:
    """The row and the column of each table, after it was seen that its curves stand right below it."""
    found = []
    for table, curve in panels(figure):
        upper, lower = table.get_subplotspec(), curve.get_subplotspec()
        assert upper is not None
        assert lower is not None
        assert (lower.rowspan.start, lower.colspan.start) == (upper.rowspan.start + 1, upper.colspan.start)
        found.append((upper.rowspan.start // 2, upper.colspan.start))
    return found


def test_schemes_stand_beside_each_other_three_in_a_row() -> None:
    six = {
        "one": Sinusoidal(D),
        "two": Learned(D, KNOWN),
        "three": Rotary(HEAD_DIM),
        "four": ALiBi(H),
        "five": T5Relative(H),
        "six": NoPositions(),
    }
    figure = view.positions(six, L, trained=5, title="all of them")
    assert figure.get_suptitle() == "all of them"
    assert [table.get_title() for table, _ in panels(figure)] == list(six)
    assert places(figure) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_four_are_two_and_two() -> None:
    assert places(view.positions([ALiBi(H)] * 4, L)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_no_words_of_a_column_reach_into_the_next() -> None:
    figure = view.positions({"x" * 50: Learned(D, 5), "y": T5Relative(17), "z": Sinusoidal(D)}, L, trained=5)
    figure.draw_without_rendering()
    spans = []
    for table, curve in panels(figure):
        assert table.get_window_extent().x0 == curve.get_window_extent().x0
        assert table.get_window_extent().y0 > curve.get_window_extent().y1
        legend = curve.get_legend()
        texts = [table.title, *table.texts, *(legend.get_texts() if legend else ())]
        boxes = [text.get_window_extent() for text in texts]
        spans.append((min(box.x0 for box in boxes), max(box.x1 for box in boxes)))
        bar = figure.axes[figure.axes.index(curve) + 1].get_window_extent()
        assert 0 < bar.x0 - table.get_window_extent().x1 < bar.width  # no word pushes them apart
    assert spans[0][0] >= 0
    assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))


def test_schemes_of_one_class_are_numbered() -> None:
    figure = view.positions([ALiBi(H), Sinusoidal(D), ALiBi(H)], L)
    assert [table.get_title() for table, _ in panels(figure)] == ["ALiBi 1", "Sinusoidal", "ALiBi 2"]


def test_names_are_drawn_as_they_are_written() -> None:
    figure = view.positions({"$\\frac$": ALiBi(H)}, L)
    figure.draw_without_rendering()  # as mathematics, this fails to parse
    assert panels(figure)[0][0].get_title() == "$\\frac$"


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("schemes", "given"),
    [
        ("rotary", "'rotary', which is no scheme of positions"),
        ({"a": ALiBi(H), "b": None}, "None, which is no scheme of positions"),
        (None, "None, which is no scheme of positions"),
        ({}, "no schemes"),
        ([], "no schemes"),
    ],
)
def test_what_is_no_scheme_is_refused(schemes: Any, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        view.positions(schemes, L)
    assert str(caught.value) == (
        f"positions were to be drawn of {given}; give schemes, such as positions.ALiBi(num_heads=8)"
    )


@pytest.mark.parametrize(("length", "trained", "width"), [(1, None, D), (L, 0, D), (L, None, 0)])
def test_numbers_too_small_are_refused(length: int, trained: int | None, width: int) -> None:
    with pytest.raises(
        ConfigError, match=f"length={length}, trained={trained} and width={width}; give a length from 2"
    ):
        view.positions(NoPositions(), length, trained, width=width)


def test_a_width_that_a_scheme_cannot_take_is_refused_with_advice() -> None:
    with pytest.raises(ShapeError, match=r"^own could not take a tensor of shape \(1, \d+, 64\): .*or give the width$"):
        view.positions({"own": Narrow()}, L)
    [(table, _)] = panels(view.positions({"own": Narrow()}, L, width=D))
    assert shown(table).tolist() == [[1.0] * D] * L


def test_another_shape_handed_back_is_refused() -> None:
    with pytest.raises(
        ShapeError, match=r"Wrong was given a tensor of shape \(1, 7, 64\) and handed back \(1, 6, 64\)"
    ):
        view.positions(Wrong(), L)


def test_a_scheme_that_knows_no_position_says_so_itself() -> None:
    with pytest.raises(PositionError, match=r"^there is no position 0$"):
        view.positions(Stubborn(), L)
