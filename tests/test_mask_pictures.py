"""Pictures of masks in the terminal: labels in any script, samples and heads by name, large masks by blocks."""

from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mask_expressions import by_head, cells
from pellucid.errors import MaskError
from pellucid.masks import (
    Causal,
    Chunked,
    Dense,
    Dilated,
    Full,
    Global,
    Heads,
    Mask,
    Padding,
    Predicate,
    Prefix,
    Segments,
    Window,
)

LEGEND = "   rows: queries, columns: keys, ■ may look, · may not"


def below_title(drawn: str) -> list[str]:
    """The lines of a drawing below its title."""
    return drawn.split("\n")[1:]


# --- each kind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (Prefix(2), ["0 ■ ■ · · ·", "1 ■ ■ · · ·", "2 ■ ■ · · ·"]),
        (Causal() | Prefix(2), ["0 ■ ■ · · ·", "1 ■ ■ · · ·", "2 ■ ■ ■ · ·"]),
        (Segments([[0, 0, 1, 1, 0]]), ["0 ■ ■ · · ■", "1 ■ ■ · · ■", "2 · · ■ ■ ·"]),
        (Chunked(2), ["0 ■ ■ · · ·", "1 ■ ■ · · ·", "2 · · ■ ■ ·"]),
        (Dilated(2), ["0 ■ · ■ · ■", "1 · ■ · ■ ·", "2 ■ · ■ · ■"]),
        (Global(1), ["0 · ■ · · ·", "1 ■ ■ ■ ■ ■", "2 · ■ · · ·"]),
        (Global((0, 4)) | Window(0, 0), ["0 ■ ■ ■ ■ ■", "1 ■ ■ · · ■", "2 ■ · ■ · ■"]),
        (~Causal(), ["0 · ■ ■ ■ ■", "1 · · ■ ■ ■", "2 · · · ■ ■"]),
        (Causal() - Chunked(2), ["0 · · · · ·  sees nothing", "1 · · · · ·  sees nothing", "2 ■ ■ · · ·"]),
        (Causal() ^ Chunked(2), ["0 · ■ · · ·", "1 · · · · ·  sees nothing", "2 ■ ■ · ■ ·"]),
        (Dense(torch.eye(3, 5).bool()), ["0 ■ · · · ·", "1 · ■ · · ·", "2 · · ■ · ·"]),
        (Predicate(lambda b, h, q, k: k > q + 1), ["0 · · ■ ■ ■", "1 · · · ■ ■", "2 · · · · ■"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_each_kind_is_drawn(mask: Mask, rows: list[str]) -> None:
    assert mask.draw(queries=3, keys=5) == "\n".join([f"{mask!r}{LEGEND}", "  0 1 2 3 4", *rows])


def test_heads_are_drawn_by_name() -> None:
    assert below_title(Heads((Causal(), Prefix(1), ~Full())).draw(queries=2, keys=3)) == [
        "head 0",
        "  0 1 2",
        "0 ■ · ·",
        "1 ■ ■ ·",
        "head 1",
        "  0 1 2",
        "0 ■ · ·",
        "1 ■ · ·",
        "head 2",
        "  0 1 2",
        "0 · · ·  sees nothing",
        "1 · · ·  sees nothing",
    ]


def test_samples_and_heads_are_drawn_by_name() -> None:
    drawn = below_title((Heads((Causal(), Full())) & Padding((3, 1))).draw(queries=1, keys=3, first_query=1))
    assert drawn == [
        "sample 0, head 0",
        "  0 1 2",
        "1 ■ ■ ·",
        "sample 0, head 1",
        "  0 1 2",
        "1 ■ ■ ■",
        "sample 1, head 0",
        "  0 1 2",
        "1 ■ · ·",
        "sample 1, head 1",
        "  0 1 2",
        "1 ■ · ·",
    ]


def test_one_sample_and_one_head_need_no_name() -> None:
    assert below_title(Heads((Padding((2,)),)).draw(queries=1, keys=3)) == ["  0 1 2", "0 ■ ■ ·"]


def test_what_has_no_cells_is_drawn_without() -> None:
    assert below_title(Causal().draw(queries=0, keys=3)) == ["  0 1 2"]
    assert below_title(Causal().draw(queries=2, keys=0)) == ["", "0  sees nothing", "1  sees nothing"]
    assert below_title(Causal().draw(queries=0, keys=0)) == [""]


# --- labels ---------------------------------------------------------------------------------------------------


def test_tokens_stand_on_both_axes() -> None:
    drawn = Causal().draw(2, 3, query_tokens=["▁the", "cat"], key_tokens=["▁a", "b", "▁dog"])
    assert below_title(drawn) == [
        "     ▁a b ▁dog",
        "▁the ■  · ·",
        "cat  ■  ■ ·",
    ]


def test_one_axis_may_keep_its_positions() -> None:
    assert below_title(Causal().draw(2, 3, first_query=9, key_tokens=["a", "bc", "d"])) == [
        "   a bc d",
        "9  ■ ■  ■",
        "10 ■ ■  ■",
    ]
    assert below_title(Causal().draw(2, 3, query_tokens=["one", "two"])) == [
        "    0 1 2",
        "one ■ · ·",
        "two ■ ■ ·",
    ]


def test_blind_rows_are_marked_beside_their_tokens() -> None:
    drawn = (Causal() - Prefix(1)).draw(2, 3, query_tokens=["one", "2"], key_tokens=["a", "bcd", "ef"])
    assert below_title(drawn) == [
        "    a bcd ef",
        "one · ·   ·   sees nothing",
        "2   · ■   ·",
    ]


def test_wide_characters_take_two_columns() -> None:
    drawn = Causal().draw(3, 4, query_tokens=["猫", "a", "日本語"], key_tokens=["我", "🙂🙂", "b", "한국"])
    assert below_title(drawn) == [
        "       我 🙂🙂 b 한국",
        "猫     ■  ·    · ·",
        "a      ■  ■    · ·",
        "日本語 ■  ■    ■ ·",
    ]


def test_control_characters_do_not_tear_the_picture() -> None:
    drawn = Causal().draw(2, 3, query_tokens=["\x1b[31m", "\n"], key_tokens=["\r", "a\tb", "\u202ec"])
    assert below_title(drawn) == [
        "      � a�b �c",
        "�[31m ■ ·   ·",
        "�     ■ ■   ·",
    ]


def test_accents_written_apart_take_no_column() -> None:
    drawn = Causal().draw(2, 2, query_tokens=["e\u0301a", "abc"], key_tokens=["o\u0308", "b"])
    assert below_title(drawn) == ["    o\u0308 b", "e\u0301a  ■ ·", "abc ■ ■"]


def test_an_empty_token_keeps_its_column() -> None:
    drawn = Causal().draw(2, 3, query_tokens=["", "b"], key_tokens=["a", "", "c"])
    assert below_title(drawn) == [
        "  a   c",
        "  ■ · ·",
        "b ■ ■ ·",
    ]


def test_tokens_serve_every_sample() -> None:
    drawn = below_title(Padding((2, 1)).draw(1, 2, query_tokens=["q"], key_tokens=["猫", "b"]))
    assert drawn == ["sample 0", "  猫 b", "q ■  ■", "sample 1", "  猫 b", "q ■  ·"]


LABELS = st.sampled_from(
    ["a", "das", "", "猫", "日本", "🙂", "한a", "ｆ", "e\u0301", "\n", "x\ty", "\x1b[0m", "\u200b", "\u200d", "7", "▁"]
)


def at(line: str, column: int) -> str:
    """What stands from that column of the terminal on."""
    start = max(place for place in range(len(line) + 1) if cell_len(line[:place]) <= column)
    return " " * (column - cell_len(line[:start])) + line[start:]


@settings(max_examples=30)
@given(st.lists(LABELS, min_size=1, max_size=5), st.lists(LABELS, min_size=1, max_size=7), st.integers(0, 99))
@example(["猫"], ["🙂", "", "a"], 0)
@example(["日本"], ["", "", ""], 0)
def test_every_mark_stands_below_its_label(rows: list[str], columns: list[str], seed: int) -> None:
    look = cells(seed, len(rows), len(columns))
    drawn = below_title(Dense(look).draw(len(rows), len(columns), query_tokens=rows, key_tokens=columns))
    assert len(drawn) == 1 + len(rows)
    assert all(line.isprintable() for line in drawn)
    if all(label.isascii() and label.isdigit() for label in rows + columns):
        return  # numbers stand to the right
    place = max(map(cell_len, map(shown, rows))) + 1
    for number, label in enumerate(columns):
        assert at(drawn[0] + " " * 99, place).startswith(shown(label) + " ")  # drawn without spaces at its end
        marks = [at(line, place)[0] for line in drawn[1:]]
        assert marks == ["■" if seen else "·" for seen in look[:, number].tolist()]
        place += max(1, cell_len(shown(label))) + 1
    for line, label in zip(drawn[1:], rows, strict=True):
        assert line.startswith(shown(label) + " ")


def shown(label: str) -> str:
    """A label without what moves the cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in label)


@pytest.mark.parametrize("size", [(3, 5), (70, 5), (3, 70)], ids=str)
def test_there_are_as_many_labels_as_positions(size: tuple[int, int]) -> None:
    queries, keys = size
    for count in (queries - 1, queries + 1, 0):
        with pytest.raises(MaskError, match=f"^{count} query_tokens were given for {queries} positions; give a list"):
            Causal().draw(queries, keys, query_tokens=["a"] * count)
    for count in (keys - 1, keys + 1, 0):
        with pytest.raises(MaskError, match=f"^{count} key_tokens were given for {keys} positions; give a list"):
            Causal().draw(queries, keys, key_tokens=["a"] * count)
    with pytest.raises(MaskError, match=f"^{keys} key_tokens were given for {keys} positions; give a list with one"):
        Causal().draw(queries, keys, key_tokens="a" * keys)


# --- blocks ---------------------------------------------------------------------------------------------------


def test_the_largest_mask_that_is_drawn_cell_by_cell() -> None:
    drawn = below_title(Causal().draw(64, 64))
    assert len(drawn) == 65
    assert drawn[64] == "63" + "  ■" * 64
    assert drawn[0] == "  " + "".join(f" {key:>2}" for key in range(64))


def test_a_large_mask_is_drawn_by_blocks() -> None:
    mask = Causal() & Padding((70, 31))
    drawn = mask.draw(queries=130, keys=70).split("\n")
    assert drawn[0] == (
        "Causal() & Padding((70, 31))   rows: 130 queries, 3 to a line, columns: 70 keys, 2 to a mark, "
        "█ may look, ▒ may look at some, · may not"
    )
    assert len(drawn) == 1 + 2 * (1 + 44)
    assert drawn[1] == "sample 0"
    assert drawn[2:8] == [
        "  0 ▒▒·································",
        "  3 ██▒································",
        "  6 ███▒▒······························",
        "  9 █████▒·····························",
        " 12 ██████▒▒···························",
        " 15 ████████▒··························",
    ]
    assert drawn[24:27] == [
        " 66 █████████████████████████████████▒▒",
        " 69 ███████████████████████████████████",
        " 72 ███████████████████████████████████",
    ]
    assert drawn[45:49] == [
        "129 ███████████████████████████████████",
        "sample 1",
        "  0 ▒▒·································",
        "  3 ██▒································",
    ]
    assert drawn[-1] == "129 ███████████████▒···················"


def test_a_large_mask_says_that_its_tokens_are_left_out() -> None:
    drawn = Full().draw(queries=1, keys=66, key_tokens=["a"] * 66)
    assert drawn.split("\n")[0].endswith("· may not (tokens are left out)")
    assert below_title(drawn) == ["0 " + "█" * 33]


def test_blocks_that_see_nothing_are_marked() -> None:
    assert below_title((Causal() - Prefix(3)).draw(queries=4, keys=130)) == [
        "0 ············································  sees nothing",
        "1 ············································  sees nothing",
        "2 ············································  sees nothing",
        "3 ·▒··········································",
    ]


def test_the_last_block_is_full_where_it_is_small() -> None:
    assert below_title(Full().draw(queries=1, keys=65)) == ["0 " + "█" * 33]
    assert below_title(Full().draw(queries=65, keys=1))[-1] == "64 █"


def test_heads_of_a_large_mask_are_named() -> None:
    drawn = below_title(Heads((Full(), ~Full())).draw(queries=2, keys=128, first_query=99))
    assert drawn == [
        "head 0",
        " 99 " + "█" * 64,
        "100 " + "█" * 64,
        "head 1",
        " 99 " + "·" * 64 + "  sees nothing",
        "100 " + "·" * 64 + "  sees nothing",
    ]


LARGE: list[Mask] = [
    Causal(),
    Window(30, 20) | Global((0, 50, 101)),
    Chunked(20) & ~Dilated(3),
    Heads((Causal(), Padding((60, 0)), Predicate(by_head, heads=None))),
    Segments.from_lengths(((40, 100), (7, 66, 67))),
    Dense(cells(1, 140, 140) & Causal().dense(140, 140)[0, 0] & ~Prefix(30).dense(140, 140)[0, 0]),
]


@pytest.mark.parametrize("mask", LARGE, ids=lambda mask: repr(mask)[:30])
@pytest.mark.parametrize("shape", [(130, 70, 0), (70, 130, 0), (65, 3, 5), (3, 129, 70)], ids=str)
def test_every_block_says_what_its_cells_do(mask: Mask, shape: tuple[int, int, int]) -> None:
    queries, keys, first = shape
    tall, wide = -(-queries // 64), -(-keys // 64)
    dense, wanted = mask.dense(*shape), []
    for b, h in product(*map(range, dense.shape[:2])):
        names = [f"sample {b}"] * (len(dense) > 1) + [f"head {h}"] * (dense.shape[1] > 1)
        wanted += [", ".join(names)] * bool(names)
        for row in range(0, queries, tall):
            marks = ""
            for key in range(0, keys, wide):
                block = dense[b, h, row : row + tall, key : key + wide]
                marks += "█" if block.all() else "▒" if block.any() else "·"
            end = "" if set(marks) - {"·"} else "  sees nothing"
            wanted.append(f"{first + row:>{len(str(first + queries - 1))}} {marks}{end}")
    assert below_title(mask.draw(*shape)) == wanted


def test_a_large_mask_without_cells_is_drawn_without() -> None:
    assert not set("■█▒·") & set("".join(below_title(Causal().draw(queries=0, keys=70))))
    assert below_title(Causal().draw(queries=66, keys=0)) == [f"{row:>2}   sees nothing" for row in range(0, 66, 2)]
